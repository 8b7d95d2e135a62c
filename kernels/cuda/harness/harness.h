// Shared by the harness programs: error checks, random data, median timing of captured graphs, JSON lines.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#define CHECK(x)                                                                                      \
  do {                                                                                                \
    cudaError_t error_ = (x);                                                                         \
    if (error_ != cudaSuccess) {                                                                      \
      std::printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(error_));         \
      std::exit(1);                                                                                   \
    }                                                                                                 \
  } while (0)
#define REQUIRE_OK(x)                                                                                            \
  do {                                                                                                           \
    int status_ = (x);                                                                                           \
    if (status_) {                                                                                               \
      std::printf("FAIL %s:%d %s: status %d, %s\n", __FILE__, __LINE__, #x, status_, cudaGetErrorString(cudaGetLastError())); \
      std::exit(1);                                                                                              \
    }                                                                                                            \
  } while (0)

namespace harness {

constexpr double kRoof = 4.63e12;  // measured streaming read, bytes a second

inline bool& failed() {
  static bool value = false;
  return value;
}

template <typename T>
struct Device {
  T* p = nullptr;
  size_t n = 0;
  explicit Device(size_t count) : n(count) { CHECK(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T))); }
  explicit Device(const std::vector<T>& host) : Device(host.size()) { put(host); }
  Device(const Device&) = delete;
  ~Device() { cudaFree(p); }
  void put(const std::vector<T>& host) { CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> host(n);
    CHECK(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  void poison() { CHECK(cudaMemset(p, 0xFF, n * sizeof(T))); }  // NaN as bf16 and as float
};

inline uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

// Random bits of place `i`: a hash, fast enough for tens of gigabytes.
__device__ inline uint64_t random_bits(size_t i, uint64_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
// Of such bits a float, normally distributed, by Box and Muller.
__device__ inline float normal_of(uint64_t bits) {
  const float u = (static_cast<uint32_t>(bits) + 1.f) * 2.3283e-10f, v = static_cast<uint32_t>(bits >> 32) * 2.3283e-10f;
  return sqrtf(-2 * logf(u)) * cospif(2 * v);
}

// Random device bytes.
__global__ static void fill_random_kernel(uint32_t* p, size_t words, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = static_cast<uint32_t>(random_bits(i, seed));
}
inline void fill_random(void* p, size_t bytes, uint32_t seed) {
  fill_random_kernel<<<132 * 8, 256>>>(static_cast<uint32_t*>(p), bytes / 4, seed);
  CHECK(cudaGetLastError());
}
// bf16 uniform in (-scale, scale).
__global__ static void fill_bf16_kernel(__nv_bfloat16* p, size_t n, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = __float2bfloat16((static_cast<float>(static_cast<uint32_t>(random_bits(i, seed * 0xD1342543DE82EF95ull) >> 40)) / 8388608.f - 1.f) * scale);
}
inline void fill_bf16(void* p, size_t n, float scale, uint32_t seed) {
  fill_bf16_kernel<<<132 * 8, 256>>>(static_cast<__nv_bfloat16*>(p), n, scale, seed);
  CHECK(cudaGetLastError());
}

inline double relative_error(const std::vector<double>& reference, const std::vector<double>& got) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    difference += (reference[i] - got[i]) * (reference[i] - got[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}
inline std::vector<double> doubles(const std::vector<__nv_bfloat16>& v) {
  std::vector<double> d(v.size());
  for (size_t i = 0; i < v.size(); ++i) d[i] = __bfloat162float(v[i]);
  return d;
}
inline std::vector<double> doubles(const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); }

inline void expect_below(const std::string& what, double error, double bound) {
  const bool ok = error <= bound;
  std::printf("%s %s: error %.3e, bound %.1e\n", ok ? "ok  " : "FAIL", what.c_str(), error, bound);
  if (!ok) failed() = true;
}
inline void expect(const std::string& what, bool ok) {
  std::printf("%s %s\n", ok ? "ok  " : "FAIL", what.c_str());
  if (!ok) failed() = true;
}

// Median time in microseconds of one replay of a graph that `enqueue` fills. It is replayed three times before, and until `warm` milliseconds
// have passed, in which a card that was idle finds its clocks. `rest`: milliseconds before each, and a replay that is not measured, so that the
// card does not come to its limit of power.
inline double graph_time(const std::function<void(cudaStream_t)>& enqueue, int replays = 20, float warm = 30, int rest = 0) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  enqueue(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  std::vector<float> times;
  float spent = 0;
  for (int i = 0; static_cast<int>(times.size()) < replays; ++i) {
    if (rest) {
      std::this_thread::sleep_for(std::chrono::milliseconds(rest));
      CHECK(cudaGraphLaunch(executable, stream));
    }
    CHECK(cudaEventRecord(a, stream));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3 && spent >= warm) times.push_back(ms * 1000);
    spent += ms;
  }
  std::sort(times.begin(), times.end());
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  cudaEventDestroy(a);
  cudaEventDestroy(b);
  return times[times.size() / 2];
}

// Appends one measurement as a JSON line to the file named by GOSSAMER_RESULTS (none: printed only).
inline void record(const std::string& op, const std::string& what, int tokens, int tactic, double microseconds, double bytes) {
  const double rate = bytes / microseconds / 1e6;
  std::printf("time %-10s %-28s tokens %3d tactic %2d: %8.2f us  %.3f TB/s  %.1f %% of roof\n", op.c_str(), what.c_str(), tokens, tactic, microseconds, rate,
              100 * rate * 1e12 / kRoof);
  if (const char* path = std::getenv("GOSSAMER_RESULTS")) {
    if (FILE* f = std::fopen(path, "a")) {
      std::fprintf(f, "{\"op\":\"%s\",\"case\":\"%s\",\"tokens\":%d,\"tactic\":%d,\"us\":%.3f,\"bytes\":%.0f,\"tb_s\":%.4f,\"of_roof\":%.4f}\n", op.c_str(),
                   what.c_str(), tokens, tactic, microseconds, bytes, rate, rate * 1e12 / kRoof);
      std::fclose(f);
    }
  }
}

}  // namespace harness
