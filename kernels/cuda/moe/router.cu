// archs: 80 90a 100a
// Router of the mixture of experts for few tokens: RMSNorm, product with the router matrix, bias; and top-4 on its own.
// One or two tokens: a block takes one expert, in float arithmetic. More: a block takes 16 experts and 8 tokens on the
// tensor cores, tokens as two bf16 terms so that the sums stay as good as float ones. The norm's factor is applied to the
// finished dot products, so one pass and one reduction do. Router weights are loaded before the wait for the previous grid.
// Refuses: more than 128 experts, hidden sizes above 3072 or off the multiples of 32.
#include <cuda_bf16.h>

#include "gossamer/clock.cuh"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "route.cuh"

namespace gossamer::moe {
namespace {

constexpr int kThreads = 384;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ void unpack8(uint4 v, float (&f)[8]) {
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __uint_as_float(w[i] << 16);
    f[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
  }
}

template <int kExperts, int kTokens>
__global__ void __launch_bounds__(kThreads) router_kernel(const __grid_constant__ GossamerRouterArgs p) {
  clocks::Clock clock(clocks::kRouter);
  __shared__ float sums[kWarps][kTokens * (kExperts + 1)];
  __shared__ float totals[kTokens * (kExperts + 1)];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, at = threadIdx.x * 8;
  const int expert0 = blockIdx.x * kExperts, token0 = blockIdx.y * kTokens;
  const bool live = at < p.hidden_size;

  float w[kExperts][8], gain[8];
  uint4 raw[kExperts];
#pragma unroll
  for (int e = 0; e < kExperts; ++e)
    raw[e] = live && expert0 + e < p.experts
                 ? ptx::load_streaming(static_cast<const __nv_bfloat16*>(p.router_weight) + static_cast<size_t>(expert0 + e) * p.hidden_size + at)
                 : make_uint4(0, 0, 0, 0);
  const uint4 raw_gain = live && p.norm_weight ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.norm_weight) + at) : make_uint4(0, 0, 0, 0);
  float bias = 0.f;
  if (threadIdx.x < kExperts && expert0 + threadIdx.x < p.experts) bias = __bfloat162float(static_cast<const __nv_bfloat16*>(p.router_bias)[expert0 + threadIdx.x]);
#pragma unroll
  for (int e = 0; e < kExperts; ++e) unpack8(raw[e], w[e]);
  unpack8(raw_gain, gain);
  ptx::launch_dependents();
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);

  uint4 x[kTokens];
#pragma unroll
  for (int j = 0; j < kTokens; ++j)
    x[j] = live && token0 + j < p.tokens
               ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.hidden) + static_cast<size_t>(token0 + j) * p.hidden_size + at))
               : make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    float f[8], part[kExperts + 1];
    unpack8(x[j], f);
#pragma unroll
    for (int e = 0; e <= kExperts; ++e) part[e] = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      part[kExperts] = fmaf(f[i], f[i], part[kExperts]);
      const float normed = p.norm_weight ? f[i] * gain[i] : f[i];
#pragma unroll
      for (int e = 0; e < kExperts; ++e) part[e] = fmaf(normed, w[e][i], part[e]);
    }
#pragma unroll
    for (int e = 0; e <= kExperts; ++e) {
#pragma unroll
      for (int d = 16; d; d /= 2) part[e] += __shfl_xor_sync(~0u, part[e], d);
      if (lane == 0) sums[warp][j * (kExperts + 1) + e] = part[e];
    }
  }
  __syncthreads();
  if (threadIdx.x < kTokens * (kExperts + 1)) {
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) s += sums[i][threadIdx.x];
    totals[threadIdx.x] = s;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    if (token0 + j >= p.tokens) break;
    const float factor = p.norm_weight ? rsqrtf(totals[j * (kExperts + 1) + kExperts] / p.hidden_size + p.epsilon) : 1.f;
    if (threadIdx.x < kExperts && expert0 + threadIdx.x < p.experts)
      p.logits[static_cast<size_t>(token0 + j) * p.experts + expert0 + threadIdx.x] = totals[j * (kExperts + 1) + threadIdx.x] * factor + bias;
    if (blockIdx.x == j % gridDim.x && live && p.norm_weight && p.normed) {
      float f[8];
      unpack8(x[j], f);
      uint4 out;
      __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&out);
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(gain[2 * i] * (f[2 * i] * factor), gain[2 * i + 1] * (f[2 * i + 1] * factor));
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.normed) + static_cast<size_t>(token0 + j) * p.hidden_size + at) = out;
    }
  }
}

constexpr int kMatrixWarps = 16;
constexpr int kSteps = 6;  // of 32 columns a warp: 16 * 6 * 32 = 3072

__global__ void __launch_bounds__(32 * kMatrixWarps) router_matrix_kernel(const __grid_constant__ GossamerRouterArgs p) {
  clocks::Clock clock(clocks::kRouter);
  __shared__ float sums[kMatrixWarps][32][4], squares[kMatrixWarps][8], factors[8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int expert0 = blockIdx.x * 16, token0 = blockIdx.y * 8, steps = p.hidden_size / 32;
  const int begin = steps * warp / kMatrixWarps, count = steps * (warp + 1) / kMatrixWarps - begin;
  const size_t column = begin * 32 + 8 * t;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  uint4 w[kSteps][2], gain[kSteps], x[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const __nv_bfloat16* at = static_cast<const __nv_bfloat16*>(p.router_weight) + static_cast<size_t>(expert0 + g) * p.hidden_size + column + i * 32;
    w[i][0] = i < count && expert0 + g < p.experts ? ptx::load_streaming(at) : zero;
    w[i][1] = i < count && expert0 + g + 8 < p.experts ? ptx::load_streaming(at + 8 * static_cast<size_t>(p.hidden_size)) : zero;
    gain[i] = i < count && p.norm_weight ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.norm_weight) + column + i * 32) : zero;
  }
  // The logit that this thread finishes, if it does.
  const int expert = expert0 + threadIdx.x / 16 % 8 + 8 * (threadIdx.x >> 1 & 1), member = 2 * (threadIdx.x / 4 % 4) + (threadIdx.x & 1);
  const bool finishes = threadIdx.x < 128 && expert < p.experts && token0 + member < p.tokens;
  const float bias = finishes ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.router_bias)[expert]) : 0.f;
  ptx::launch_dependents();
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    x[i] = i < count && token0 + g < p.tokens
               ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.hidden) + static_cast<size_t>(token0 + g) * p.hidden_size + column + i * 32))
               : zero;
  float c[4] = {0.f, 0.f, 0.f, 0.f}, square = 0.f;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float f[8], q[8];
    unpack8(x[i], f);
    unpack8(gain[i], q);
    uint32_t high[4], low[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      square = fmaf(f[2 * j], f[2 * j], fmaf(f[2 * j + 1], f[2 * j + 1], square));
      const float u = p.norm_weight ? f[2 * j] * q[2 * j] : f[2 * j], v = p.norm_weight ? f[2 * j + 1] * q[2 * j + 1] : f[2 * j + 1];
      const __nv_bfloat162 h = __floats2bfloat162_rn(u, v), l = __floats2bfloat162_rn(u - __low2float(h), v - __high2float(h));
      high[j] = *reinterpret_cast<const uint32_t*>(&h);
      low[j] = *reinterpret_cast<const uint32_t*>(&l);
    }
    const uint32_t a0[4] = {w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y}, a1[4] = {w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w};
    ptx::mma_bf16(c, a0, high[0], high[1]);
    ptx::mma_bf16(c, a1, high[2], high[3]);
    ptx::mma_bf16(c, a0, low[0], low[1]);
    ptx::mma_bf16(c, a1, low[2], low[3]);
  }
  square += __shfl_xor_sync(~0u, square, 1);
  square += __shfl_xor_sync(~0u, square, 2);
  if (t == 0) squares[warp][g] = square;
  *reinterpret_cast<float4*>(sums[warp][lane]) = make_float4(c[0], c[1], c[2], c[3]);
  __syncthreads();
  float total = 0.f;
  if (threadIdx.x < 128) {
#pragma unroll
    for (int i = 0; i < kMatrixWarps; ++i) total += sums[i][threadIdx.x / 4][threadIdx.x % 4];
  } else if (threadIdx.x < 136) {
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < kMatrixWarps; ++i) s += squares[i][threadIdx.x - 128];
    factors[threadIdx.x - 128] = p.norm_weight ? rsqrtf(s / p.hidden_size + p.epsilon) : 1.f;
  }
  __syncthreads();
  if (finishes) p.logits[static_cast<size_t>(token0 + member) * p.experts + expert] = total * factors[member] + bias;
  // Block j of a token group writes the normed tokens j, j + blocks, ...
  if (p.norm_weight && p.normed && token0 + g < p.tokens && g % gridDim.x == blockIdx.x) {
    const float factor = factors[g];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i >= count) break;
      float f[8], q[8];
      unpack8(x[i], f);
      unpack8(gain[i], q);
      uint4 out;
      __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&out);
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = __floats2bfloat162_rn(q[2 * j] * (f[2 * j] * factor), q[2 * j + 1] * (f[2 * j + 1] * factor));
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.normed) + static_cast<size_t>(token0 + g) * p.hidden_size + column + i * 32) = out;
    }
  }
}

__global__ void __launch_bounds__(128) topk_kernel(const __grid_constant__ GossamerTopkArgs p) {
  const int token = blockIdx.x * 4 + threadIdx.x / 32;
  ptx::launch_dependents();
  ptx::dependency_wait();
  if (token >= p.tokens) return;
  int id[kTopK];
  float weight[kTopK];
  top4(p.logits + static_cast<size_t>(token) * p.experts, p.experts, id, weight);
  if ((threadIdx.x & 31) == 0)
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      p.ids[token * kTopK + k] = id[k];
      p.weights[token * kTopK + k] = weight[k];
    }
}

template <int kExperts, int kTokens>
int run(const GossamerRouterArgs& p, cudaStream_t stream) {
  const dim3 grid((p.experts + kExperts - 1) / kExperts, (p.tokens + kTokens - 1) / kTokens);
  return launch(router_kernel<kExperts, kTokens>, grid, dim3(kThreads), 0, stream, true, p);
}

}  // namespace
}  // namespace gossamer::moe

extern "C" int gossamer_router(const GossamerRouterArgs* p, cudaStream_t stream) {
  using namespace gossamer::moe;
  if (p->tokens < 1 || p->experts < 4 || p->experts > kMaxExperts || p->hidden_size < 32 || p->hidden_size % 32 || p->hidden_size > kThreads * 8)
    return GOSSAMER_BAD_SHAPE;
  if (p->tokens == 1) return run<1, 1>(*p, stream);
  if (p->tokens == 2) return run<2, 2>(*p, stream);
  return gossamer::launch(router_matrix_kernel, dim3((p->experts + 15) / 16, (p->tokens + 7) / 8), dim3(32 * kMatrixWarps), 0, stream, true, *p);
}

extern "C" int gossamer_topk(const GossamerTopkArgs* p, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::moe;
  if (p->tokens < 1 || p->experts < 4 || p->experts > kMaxExperts) return GOSSAMER_BAD_SHAPE;
  return launch(topk_kernel, dim3((p->tokens + 3) / 4), dim3(128), 0, stream, true, *p);
}
