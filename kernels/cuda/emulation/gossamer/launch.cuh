// Stands in for the launcher: runs the grid at once.
#pragma once
#include "../emulation.h"
#include "gossamer/ops.h"

namespace gossamer {

constexpr int kMaxSharedBytes = 227 * 1024;
inline int multiprocessors() { return 3; }

// Blocks of a grid that fits the device run at once: they may wait for each other.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t, bool, Args... args) {
  if (shared > kMaxSharedBytes) return GOSSAMER_LAUNCH_FAILED;
  const unsigned blocks = grid.x * grid.y * grid.z;
  if (blocks > 1 && blocks <= static_cast<unsigned>(multiprocessors())) emulation::run_together(kernel, grid, block, 1, args...);
  else emulation::run_grid(kernel, grid, block, args...);
  return GOSSAMER_OK;
}
template <typename... Params, typename... Args>
int launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, cudaStream_t stream, Args... args) {
  return launch(kernel, grid, block, 0, stream, true, args...);
}
// Blocks of clusters run at once.
template <typename... Params, typename... Args>
int launch_cluster(void (*kernel)(Params...), dim3 grid, dim3 block, int cluster, size_t shared, cudaStream_t, bool, Args... args) {
  if (shared > kMaxSharedBytes) return GOSSAMER_LAUNCH_FAILED;
  emulation::run_together(kernel, grid, block, cluster, args...);
  return GOSSAMER_OK;
}
template <typename... Params>
int resident_clusters(void (*)(Params...), dim3, int, size_t) {
  return 2;
}
template <typename Kernel>
bool allow_shared(Kernel*, int bytes) {
  return bytes <= kMaxSharedBytes;
}

}  // namespace gossamer
