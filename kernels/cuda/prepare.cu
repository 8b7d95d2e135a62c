// archs: 90a 100a
// One-time preparation: shared-memory limits of every kernel and the device's multiprocessor count.
#include "gossamer/launch.cuh"

namespace gossamer {
namespace {
int processors = 0;
}
int multiprocessors() { return processors; }
namespace moe {
bool prepare_experts();
}
namespace gemm {
bool prepare_tiny();
}
}  // namespace gossamer

extern "C" int gossamer_prepare(void) {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return GOSSAMER_LAUNCH_FAILED;
  gossamer::processors = count;
  return gossamer::moe::prepare_experts() && gossamer::gemm::prepare_tiny() ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
