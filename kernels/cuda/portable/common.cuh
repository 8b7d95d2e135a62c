// What the portable kernels share: launches, bf16 conversions, reductions.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "gossamer/launch.cuh"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::portable {

using bf16 = __nv_bfloat16;

template <class T>
__device__ __forceinline__ T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

__host__ __device__ inline bool aligned16(uint64_t address) { return address % 16 == 0; }

inline int launched() { return cudaGetLastError() == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED; }

__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

// Reduces over the block; every thread gets the result. `scratch` holds 32 values. Order is fixed, so sums repeat.
template <class T, class F>
__device__ __forceinline__ T block_reduce(T v, T* scratch, T neutral, F combine) {
  for (int o = 16; o; o >>= 1) v = combine(v, __shfl_xor_sync(~0u, v, o));
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = (threadIdx.x & 31) < (blockDim.x + 31) / 32 ? scratch[threadIdx.x & 31] : neutral;
  for (int o = 16; o; o >>= 1) v = combine(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Eight bf16 values to floats and back.
__device__ __forceinline__ void unpack(uint4 raw, float (&v)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ __forceinline__ uint4 pack8(const float (&v)[8]) {
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

}  // namespace gossamer::portable
