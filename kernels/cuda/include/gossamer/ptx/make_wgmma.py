#!/usr/bin/env python3
"""Writes wgmma.cuh: one wrapper per width of the warpgroup product, A from registers, B from shared memory (K-major).

Some widths have more: A from shared memory (attention, dense products), and B with tokens as rows (N-major, attention)."""
from pathlib import Path

HEAD = '''// Warpgroup products (sm_90a): D[64 x N] (+)= A[64 x k] B[k x N], A in registers, B in shared memory, K-major.
// Written by make_wgmma.py. `accumulate` 0 starts from zero. In flight until `wgmma_wait`: touch neither D nor A before.
#pragma once
#include <cstdint>

namespace gossamer::ptx {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of a K-major tile with rows of 128 bytes in the 128-byte swizzle; 8 rows are 1024 bytes; `address` is in the shared window.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

// Descriptor of a tile whose rows are 64 bytes, in the 64-byte swizzle.
__device__ __forceinline__ uint64_t wgmma_descriptor_64(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (static_cast<uint64_t>(512 >> 4) << 32) | (2ull << 62);
}

// The same tile `bytes` further on (the address never carries out of the low word).
__device__ __forceinline__ uint64_t descriptor_plus(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000ull) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

template <int kN>
struct Wgmma;
'''

TRANSPOSED = (64,)
SHARED = (32, 64, 128, 192, 256)

def variant(n):
    d = n // 2
    regs = ", ".join(f"%{i}" for i in range(d))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(d))
    def body(name, shape, types, tail):
        return f'''  // {shape}
  static __device__ __forceinline__ void {name}(float (&d)[{d}], const uint32_t (&a)[4], uint64_t b, int accumulate) {{
    asm volatile(
        "{{\\n .reg .pred p;\\n setp.ne.b32 p, %{d + 5}, 0;\\n"
        " wgmma.mma_async.sync.aligned.{shape}.f32.{types} {{{regs}}}, {{%{d}, %{d + 1}, %{d + 2}, %{d + 3}}}, %{d + 4}, p, 1, 1{tail};\\n}}\\n"
        : {outs}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
  }}
'''
    extra = ""
    if n in TRANSPOSED:
        extra += "  // B is N-major: 64 columns in rows of 128 bytes, 8 rows are 1024 bytes\n" + body("bf16_transposed", f"m64n{n}k16", "bf16.bf16", ", 1")
    if n in SHARED:
        extra += f'''  // A in shared memory as well, K-major
  static __device__ __forceinline__ void bf16_shared(float (&d)[{d}], uint64_t a, uint64_t b, int accumulate) {{
    asm volatile(
        "{{\\n .reg .pred p;\\n setp.ne.b32 p, %{d + 2}, 0;\\n"
        " wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{regs}}}, %{d}, %{d + 1}, p, 1, 1, 0, 0;\\n}}\\n"
        : {outs}
        : "l"(a), "l"(b), "r"(accumulate));
  }}
'''
    return f'''
template <>
struct Wgmma<{n}> {{
{body("bf16", f"m64n{n}k16", "bf16.bf16", ", 0")}{body("e4m3", f"m64n{n}k32", "e4m3.e4m3", "")}{extra}}};
'''

Path(__file__).with_name("wgmma.cuh").write_text(
    HEAD + "".join(variant(n) for n in sorted({*range(8, 193, 8), *range(208, 257, 16)})) + "\n}  // namespace gossamer::ptx\n")
