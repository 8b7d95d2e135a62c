// Stands in for the launcher: runs the grid at once.
#pragma once
#include "../emulation.h"
#include "gossamer/ops.h"

namespace gossamer {

constexpr int kMaxSharedBytes = 227 * 1024;
inline int multiprocessors() { return 3; }

template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t, bool, Args... args) {
  if (shared > kMaxSharedBytes) return GOSSAMER_LAUNCH_FAILED;
  emulation::run_grid(kernel, grid, block, args...);
  return GOSSAMER_OK;
}
// Clusters are not emulated.
constexpr bool kClusters = false;
template <typename... Params, typename... Args>
int launch_cluster(void (*)(Params...), dim3, dim3, int, size_t, cudaStream_t, bool, Args...) {
  return GOSSAMER_LAUNCH_FAILED;
}
template <typename... Params>
int resident_clusters(void (*)(Params...), dim3, int, size_t) {
  return 1;
}
template <typename Kernel>
bool allow_shared(Kernel*, int bytes) {
  return bytes <= kMaxSharedBytes;
}

}  // namespace gossamer
