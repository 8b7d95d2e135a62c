// Tiled dense products, emulated, against float64.
#include "emulation.h"

#include "../gemm/tiled.cu"
#include "dense_problem.h"

int main() {
  const uint32_t seed = emulation::new_seed();
  bool ok = gossamer_dense_prepare() == GOSSAMER_OK;
  for (int tactic = 0; tactic < GOSSAMER_DENSE_TACTICS; ++tactic)
    for (const DenseCase& c : kDenseCases) {
      std::vector<uint8_t> workspace(gossamer_dense_workspace(tactic), 0xFF);
      std::memset(workspace.data(), 0, GOSSAMER_DENSE_FLAGS);
      ok &= check_dense(c, ("tactic " + std::to_string(tactic)).c_str(), seed + tactic, [&](const GossamerGemmDesc& d, const GossamerGemmArgs& a) {
        return gossamer_dense_gemm(&d, &a, tactic, workspace.data(), workspace.size(), 0);
      });
      if (!std::all_of(workspace.begin(), workspace.begin() + GOSSAMER_DENSE_FLAGS, [](uint8_t b) { return b == 0; })) {
        std::printf("FAIL tactic %d left flags set\n", tactic);
        ok = false;
      }
    }
  return emulation::verdict(ok);
}
