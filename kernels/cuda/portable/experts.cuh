// What the portable experts and their single products share: pairs sorted by expert, and MXFP4 weights expanded tile by tile.
#pragma once
#include "common.cuh"
#include "gossamer/mxfp4.cuh"

namespace gossamer::portable {
namespace {

constexpr int kM = 64, kN = 64, kK = 64, kPitch = kK + 8, kThreads = 128;
constexpr uint32_t kMaxExperts = 1024;

struct Sorted {
  uint32_t* starts;  // [local experts + 1]
  uint32_t* pairs;   // [tokens * top_k]: token * top_k + choice
  bf16* inner;       // [tokens * top_k, intermediate], in the order of `pairs`
};

__host__ __device__ inline size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class Desc>
Sorted carve(const Desc& d, uint32_t tokens, void* workspace) {
  uint8_t* p = static_cast<uint8_t*>(workspace);
  Sorted s;
  s.starts = reinterpret_cast<uint32_t*>(p);
  p += aligned((d.local_experts + 1) * sizeof(uint32_t));
  s.pairs = reinterpret_cast<uint32_t*>(p);
  p += aligned(static_cast<size_t>(tokens) * d.top_k * sizeof(uint32_t));
  s.inner = reinterpret_cast<bf16*>(p);
  return s;
}

template <class Desc, class Args>
__global__ void sort_kernel(Desc d, Args a, Sorted s) {
  __shared__ uint32_t counts[kMaxExperts];
  const uint32_t pairs = a.tokens * d.top_k;
  const uint32_t* ids = at<const uint32_t>(a.expert_ids);
  for (uint32_t e = threadIdx.x; e < d.local_experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
    const uint32_t e = ids[i] - d.first_expert;
    if (e < d.local_experts) atomicAdd(&counts[e], 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t sum = 0;
    for (uint32_t e = 0; e < d.local_experts; ++e) {
      s.starts[e] = sum;
      const uint32_t n = counts[e];
      counts[e] = sum;
      sum += n;
    }
    s.starts[d.local_experts] = sum;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
    const uint32_t e = ids[i] - d.first_expert;
    if (e < d.local_experts) s.pairs[atomicAdd(&counts[e], 1u)] = i;
  }
}

__device__ __forceinline__ float decode(uint32_t code) {
  // E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6 times two, one nibble each.
  const float v = static_cast<float>((0xC8643210u >> (4 * (code & 7))) & 15) * .5f;
  return code & 8 ? -v : v;
}

// Expands rows n0.. and columns k0.. of one expert's matrix into the tile, in checkpoint row order; zeros outside.
template <bool kPacked, bool kInterleaved>
__device__ void load_weights(bf16 (*tile)[kPitch], const GossamerExpertWeights& w, size_t expert, uint32_t rows, uint32_t cols, uint32_t n0, uint32_t k0) {
  if constexpr (kPacked) {
    const uint32_t strips = rows / 16, kt = mxfp4::tiles_of(cols);
    for (int i = threadIdx.x; i < kN / 16 * 32; i += kThreads) {
      const uint32_t strip = n0 / 16 + i / 32, lane = i % 32, g = lane / 4, t = lane % 4;
      const bool valid = strip < strips;
      const uint8_t* source = at<const uint8_t>(w.data) + ((expert * strips + (valid ? strip : 0)) * kt + k0 / 64) * mxfp4::kTileBytes;
      const uint4 words = reinterpret_cast<const uint4*>(source)[lane];
      const uint32_t scales = reinterpret_cast<const uint32_t*>(source + mxfp4::kCodeBytes)[g];
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int reg = 0; reg < 4; ++reg)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int r = g + (reg & 1) * 8, c = step * 16 + (reg >> 1) * 8 + t * 2 + half;
            const int row = i / 32 * 16 + (kInterleaved ? (r < 8 ? 2 * r : 2 * (r - 8) + 1) : r);
            const int scale = static_cast<int>((scales >> (8 * ((reg & 1) * 2 + c / 32))) & 255);
            const float v = ldexpf(decode(mxfp4::pick(word, step, reg, half)), scale - 127);
            tile[row][c] = __float2bfloat16(valid && k0 + c < cols ? v : 0.f);
          }
    }
  } else {
    for (int i = threadIdx.x; i < kN * 2; i += kThreads) {
      const uint32_t row = i / 2, n = n0 + row, block = k0 / 32 + i % 2;
      bf16* target = &tile[row][i % 2 * 32];
      if (n >= rows || block * 32 >= cols) {
        for (int c = 0; c < 32; ++c) target[c] = __float2bfloat16(0.f);
        continue;
      }
      const size_t at_block = (expert * rows + n) * (cols / 32) + block;
      const uint4 codes = at<const uint4>(w.data)[at_block];
      const int scale = at<const uint8_t>(w.scales)[at_block];
      const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
      for (int c = 0; c < 32; ++c) target[c] = __float2bfloat16(ldexpf(decode((word[c / 8] >> (4 * (c % 8))) & 15), scale - 127));
    }
  }
}

// A block's kN rows of one expert's product, for all `count` pairs of that expert in the order of the sort. `load(target, valid, pair,
// column)` puts eight columns of a pair's row into shared memory, zeros where it is not valid, and may do so by `copy_async`;
// `write(pair, row, sums)` gets the sums of a row and of the one after it.
template <bool kPacked, bool kInterleaved, class Load, class Write>
__device__ __forceinline__ void expert_rows(const GossamerExpertWeights& w, uint32_t expert, uint32_t count, uint32_t rows, uint32_t cols, const Load& load,
                                            const Write& write) {
  __shared__ __align__(16) bf16 xs[kM][kPitch];
  __shared__ __align__(16) bf16 ws[kN][kPitch];
  const uint32_t n0 = blockIdx.x * kN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (uint32_t m0 = 0; m0 < count; m0 += kM) {
    float sums[8][4] = {};
    for (uint32_t k0 = 0; k0 < cols; k0 += kK) {
      for (int i = threadIdx.x; i < kM * (kK / 8); i += kThreads) {
        const uint32_t r = i / (kK / 8), c = i % (kK / 8) * 8;
        const bool valid = m0 + r < count && k0 + c < cols;
        load(&xs[r][c], valid, valid ? m0 + r : 0, valid ? k0 + c : 0);
      }
      ptx::copy_async_commit();
      load_weights<kPacked, kInterleaved>(ws, w, expert, rows, cols, n0, k0);
      ptx::copy_async_wait<0>();
      __syncthreads();
      for (int k = 0; k < kK; k += 16) {
        uint32_t fa[4];
        ptx::load_matrix_x4(fa, ptx::shared_address(&xs[warp * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          uint32_t fb[4];
          ptx::load_matrix_x4(fb, ptx::shared_address(&ws[j * 8 + lane % 8 + lane / 16 * 8][k + (lane / 8 & 1) * 8]));
          ptx::mma_bf16(sums[j], fa, fb[0], fb[1]);
          ptx::mma_bf16(sums[j + 1], fa, fb[2], fb[3]);
        }
      }
      __syncthreads();
    }
    for (int j = 0; j < 8; ++j)
      for (int h = 0; h < 2; ++h) {
        const uint32_t r = m0 + warp * 16 + lane / 4 + h * 8, n = n0 + j * 8 + lane % 4 * 2;
        if (r < count && n < rows) write(r, n, sums[j][h * 2], sums[j][h * 2 + 1]);
      }
  }
}

}  // namespace
}  // namespace gossamer::portable
