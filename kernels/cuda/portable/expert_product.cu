// archs: 80 90a 100a
// One product of the experts: rows of bf16, or of E4M3 codes with a scale each, times MXFP4 weights. Codes are exact in bf16; a row's
// scale comes after its sums. For graphs whose experts are not one operation; plain, not fast.
#include "experts.cuh"

namespace gossamer::portable {
namespace {

template <bool kPacked, bool kInterleaved, bool kCodes>
__global__ void __launch_bounds__(kThreads) product_kernel(const __grid_constant__ GossamerExpertProductDesc d,
                                                           const __grid_constant__ GossamerExpertProductArgs a, const __grid_constant__ Sorted s) {
  const uint32_t expert = blockIdx.y, first = s.starts[expert], count = s.starts[expert + 1] - first, rows = d.out_features;
  const bf16* bias = at<const bf16>(a.weights.bias) + static_cast<size_t>(expert) * rows;
  const auto row_of = [&](uint32_t pair) { return static_cast<size_t>(d.per_pair ? s.pairs[first + pair] : s.pairs[first + pair] / d.top_k); };
  const auto load = [&](bf16* target, bool valid, uint32_t pair, uint32_t column) {
    const size_t from = row_of(pair) * d.in_columns + column;
    for (int j = 0; j < 8; ++j) {
      if constexpr (kCodes) target[j] = __float2bfloat16(valid ? static_cast<float>(at<const __nv_fp8_e4m3>(a.x)[from + j]) : 0.f);
      else target[j] = valid ? at<const bf16>(a.x)[from + j] : __float2bfloat16(0.f);
    }
  };
  const auto write = [&](uint32_t pair, uint32_t n, float v0, float v1) {
    const float scale = kCodes ? at<const float>(a.scales)[row_of(pair)] : 1.f;
    bf16* out = at<bf16>(a.out) + static_cast<size_t>(s.pairs[first + pair]) * d.out_columns + n;
    out[0] = __float2bfloat16(v0 * scale + __bfloat162float(bias[n]));
    if (n + 1 < rows) out[1] = __float2bfloat16(v1 * scale + __bfloat162float(bias[n + 1]));
  };
  expert_rows<kPacked, kInterleaved>(a.weights, expert, count, rows, d.in_features, load, write);
}

// Padding, and whole rows of experts that are held elsewhere.
__global__ void clear_kernel(GossamerExpertProductDesc d, GossamerExpertProductArgs a) {
  const bool elsewhere = at<const uint32_t>(a.expert_ids)[blockIdx.x] - d.first_expert >= d.local_experts;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.out_columns;
  for (uint32_t i = (elsewhere ? 0 : d.out_features) + threadIdx.x; i < d.out_columns; i += blockDim.x) out[i] = __float2bfloat16(0.f);
}

template <bool kPacked, bool kInterleaved>
int start(const GossamerExpertProductDesc& d, const GossamerExpertProductArgs& a, const Sorted& s, cudaStream_t stream) {
  const dim3 grid((d.out_features + kN - 1) / kN, d.local_experts);
  const auto kernel = d.x == GOSSAMER_F8E4M3 ? product_kernel<kPacked, kInterleaved, true> : product_kernel<kPacked, kInterleaved, false>;
  return launch(kernel, grid, dim3(kThreads), 0, stream, false, d, a, s);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" size_t gossamer_portable_expert_product_workspace(const GossamerExpertProductDesc* d, unsigned tokens) {
  using namespace gossamer::portable;
  return aligned((d->local_experts + 1) * sizeof(uint32_t)) + aligned(static_cast<size_t>(tokens) * d->top_k * sizeof(uint32_t));
}

extern "C" int gossamer_portable_expert_product(const GossamerExpertProductDesc* d, const GossamerExpertProductArgs* a, int packed, void* workspace,
                                                cudaStream_t stream) {
  using namespace gossamer::portable;
  const bool rows = d->x == GOSSAMER_BF16 || d->x == GOSSAMER_F8E4M3;
  if (d->in_features % 32 || d->in_columns < d->in_features || d->out_columns < d->out_features || d->local_experts > kMaxExperts || !rows ||
      d->out != GOSSAMER_BF16 || (packed && d->out_features % 16))
    return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  const Sorted s = carve(*d, a->tokens, workspace);
  int status = gossamer::launch(sort_kernel<GossamerExpertProductDesc, GossamerExpertProductArgs>, dim3(1), dim3(1024), 0, stream, false, *d, *a, s);
  if (!status) status = gossamer::launch(clear_kernel, dim3(a->tokens * d->top_k), dim3(256), 0, stream, false, *d, *a);
  if (status) return status;
  if (!packed) return start<false, false>(*d, *a, s, stream);  // the checkpoint keeps its rows' order
  return d->interleaved ? start<true, true>(*d, *a, s, stream) : start<true, false>(*d, *a, s, stream);
}
