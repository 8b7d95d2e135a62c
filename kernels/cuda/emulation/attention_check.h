// Attention of any number of queries for emulated checks, against float64.
#pragma once
#include "../harness/attention_problem.h"
#include "reference.h"

// `attend(d, a)` runs the kernel.
template <class Attend>
bool check_attention(const harness::Case& c, uint32_t seed, Attend attend) {
  harness::AttentionProblem p(c, seed);
  std::vector<uint16_t> out(static_cast<size_t>(p.tokens) * c.heads * p.kD, 0xFFFF);
  const auto address = [](const auto& v) { return reinterpret_cast<uint64_t>(v.data()); };
  const GossamerAttentionArgs a = {address(p.q), p.stride, static_cast<uint32_t>(p.lens.size()), address(p.starts), address(p.lens), address(p.table), p.table_stride,
                                   p.max_query, p.max_kv, p.tokens, address(p.first), c.sinks ? address(p.sinks) : 0, address(p.cache), c.fp8 ? address(p.scales) : 0, address(out)};
  if (const int status = attend(p.d, a)) {
    std::printf("FAIL %s: status %d\n", c.name().c_str(), status);
    return false;
  }
  Error error;
  for (uint32_t s = 0; s < p.lens.size(); ++s)
    for (uint32_t query = 0; query < c.sequences[s].queries; ++query)
      for (uint32_t head = 0; head < c.heads; ++head) {
        if (c.sequences[s].queries > 40 && (query * 7 + head) % 5) continue;
        const auto expected = p.reference(s, query, head);
        for (uint32_t i = 0; i < p.kD; ++i) error.add(gossamer::ptx::bf16_bits(out[(static_cast<size_t>(p.starts[s] + query) * c.heads + head) * p.kD + i]), expected[i]);
      }
  return report(c.name(), error, 6e-3);
}
