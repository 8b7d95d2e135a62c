// archs: 90a
// Checks and times the few-token dense products. `gemm_harness check [small]`, `gemm_harness time`.
// Oracle: plain CUDA in float64.
#include <cstring>

#include "gossamer/ops.h"
#include "harness.h"

using namespace harness;
using bf16 = __nv_bfloat16;

namespace {

__global__ void oracle(const bf16* x, const bf16* norm, const bf16* w, const bf16* bias, const bf16* residual, double* y, int tokens, int rows, int k, double epsilon) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tokens * rows) return;
  const int token = i / rows, row = i % rows;
  double sum = 0, squares = 0;
  for (int j = 0; j < k; ++j) {
    const double v = __bfloat162float(x[static_cast<size_t>(token) * k + j]);
    squares += v * v;
    sum += v * (norm ? static_cast<double>(__bfloat162float(norm[j])) : 1.0) * static_cast<double>(__bfloat162float(w[static_cast<size_t>(row) * k + j]));
  }
  if (norm) sum /= sqrt(squares / k + epsilon);
  if (bias) sum += __bfloat162float(bias[row]);
  if (residual) sum += __bfloat162float(residual[i]);
  y[i] = sum;
}

void check(int rows, int k, int tokens, bool norm, bool residual, bool float_out, uint32_t seed) {
  Device<bf16> x(static_cast<size_t>(tokens) * k), w(static_cast<size_t>(rows) * k), n(k), bias(rows), res(static_cast<size_t>(tokens) * rows);
  fill_bf16(x.p, x.n, 3.f, seed);
  fill_bf16(w.p, w.n, 0.05f, seed + 1);
  fill_bf16(n.p, n.n, 2.f, seed + 2);
  fill_bf16(bias.p, bias.n, 0.5f, seed + 3);
  fill_bf16(res.p, res.n, 1.f, seed + 4);
  Device<double> y(static_cast<size_t>(tokens) * rows);
  oracle<<<(tokens * rows + 127) / 128, 128>>>(x.p, norm ? n.p : nullptr, w.p, bias.p, residual ? res.p : nullptr, y.p, tokens, rows, k, 1e-5);
  CHECK(cudaGetLastError());
  Device<float> out(static_cast<size_t>(tokens) * rows);
  GossamerTinyGemmArgs a = {x.p, norm ? n.p : nullptr, w.p, bias.p, residual ? res.p : nullptr, out.p, 1e-5f, tokens, rows, k, float_out, tokens > 32 ? static_cast<int>(seed / 10 % 2) : -1};
  auto run = [&] {
    out.poison();
    REQUIRE_OK(gossamer_tiny_gemm(&a, 0));
    CHECK(cudaDeviceSynchronize());
    if (float_out) return doubles(out.get());
    std::vector<bf16> h(out.n);
    CHECK(cudaMemcpy(h.data(), out.p, h.size() * 2, cudaMemcpyDeviceToHost));
    return doubles(h);
  };
  const auto first = run(), again = run();
  char name[128];
  std::snprintf(name, sizeof name, "gemm %d x %d, %d tokens%s%s%s", rows, k, tokens, norm ? ", norm" : "", residual ? ", residual" : "", float_out ? ", float out" : "");
  // The norm's gain is rounded to bf16 with the token, as a bf16 output is: one rounding each.
  expect_below(name, relative_error(y.get(), first), norm || !float_out ? 3e-3 : 2e-6);
  if (std::memcmp(first.data(), again.data(), first.size() * sizeof(double))) expect(std::string(name) + ": second run bitwise the same", false);
}

void time_one(const char* what, int rows, int k, int copies, bool norm, bool residual, bool float_out) {
  std::vector<bf16*> w(copies);
  for (int i = 0; i < copies; ++i) {
    CHECK(cudaMalloc(&w[i], static_cast<size_t>(rows) * k * 2));
    fill_bf16(w[i], static_cast<size_t>(rows) * k, 0.05f, 10 + i);
  }
  Device<bf16> n(k), bias(rows), x(64 * k), res(static_cast<size_t>(64) * rows);
  Device<float> out(static_cast<size_t>(64) * rows);
  fill_bf16(n.p, n.n, 2.f, 2);
  fill_bf16(bias.p, bias.n, .5f, 3);
  fill_bf16(x.p, x.n, 2.f, 4);
  fill_bf16(res.p, res.n, 2.f, 5);
  for (int tokens : {1, 2, 4, 8, 16, 32, 64}) {
    for (int tactic = 0; tactic < (tokens > 32 ? GOSSAMER_GEMM_TACTICS : 1); ++tactic) {
    const double us = graph_time([&](cudaStream_t st) {
      for (int i = 0; i < copies; ++i) {
        GossamerTinyGemmArgs a = {x.p, norm ? n.p : nullptr, w[i], bias.p, residual ? res.p : nullptr, out.p, 1e-5f, tokens, rows, k, float_out, tactic};
        REQUIRE_OK(gossamer_tiny_gemm(&a, st));
      }
    });
    record("gemm", what, tokens, tactic, us / copies, static_cast<double>(rows) * k * 2);
    }
  }
  for (auto p : w) cudaFree(p);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") {
    const bool small = argc > 2 && std::string(argv[2]) == "small";
    uint32_t seed = argc > 3 ? std::atoi(argv[3]) : std::random_device{}();
    for (int tokens : {1, 3, 8, 9, 16, 17, 31, 33, 64}) {
      check(48, 96, tokens, true, true, false, seed += 10);
      check(1040, 2880, tokens, true, false, true, seed += 10);
      check(2880, 512, tokens, false, true, false, seed += 10);
      check(2064, 4096, tokens, false, false, true, seed += 10);
      if (small) continue;
      check(5120, 2880, tokens, true, false, false, seed += 10);
      check(2880, 4096, tokens, false, true, false, seed += 10);
      check(32000, 2880, tokens, true, false, true, seed += 10);
    }
    std::printf(failed() ? "gemm: FAILED\n" : "gemm: all checks passed\n");
    return failed();
  }
  time_one("qkv 5120x2880", 5120, 2880, 36, true, false, false);
  time_one("o 2880x4096", 2880, 4096, 36, false, true, false);
  time_one("head 201088x2880", 201088, 2880, 2, true, false, true);
  return 0;
}
