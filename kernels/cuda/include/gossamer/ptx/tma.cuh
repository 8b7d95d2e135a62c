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
// The same to the blocks of the cluster that `blocks` names by bits, at the same addresses; completes on each one's `bar`.
__device__ __forceinline__ void tensor_load_2d_multicast(void* dst, const CUtensorMap* map, int x, int y, uint64_t* bar, uint16_t blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
                   shared_address(dst)),
               "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "h"(blocks)
               : "memory");
}
__device__ __forceinline__ void tensor_load_3d(void* dst, const CUtensorMap* map, int x, int y, int z, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(dst)), "l"(map),
               "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ __forceinline__ void tensor_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The driver's encoder, or null where the driver has none.
inline auto tensor_encoder() {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) != cudaSuccess) entry = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return encode;
}

// A row-major matrix of `rows` x `columns` elements; boxes of `box_rows` x `row_bytes` (128 or 64) in the swizzle of that width.
// Returns false when the driver refuses (address not 16-byte aligned, row not a multiple of 16 bytes).
inline bool make_tensor_map(CUtensorMap* map, CUtensorMapDataType type, int element_bytes, const void* address, uint64_t rows, uint64_t columns,
                            uint32_t box_rows, int row_bytes = 128) {
  const auto encode = tensor_encoder();
  if (!encode) return false;
  const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns * element_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(row_bytes / element_bytes), box_rows}, steps[2] = {1, 1};
  return encode(map, type, 2, const_cast<void*>(address), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// bf16 `[z][y][64]` with `stride_z` elements between z; boxes of box_z x box_y x 64 in the 128-byte swizzle.
inline bool make_tensor_map_3d(CUtensorMap* map, const void* address, uint64_t z, uint64_t y, uint64_t stride_z, uint32_t box_z, uint32_t box_y) {
  const auto encode = tensor_encoder();
  if (!encode) return false;
  const cuuint64_t sizes[3] = {64, y, z}, strides[2] = {128, stride_z * 2};
  const cuuint32_t box[3] = {64, box_y, box_z}, steps[3] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(address), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace gossamer::ptx
