// Portable attention, emulated, against float64: many queries, and few by warps that share the keys.
#include "emulation.h"

#include "../portable/attention.cu"
#include "attention_check.h"

// The launcher's stand-in never fails.
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }

using namespace harness;

int main() {
  const uint32_t seed = emulation::new_seed();
  const auto check = [&](const Case& c) { return check_attention(c, seed, [](const GossamerAttentionDesc& d, const GossamerAttentionArgs& a) { return gossamer_portable_attention(&d, &a, 0); }); };
  const std::vector<Sequence> mixed = {{5, 70}, {64, 64}, {1, 300}, {30, 400}, {1, 1}, {2, 65}, {1, 64}, {24, 193}}, few = {{1, 1}, {1, 64}, {2, 65}, {1, 700}, {2, 300}};
  bool ok = true;
  for (bool fp8 : {false, true})
    for (uint32_t window : {0u, 32u, 128u}) {
      ok &= check({8, 1, window, true, fp8, 6, mixed});
      ok &= check({6, 2, window, false, fp8, 30, mixed});
      ok &= check({8, 1, window, true, fp8, 6, few});
      ok &= check({6, 2, window, false, fp8, 6, few});
    }
  return emulation::verdict(ok);
}
