// archs: 90a
// Checks and times dense products. For few tokens: `gemm_harness check [small] [SEED]`, `gemm_harness time`. Tiled, for more:
// `gemm_harness tiled-check [small] [SEED]`, `gemm_harness tiled-time [TOKENS...]`.
// Oracle: plain CUDA in float64. cuBLAS, for comparison only, where GOSSAMER_CUBLAS names its library.
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "gossamer/dense.h"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
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

// --- tiled -----------------------------------------------------------------------------------------------------------------

const char* const kTactics[GOSSAMER_DENSE_TACTICS] = {"128x256", "128x256s", "128x192", "128x192s", "128x128", "128x128s",
                                                      "64x256",   "64x256s",   "64x128",   "64x128s",   "64x64",    "64x64s",
                                                      "w:128x256", "w:128x256s", "w:128x192", "w:128x192s"};

__global__ void wide_residual(const bf16* from, float* to, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) to[i] = __bfloat162float(from[i]);
}

// Every tactic, twice, against float64: error, poison left, a second run bitwise the same, flags left zero.
void tiled_check(std::vector<int> features, int k, int tokens, bool bias, bool residual, bool float_out, uint32_t seed) {
  features.resize(3);
  const int columns = features[0] + features[1] + features[2];
  const size_t count = static_cast<size_t>(tokens) * columns;
  Device<bf16> x(static_cast<size_t>(tokens) * k), narrow(count);
  Device<float> wide(count), out(count);
  fill_bf16(x.p, x.n, 3.f, seed);
  fill_bf16(narrow.p, narrow.n, 1.f, seed + 1);
  wide_residual<<<1024, 256>>>(narrow.p, wide.p, count);
  GossamerGemmDesc d = {static_cast<uint32_t>(k), {}, GOSSAMER_BF16, static_cast<uint32_t>(float_out ? GOSSAMER_F32 : GOSSAMER_BF16), GOSSAMER_BF16, 0, 0.f, residual, 0};
  GossamerGemmArgs a = {address(x.p), 0, 0, {}, residual ? address(float_out ? static_cast<void*>(wide.p) : narrow.p) : 0, address(out.p), static_cast<uint32_t>(tokens)};
  std::vector<double> expected(count), residuals = doubles(narrow.get());
  std::vector<std::unique_ptr<Device<bf16>>> owned;
  for (int i = 0, first = 0; i < 3; first += features[i++]) {
    d.out_features[i] = features[i];
    Device<bf16>& w = *owned.emplace_back(new Device<bf16>(static_cast<size_t>(features[i]) * k));
    Device<bf16>& b = *owned.emplace_back(new Device<bf16>(features[i]));
    if (!features[i]) continue;
    fill_bf16(w.p, w.n, 0.05f, seed + 2 + i);
    fill_bf16(b.p, b.n, 0.5f, seed + 5 + i);
    a.segments[i] = {address(w.p), bias ? address(b.p) : 0};
    const size_t own = static_cast<size_t>(tokens) * features[i];
    Device<double> y(own);
    oracle<<<static_cast<unsigned>((own + 127) / 128), 128>>>(x.p, nullptr, w.p, bias ? b.p : nullptr, nullptr, y.p, tokens, features[i], k, 0);
    CHECK(cudaGetLastError());
    const auto values = y.get();
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t)
      for (int j = 0; j < features[i]; ++j) {
        const size_t at = t * columns + first + j;
        expected[at] = values[t * features[i] + j] + (residual ? residuals[at] : 0.0);
      }
  }
  double worst = 0;
  std::string bad;
  for (int tactic = 0; tactic < GOSSAMER_DENSE_TACTICS; ++tactic) {
    Device<uint8_t> workspace(gossamer_dense_workspace(tactic));
    workspace.poison();
    CHECK(cudaMemset(workspace.p, 0, GOSSAMER_DENSE_FLAGS));
    std::vector<double> runs[2];
    for (auto& result : runs) {
      out.poison();
      REQUIRE_OK(gossamer_dense_gemm(&d, &a, tactic, workspace.p, workspace.n, 0));
      CHECK(cudaDeviceSynchronize());
      if (float_out) {
        result = doubles(out.get());
      } else {
        std::vector<bf16> h(count);
        CHECK(cudaMemcpy(h.data(), out.p, count * 2, cudaMemcpyDeviceToHost));
        result = doubles(h);
      }
    }
    std::vector<uint8_t> flags(GOSSAMER_DENSE_FLAGS);
    CHECK(cudaMemcpy(flags.data(), workspace.p, flags.size(), cudaMemcpyDeviceToHost));
    const double error = relative_error(expected, runs[0]);
    worst = std::max(worst, error);
    // The tensor cores cut sums off where mma.sync's short chains round: 2.8e-6 at 2880 columns.
    if (error > (float_out ? 6e-6 : 4e-3)) bad += std::string(" ") + kTactics[tactic];
    if (std::memcmp(runs[0].data(), runs[1].data(), count * sizeof(double))) bad += std::string(" ") + kTactics[tactic] + "(not repeatable)";
    if (std::any_of(flags.begin(), flags.end(), [](uint8_t f) { return f; })) bad += std::string(" ") + kTactics[tactic] + "(flags)";
  }
  char name[160];
  std::snprintf(name, sizeof name, "tiled %d+%d+%d x %d, %d tokens%s%s%s, worst error %.2e", features[0], features[1], features[2], k, tokens, bias ? ", bias" : "",
                residual ? ", residual" : "", float_out ? ", float out" : "", worst);
  expect(bad.empty() ? name : name + std::string("; wrong:") + bad, bad.empty());
}

struct Cublas {
  void* handle = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int) = nullptr;
  Device<uint8_t> space{64 << 20};
  Cublas() {
    const char* path = std::getenv("GOSSAMER_CUBLAS");
    void* library = path ? dlopen(path, RTLD_NOW) : nullptr;
    if (!library) {
      if (path) std::printf("no cuBLAS: %s\n", dlerror());
      return;
    }
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    const auto workspace = reinterpret_cast<int (*)(void*, void*, size_t)>(dlsym(library, "cublasSetWorkspace_v2"));
    set_stream = reinterpret_cast<decltype(set_stream)>(dlsym(library, "cublasSetStream_v2"));
    if (create && workspace && set_stream && create(&handle) == 0) {
      gemm = reinterpret_cast<decltype(gemm)>(dlsym(library, "cublasGemmEx"));
      set = [this, workspace](cudaStream_t st) { return set_stream(handle, st) || workspace(handle, space.p, space.n); };
    }
  }
  std::function<bool(cudaStream_t)> set;
};

void tiled_record(const char* what, int rows, int k, int tokens, const char* kernel, double us) {
  const double flops = 2.0 * rows * k * tokens, bytes = 2.0 * rows * k;
  if (const char* path = std::getenv("GOSSAMER_RESULTS"))
    if (FILE* f = std::fopen(path, "a")) {
      std::fprintf(f, "{\"op\":\"gemm\",\"case\":\"%s\",\"tokens\":%d,\"kernel\":\"%s\",\"us\":%.2f,\"tflops\":%.1f,\"weights_tb_s\":%.3f}\n", what, tokens, kernel, us,
                   flops / us / 1e6, bytes / us / 1e6);
      std::fclose(f);
    }
}

// One line a token count: microseconds of each tactic, of the portable kernel and of cuBLAS; then the best in TFLOP/s.
void tiled_time(const char* what, std::vector<int> features, int k, int copies, bool residual, bool float_out, const std::vector<int>& token_counts, Cublas& cublas) {
  features.resize(3);
  const int rows = features[0] + features[1] + features[2], most = *std::max_element(token_counts.begin(), token_counts.end());
  std::vector<std::unique_ptr<Device<bf16>>> w;
  for (int i = 0; i < copies; ++i) {
    w.emplace_back(new Device<bf16>(static_cast<size_t>(rows) * k));
    fill_bf16(w[i]->p, w[i]->n, 0.05f, 10 + i);
  }
  Device<bf16> bias(rows), x(static_cast<size_t>(most) * k);
  Device<float> out(static_cast<size_t>(most) * rows);
  fill_bf16(bias.p, bias.n, .5f, 3);
  fill_bf16(x.p, x.n, 2.f, 4);
  CHECK(cudaMemset(out.p, 0, out.n * 4));
  size_t space = 0;
  for (int tactic = 0; tactic < GOSSAMER_DENSE_TACTICS; ++tactic) space = std::max(space, gossamer_dense_workspace(tactic));
  Device<uint8_t> workspace(space);
  CHECK(cudaMemset(workspace.p, 0, workspace.n));
  GossamerGemmDesc d = {static_cast<uint32_t>(k), {}, GOSSAMER_BF16, static_cast<uint32_t>(float_out ? GOSSAMER_F32 : GOSSAMER_BF16), GOSSAMER_BF16, 0, 0.f, residual, 0};
  for (int i = 0; i < 3; ++i) d.out_features[i] = features[i];
  for (int tokens : token_counts) {
    const int launches = tokens <= 512 ? copies : std::min(copies, 5);
    const auto timed = [&](const char* kernel, const auto& one) {
      // Bursts begin alike: without a pause, whoever comes first has the higher clock.
      CHECK(cudaDeviceSynchronize());
      std::this_thread::sleep_for(std::chrono::milliseconds(tokens > 512 ? 60 : 5));
      const double us = graph_time([&](cudaStream_t st) {
        for (int i = 0; i < launches; ++i) {
          GossamerGemmArgs a = {address(x.p), 0, 0, {}, residual ? address(out.p) : 0, address(out.p), static_cast<uint32_t>(tokens)};
          for (int j = 0, first = 0; j < 3; first += features[j++]) a.segments[j] = {address(w[i]->p + static_cast<size_t>(first) * k), address(bias.p + first)};
          one(a, i, st);
        }
      }, tokens > 512 ? 10 : 20) / launches;
      tiled_record(what, rows, k, tokens, kernel, us);
      return us;
    };
    double best = 1e30;
    int chosen = 0;
    std::printf("time %-6s %4d:", what, tokens);
    for (int tactic = 0; tactic < GOSSAMER_DENSE_TACTICS; ++tactic) {
      const int size = tactic / 2;
      const bool narrow = size >= 3 && size <= 5, above = size >= 6;
      if (tokens <= 64 && !narrow) continue;  // half of the tile would be empty
      if (tokens <= 128 && above) continue;
      if (tokens >= 1024 && narrow && rows > 128) continue;
      const double us = timed(kTactics[tactic], [&](const GossamerGemmArgs& a, int, cudaStream_t st) { REQUIRE_OK(gossamer_dense_gemm(&d, &a, tactic, workspace.p, workspace.n, st)); });
      std::printf(" %s %.1f", kTactics[tactic], us);
      if (us < best) best = us, chosen = tactic;
    }
    const double portable = timed("portable", [&](const GossamerGemmArgs& a, int, cudaStream_t st) { REQUIRE_OK(gossamer_portable_gemm(&d, &a, st)); });
    double other = 0;
    if (cublas.gemm)
      other = timed("cublas", [&](const GossamerGemmArgs&, int i, cudaStream_t st) {
        const float one = 1.f, beta = residual ? 1.f : 0.f;
        const int type = 14, out_type = float_out ? 0 : 14;  // CUDA_R_16BF, CUDA_R_32F
        if (cublas.set(st) || cublas.gemm(cublas.handle, 1, 0, rows, tokens, k, &one, w[i]->p, type, k, x.p, type, k, &beta, out.p, out_type, rows, 68, -1)) std::printf("(cuBLAS failed) ");
      });
    const double flops = 2.0 * rows * k * tokens / 1e6;
    std::printf(" | portable %.1f cublas %.1f | best %s %.0f TFLOP/s, cublas %.0f, weights %.2f TB/s\n", portable, other, kTactics[chosen], flops / best, other > 0 ? flops / other : 0.0,
                2e-6 * rows * k / best);
    std::fflush(stdout);
  }
}

int tiled(const std::string& mode, int argc, char** argv) {
  REQUIRE_OK(gossamer_dense_prepare());
  if (mode == "tiled-check") {
    const bool small = argc > 2 && std::string(argv[2]) == "small";
    uint32_t seed = argc > 3 ? std::atoi(argv[3]) : std::random_device{}();
    for (int tokens : {1, 33, 64, 129, 300}) {
      tiled_check({264, 72, 80}, 328, tokens, true, true, false, seed += 10);
      tiled_check({137, 3, 50}, 200, tokens, true, true, true, seed += 10);
      tiled_check({128}, 2880, tokens, true, false, true, seed += 10);
    }
    tiled_check({4096, 512, 512}, 2880, 65, true, false, false, seed += 10);
    tiled_check({1040}, 4096, 2049, true, true, false, seed += 10);
    if (!small) {
        tiled_check({8, 1, 7}, 8, 513, false, true, false, seed += 10);
      tiled_check({32001}, 2880, 70, false, false, true, seed += 10);
      tiled_check({1040}, 2880, 8192, true, false, false, seed += 10);
    }
    std::printf(failed() ? "tiled: FAILED\n" : "tiled: all checks passed\n");
    return failed();
  }
  std::vector<int> tokens = {64, 128, 256, 512, 1024, 2048, 4096, 8192};
  if (argc > 2) tokens.clear();
  for (int i = 2; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  Cublas cublas;
  tiled_time("qkv", {4096, 512, 512}, 2880, 36, false, false, tokens, cublas);
  tiled_time("o", {2880}, 4096, 36, true, false, tokens, cublas);
  tiled_time("router", {128}, 2880, 36, false, true, tokens, cublas);
  std::vector<int> few;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(few), [](int n) { return n <= 256; });
  if (!few.empty()) tiled_time("head", {201088}, 2880, 1, false, true, few, cublas);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "tiled-check" || mode == "tiled-time") return tiled(mode, argc, argv);
  if (mode == "check" && argc > 2 && std::string(argv[2]) == "least") {  // for tools that make everything a thousand times slower
    for (int tokens : {1, 9, 33}) check(48, 96, tokens, true, true, false, tokens);
    std::printf(failed() ? "gemm: FAILED\n" : "gemm: all checks passed\n");
    return failed();
  }
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
