// archs: 90a
// What lies between two steps: a step is a captured graph of dependent kernels that do nothing for a while, two are in flight, and the
// ways differ in what else is enqueued. `step_gaps` prints microseconds a step beyond those that steps in one graph take.
#include <chrono>

#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "harness.h"

using namespace harness;

namespace {

constexpr int kKernels = 180, kSteps = 60, kTogether = 10, kInputBytes = 8192;
constexpr uint32_t kNanoseconds = 4000;

__global__ void idle() {
  gossamer::ptx::launch_dependents();
  gossamer::ptx::dependency_wait();
  const auto now = [] {
    uint32_t t;
    asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(t)::"memory");
    return t;
  };
  const uint32_t begun = now();
  while (now() - begun < kNanoseconds) {
  }
}

cudaStream_t new_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaGraphExec_t capture(cudaStream_t stream, int steps) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < steps * kKernels; ++i) REQUIRE_OK(gossamer::launch(idle, dim3(132), dim3(384), 0, stream, true));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  return executable;
}

// Events by turns, as a step in flight has its own.
struct Events {
  std::vector<cudaEvent_t> each{4};
  explicit Events(unsigned flags) {
    for (auto& event : each) CHECK(cudaEventCreateWithFlags(&event, flags));
  }
  cudaEvent_t of(int step) const { return each[step % each.size()]; }
};

// Microseconds a step, the best of three turns. `enqueue` gives the event of the step's end.
double time_steps(int steps, const std::function<cudaEvent_t(int)>& enqueue) {
  double best = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(cudaDeviceSynchronize());
    const auto begun = std::chrono::steady_clock::now();
    cudaEvent_t ends[2] = {};
    for (int i = 0; i < steps; ++i) {
      while (ends[i % 2] && cudaEventQuery(ends[i % 2]) == cudaErrorNotReady) {
      }
      ends[i % 2] = enqueue(i);
    }
    CHECK(cudaDeviceSynchronize());
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count() / steps);
  }
  return best;
}

}  // namespace

int main() {
  const cudaStream_t stream = new_stream(), inward = new_stream(), outward = new_stream();
  const cudaGraphExec_t step = capture(stream, 1), together = capture(stream, kTogether);
  const Events begun(cudaEventDefault), computed(cudaEventDefault), uploaded(cudaEventDisableTiming), done(cudaEventDisableTiming);
  Device<uint8_t> device(2 * kInputBytes);
  uint8_t* host;
  CHECK(cudaMallocHost(&host, 2 * kInputBytes));
  const auto upload = [&](int i, cudaStream_t on) { CHECK(cudaMemcpyAsync(device.p + i % 2 * kInputBytes, host, kInputBytes, cudaMemcpyHostToDevice, on)); };
  const auto download = [&](int i, cudaStream_t on) { CHECK(cudaMemcpyAsync(host + kInputBytes, device.p + i % 2 * kInputBytes, 4, cudaMemcpyDeviceToHost, on)); };

  const double least = time_steps(kSteps / kTogether, [&](int i) {
                         CHECK(cudaGraphLaunch(together, stream));
                         CHECK(cudaEventRecord(done.of(i), stream));
                         return done.of(i);
                       }) / kTogether;
  const auto time = [&](const char* what, const std::function<cudaEvent_t(int)>& enqueue) {
    const double us = time_steps(kSteps, enqueue) - least;
    std::printf("time %-60s %6.2f us\n", what, us);
    record("gap", what, 1, 0, us, 0);
  };
  time("graph after graph", [&](int i) {
    CHECK(cudaGraphLaunch(step, stream));
    CHECK(cudaEventRecord(done.of(i), stream));
    return done.of(i);
  });
  time("between events that keep the time", [&](int i) {
    CHECK(cudaEventRecord(begun.of(i), stream));
    CHECK(cudaGraphLaunch(step, stream));
    CHECK(cudaEventRecord(computed.of(i), stream));
    return computed.of(i);
  });
  time("the same, copies in and out on the same stream", [&](int i) {
    CHECK(cudaEventRecord(begun.of(i), stream));
    upload(i, stream);
    CHECK(cudaGraphLaunch(step, stream));
    download(i, stream);
    CHECK(cudaEventRecord(computed.of(i), stream));
    return computed.of(i);
  });
  time("copies on streams of their own, one event that keeps the time", [&](int i) {
    upload(i, inward);
    CHECK(cudaEventRecord(uploaded.of(i), inward));
    CHECK(cudaStreamWaitEvent(stream, uploaded.of(i), 0));
    CHECK(cudaGraphLaunch(step, stream));
    CHECK(cudaEventRecord(computed.of(i), stream));
    CHECK(cudaStreamWaitEvent(outward, computed.of(i), 0));
    download(i, outward);
    CHECK(cudaEventRecord(done.of(i), outward));
    return done.of(i);
  });
  return 0;
}
