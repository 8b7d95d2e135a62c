// archs: 90a
// The grouped products of E4M3 tokens.
#include "product.cuh"

namespace gossamer::grouped {

int products_fp8(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  if (const int status = product<true, true>(d, a, plan, stream)) return status;
  return product<true, false>(d, a, plan, stream);
}
bool prepare_fp8() { return allow<true, true>(Sets<true>{}) && allow<true, false>(Sets<true>{}); }

}  // namespace gossamer::grouped
