// archs: 90a 100a
// Dense bf16 products for 1..64 tokens that read the weights once, at memory speed, from the checkpoint's row-major layout.
//
// K is cut over all warps of a cluster: each warp keeps its slice of the tokens in registers (B fragments) for the whole
// launch and streams the same slice of every 16-row strip of its cluster straight into A fragments, one or two strips ahead
// of the arithmetic. Partial sums meet in shared memory, then over the cluster's blocks through distributed shared memory,
// in a fixed order. The order of columns inside a 32-wide step is permuted alike for A and B, so that every lane reads 16
// contiguous bytes of both. RMSNorm: the gain goes into B, the factor 1 / rms multiplies the finished sums.
// Weights are requested before the wait for the previous grid.
// With rotary embedding inside (the qkv product of up to 16 tokens): the pairs of a head are neighbouring rows of A, so the thread that
// finishes one has the other, rotates them, and writes queries to the output, keys and values into the cache.
// Refuses: more than 64 tokens, rows off the multiples of 16, k off the multiples of 32 or above 4096 (with rotary embedding 16 tokens, 3072).
#include <cuda_bf16.h>

#include "../attention/rope.cuh"
#include "gossamer/clock.cuh"
#include "gossamer/decode.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::gemm {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;

// Marks of its clock, in the first batch.
enum { kMultiplied = clocks::kWaited + 1, kExchanged };

// kCluster blocks share K; a warp has at most kSteps steps of 32 columns; kTiles tiles of 8 tokens; kBatch strips are summed
// at once; kAhead strips are in flight, kBefore of them before the tokens are asked for, which come behind them.
template <int kCluster, int kSteps, int kTiles, int kBatch, int kAhead>
struct Plan {
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kOwn = 16 / kCluster;                     // rows of a strip that a block finishes
  static constexpr int kValues = kBatch * kTokens * kOwn;        // a block finishes, per batch
  static constexpr int kPartials = kWarps * kBatch * kTiles * 128;  // floats
  static constexpr int kExchange = 2 * kCluster * kValues;
  static constexpr int kSquares = kWarps * kTokens + kCluster * kTokens;
  static constexpr int kBytes = 4 * (kPartials + kExchange + kSquares);
};

// Rows of the matrix in a strip: where its first lies, those behind it from there, and how far row g + 8 is from g.
template <bool kRope>
struct Rows {
  static constexpr int kEight = kRope ? 4 : 8;
  __device__ __forceinline__ static int begin(int strip) { return kRope ? strip / 4 * attention::kDim + strip % 4 * 8 : strip * 16; }
  __device__ __forceinline__ static int in_strip(int row) { return kRope ? row / 2 + row % 2 * (attention::kDim / 2) : row; }
};

// A pair of a head, rows `row` and half a head further: rounded as a product of its own would leave it, then rotated, then to its place.
__device__ __forceinline__ void finish_heads(const GossamerTinyGemmArgs& p, const GossamerRopeKvArgs& rope, int token, int row, uint64_t slot, float2 y, attention::Angle angle) {
  constexpr int kHalf = attention::kDim / 2;
  const int head = row / attention::kDim, pair = row % attention::kDim, q_heads = rope.kv_heads * rope.group;
  const bool value = head >= q_heads + rope.kv_heads;
  const uint32_t rounded = ptx::pack_bf16(y.x, y.y);
  float low = ptx::bf16_low(rounded), high = ptx::bf16_high(rounded);
  if (!value) attention::rotate(low, high, angle);
  __nv_bfloat16* to = static_cast<__nv_bfloat16*>(p.out) + static_cast<size_t>(token) * p.rows + row;
  if (head >= q_heads) {
    const int kv_head = (head - q_heads) % rope.kv_heads;
    const size_t at = attention::kv_place(rope, slot, value, kv_head) + pair;
    if (rope.fp8) {
      const float inverse = attention::kv_inverse_scale(rope, value, kv_head);
      const uint32_t codes = ptx::floats_to_e4m3(low * inverse, high * inverse);
      uint8_t* const place = static_cast<uint8_t*>(rope.kv) + at;
      place[0] = static_cast<uint8_t>(codes);
      place[kHalf] = static_cast<uint8_t>(codes >> 8);
      return;
    }
    to = static_cast<__nv_bfloat16*>(rope.kv) + at;
  }
  to[0] = __float2bfloat16(low);
  to[kHalf] = __float2bfloat16(high);
}

// `rope` counts with kRope.
template <bool kRope, int kCluster, int kSteps, int kTiles, int kBatch, int kAhead, int kBefore = kAhead>
__global__ void __launch_bounds__(kThreads, 1) tiny_kernel(const __grid_constant__ GossamerTinyGemmArgs p, const __grid_constant__ GossamerRopeKvArgs rope) {
  clocks::Clock clock(clocks::kTiny, p.rows);
  using P = Plan<kCluster, kSteps, kTiles, kBatch, kAhead>;
  using R = Rows<kRope>;
  static_assert(kBatch % kAhead == 0, "the register buffers must come round with a batch");
  static_assert(kCluster > 1 && P::kValues / 2 <= kThreads, "a thread finishes two values of a batch at most");
  GOSSAMER_DYNAMIC_SHARED(float, 16, shared);
  __shared__ uint64_t inbox_full[2];                     // by turn; its bytes come from all blocks of the cluster
  float* const partials = shared;                        // [warp][strip][tile][lane][4]
  float* const exchange = partials + P::kPartials;       // [turn][source block][strip][own row][token]
  float* const warp_squares = exchange + P::kExchange;   // [warp][token]
  float* const block_squares = warp_squares + kWarps * P::kTokens;  // [source block][token]

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  const int strips = p.rows / 16, steps = p.k / 32, slices = kCluster * kWarps, slice = rank * kWarps + warp;
  const int step_begin = steps * slice / slices, step_count = steps * (slice + 1) / slices - step_begin;
  const __nv_bfloat16* const x = static_cast<const __nv_bfloat16*>(p.x);

  if (threadIdx.x < 2) ptx::barrier_init(&inbox_full[threadIdx.x], 1);
  ptx::barrier_init_fence();
  ptx::cluster_arrive_relaxed();  // this block runs, and others may write to it
  uint4 a[kAhead][kSteps][2];
  auto request = [&](int buffer, int strip) {
    const __nv_bfloat16* at = static_cast<const __nv_bfloat16*>(p.weight) + static_cast<size_t>(R::begin(strip) + R::in_strip(g)) * p.k + step_begin * 32 + 8 * t;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (strip < strips && i < step_count) {
        a[buffer][i][0] = ptx::load_streaming(at + i * 32);
        a[buffer][i][1] = ptx::load_streaming(at + i * 32 + R::kEight * static_cast<size_t>(p.k));
      }
  };
#pragma unroll
  for (int b = 0; b < kAhead; ++b) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) a[b][i][0] = a[b][i][1] = make_uint4(0, 0, 0, 0);
    if (b < kBefore) request(b, cluster + b * clusters);
  }
  uint4 gain[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (p.norm_weight && i < step_count) gain[i] = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.norm_weight) + (step_begin + i) * 32 + 8 * t);

  // The two values of each batch that this thread finishes; what is added to them is asked for before the products.
  const int own = 2 * threadIdx.x % P::kOwn, own_token = 2 * threadIdx.x / P::kOwn % P::kTokens, own_strip = 2 * threadIdx.x / P::kOwn / P::kTokens;
  const auto finishes = [&](int first) { return threadIdx.x < P::kValues / 2 && own_token < p.tokens && first + own_strip * clusters < strips; };
  const auto row_of = [&](int first) { return R::begin(first + own_strip * clusters) + R::in_strip(rank * P::kOwn + own); };
  const auto bias_of = [&](int first) {
    if (!finishes(first) || !p.bias) return 0u;
    const __nv_bfloat16* const at = static_cast<const __nv_bfloat16*>(p.bias) + row_of(first);
    return kRope ? ptx::load_half(at) | ptx::load_half(at + attention::kDim / 2) << 16 : ptx::load_word(at);
  };
  uint32_t bias = bias_of(cluster);
  const auto angle_of = [&](int first) { return kRope && finishes(first) ? attention::angle_of(rope, own_token, row_of(first) % attention::kDim) : attention::Angle{}; };
  attention::Angle angle = angle_of(cluster);
  const uint64_t slot = kRope && finishes(cluster) ? rope.slots[own_token] : 0;

  ptx::launch_dependents();
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);

  uint4 b[kTiles][kSteps];
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      b[n][i] = n * 8 + g < p.tokens && i < step_count ? __ldcg(reinterpret_cast<const uint4*>(x + static_cast<size_t>(n * 8 + g) * p.k + (step_begin + i) * 32 + 8 * t)) : make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int b = kBefore; b < kAhead; ++b) request(b, cluster + b * clusters);
  if (p.norm_weight) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float squares = 0.f;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (i >= step_count) break;
        __nv_bfloat162* xs = reinterpret_cast<__nv_bfloat162*>(&b[n][i]);
        const __nv_bfloat162* gs = reinterpret_cast<const __nv_bfloat162*>(&gain[i]);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const float2 f = __bfloat1622float2(xs[q]), w = __bfloat1622float2(gs[q]);
          squares = fmaf(f.x, f.x, fmaf(f.y, f.y, squares));
          xs[q] = __floats2bfloat162_rn(f.x * w.x, f.y * w.y);
        }
      }
      squares += __shfl_xor_sync(~0u, squares, 1);
      squares += __shfl_xor_sync(~0u, squares, 2);
      if (t == 0) warp_squares[warp * P::kTokens + n * 8 + g] = squares;
    }
  }

  int batch = 0;
  for (int first = cluster; first < strips; first += kBatch * clusters, ++batch) {
    const bool own_finish = finishes(first);
    const int own_row = row_of(first);
    const size_t own_at = static_cast<size_t>(own_token) * p.rows + own_row;
    if (batch) bias = bias_of(first), angle = angle_of(first);
    // Invariant: partial sums are overwritten when all warps of this block have read those of the batch before. In a cluster of two each
    // warp sends part of what its lanes read together to its own block, whose full inbox says so; in a larger one it may send to others alone.
    if (kCluster > 2 && batch) __syncthreads();
    const uint32_t residual = !kRope && own_finish && p.residual ? __ldcg(reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(p.residual) + own_at)) : 0u;
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const int buffer = s % kAhead;
      float c[kTiles][4];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.f;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const uint4 r0 = a[buffer][i][0], r1 = a[buffer][i][1];
        const uint32_t low[4] = {r0.x, r1.x, r0.y, r1.y}, high[4] = {r0.z, r1.z, r0.w, r1.w};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          ptx::mma_bf16(c[n], low, b[n][i].x, b[n][i].y);
          ptx::mma_bf16(c[n], high, b[n][i].z, b[n][i].w);
        }
      }
      request(buffer, first + (s + kAhead) * clusters);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        *reinterpret_cast<float4*>(partials + ((warp * kBatch + s) * kTiles + n) * 128 + lane * 4) = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
    }
    __syncthreads();
    if (batch == 0) clock.mark(kMultiplied);
    // Sums over warps, two tokens' at a time, to the block that finishes their rows.
    float* const inbox = exchange + (batch & 1) * kCluster * P::kValues;
    uint64_t* const full = &inbox_full[batch & 1];
    if (batch == 0) ptx::cluster_wait();
    if (threadIdx.x == 0) ptx::barrier_expect(full, kCluster * (kBatch * P::kOwn * ((p.tokens + 1) / 2 * 8) + (batch == 0 && p.norm_weight ? 4 * p.tokens : 0)));
    for (int v = threadIdx.x; v < kBatch * kTiles * 64; v += kThreads) {
      const int half = v & 1, l = (v >> 1) & 31, n = (v >> 6) % kTiles, s = (v >> 6) / kTiles, row = l / 4 + 8 * half, token = n * 8 + 2 * (l & 3);
      if (token >= p.tokens) continue;
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 part = *reinterpret_cast<const float2*>(partials + w * kBatch * kTiles * 128 + 2 * v);
        sum.x += part.x;
        sum.y += part.y;
      }
      ptx::cluster_send(reinterpret_cast<float2*>(inbox + ((rank * kBatch + s) * P::kOwn + row % P::kOwn) * P::kTokens + token), full, row / P::kOwn, sum);
    }
    if (batch == 0 && p.norm_weight)
      for (int v = threadIdx.x; v < P::kTokens * kCluster; v += kThreads) {
        const int token = v % P::kTokens;
        if (token >= p.tokens) continue;
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += warp_squares[w * P::kTokens + token];
        ptx::cluster_send(block_squares + rank * P::kTokens + token, full, v / P::kTokens, sum);
      }
    // All of the other blocks' parts of a batch have come: they have read theirs of the one before, so its place may be written again.
    ptx::barrier_wait(full, batch / 2 & 1);
    if (batch == 0) clock.mark(kExchanged);
    if (own_finish) {
      float2 y = make_float2(0.f, 0.f);
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
        const float* const part = inbox + ((r * kBatch + own_strip) * P::kOwn + own) * P::kTokens + own_token;
        y.x += part[0];
        y.y += part[P::kTokens];
      }
      if (p.norm_weight) {
        float squares = 0.f;
#pragma unroll
        for (int r = 0; r < kCluster; ++r) squares += block_squares[r * P::kTokens + own_token];
        const float factor = rsqrtf(squares / p.k + p.epsilon);
        y.x *= factor;
        y.y *= factor;
      }
      y.x += ptx::bf16_low(bias);
      y.y += ptx::bf16_high(bias);
      if constexpr (kRope) {
        finish_heads(p, rope, own_token, own_row, slot, y, angle);
      } else {
        y.x += ptx::bf16_low(residual);
        y.y += ptx::bf16_high(residual);
        if (p.float_out) *reinterpret_cast<float2*>(static_cast<float*>(p.out) + own_at) = y;
        else *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.out) + own_at) = __floats2bfloat162_rn(y.x, y.y);
      }
    }
  }
}

using Kernel = void (*)(GossamerTinyGemmArgs, GossamerRopeKvArgs);
struct Variant {
  Kernel kernel;
  int cluster, steps, tokens, bytes;
  int clusters;  // resident at once; a GPC's odd multiprocessors may leave fewer than blocks / cluster size
};
template <bool kRope, int kCluster, int kSteps, int kTiles, int kBatch, int kAhead, int kBefore = kAhead>
Variant variant() {
  return {tiny_kernel<kRope, kCluster, kSteps, kTiles, kBatch, kAhead, kBefore>, kCluster, kSteps, 8 * kTiles, Plan<kCluster, kSteps, kTiles, kBatch, kAhead>::kBytes, 0};
}
// The first that holds the tokens and the steps is taken. Where K is 2880 the kernel before ends at once (qkv behind the experts), so few
// weights come before the tokens; where it is 4096 multiprocessors are free long before (o behind attention).
Variant variants[] = {
    variant<false, 2, 3, 1, 6, 3, 1>(), variant<false, 2, 4, 1, 4, 2>(), variant<false, 2, 3, 2, 4, 2, 1>(), variant<false, 2, 4, 2, 4, 2>(),
    variant<false, 2, 3, 4, 2, 1>(), variant<false, 2, 4, 4, 1, 1>(), variant<false, 4, 2, 8, 1, 1>(),
};
Variant rope_variants[] = {variant<true, 2, 3, 1, 6, 3, 1>(), variant<true, 2, 3, 2, 4, 2, 1>()};
bool prepared = false;

template <int kCount>
bool prepare(Variant (&all)[kCount]) {
  for (Variant& v : all) {
    if (!allow_shared(v.kernel, v.bytes)) return false;
    v.clusters = resident_clusters(v.kernel, dim3(kThreads), v.cluster, v.bytes);
    if (v.clusters < 1) return false;
  }
  return true;
}

template <int kCount>
int run(const Variant (&all)[kCount], const GossamerTinyGemmArgs& p, const GossamerRopeKvArgs& rope, cudaStream_t stream) {
  for (const Variant& v : all) {
    const int slices = v.cluster * kWarps, steps = (p.k / 32 + slices - 1) / slices;
    if (v.tokens < p.tokens || v.steps < steps) continue;
    const int strips = p.rows / 16;
    return launch_cluster(v.kernel, dim3((v.clusters < strips ? v.clusters : strips) * v.cluster), dim3(kThreads), v.cluster, v.bytes, stream, true, p, rope);
  }
  return GOSSAMER_BAD_SHAPE;
}

}  // namespace

bool prepare_tiny() { return prepared = prepare(variants) && prepare(rope_variants); }

}  // namespace gossamer::gemm

extern "C" int gossamer_tiny_gemm(const GossamerTinyGemmArgs* p, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::gemm;
  if (p->tokens < 1 || p->tokens > 64 || p->rows < 16 || p->rows % 16 || p->k < 32 || p->k % 32 || p->k > 4096) return GOSSAMER_BAD_SHAPE;
  if (!prepared) return GOSSAMER_NOT_PREPARED;
  if (p->tactic < -1 || p->tactic >= GOSSAMER_GEMM_TACTICS) return GOSSAMER_BAD_TACTIC;
  const int tactic = p->tactic < 0 ? p->tokens > 32 && p->k <= 2880 : p->tactic;  // as measured
  if (tactic == 1 && p->tokens > 32) {
    GossamerTinyGemmArgs part = *p;
    part.tactic = 0;
    for (int from = 0; from < p->tokens; from += 32) {
      part.tokens = p->tokens - from < 32 ? p->tokens - from : 32;
      part.x = static_cast<const __nv_bfloat16*>(p->x) + static_cast<size_t>(from) * p->k;
      const size_t at = static_cast<size_t>(from) * p->rows;
      if (p->residual) part.residual = static_cast<const __nv_bfloat16*>(p->residual) + at;
      part.out = p->float_out ? static_cast<void*>(static_cast<float*>(p->out) + at) : static_cast<__nv_bfloat16*>(p->out) + at;
      const int status = gossamer_tiny_gemm(&part, stream);
      if (status != GOSSAMER_OK) return status;
    }
    return GOSSAMER_OK;
  }
  return run(variants, *p, {}, stream);
}

extern "C" int gossamer_tiny_qkv(const GossamerTinyGemmArgs* p, const GossamerRopeKvArgs* rope, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::gemm;
  GossamerRopeKvArgs r = *rope;
  if (!r.group) r.group = attention::kHeads;
  const bool fits = p->tokens == r.tokens && r.kv_heads > 0 && r.group > 0 && p->rows == r.kv_heads * (r.group + 2) * attention::kDim && !p->residual && !p->float_out;
  if (!fits || p->tokens < 1 || p->k < 32 || p->k % 32 || p->k > 4096) return GOSSAMER_BAD_SHAPE;
  return prepared ? run(rope_variants, *p, r, stream) : GOSSAMER_NOT_PREPARED;
}

extern "C" int gossamer_tiny_qkv_op(const GossamerTinyGemmArgs* product, const GossamerRopeKvWriteDesc* d, const GossamerRopeKvWriteArgs* a, cudaStream_t stream) {
  GossamerRopeKvArgs rope;
  return gossamer::attention::rope_args(*d, *a, &rope) ? gossamer_tiny_qkv(product, &rope, stream) : GOSSAMER_BAD_SHAPE;
}
