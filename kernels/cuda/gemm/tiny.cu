// archs: 90a 100a
// Dense bf16 products for 1..64 tokens that read the weights once, at memory speed, from the checkpoint's row-major layout.
//
// K is cut over all warps of a cluster: each warp keeps its slice of the tokens in registers (B fragments) for the whole
// launch and streams the same slice of every 16-row strip of its cluster straight into A fragments, one or two strips ahead
// of the arithmetic. Partial sums meet in shared memory, then over the cluster's blocks through distributed shared memory,
// in a fixed order. The order of columns inside a 32-wide step is permuted alike for A and B, so that every lane reads 16
// contiguous bytes of both. RMSNorm: the gain goes into B, the factor 1 / rms multiplies the finished sums.
// Weights are requested before the wait for the previous grid.
// Refuses: more than 64 tokens, rows off the multiples of 16, k off the multiples of 32 or above 4096.
#include <cuda_bf16.h>

#include "gossamer/clock.cuh"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::gemm {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;

// Marks of its clock, in the first batch.
enum { kMultiplied = clocks::kWaited + 1, kExchanged };

// kCluster blocks share K; a warp has at most kSteps steps of 32 columns; kTiles tiles of 8 tokens; kBatch strips are summed
// at once; kAhead strips are in flight.
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

template <int kCluster, int kSteps, int kTiles, int kBatch, int kAhead>
__global__ void __launch_bounds__(kThreads, 1) tiny_kernel(const __grid_constant__ GossamerTinyGemmArgs p) {
  clocks::Clock clock(clocks::kTiny, p.rows);
  using P = Plan<kCluster, kSteps, kTiles, kBatch, kAhead>;
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
    const __nv_bfloat16* at = static_cast<const __nv_bfloat16*>(p.weight) + (static_cast<size_t>(strip) * 16 + g) * p.k + step_begin * 32 + 8 * t;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (strip < strips && i < step_count) {
        a[buffer][i][0] = ptx::load_streaming(at + i * 32);
        a[buffer][i][1] = ptx::load_streaming(at + i * 32 + 8 * static_cast<size_t>(p.k));
      }
  };
#pragma unroll
  for (int b = 0; b < kAhead; ++b) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) a[b][i][0] = a[b][i][1] = make_uint4(0, 0, 0, 0);
    request(b, cluster + b * clusters);
  }
  uint4 gain[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (p.norm_weight && i < step_count) gain[i] = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.norm_weight) + (step_begin + i) * 32 + 8 * t);

  // The two values of each batch that this thread finishes; what is added to them is asked for before the products.
  const int own = 2 * threadIdx.x % P::kOwn, own_token = 2 * threadIdx.x / P::kOwn % P::kTokens, own_strip = 2 * threadIdx.x / P::kOwn / P::kTokens;
  const bool finishes = threadIdx.x < P::kValues / 2 && own_token < p.tokens;
  const auto row_of = [&](int first) { return (first + own_strip * clusters) * 16 + rank * P::kOwn + own; };
  const auto bias_of = [&](int row) { return finishes && p.bias && row < p.rows ? ptx::load_word(static_cast<const __nv_bfloat16*>(p.bias) + row) : 0u; };
  uint32_t bias = bias_of(row_of(cluster));

  ptx::launch_dependents();
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);

  uint4 b[kTiles][kSteps];
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      b[n][i] = n * 8 + g < p.tokens && i < step_count ? __ldcg(reinterpret_cast<const uint4*>(x + static_cast<size_t>(n * 8 + g) * p.k + (step_begin + i) * 32 + 8 * t)) : make_uint4(0, 0, 0, 0);
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
    const int own_row = row_of(first);
    const size_t own_at = static_cast<size_t>(own_token) * p.rows + own_row;
    if (batch) bias = bias_of(own_row);
    const uint32_t residual = finishes && p.residual && own_row < p.rows ? __ldcg(reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(p.residual) + own_at)) : 0u;
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
    if (finishes && own_row < p.rows) {
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
      y.x += ptx::bf16_low(residual);
      y.y += ptx::bf16_high(residual);
      if (p.float_out) *reinterpret_cast<float2*>(static_cast<float*>(p.out) + own_at) = y;
      else *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.out) + own_at) = __floats2bfloat162_rn(y.x, y.y);
    }
  }
}

using Kernel = void (*)(GossamerTinyGemmArgs);
struct Variant {
  Kernel kernel;
  int cluster, steps, tokens, bytes;
  int clusters;  // resident at once; a GPC's odd multiprocessors may leave fewer than blocks / cluster size
};
template <int kCluster, int kSteps, int kTiles, int kBatch, int kAhead>
Variant variant() {
  return {tiny_kernel<kCluster, kSteps, kTiles, kBatch, kAhead>, kCluster, kSteps, 8 * kTiles, Plan<kCluster, kSteps, kTiles, kBatch, kAhead>::kBytes, 0};
}
// The first that holds the tokens and the steps is taken.
Variant variants[] = {
    variant<2, 3, 1, 6, 3>(), variant<2, 4, 1, 4, 2>(), variant<2, 3, 2, 4, 2>(), variant<2, 4, 2, 4, 2>(),
    variant<2, 3, 4, 2, 1>(), variant<2, 4, 4, 1, 1>(), variant<4, 2, 8, 1, 1>(),
};
bool prepared = false;

}  // namespace

bool prepare_tiny() {
  for (Variant& v : variants) {
    if (!allow_shared(v.kernel, v.bytes)) return false;
    v.clusters = resident_clusters(v.kernel, dim3(kThreads), v.cluster, v.bytes);
    if (v.clusters < 1) return false;
  }
  return prepared = true;
}

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
  for (const Variant& v : variants) {
    const int slices = v.cluster * kWarps, steps = (p->k / 32 + slices - 1) / slices;
    if (v.tokens < p->tokens || v.steps < steps) continue;
    const int strips = p->rows / 16;
    return launch_cluster(v.kernel, dim3((v.clusters < strips ? v.clusters : strips) * v.cluster), dim3(kThreads), v.cluster, v.bytes, stream, true, *p);
  }
  return GOSSAMER_BAD_SHAPE;
}
