// Host side of a launch: programmatic dependent launch and the mapping of CUDA errors to GossamerStatus.
#pragma once
#include <cuda_runtime.h>

#include "gossamer/ops.h"

namespace gossamer {

constexpr int kMaxSharedBytes = 227 * 1024;

// Multiprocessors of the current device; read once by gossamer_prepare (no runtime query during capture).
int multiprocessors();

// `dependent`: the kernel may start before its predecessor in the stream has finished; it calls ptx::dependency_wait(), or says how else it
// knows that its inputs are there.
template <typename... Params, typename... Args>
int launch_cluster(void (*kernel)(Params...), dim3 grid, dim3 block, int cluster, size_t shared, cudaStream_t stream, bool dependent, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = dependent ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}

template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, bool dependent, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}

// Launches a kernel that may start while the one before it ends (it waits for it with ptx::dependency_wait), where devices can do that.
template <typename... Params, typename... Args>
int launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, cudaStream_t stream, Args... args) {
  static const bool able = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return launch(kernel, grid, block, 0, stream, able, args...);
}

template <typename Kernel>
bool allow_shared(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess;
}

// Clusters of `cluster` blocks that are resident at once; a GPC's odd multiprocessors may leave fewer than blocks / cluster size.
template <typename... Params>
int resident_clusters(void (*kernel)(Params...), dim3 block, int cluster, size_t shared) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(multiprocessors() / cluster * cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) return 0;
  return count < multiprocessors() / cluster ? count : multiprocessors() / cluster;
}

}  // namespace gossamer
