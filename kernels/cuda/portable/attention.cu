// archs: 80 90a 100a
// Attention over the paged cache, head_dim 64, blocks of 64 tokens, online softmax (Dao 2023) with a sink per head.
//
// A row is (query position, head of the KV head's group): grouped queries share K and V. A warp holds 16 rows. For prefill the
// four warps of a block hold 64 rows and walk the same KV blocks; for decode they hold the same 16 rows and take every
// fourth block, and the first warp merges. Invariant: entries past `kv_len` are never used, whatever they hold (also NaN).
#include "common.cuh"

namespace gossamer::portable {
namespace {

constexpr int kD = 64, kTokens = 64, kPitch = kD + 8, kWarps = 4;
constexpr float kNone = -3.0e38f;

struct State {
  float out[8][4];
  float max[2], sum[2];
};

// Copies one block of one KV head to shared memory as bf16, without its scale: codes are bf16 numbers as they stand, and rounding them
// under a scale would move large scores. Rows at or past `valid` become zeros.
template <bool kFp8>
__device__ void load_block(bf16 (*tile)[kPitch], const void* source, int valid, int thread, int threads) {
  if constexpr (kFp8) {
    for (int i = thread; i < kTokens * kD / 4; i += threads) {
      const int r = i / (kD / 4), c = i % (kD / 4) * 4;
      const uint32_t codes = r < valid ? static_cast<const uint32_t*>(source)[i] : 0;
      for (int j = 0; j < 4; ++j) {
        __nv_fp8_e4m3 v;
        v.__x = static_cast<__nv_fp8_storage_t>(codes >> (8 * j));
        tile[r][c + j] = __float2bfloat16(static_cast<float>(v));
      }
    }
  } else {
    for (int i = thread; i < kTokens * kD / 8; i += threads) {
      const int r = i / (kD / 8), c = i % (kD / 8) * 8;
      *reinterpret_cast<uint4*>(&tile[r][c]) = r < valid ? static_cast<const uint4*>(source)[i] : make_uint4(0, 0, 0, 0);
    }
  }
}

// One KV block for the 16 rows of a warp.
__device__ void attend(State& s, const uint32_t (&q)[4][4], bf16 (*ks)[kPitch], bf16 (*vs)[kPitch], int first, const int (&position)[2],
                       int window, float scale) {
  const int lane = threadIdx.x & 31, t = lane % 4;
  float p[8][4];
  for (int j = 0; j < 8; ++j) {
    for (int e = 0; e < 4; ++e) p[j][e] = 0;
    for (int k = 0; k < 4; k += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4(b, ptx::shared_address(&ks[j * 8 + lane % 8][k * 16 + lane / 8 * 8]));
      ptx::mma_bf16(p[j], q[k], b[0], b[1]);
      ptx::mma_bf16(p[j], q[k + 1], b[2], b[3]);
    }
  }
  for (int h = 0; h < 2; ++h) {
    float top = s.max[h];
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 2; ++e) {
        const int at_token = first + j * 8 + t * 2 + e;
        const bool seen = at_token <= position[h] && (window == 0 || at_token > position[h] - window);
        float& v = p[j][h * 2 + e];
        v = seen ? v * scale : kNone;
        top = fmaxf(top, v);
      }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float shrink = __expf(s.max[h] - top);
    float sum = 0;
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 2; ++e) {
        float& v = p[j][h * 2 + e];
        v = v > kNone ? __expf(v - top) : 0.f;
        sum += v;
        s.out[j][h * 2 + e] *= shrink;
      }
    s.sum[h] = s.sum[h] * shrink + sum;  // this thread's columns; the four threads of a row are added at the end
    s.max[h] = top;
  }
  for (int k = 0; k < 4; ++k) {
    const uint32_t a[4] = {pack(p[2 * k][0], p[2 * k][1]), pack(p[2 * k][2], p[2 * k][3]), pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                           pack(p[2 * k + 1][2], p[2 * k + 1][3])};
    for (int j = 0; j < 8; j += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(b, ptx::shared_address(&vs[k * 16 + lane % 16][j * 8 + lane / 16 * 8]));
      ptx::mma_bf16(s.out[j], a, b[0], b[1]);
      ptx::mma_bf16(s.out[j + 1], a, b[2], b[3]);
    }
  }
}

template <bool kFp8, bool kSplit>
__global__ void __launch_bounds__(kWarps * 32) attention_kernel(const __grid_constant__ GossamerAttentionDesc d,
                                                                const __grid_constant__ GossamerAttentionArgs a) {
  constexpr int kCopies = kSplit ? kWarps : 1;
  uint8_t* const shared = ptx::dynamic_shared();
  using Rows = bf16(*)[kPitch];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
  const Rows ks = reinterpret_cast<Rows>(shared) + (kSplit ? warp : 0) * 2 * kTokens;
  const Rows vs = ks + kTokens;
  float* merge = reinterpret_cast<float*>(shared + kCopies * 2 * kTokens * kPitch * sizeof(bf16));

  const uint32_t sequence = blockIdx.z, kv_head = blockIdx.y, group = d.heads / d.kv_heads;
  const uint32_t start = at<const uint32_t>(a.query_starts)[sequence], queries = at<const uint32_t>(a.query_starts)[sequence + 1] - start;
  const int kv_len = at<const uint32_t>(a.kv_lens)[sequence], base = kv_len - static_cast<int>(queries);
  const uint32_t tile_rows = kSplit ? 16 : 16 * kWarps, rows = queries * group, row0 = blockIdx.x * tile_rows;
  if (row0 >= rows) return;
  const uint32_t mine = row0 + (kSplit ? 0 : warp * 16);

  State s = {};
  int position[2];
  uint32_t query[2], head[2];
  for (int h = 0; h < 2; ++h) {
    const uint32_t row = min(mine + g + h * 8, rows - 1);
    query[h] = start + row / group;
    head[h] = kv_head * group + row % group;
    position[h] = base + static_cast<int>(row / group);
    const bool sink = d.sinks && (!kSplit || warp == 0);
    s.max[h] = sink ? __bfloat162float(at<const bf16>(a.sinks)[head[h]]) : kNone;
    s.sum[h] = sink && t == 0 ? 1.f : 0.f;
  }
  uint32_t q[4][4];
  for (int k = 0; k < 4; ++k)
    for (int r = 0; r < 4; ++r)
      q[k][r] = *reinterpret_cast<const uint32_t*>(at<const bf16>(a.q) + static_cast<size_t>(query[r & 1]) * a.q_stride + head[r & 1] * kD +
                                                   k * 16 + (r >> 1) * 8 + t * 2);

  const int window = static_cast<int>(d.window);
  const int low = base + static_cast<int>(row0 / group), high = base + static_cast<int>(min(row0 + tile_rows, rows) - 1) / static_cast<int>(group);
  const int first_block = window ? max(0, low - window + 1) / kTokens : 0, last_block = high / kTokens;
  const uint32_t* table = at<const uint32_t>(a.block_tables) + static_cast<size_t>(sequence) * a.table_stride;
  const int table_first = static_cast<int>(at<const uint32_t>(a.first_blocks)[sequence]);
  const size_t element = kFp8 ? 1 : sizeof(bf16), plane = static_cast<size_t>(kTokens) * kD * element;
  const float* scales = at<const float>(a.kv_scales);
  const float k_scale = kFp8 && scales ? scales[kv_head] : 1.f, v_scale = kFp8 && scales ? scales[d.kv_heads + kv_head] : 1.f;

  for (int block = first_block + (kSplit ? warp : 0); block <= last_block; block += kSplit ? kWarps : 1) {
    const uint8_t* kv = at<const uint8_t>(a.kv) + (static_cast<size_t>(table[block - table_first]) * 2 * d.kv_heads + kv_head) * plane;
    const int valid = kv_len - block * kTokens, thread = kSplit ? lane : threadIdx.x, threads = kSplit ? 32 : kWarps * 32;
    load_block<kFp8>(ks, kv, valid, thread, threads);
    load_block<kFp8>(vs, kv + d.kv_heads * plane, valid, thread, threads);
    if (kSplit) __syncwarp(); else __syncthreads();
    attend(s, q, ks, vs, block * kTokens, position, window, d.scale * k_scale);
    if (kSplit) __syncwarp(); else __syncthreads();
  }
  for (int h = 0; h < 2; ++h) {
    s.sum[h] += __shfl_xor_sync(~0u, s.sum[h], 1);
    s.sum[h] += __shfl_xor_sync(~0u, s.sum[h], 2);
  }

  if constexpr (kSplit) {
    // Per warp and lane: 32 outputs, two maxima, two sums.
    float* own = merge + (warp * 32 + lane) * 36;
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 4; ++e) own[j * 4 + e] = s.out[j][e];
    for (int h = 0; h < 2; ++h) own[32 + h] = s.max[h], own[34 + h] = s.sum[h];
    __syncthreads();
    if (warp) return;
    for (int w = 1; w < kWarps; ++w) {
      const float* other = merge + (w * 32 + lane) * 36;
      for (int h = 0; h < 2; ++h) {
        const float top = fmaxf(s.max[h], other[32 + h]), a0 = __expf(s.max[h] - top), a1 = __expf(other[32 + h] - top);
        for (int j = 0; j < 8; ++j)
          for (int e = 0; e < 2; ++e) s.out[j][h * 2 + e] = s.out[j][h * 2 + e] * a0 + other[j * 4 + h * 2 + e] * a1;
        s.sum[h] = s.sum[h] * a0 + other[34 + h] * a1;
        s.max[h] = top;
      }
    }
  }
  for (int h = 0; h < 2; ++h) {
    if (mine + g + h * 8 >= rows) continue;
    const float inverse = v_scale / s.sum[h];
    bf16* out = at<bf16>(a.out) + (static_cast<size_t>(query[h]) * d.heads + head[h]) * kD;
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<uint32_t*>(out + j * 8 + t * 2) = pack(s.out[j][h * 2] * inverse, s.out[j][h * 2 + 1] * inverse);
  }
}

template <bool kFp8, bool kSplit>
int start(const GossamerAttentionDesc& d, const GossamerAttentionArgs& a, cudaStream_t stream) {
  constexpr int kBytes = (kSplit ? kWarps : 1) * 2 * kTokens * kPitch * sizeof(bf16) + (kSplit ? kWarps * 32 * 36 * sizeof(float) : 0);
  const auto kernel = attention_kernel<kFp8, kSplit>;
  if (!allow_shared(kernel, kBytes)) return GOSSAMER_LAUNCH_FAILED;
  const uint32_t rows = a.max_query * (d.heads / d.kv_heads), tile = kSplit ? 16 : 16 * kWarps;
  return launch(kernel, dim3((rows + tile - 1) / tile, d.kv_heads, a.sequences), dim3(kWarps * 32), kBytes, stream, false, d, a);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" int gossamer_portable_attention(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, cudaStream_t stream) {
  using namespace gossamer::portable;
  if (d->head_dim != kD || d->block_size != kTokens || d->heads % d->kv_heads || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->sequences || !a->max_query) return GOSSAMER_OK;
  const bool fp8 = d->kv == GOSSAMER_F8E4M3, split = a->max_query * (d->heads / d->kv_heads) <= 16;
  if (fp8) return split ? start<true, true>(*d, *a, stream) : start<true, false>(*d, *a, stream);
  return split ? start<false, true>(*d, *a, stream) : start<false, false>(*d, *a, stream);
}
