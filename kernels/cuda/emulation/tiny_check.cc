// Dense products of few tokens, emulated, against float64; and the one with rotary embedding inside against the two kernels it stands for.
#include "emulation.h"

#include "../attention/rope.cu"
#include "../gemm/tiny.cu"
#include "reference.h"

namespace {

struct Case {
  int tokens, rows, k;
  bool norm, bias, residual, float_out;
  int tactic;
};

bool check(const Case& c, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto random = [&](size_t n, float scale) { return random_bf16(n, scale, rng); };
  const size_t count = static_cast<size_t>(c.tokens) * c.rows;
  const auto x = random(static_cast<size_t>(c.tokens) * c.k, 2.f), gain = random(c.k, 1.f), weight = random(static_cast<size_t>(c.rows) * c.k, .1f), bias = random(c.rows, 1.f), residual = random(count, 1.f);
  Output out(count, c.float_out);
  GossamerTinyGemmArgs a = {};
  a.x = x.data(), a.norm_weight = c.norm ? gain.data() : nullptr, a.weight = weight.data(), a.bias = c.bias ? bias.data() : nullptr, a.residual = c.residual ? residual.data() : nullptr, a.out = out.data();
  a.epsilon = 1e-5f, a.tokens = c.tokens, a.rows = c.rows, a.k = c.k, a.float_out = c.float_out, a.tactic = c.tactic;
  const int status = gossamer_tiny_gemm(&a, 0);
  Error error;
  for (int t = 0; t < c.tokens; ++t) {
    double squares = 0;
    for (int i = 0; i < c.k; ++i) squares += value(x[static_cast<size_t>(t) * c.k + i]) * value(x[static_cast<size_t>(t) * c.k + i]);
    const double factor = c.norm ? 1 / std::sqrt(squares / c.k + 1e-5) : 1;
    for (int r = 0; r < c.rows; ++r) {
      const size_t at = static_cast<size_t>(t) * c.rows + r;
      double sum = 0;
      // The gain goes into the tokens, which are rounded to bf16 once more.
      for (int i = 0; i < c.k; ++i) {
        const double v = value(x[static_cast<size_t>(t) * c.k + i]);
        sum += (c.norm ? value(__float2bfloat16(static_cast<float>(v * value(gain[i])))) : v) * value(weight[static_cast<size_t>(r) * c.k + i]);
      }
      sum = sum * factor + (c.bias ? value(bias[r]) : 0) + (c.residual ? value(residual[at]) : 0);
      error.add(out.at(at), sum);
    }
  }
  char what[160];
  std::snprintf(what, sizeof what, "%d tokens, %d -> %d%s%s%s%s, tactic %d", c.tokens, c.k, c.rows, c.norm ? ", norm" : "", c.bias ? ", bias" : "", c.residual ? ", residual" : "", c.float_out ? ", float out" : "", c.tactic);
  const bool untouched = out.guard_untouched();
  return report(what, error, c.float_out ? 2e-6 : 4e-3, status == GOSSAMER_OK && untouched, status ? ", refused" : untouched ? "" : ", wrote past the end");
}

// Queries and pages to the bit, and nothing but them written.
bool check_rope(int tokens, int kv_heads, int group, int k, bool fp8, bool scaled, uint32_t seed) {
  constexpr int kDim = 64, kPage = 64, kPages = 3;
  std::mt19937 rng(seed);
  const auto random = [&](size_t n, float scale) { return random_bf16(n, scale, rng); };
  const int rows = kv_heads * (group + 2) * kDim, queries = kv_heads * group * kDim;
  const auto x = random(static_cast<size_t>(tokens) * k, 2.f), gain = random(k, 1.f), weight = random(static_cast<size_t>(rows) * k, .1f), bias = random(rows, 1.f);
  std::vector<int> positions;
  std::vector<uint64_t> slots;
  std::vector<float> frequencies, scales;
  for (int i = 0; i < tokens; ++i) positions.push_back(static_cast<int>(rng() % 131072)), slots.push_back((i * 37 + seed) % (kPage * kPages));
  for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(std::pow(150000.f, -i / 32.f));
  for (int i = 0; i < 2 * kv_heads; ++i) scales.push_back(.01f + .001f * i);
  GossamerTinyGemmArgs a = {};
  a.x = x.data(), a.norm_weight = gain.data(), a.weight = weight.data(), a.bias = bias.data(), a.epsilon = 1e-5f, a.tokens = tokens, a.rows = rows, a.k = k;
  GossamerRopeKvArgs r = {};
  r.positions = positions.data(), r.slots = slots.data(), r.inv_freq = frequencies.data(), r.kv_scales = scaled ? scales.data() : nullptr, r.attention_scaling = 1.3f, r.tokens = tokens, r.kv_heads = kv_heads,
  r.fp8 = fp8, r.group = group;
  std::vector<uint16_t> out[2];
  std::vector<uint8_t> pages[2];
  int status = GOSSAMER_OK;
  for (int inside = 0; inside < 2; ++inside) {
    out[inside].assign(static_cast<size_t>(tokens) * rows, 0xFFFF);
    pages[inside].assign(static_cast<size_t>(kPages) * 2 * kv_heads * kPage * kDim * (fp8 ? 1 : 2), 0xFF);
    a.out = out[inside].data(), r.qkv = inside ? nullptr : a.out, r.kv = pages[inside].data();
    if (!status) status = inside ? gossamer_tiny_qkv(&a, &r, 0) : gossamer_tiny_gemm(&a, 0);
    if (!status && !inside) status = gossamer_rope_kv(&r, 0);
  }
  bool ok = status == GOSSAMER_OK && pages[0] == pages[1];
  for (int t = 0; t < tokens; ++t)
    for (int i = 0; i < rows; ++i) ok &= out[1][t * rows + i] == (i < queries ? out[0][t * rows + i] : 0xFFFF);
  ok &= std::any_of(pages[0].begin(), pages[0].end(), [](uint8_t b) { return b != 0xFF; });
  std::printf("%s rotary embedding inside: %d tokens, %d x (%d + 2) heads, %s%s\n", ok ? "ok  " : "FAIL", tokens, kv_heads, group, fp8 ? "E4M3" : "bf16", scaled ? ", scaled" : "");
  return ok;
}

}  // namespace

int main() {
  const uint32_t seed = emulation::new_seed();
  bool ok = gossamer::gemm::prepare_tiny();
  const Case cases[] = {
      {1, 16, 32, false, false, false, false, 0},    {1, 240, 2880, true, true, false, false, -1}, {3, 112, 4096, false, true, true, false, -1},   {8, 400, 640, true, false, false, true, 0},
      {11, 64, 2880, true, true, false, false, 0},   {16, 96, 4096, false, false, true, false, 0}, {25, 48, 2880, true, true, true, true, 0},      {32, 48, 4096, false, true, false, false, 0},
      {50, 80, 2880, true, true, false, false, 0},   {64, 48, 2880, false, false, true, true, 1},
  };
  for (const Case& c : cases) ok &= check(c, seed + c.tokens);
  ok &= check_rope(1, 2, 8, 2880, false, false, seed) & check_rope(5, 1, 4, 640, true, true, seed + 1) & check_rope(8, 2, 1, 2880, true, false, seed + 2) & check_rope(13, 1, 8, 2880, false, false, seed + 3);
  return emulation::verdict(ok);
}
