// What emulated checks share: random values, and relative errors against float64.
#pragma once
#include "emulation.h"
#include "gossamer/ptx/sm90.cuh"

// Uniform in (-scale, scale).
inline std::vector<__nv_bfloat16> random_bf16(size_t n, float scale, std::mt19937& rng) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<__nv_bfloat16> v;
  for (size_t i = 0; i < n; ++i) v.push_back(__float2bfloat16(uniform(rng) * scale));
  return v;
}
inline double value(const __nv_bfloat16& v) { return __bfloat162float(v); }

// The relative error of many values together; one that is no number makes it huge.
class Error {
 public:
  void add(double got, double expected) {
    difference += std::isfinite(got) ? (got - expected) * (got - expected) : 1e30;
    norm += expected * expected;
  }
  double relative() const { return std::sqrt(difference / norm); }

 private:
  double difference = 0, norm = 0;
};

// Prints a line for what was checked; whether it is right.
inline bool report(const std::string& what, const Error& error, double bound, bool besides = true, const char* remark = "") {
  const bool ok = error.relative() < bound && besides;
  std::printf("%s %s: error %.2e (%.0e)%s\n", ok ? "ok  " : "FAIL", what.c_str(), error.relative(), bound, remark);
  std::fflush(stdout);
  return ok;
}

// Results of bfloat16 or float with a guard behind them.
class Output {
 public:
  Output(size_t count, bool is_float) : is_float(is_float), bytes(count * (is_float ? 4 : 2) + kGuard, 0xFF) {}
  void* data() { return bytes.data(); }
  double at(size_t i) const {
    return is_float ? reinterpret_cast<const float*>(bytes.data())[i] : gossamer::ptx::bf16_bits(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
  }
  bool guard_untouched() const {
    return std::all_of(bytes.end() - kGuard, bytes.end(), [](uint8_t b) { return b == 0xFF; });
  }

 private:
  static constexpr size_t kGuard = 256;
  bool is_float;
  std::vector<uint8_t> bytes;
};
