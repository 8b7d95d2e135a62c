// Dense products for emulated checks, against float64.
#pragma once
#include "emulation.h"
#include "gossamer/ops.h"
#include "gossamer/ptx/sm90.cuh"

struct DenseCase {
  uint32_t tokens, k, features[3];
  bool bias, residual, float_out;
};

// `product(d, a)` runs the kernel; `label` says which.
template <class Product>
bool check_dense(const DenseCase& c, const char* label, uint32_t seed, Product product) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto random = [&](size_t n, float scale) {
    std::vector<__nv_bfloat16> v;
    for (size_t i = 0; i < n; ++i) v.push_back(__float2bfloat16(uniform(rng) * scale));
    return v;
  };
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
  const size_t guard = 256, bytes = count * (c.float_out ? 4 : 2);
  std::vector<uint8_t> out(bytes + guard, 0xFF);
  a.out = address(out);
  const GossamerGemmDesc d = {c.k, {c.features[0], c.features[1], c.features[2]}, GOSSAMER_BF16, c.float_out ? GOSSAMER_F32 : GOSSAMER_BF16, GOSSAMER_BF16, 0, 0.f, c.residual, 0};
  const int status = product(d, a);
  double difference = 0, norm = 0;
  for (uint32_t t = 0; t < c.tokens; ++t)
    for (uint32_t i = 0, column = 0; i < 3; column += c.features[i++])
      for (uint32_t j = 0; j < c.features[i]; ++j) {
        double sum = c.bias ? __bfloat162float(biases[i][j]) : 0.0;
        for (uint32_t k = 0; k < c.k; ++k) sum += static_cast<double>(__bfloat162float(x[static_cast<size_t>(t) * c.k + k])) * __bfloat162float(weights[i][static_cast<size_t>(j) * c.k + k]);
        const size_t at = static_cast<size_t>(t) * columns + column + j;
        if (c.residual) sum += c.float_out ? wide[at] : __bfloat162float(narrow[at]);
        const double got = c.float_out ? reinterpret_cast<const float*>(out.data())[at] : gossamer::ptx::bf16_bits(reinterpret_cast<const uint16_t*>(out.data())[at]);
        difference += std::isfinite(got) ? (got - sum) * (got - sum) : 1e30;
        norm += sum * sum;
      }
  const bool untouched = std::all_of(out.end() - guard, out.end(), [](uint8_t b) { return b == 0xFF; });
  const double error = std::sqrt(difference / norm), bound = c.float_out ? 2e-6 : 4e-3;
  const bool ok = status == GOSSAMER_OK && error < bound && untouched;
  std::printf("%s %s: %u tokens, %u -> %u + %u + %u%s%s%s: error %.2e (%.0e)%s%s\n", ok ? "ok  " : "FAIL", label, c.tokens, c.k, c.features[0], c.features[1], c.features[2],
              c.bias ? ", bias" : "", c.residual ? ", residual" : "", c.float_out ? ", float out" : "", error, bound, untouched ? "" : ", wrote past the end", status ? ", refused" : "");
  std::fflush(stdout);
  return ok;
}

constexpr DenseCase kDenseCases[] = {
    {1, 8, {1, 0, 0}, true, false, false},       {37, 328, {264, 72, 80}, true, true, false},   {130, 200, {137, 3, 50}, true, true, false},
    {65, 968, {100, 0, 0}, false, false, true},  {200, 640, {264, 64, 0}, true, true, true},    {129, 72, {520, 0, 0}, false, true, false},
    {64, 1032, {128, 0, 0}, true, false, false}, {150, 904, {320, 64, 128}, true, true, false}, {140, 136, {352, 32, 0}, true, true, true},
};
