// archs: 80 90a 100a
// The experts' two products on MXFP4 weights, checkpoint layout or mxfp4-sm90-v2: weights are decoded into shared memory tile
// by tile and multiplied on bf16 tensor cores. Never more than a tile is expanded.
//
// Three launches: sort (token, choice) pairs by expert; gate_up with SwiGLU into the workspace; down into `out`. A row's sums do not
// depend on its place in the sort, so results repeat although the order inside an expert does not.
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

Sorted carve(const GossamerExpertsDesc& d, uint32_t tokens, void* workspace) {
  uint8_t* p = static_cast<uint8_t*>(workspace);
  Sorted s;
  s.starts = reinterpret_cast<uint32_t*>(p);
  p += aligned((d.local_experts + 1) * sizeof(uint32_t));
  s.pairs = reinterpret_cast<uint32_t*>(p);
  p += aligned(static_cast<size_t>(tokens) * d.top_k * sizeof(uint32_t));
  s.inner = reinterpret_cast<bf16*>(p);
  return s;
}

__global__ void sort_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Sorted s) {
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

// Rows of experts that are held elsewhere.
__global__ void zero_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a) {
  const uint32_t e = at<const uint32_t>(a.expert_ids)[blockIdx.x] - d.first_expert;
  if (e < d.local_experts) return;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.hidden;
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) out[i] = __float2bfloat16(0.f);
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

// kGateUp: rows come from `x` by pair, results go to `inner`; else rows are those of `inner`, results go to `out` by pair.
template <bool kPacked, bool kGateUp>
__global__ void __launch_bounds__(kThreads) experts_kernel(const __grid_constant__ GossamerExpertsDesc d, const __grid_constant__ GossamerExpertsArgs a,
                                                           const __grid_constant__ Sorted s) {
  __shared__ __align__(16) bf16 xs[kM][kPitch];
  __shared__ __align__(16) bf16 ws[kN][kPitch];
  const uint32_t expert = blockIdx.y, first = s.starts[expert], count = s.starts[expert + 1] - first;
  const uint32_t rows = kGateUp ? 2 * d.intermediate : d.hidden, cols = kGateUp ? d.hidden : d.intermediate, n0 = blockIdx.x * kN;
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const bf16* bias = at<const bf16>(w.bias) + static_cast<size_t>(expert) * rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (uint32_t m0 = 0; m0 < count; m0 += kM) {
    float sums[8][4] = {};
    for (uint32_t k0 = 0; k0 < cols; k0 += kK) {
      for (int i = threadIdx.x; i < kM * (kK / 8); i += kThreads) {
        const uint32_t r = i / (kK / 8), c = i % (kK / 8) * 8;
        const bool valid = m0 + r < count && k0 + c < cols;
        const uint32_t place = first + (valid ? m0 + r : 0);
        const size_t row = kGateUp ? s.pairs[place] / d.top_k : place;
        copy16(&xs[r][c], (kGateUp ? at<const bf16>(a.x) : s.inner) + row * cols + (valid ? k0 + c : 0), valid);
      }
      copy_commit();
      load_weights<kPacked, kGateUp>(ws, w, expert, rows, cols, n0, k0);
      copy_wait<0>();
      __syncthreads();
      for (int k = 0; k < kK; k += 16) {
        uint32_t fa[4];
        ldmatrix(fa, &xs[warp * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          uint32_t fb[4];
          ldmatrix(fb, &ws[j * 8 + lane % 8 + lane / 16 * 8][k + (lane / 8 & 1) * 8]);
          mma(sums[j], fa, fb[0], fb[1]);
          mma(sums[j + 1], fa, fb[2], fb[3]);
        }
      }
      __syncthreads();
    }
    // A thread's two neighbouring columns are gate and up of one intermediate column.
    for (int j = 0; j < 8; ++j)
      for (int h = 0; h < 2; ++h) {
        const uint32_t r = m0 + warp * 16 + lane / 4 + h * 8, n = n0 + j * 8 + lane % 4 * 2;
        if (r >= count || n >= rows) continue;
        float v0 = sums[j][h * 2] + __bfloat162float(bias[n]), v1 = sums[j][h * 2 + 1] + __bfloat162float(bias[n + 1]);
        if constexpr (kGateUp) {
          v0 = fminf(v0, d.limit);
          v1 = fminf(fmaxf(v1, -d.limit), d.limit);
          s.inner[static_cast<size_t>(first + r) * d.intermediate + n / 2] = __float2bfloat16((v1 + 1.f) * v0 / (1.f + __expf(-d.alpha * v0)));
        } else {
          bf16* out = at<bf16>(a.out) + static_cast<size_t>(s.pairs[first + r]) * d.hidden + n;
          *reinterpret_cast<uint32_t*>(out) = pack(v0, v1);
        }
      }
  }
}

template <bool kPacked>
void start(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Sorted& s, cudaStream_t stream) {
  experts_kernel<kPacked, true><<<dim3((2 * d.intermediate + kN - 1) / kN, d.local_experts), kThreads, 0, stream>>>(d, a, s);
  experts_kernel<kPacked, false><<<dim3((d.hidden + kN - 1) / kN, d.local_experts), kThreads, 0, stream>>>(d, a, s);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" size_t gossamer_portable_experts_workspace(const GossamerExpertsDesc* d, unsigned tokens) {
  using namespace gossamer::portable;
  const size_t pairs = static_cast<size_t>(tokens) * d->top_k;
  return aligned((d->local_experts + 1) * sizeof(uint32_t)) + aligned(pairs * sizeof(uint32_t)) + aligned(pairs * d->intermediate * sizeof(bf16));
}

extern "C" int gossamer_portable_experts(const GossamerExpertsDesc* d, const GossamerExpertsArgs* a, int packed, void* workspace,
                                         cudaStream_t stream) {
  using namespace gossamer::portable;
  if (d->hidden % 32 || d->intermediate % 32 || d->local_experts > kMaxExperts || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  const Sorted s = carve(*d, a->tokens, workspace);
  sort_kernel<<<1, 1024, 0, stream>>>(*d, *a, s);
  if (d->local_experts < d->experts) zero_kernel<<<a->tokens * d->top_k, 256, 0, stream>>>(*d, *a);
  if (packed) start<true>(*d, *a, s, stream);
  else start<false>(*d, *a, s, stream);
  return launched();
}
