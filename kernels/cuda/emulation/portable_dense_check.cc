// The portable dense product, emulated, against float64.
#include "emulation.h"

#include "../portable/gemm.cu"
#include "dense_problem.h"

int main() {
  const uint32_t seed = emulation::new_seed();
  bool ok = true;
  for (const DenseCase& c : kDenseCases)
    ok &= check_dense(c, "portable", seed, [](const GossamerGemmDesc& d, const GossamerGemmArgs& a) { return gossamer_portable_gemm(&d, &a, 0); });
  return emulation::verdict(ok);
}
