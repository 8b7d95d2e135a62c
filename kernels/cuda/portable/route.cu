// archs: 80 90a 100a
// Router: one block per token computes all logits, one warp picks the top k (ties: lower expert first) and normalises.
#include "common.cuh"

namespace gossamer::portable {
namespace {

constexpr uint32_t kMaxExperts = 1024, kMaxTopK = 32;

__global__ void route_kernel(GossamerRouteDesc d, GossamerRouteArgs a) {
  __shared__ float logits[kMaxExperts];
  const size_t token = blockIdx.x;
  const bf16* x = at<const bf16>(a.x) + token * d.hidden;
  const int lane = threadIdx.x & 31;
  for (uint32_t e = threadIdx.x / 32; e < d.experts; e += blockDim.x / 32) {
    const bf16* w = at<const bf16>(a.weight) + static_cast<size_t>(e) * d.hidden;
    float sum = 0;
    for (uint32_t i = lane; i < d.hidden; i += 32) sum += __bfloat162float(x[i]) * __bfloat162float(w[i]);
    sum = warp_sum(sum);
    if (lane == 0) logits[e] = sum + __bfloat162float(at<const bf16>(a.bias)[e]);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float chosen[kMaxTopK];
  uint32_t* ids = at<uint32_t>(a.expert_ids) + token * d.top_k;
  for (uint32_t k = 0; k < d.top_k; ++k) {
    float best = -INFINITY;
    uint32_t id = ~0u;
    for (uint32_t e = lane; e < d.experts; e += 32)
      if (logits[e] > best) best = logits[e], id = e;
    for (int o = 16; o; o >>= 1) {
      const float other = __shfl_xor_sync(~0u, best, o);
      const uint32_t other_id = __shfl_xor_sync(~0u, id, o);
      if (other > best || (other == best && other_id < id)) best = other, id = other_id;
    }
    if (id == ~0u) id = k;  // only NaN logits: any choice is as good, but it must be an expert
    if (lane == 0) ids[k] = id, logits[id] = -INFINITY;
    __syncwarp();
    chosen[k] = best;
  }
  if (lane) return;
  const float top = chosen[0];
  float sum = 0;
  for (uint32_t k = 0; k < d.top_k; ++k) sum += chosen[k] = __expf(chosen[k] - top);
  for (uint32_t k = 0; k < d.top_k; ++k) at<float>(a.expert_weights)[token * d.top_k + k] = chosen[k] / sum;
}

}  // namespace
}  // namespace gossamer::portable

extern "C" int gossamer_portable_route(const GossamerRouteDesc* d, const GossamerRouteArgs* a, cudaStream_t stream) {
  using namespace gossamer::portable;
  if (d->experts > kMaxExperts || d->top_k > kMaxTopK || d->top_k > d->experts || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (a->tokens) route_kernel<<<a->tokens, 256, 0, stream>>>(*d, *a);
  return launched();
}
