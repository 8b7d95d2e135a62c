// Thin wrappers over PTX for sm_100a: tensor memory, block-scaled matrix instructions, their descriptors. One instruction each, no policy.
// Field positions are those of the PTX ISA's chapters on tcgen05 (9.0).
#pragma once
#include <cstdint>

#include "gossamer/ptx/sm90.cuh"

namespace gossamer::ptx {

// --- tensor memory -----------------------------------------------------------------------------------------------------------
// Whole warps. `columns` a power of two of at least 32; the address comes to `slot` in shared memory.
__device__ __forceinline__ void tensor_memory_take(uint32_t* slot, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(slot)), "r"(columns) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
__device__ __forceinline__ void tensor_memory_give(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns));
}
// Eight columns of the warp's 32 lanes, one lane a thread.
__device__ __forceinline__ void tensor_memory_load8(uint32_t (&v)[8], uint32_t address) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
               : "r"(address));
}
__device__ __forceinline__ void tensor_memory_load_wait() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void tensor_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
// 32 rows of 16 bytes of shared memory to four columns, for each of the four warps' lanes: a tile of block scales.
__device__ __forceinline__ void tensor_copy_scales(uint32_t address, uint64_t descriptor) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(address), "l"(descriptor) : "memory");
}
// The barrier gets an arrival when all that this thread has started so far is done.
__device__ __forceinline__ void tensor_commit(uint64_t* bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}

// --- descriptors ---------------------------------------------------------------------------------------------------------------
// A K-major matrix in shared memory. `group`: bytes from eight rows to the next eight. `swizzle`: 0 none, 2 rows of 128 bytes.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t group, uint32_t swizzle) {
  constexpr uint64_t kVersion = 1ull << 46, kLeading = 1ull << 16;  // the leading offset counts for other layouts
  return (address >> 4 & 0x3FFF) | kLeading | static_cast<uint64_t>(group >> 4) << 32 | kVersion | static_cast<uint64_t>(swizzle) << 61;
}
constexpr uint32_t kE4m3 = 0, kE2m1 = 5;  // formats of kind::mxf8f6f4
// Instruction of kind::mxf8f6f4 with E8M0 scales, 128 rows of A, `columns` of B, both K-major.
__device__ constexpr uint32_t block_scaled_instruction(uint32_t a_format, uint32_t b_format, uint32_t columns) {
  return a_format << 7 | b_format << 10 | (columns / 8) << 17 | 1u << 23 | (128u / 128) << 27;
}
// The same with byte `which` of the scales' words.
__device__ constexpr uint32_t with_scales(uint32_t instruction, uint32_t which) { return instruction | which << 29 | which << 4; }

// d (+)= (A * scales of A) * (B * scales of B), K = 32, a scale per row and 32 columns. One thread.
__device__ __forceinline__ void block_scaled_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t a_scales, uint32_t b_scales, bool adds) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %6, 0;\n"
      " tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p;\n}\n" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"(static_cast<uint32_t>(adds))
      : "memory");
}

// Eight or sixteen bytes to shared memory past the registers; zeros where `valid` is false.
template <int kBytes>
__device__ __forceinline__ void copy_async_or_zero(uint32_t to, const void* from, bool valid) {
  static_assert(kBytes == 8 || kBytes == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(valid ? kBytes : 0) : "memory");
}

}  // namespace gossamer::ptx
