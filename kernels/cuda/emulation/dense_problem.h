// Dense products for emulated checks, against float64.
#pragma once
#include "emulation.h"
#include "gossamer/ops.h"
#include "reference.h"

struct DenseCase {
  uint32_t tokens, k, features[3];
  bool bias, residual, float_out;
};

// `product(d, a)` runs the kernel; `label` says which.
template <class Product>
bool check_dense(const DenseCase& c, const char* label, uint32_t seed, Product product) {
  std::mt19937 rng(seed);
  const auto random = [&](size_t n, float scale) { return random_bf16(n, scale, rng); };
  const uint32_t columns = c.features[0] + c.features[1] + c.features[2];
  const auto x = random(static_cast<size_t>(c.tokens) * c.k, 2.f);
  std::vector<__nv_bfloat16> weights[3], biases[3];
  const size_t count = static_cast<size_t>(c.tokens) * columns;
  const auto narrow = random(count, 1.f);
  std::vector<float> wide;
  for (const auto& v : narrow) wide.push_back(__bfloat162float(v) * 1.001f);
  const auto address = [](const auto& v) { return reinterpret_cast<uint64_t>(v.data()); };
  GossamerGemmArgs a = {address(x), 0, 0, {}, c.float_out ? address(wide) : address(narrow), 0, c.tokens};
  for (int i = 0; i < 3; ++i) {
    weights[i] = random(static_cast<size_t>(c.features[i]) * c.k, .1f), biases[i] = random(c.features[i], 1.f);
    a.segments[i] = {address(weights[i]), c.bias ? address(biases[i]) : 0};
  }
  Output out(count, c.float_out);
  a.out = reinterpret_cast<uint64_t>(out.data());
  const GossamerGemmDesc d = {c.k, {c.features[0], c.features[1], c.features[2]}, GOSSAMER_BF16, c.float_out ? GOSSAMER_F32 : GOSSAMER_BF16, GOSSAMER_BF16, 0, 0.f, c.residual, 0};
  const int status = product(d, a);
  Error error;
  for (uint32_t t = 0; t < c.tokens; ++t)
    for (uint32_t i = 0, column = 0; i < 3; column += c.features[i++])
      for (uint32_t j = 0; j < c.features[i]; ++j) {
        double sum = c.bias ? value(biases[i][j]) : 0.0;
        for (uint32_t k = 0; k < c.k; ++k) sum += value(x[static_cast<size_t>(t) * c.k + k]) * value(weights[i][static_cast<size_t>(j) * c.k + k]);
        const size_t at = static_cast<size_t>(t) * columns + column + j;
        if (c.residual) sum += c.float_out ? wide[at] : __bfloat162float(narrow[at]);
        error.add(out.at(at), sum);
      }
  char what[160];
  std::snprintf(what, sizeof what, "%s: %u tokens, %u -> %u + %u + %u%s%s%s", label, c.tokens, c.k, c.features[0], c.features[1], c.features[2], c.bias ? ", bias" : "", c.residual ? ", residual" : "",
                c.float_out ? ", float out" : "");
  const bool untouched = out.guard_untouched();
  return report(what, error, c.float_out ? 2e-6 : 4e-3, status == GOSSAMER_OK && untouched, status ? ", refused" : untouched ? "" : ", wrote past the end");
}

constexpr DenseCase kDenseCases[] = {
    {1, 8, {1, 0, 0}, true, false, false},       {37, 328, {264, 72, 80}, true, true, false},   {130, 200, {137, 3, 50}, true, true, false},
    {65, 968, {100, 0, 0}, false, false, true},  {200, 640, {264, 64, 0}, true, true, true},    {129, 72, {520, 0, 0}, false, true, false},
    {64, 1032, {128, 0, 0}, true, false, false}, {150, 904, {320, 64, 128}, true, true, false}, {140, 136, {352, 32, 0}, true, true, true},
};
