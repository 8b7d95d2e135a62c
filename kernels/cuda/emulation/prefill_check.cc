// Attention for many queries, emulated, against float64.
#include "emulation.h"

#define cudaMemsetAsync(p, value, bytes, stream) (std::memset(p, value, bytes), cudaSuccess)
#include "../attention/prefill.cu"
#include "attention_check.h"

using namespace harness;

static bool check(const Case& c, uint32_t seed) {
  std::vector<uint8_t> workspace(GOSSAMER_PREFILL_WORKSPACE, 0xFF);
  return check_attention(c, seed, [&](const GossamerAttentionDesc& d, const GossamerAttentionArgs& a) {
    return gossamer_prefill_attention(&d, &a, workspace.data(), workspace.size(), 0);
  });
}

// With any argument: more head counts.
int main(int argc, char**) {
  bool ok = true;
  const uint32_t seed = emulation::new_seed();
  const std::vector<Sequence> mixed = {{5, 70}, {64, 64}, {1, 300}, {30, 400}, {1, 1}, {2, 65}, {1, 64}, {24, 193}};
  for (uint32_t n : {1u, 3u, 17u, 64u, 129u}) ok &= check({8, 1, n % 2 ? 0u : 128u, true, false, 6, {{n, n}}}, seed + n);
  for (bool fp8 : {false, true})
    for (uint32_t window : {0u, 32u, 128u}) {
      ok &= check({8, 1, window, true, fp8, 6, mixed}, seed + 1);
      if (argc > 1) ok &= check({4, 2, window, true, fp8, 6, mixed}, seed + 2);
      ok &= check({6, 2, window, false, fp8, 30, mixed}, seed + 3);
    }
  // Scores far apart: references move again and again, also in steps without a mask.
  for (bool fp8 : {false, true})
    for (bool sinks : {false, true}) ok &= check({16, 2, 0, sinks, fp8, 400, {{100, 900}, {7, 9}, {3, 700}}}, seed + 4);
  return emulation::verdict(ok);
}
