// Tensor maps: made on the host through the driver's entry point, read by the copy engine (sm_90).
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "gossamer/ptx/sm90.cuh"

namespace gossamer::ptx {

// Copies a box whose corner is (x, y) to shared memory; completes on `bar`.
__device__ __forceinline__ void tensor_load_2d(void* dst, const CUtensorMap* map, int x, int y, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(dst)), "l"(map),
               "r"(shared_address(bar)), "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void tensor_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A row-major matrix of `rows` x `columns` elements; boxes of `box_rows` x 128 bytes in the 128-byte swizzle. Returns false when
// the driver refuses (address not 16-byte aligned, row not a multiple of 16 bytes).
inline bool make_tensor_map(CUtensorMap* map, CUtensorMapDataType type, int element_bytes, const void* address, uint64_t rows, uint64_t columns,
                            uint32_t box_rows) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) != cudaSuccess) entry = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  if (!encode) return false;
  const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns * element_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), box_rows}, steps[2] = {1, 1};
  return encode(map, type, 2, const_cast<void*>(address), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace gossamer::ptx
