// Attention of single queries, emulated, against float64: every form and every arithmetic.
#include "emulation.h"

#include "../attention/decode.cu"
#include "../harness/attention_problem.h"
#include "reference.h"

using namespace harness;

// `empty`: a sequence whose length is zero; its row must be zeros.
static bool check(const Case& c, int form, int splits, bool fp8_products, int empty, uint32_t seed) {
  AttentionProblem p(c, seed);
  if (empty >= 0) p.lens[empty] = 0;
  const size_t row = static_cast<size_t>(c.heads) * p.kD;
  std::vector<uint16_t> out(p.tokens * row + 64, 0xFFFF);
  std::vector<uint8_t> workspace(gossamer_decode_attention_workspace(static_cast<int>(p.tokens), static_cast<int>(c.kv_heads), splits ? splits : 0) + gossamer_decode_attention_workspace(1, 1, 0), 0xFF);
  std::memset(workspace.data(), 0, 4096);
  GossamerDecodeAttentionArgs a = {};
  a.q = p.q.data(), a.kv = p.cache.data(), a.block_tables = reinterpret_cast<const int*>(p.table.data()), a.lengths = reinterpret_cast<const int*>(p.lens.data());
  a.query_starts = p.starts.data(), a.first_blocks = reinterpret_cast<const int*>(p.first.data()), a.sinks = c.sinks ? p.sinks.data() : nullptr;
  a.kv_scales = c.fp8 ? p.scales.data() : nullptr, a.out = out.data(), a.workspace = workspace.data(), a.workspace_bytes = workspace.size(), a.scale = 0.125f;
  a.q_stride = static_cast<int>(p.stride), a.tokens = static_cast<int>(p.tokens), a.kv_heads = static_cast<int>(c.kv_heads), a.max_blocks = static_cast<int>(p.table_stride);
  a.max_kv = static_cast<int>(p.max_kv), a.window = static_cast<int>(c.window), a.fp8 = c.fp8, a.group = static_cast<int>(c.heads / c.kv_heads), a.splits = splits;
  a.fp8_products = fp8_products, a.form = form;
  const int status = gossamer_decode_attention(&a, 0);
  Error error;
  for (uint32_t s = 0; s < p.lens.size(); ++s)
    for (uint32_t head = 0; head < c.heads; ++head) {
      const auto expected = static_cast<int>(s) == empty ? std::vector<double>(p.kD) : p.reference(s, 0, head);
      for (uint32_t i = 0; i < p.kD; ++i) error.add(gossamer::ptx::bf16_bits(out[s * row + head * p.kD + i]), expected[i]);
    }
  bool clean = std::all_of(out.end() - 64, out.end(), [](uint16_t v) { return v == 0xFFFF; });
  clean &= std::all_of(workspace.begin(), workspace.begin() + 4096, [](uint8_t v) { return v == 0; });
  const std::string what = "form " + std::to_string(form) + " splits " + std::to_string(splits) + (fp8_products ? " E4M3 products" : "") + " of " + c.name();
  return report(what, error, fp8_products ? 6e-2 : 5e-3, status == GOSSAMER_OK && clean, status ? " refused" : clean ? "" : " left something");
}

static std::vector<Sequence> singles(std::initializer_list<uint32_t> lengths) {
  std::vector<Sequence> all;
  for (uint32_t l : lengths) all.push_back({1, l});
  return all;
}

int main() {
  bool ok = true;
  const uint32_t seed = emulation::new_seed();
  const auto edges = singles({1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 300});
  const auto uneven = singles({1000, 1, 777, 33, 5, 2100, 64});
  for (int mode = 0; mode < 3; ++mode) {
    const bool fp8 = mode > 0, products = mode == 2;
    for (int warps : {1, 2, 4, 8}) {
      for (uint32_t window : {0u, 37u, 128u}) {
        ok &= check({16, 2, window, true, fp8, 6, edges}, GOSSAMER_DECODE_ROWS, warps, products, 3, seed + warps);
        ok &= check({8, 1, window, window != 37, fp8, 6, uneven}, GOSSAMER_DECODE_ROWS, warps, products, -1, seed + warps + 1);
        ok &= check({6, 2, window, true, fp8, 6, uneven}, GOSSAMER_DECODE_ROWS, warps, products, 6, seed + 2);
      }
    }
    for (int splits : {1, 3, 8}) ok &= check({6, 2, 0, true, fp8, 6, uneven}, GOSSAMER_DECODE_SPLIT, splits, products, 6, seed + 4);
    ok &= check({16, 2, 37, false, fp8, 6, edges}, GOSSAMER_DECODE_SPLIT, 2, products, 0, seed + 5);
    for (int splits : {1, 2, 4, 8}) ok &= check({6, 2, splits == 4 ? 128u : 0u, splits != 2, fp8, 6, singles({1, 777, 2100})}, GOSSAMER_DECODE_CLUSTER, splits, products, splits == 1 ? 0 : -1, seed + 6);
  }
  return emulation::verdict(ok);
}
