// archs: 80 90a 100a
// What the fused operations are put together from: a block per row. For graphs before fusion; plain, not fast.
#include "common.cuh"

namespace gossamer::portable {
namespace {

__device__ __forceinline__ float value(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ bf16 rounded(float v) { return __float2bfloat16(v); }

// A block per token; threads walk over (head, pair).
__global__ void rope_kernel(GossamerRopeDesc d, GossamerRopeArgs a) {
  const uint32_t half = d.head_dim / 2;
  bf16* qkv = at<bf16>(a.qkv) + static_cast<size_t>(blockIdx.x) * (d.heads + 2 * d.kv_heads) * d.head_dim;
  const float position = static_cast<float>(at<const uint32_t>(a.positions)[blockIdx.x]);
  for (uint32_t i = threadIdx.x; i < (d.heads + d.kv_heads) * half; i += blockDim.x) {
    bf16* head = qkv + i / half * d.head_dim + i % half;
    float sine, cosine;
    sincosf(position * at<const float>(a.inverse_frequencies)[i % half], &sine, &cosine);
    sine *= d.magnitude, cosine *= d.magnitude;
    const float low = value(head[0]), high = value(head[half]);
    head[0] = rounded(low * cosine - high * sine);
    head[half] = rounded(high * cosine + low * sine);
  }
}

__global__ void scale_kernel(GossamerScaleDesc d, GossamerScaleArgs a) {
  bf16* row = at<bf16>(a.x) + static_cast<size_t>(blockIdx.x) * d.stride;
  for (uint32_t i = threadIdx.x; i < d.columns; i += blockDim.x) row[i] = rounded(value(row[i]) * d.factor);
}

// A block per token; threads walk over (K or V, head, column).
__global__ void kv_write_kernel(GossamerKvWriteDesc d, GossamerKvWriteArgs a) {
  const bf16* row = at<const bf16>(a.qkv) + (static_cast<size_t>(blockIdx.x) * (d.heads + 2 * d.kv_heads) + d.heads) * d.head_dim;
  const uint64_t slot = at<const uint64_t>(a.slots)[blockIdx.x], block = slot / d.block_size, offset = slot % d.block_size;
  const float* scales = at<const float>(a.kv_scales);
  for (uint32_t i = threadIdx.x; i < 2 * d.kv_heads * d.head_dim; i += blockDim.x) {
    const uint32_t head = i / d.head_dim;  // those of K, then those of V, as in the cache
    const size_t target = ((block * 2 * d.kv_heads + head) * d.block_size + offset) * d.head_dim + i % d.head_dim;
    if (d.kv == GOSSAMER_F8E4M3) at<__nv_fp8_e4m3>(a.kv)[target] = __nv_fp8_e4m3(value(row[i]) * (scales ? 1.f / scales[head] : 1.f));
    else at<bf16>(a.kv)[target] = row[i];
  }
}

__global__ void resize_kernel(GossamerResizeDesc d, GossamerResizeArgs a) {
  const bf16* x = at<const bf16>(a.x) + static_cast<size_t>(blockIdx.x) * d.from;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.to;
  for (uint32_t i = threadIdx.x; i < d.to; i += blockDim.x) out[i] = i < d.from ? x[i] : rounded(0.f);
}

// Rounds a row that `read` gives, with a scale that takes its largest value to 448. All threads of the block.
template <class Read>
__device__ void quantise_row(uint32_t columns, uint32_t padded, __nv_fp8_e4m3* codes, float* scale, const Read& read) {
  __shared__ float scratch[32];
  float top = 1e-20f;  // a row of zeros keeps a scale
  for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, fabsf(read(i)));
  top = block_reduce(top, scratch, 0.f, [](float p, float q) { return fmaxf(p, q); });
  if (threadIdx.x == 0) *scale = top / 448.f;
  const float inverse = 448.f / top;
  for (uint32_t i = threadIdx.x; i < padded; i += blockDim.x) codes[i] = __nv_fp8_e4m3(i < columns ? read(i) * inverse : 0.f);
}

__global__ void quantise_kernel(GossamerQuantiseDesc d, GossamerQuantiseArgs a) {
  const size_t row = blockIdx.x;
  const bf16* x = at<const bf16>(a.x) + row * d.columns;
  quantise_row(d.columns, d.padded, at<__nv_fp8_e4m3>(a.codes) + row * d.padded, at<float>(a.scales) + row, [&](uint32_t i) { return value(x[i]); });
}

__global__ void swiglu_kernel(GossamerSwigluDesc d, GossamerSwigluArgs a) {
  const size_t row = blockIdx.x;
  const __nv_bfloat162* x = at<const __nv_bfloat162>(a.x) + row * d.columns;
  const auto unit = [&](uint32_t i) {
    const float gate = fminf(value(x[i].x), d.limit), up = fminf(fmaxf(value(x[i].y), -d.limit), d.limit);
    return rounded((up + 1.f) * gate / (1.f + __expf(-d.alpha * gate)));
  };
  if (d.out == GOSSAMER_F8E4M3) {
    quantise_row(d.columns, d.padded, at<__nv_fp8_e4m3>(a.out) + row * d.padded, at<float>(a.scales) + row, [&](uint32_t i) { return value(unit(i)); });
    return;
  }
  for (uint32_t i = threadIdx.x; i < d.columns; i += blockDim.x) at<bf16>(a.out)[row * d.columns + i] = unit(i);
}

__global__ void combine_kernel(GossamerCombineDesc d, GossamerCombineArgs a) {
  const size_t token = blockIdx.x;
  const bf16* experts = at<const bf16>(a.experts_out) + token * d.top_k * d.columns;
  const float* weights = at<const float>(a.expert_weights) + token * d.top_k;
  for (uint32_t i = threadIdx.x; i < d.columns; i += blockDim.x) {
    float sum = 0;
    for (uint32_t j = 0; j < d.top_k; ++j) sum += weights[j] * value(experts[j * d.columns + i]);
    at<bf16>(a.out)[token * d.columns + i] = rounded(sum);
  }
}

__global__ void add_kernel(GossamerAddDesc d, GossamerAddArgs a) {
  const bf16* x = at<const bf16>(a.x) + static_cast<size_t>(blockIdx.x) * d.columns;
  bf16* residual = at<bf16>(a.residual) + static_cast<size_t>(blockIdx.x) * d.columns;
  for (uint32_t i = threadIdx.x; i < d.columns; i += blockDim.x) residual[i] = rounded(value(residual[i]) + value(x[i]));
}

}  // namespace
}  // namespace gossamer::portable

using namespace gossamer::portable;

#define GOSSAMER_LAUNCHER(name, type, kernel, rows)                                                                             \
  extern "C" int gossamer_portable_##name(const Gossamer##type##Desc* d, const Gossamer##type##Args* a, cudaStream_t stream) { \
    if (a->tokens) kernel<<<rows, 256, 0, stream>>>(*d, *a);                                                                    \
    return launched();                                                                                                          \
  }
GOSSAMER_LAUNCHER(rope, Rope, rope_kernel, a->tokens)
GOSSAMER_LAUNCHER(scale, Scale, scale_kernel, a->tokens)
GOSSAMER_LAUNCHER(kv_write, KvWrite, kv_write_kernel, a->tokens)
GOSSAMER_LAUNCHER(resize, Resize, resize_kernel, a->tokens * d->rows)
GOSSAMER_LAUNCHER(quantise, Quantise, quantise_kernel, a->tokens * d->rows)
GOSSAMER_LAUNCHER(swiglu, Swiglu, swiglu_kernel, a->tokens * d->rows)
GOSSAMER_LAUNCHER(combine, Combine, combine_kernel, a->tokens)
GOSSAMER_LAUNCHER(add, Add, add_kernel, a->tokens)
