// The portable experts and their single products, emulated, against float64: weights in both layouts, experts held elsewhere.
#include "emulation.h"

#include "../portable/expert_product.cu"
#include "../portable/experts.cu"
#include "expert_weights.h"

// The launcher's stand-in never fails.
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace {

constexpr uint32_t kTopK = 2;

template <class T>
uint64_t address(const std::vector<T>& v) {
  return reinterpret_cast<uint64_t>(v.data());
}

struct Problem {
  uint32_t hidden, intermediate, experts, first, local, tokens;
  std::mt19937 rng;
  Matrices gate_up, down;
  std::vector<__nv_bfloat16> x, gate_up_bias, down_bias;
  std::vector<uint32_t> ids;

  Problem(uint32_t h, uint32_t i, uint32_t e, uint32_t f, uint32_t l, uint32_t t, uint32_t seed)
      : hidden(h), intermediate(i), experts(e), first(f), local(l), tokens(t), rng(seed), gate_up(l, 2 * i, h, true, 4, rng), down(l, h, i, false, 4, rng) {
    x = random(static_cast<size_t>(t) * h, 1.7f), gate_up_bias = random(static_cast<size_t>(l) * 2 * i, .1f), down_bias = random(static_cast<size_t>(l) * h, .1f);
    for (uint32_t n = 0; n < t; ++n) {
      const uint32_t one = rng() % e;
      ids.push_back(one), ids.push_back((one + 1 + rng() % (e - 1)) % e);
    }
  }
  std::vector<__nv_bfloat16> random(size_t n, float scale) { return random_bf16(n, scale, rng); }
  static GossamerExpertWeights weights(const Matrices& m, const std::vector<__nv_bfloat16>& bias, bool packed) {
    return packed ? GossamerExpertWeights{address(m.packed), 0, address(bias)} : GossamerExpertWeights{address(m.codes), address(m.scales), address(bias)};
  }
  bool held(uint32_t pair) const { return ids[pair] - first < local; }

  std::vector<double> reference(uint32_t pair) const {
    std::vector<double> token(hidden);
    for (uint32_t i = 0; i < hidden; ++i) token[i] = value(x[pair / kTopK * hidden + i]);
    return expert_output(gate_up, gate_up_bias, down, down_bias, ids[pair] - first, token, rounded);
  }

  bool check_experts(bool packed) const {
    const GossamerExpertsDesc d = {hidden, intermediate, experts, first, local, kTopK, 7.f, 1.702f, GOSSAMER_BF16, GOSSAMER_MXFP4, packed};
    std::vector<uint16_t> out(static_cast<size_t>(tokens) * kTopK * hidden, 0xFFFF);
    std::vector<uint8_t> workspace(gossamer_portable_experts_workspace(&d, tokens), 0xFF);
    const GossamerExpertsArgs a = {address(x), address(ids), weights(gate_up, gate_up_bias, packed), weights(down, down_bias, packed), address(out), tokens};
    Error error;
    const int status = gossamer_portable_experts(&d, &a, packed, workspace.data(), 0);
    for (uint32_t pair = 0; pair < tokens * kTopK; ++pair) {
      const auto expected = held(pair) ? reference(pair) : std::vector<double>(hidden);
      for (uint32_t c = 0; c < hidden; ++c) error.add(gossamer::ptx::bf16_bits(out[static_cast<size_t>(pair) * hidden + c]), expected[c]);
    }
    return report(name(packed ? "experts, packed" : "experts"), error, 6e-3, status == GOSSAMER_OK);
  }

  // One product, of rows per pair or per token, bf16 or E4M3 codes with a scale a row, between columns of padding.
  bool check_product(bool first_product, bool packed, bool per_pair, bool codes) {
    const Matrices& m = first_product ? gate_up : down;
    const auto& bias = first_product ? gate_up_bias : down_bias;
    const uint32_t in_columns = m.k + 32, out_columns = m.rows + 24, rows = tokens * (per_pair ? kTopK : 1);
    const auto values = random(static_cast<size_t>(rows) * in_columns, 2.f);
    std::vector<uint8_t> x8;
    std::vector<float> scales;
    for (const auto& v : values) x8.push_back(__nv_fp8_e4m3(__bfloat162float(v)).__x);
    for (uint32_t r = 0; r < rows; ++r) scales.push_back(.5f + .01f * r);
    const GossamerExpertProductDesc d = {.in_features = m.k, .in_columns = in_columns, .out_features = m.rows, .out_columns = out_columns, .experts = experts, .first_expert = first,
                                         .local_experts = local, .top_k = kTopK, .per_pair = per_pair, .interleaved = first_product && packed, .x = static_cast<uint32_t>(codes ? GOSSAMER_F8E4M3 : GOSSAMER_BF16), .out = GOSSAMER_BF16};
    std::vector<uint16_t> out(static_cast<size_t>(tokens) * kTopK * out_columns, 0xFFFF);
    std::vector<uint8_t> workspace(gossamer_portable_expert_product_workspace(&d, tokens), 0xFF);
    const GossamerExpertProductArgs a = {codes ? address(x8) : address(values), codes ? address(scales) : 0, address(ids), weights(m, bias, packed), address(out), tokens};
    Error error;
    const int status = gossamer_portable_expert_product(&d, &a, packed, workspace.data(), 0);
    for (uint32_t pair = 0; pair < tokens * kTopK; ++pair) {
      const uint32_t row = per_pair ? pair : pair / kTopK, e = ids[pair] - first;
      for (uint32_t c = 0; c < out_columns; ++c) {
        double expected = 0;
        if (held(pair) && c < m.rows) {
          for (uint32_t i = 0; i < m.k; ++i) {
            const size_t at = static_cast<size_t>(row) * in_columns + i;
            expected += (codes ? gossamer::ptx::e4m3_value(x8[at]) : __bfloat162float(values[at])) * static_cast<double>(m.row(e, c)[i]);
          }
          expected = expected * (codes ? scales[row] : 1) + __bfloat162float(bias[static_cast<size_t>(e) * m.rows + c]);
        }
        error.add(gossamer::ptx::bf16_bits(out[static_cast<size_t>(pair) * out_columns + c]), expected);
      }
    }
    return report(name(std::string(first_product ? "first product" : "second product") + (packed ? ", packed" : "") + (per_pair ? ", a row a pair" : "") + (codes ? ", E4M3" : "")), error, 6e-3, status == GOSSAMER_OK);
  }

  std::string name(const std::string& what) const {
    return what + ", hidden " + std::to_string(hidden) + ", intermediate " + std::to_string(intermediate) + ", " + std::to_string(tokens) + " tokens, experts " + std::to_string(first) + " to " +
           std::to_string(first + local) + " of " + std::to_string(experts);
  }
};

}  // namespace

int main() {
  const uint32_t seed = emulation::new_seed();
  bool ok = true;
  Problem problems[] = {{96, 160, 5, 1, 3, 30, seed}, {128, 64, 4, 0, 4, 5, seed + 1}, {64, 32, 2, 0, 2, 90, seed + 2}};
  for (Problem& p : problems)
    for (bool packed : {false, true}) {
      ok &= p.check_experts(packed);
      for (bool first_product : {false, true})
        for (bool per_pair : {false, true})
          for (bool codes : {false, true}) ok &= p.check_product(first_product, packed, per_pair, codes);
    }
  return emulation::verdict(ok);
}
