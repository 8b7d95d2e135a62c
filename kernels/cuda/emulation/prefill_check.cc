// Attention for many queries, emulated, against float64.
#include "emulation.h"

#define cudaMemsetAsync(p, value, bytes, stream) (std::memset(p, value, bytes), cudaSuccess)
#include "../attention/prefill.cu"
#include "../harness/attention_problem.h"

using namespace harness;

static bool check(const Case& c, uint32_t seed) {
  AttentionProblem p(c, seed);
  std::vector<uint16_t> out(static_cast<size_t>(p.tokens) * c.heads * p.kD, 0xFFFF);
  std::vector<uint8_t> workspace(GOSSAMER_PREFILL_WORKSPACE, 0xFF);
  const auto address = [](const auto& v) { return reinterpret_cast<uint64_t>(v.data()); };
  const GossamerAttentionArgs a = {address(p.q), p.stride, static_cast<uint32_t>(p.lens.size()), address(p.starts), address(p.lens), address(p.table), p.table_stride,
                                   p.max_query, p.max_kv, p.tokens, address(p.first), c.sinks ? address(p.sinks) : 0, address(p.cache), c.fp8 ? address(p.scales) : 0, address(out)};
  if (const int status = gossamer_prefill_attention(&p.d, &a, workspace.data(), workspace.size(), 0)) {
    std::printf("FAIL %s: status %d\n", c.name().c_str(), status);
    return false;
  }
  double difference = 0, norm = 0;
  for (uint32_t s = 0; s < p.lens.size(); ++s)
    for (uint32_t query = 0; query < c.sequences[s].queries; ++query)
      for (uint32_t head = 0; head < c.heads; ++head) {
        if (c.sequences[s].queries > 40 && (query * 7 + head) % 5) continue;
        const auto expected = p.reference(s, query, head);
        for (uint32_t i = 0; i < p.kD; ++i) {
          const double got = gossamer::ptx::bf16_bits(out[(static_cast<size_t>(p.starts[s] + query) * c.heads + head) * p.kD + i]);
          difference += std::isfinite(got) ? (got - expected[i]) * (got - expected[i]) : 1e30;
          norm += expected[i] * expected[i];
        }
      }
  const double error = std::sqrt(difference / norm);
  std::printf("%s %s: error %.2e (6e-3)\n", error < 6e-3 ? "ok  " : "FAIL", c.name().c_str(), error);
  std::fflush(stdout);
  return error < 6e-3;
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
