// archs: 90a
// The grouped products of bf16 tokens.
#include "product.cuh"

namespace gossamer::grouped {

int products_bf16(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  if (const int status = product<false, true>(d, a, plan, stream)) return status;
  return product<false, false>(d, a, plan, stream);
}
bool prepare_bf16() { return allow<false, true>(Sets<false>{}) && allow<false, false>(Sets<false>{}); }

}  // namespace gossamer::grouped
