// archs: 80 90a 100a
// The experts' two products on MXFP4 weights, checkpoint layout or mxfp4-sm90-v2: weights are decoded into shared memory tile
// by tile and multiplied on bf16 tensor cores. Never more than a tile is expanded.
//
// Three launches: sort (token, choice) pairs by expert; gate_up with SwiGLU into the workspace; down into `out`. A row's sums do not
// depend on its place in the sort, so results repeat although the order inside an expert does not.
#include "experts.cuh"

namespace gossamer::portable {
namespace {

// Rows of experts that are held elsewhere.
__global__ void zero_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a) {
  const uint32_t e = at<const uint32_t>(a.expert_ids)[blockIdx.x] - d.first_expert;
  if (e < d.local_experts) return;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.hidden;
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) out[i] = __float2bfloat16(0.f);
}

// kGateUp: rows come from `x` by pair, results go to `inner`; else rows are those of `inner`, results go to `out` by pair.
template <bool kPacked, bool kGateUp>
__global__ void __launch_bounds__(kThreads) experts_kernel(const __grid_constant__ GossamerExpertsDesc d, const __grid_constant__ GossamerExpertsArgs a,
                                                           const __grid_constant__ Sorted s) {
  const uint32_t expert = blockIdx.y, first = s.starts[expert], count = s.starts[expert + 1] - first;
  const uint32_t rows = kGateUp ? 2 * d.intermediate : d.hidden, cols = kGateUp ? d.hidden : d.intermediate;
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const bf16* bias = at<const bf16>(w.bias) + static_cast<size_t>(expert) * rows;
  const auto load = [&](bf16* target, bool valid, uint32_t pair, uint32_t column) {
    const size_t row = kGateUp ? s.pairs[first + pair] / d.top_k : first + pair;
    ptx::copy_async<16>(target, (kGateUp ? at<const bf16>(a.x) : s.inner) + row * cols + column, valid);
  };
  const auto write = [&](uint32_t pair, uint32_t n, float v0, float v1) {
    v0 += __bfloat162float(bias[n]);
    v1 += __bfloat162float(bias[n + 1]);
    if constexpr (kGateUp) {
      // Two neighbouring rows are gate and up of one intermediate column.
      v0 = fminf(v0, d.limit);
      v1 = fminf(fmaxf(v1, -d.limit), d.limit);
      s.inner[static_cast<size_t>(first + pair) * d.intermediate + n / 2] = __float2bfloat16((v1 + 1.f) * v0 / (1.f + __expf(-d.alpha * v0)));
    } else {
      bf16* out = at<bf16>(a.out) + static_cast<size_t>(s.pairs[first + pair]) * d.hidden + n;
      *reinterpret_cast<uint32_t*>(out) = pack(v0, v1);
    }
  };
  expert_rows<kPacked, kGateUp>(w, expert, count, rows, cols, load, write);
}

template <bool kPacked>
int start(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Sorted& s, cudaStream_t stream) {
  const auto product = [&](auto kernel, uint32_t rows) { return launch(kernel, dim3((rows + kN - 1) / kN, d.local_experts), dim3(kThreads), 0, stream, false, d, a, s); };
  if (const int status = product(experts_kernel<kPacked, true>, 2 * d.intermediate)) return status;
  return product(experts_kernel<kPacked, false>, d.hidden);
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
  int status = gossamer::launch(sort_kernel<GossamerExpertsDesc, GossamerExpertsArgs>, dim3(1), dim3(1024), 0, stream, false, *d, *a, s);
  if (!status && d->local_experts < d->experts) status = gossamer::launch(zero_kernel, dim3(a->tokens * d->top_k), dim3(256), 0, stream, false, *d, *a);
  if (status) return status;
  return packed ? start<true>(*d, *a, s, stream) : start<false>(*d, *a, s, stream);
}
