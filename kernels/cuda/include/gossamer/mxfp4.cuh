// Layout `mxfp4-sm90-v1` (see kernels/LAYOUTS.md) and the conversion of its codes to bf16 pairs.
// Refuses nothing at run time: shapes are checked by the launchers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gossamer::mxfp4 {

constexpr int kTileRows = 16;
constexpr int kTileCols = 64;
constexpr int kCodeBytes = 512;
constexpr int kScaleBytes = 32;
constexpr int kTileBytes = kCodeBytes + kScaleBytes;
static_assert(kTileBytes % 32 == 0, "a tile must not split a memory sector");

__host__ __device__ constexpr int tiles_of(int k) { return (k + kTileCols - 1) / kTileCols; }

__host__ __device__ constexpr size_t matrix_bytes(int rows, int k) {
  return static_cast<size_t>(rows / kTileRows) * tiles_of(k) * kTileBytes;
}

// Checkpoint row held by row `r` of strip `s`; `interleaved` for gate_up.
__host__ __device__ constexpr int source_row(int s, int r, bool interleaved) {
  return !interleaved ? 16 * s + r : (r < 8 ? 16 * s + 2 * r : 16 * s + 2 * (r - 8) + 1);
}

// Where E2M1 code bits of register `reg` sit in a 16-bit half.
__host__ __device__ constexpr uint32_t place(uint32_t code, int reg) {
  const uint32_t mag = code & 7u, sign = (code >> 3) & 1u;
  return reg == 0 ? (mag << 6) | (sign << 15)
       : reg == 1 ? (mag << 3) | (sign << 12)
       : reg == 2 ? mag | (sign << 14)
                  : (mag << 9) | (sign << 13);
}
__host__ __device__ constexpr uint32_t pick(uint32_t half, int reg) {
  return reg == 0 ? ((half >> 6) & 7u) | (((half >> 15) & 1u) << 3)
       : reg == 1 ? ((half >> 3) & 7u) | (((half >> 12) & 1u) << 3)
       : reg == 2 ? (half & 7u) | (((half >> 14) & 1u) << 3)
                  : ((half >> 9) & 7u) | (((half >> 13) & 1u) << 3);
}

constexpr uint32_t kSign = 0x80008000u;
constexpr uint32_t kMagnitude = 0x01C001C0u;

// One word of codes -> the four A-fragment registers as bf16 pairs, each `value * 2^-126` (exact, maybe subnormal).
__device__ __forceinline__ void codes_to_bf16(uint32_t word, uint32_t (&a)[4]) {
  a[0] = word & (kSign | kMagnitude);
  a[1] = (word << 3) & (kSign | kMagnitude);
  a[2] = ((word << 1) & kSign) | ((word << 6) & kMagnitude);
  a[3] = ((word << 2) & kSign) | ((word >> 3) & kMagnitude);
}

// Bits of bf16 pair `2^(s - 1)` that turns `value * 2^-126` into `value * 2^(s - 127)`; byte `i` of a word of four scales.
// Invariant: s <= 128; larger ones are counted by the repack kernel.
template <int kByte>
__device__ __forceinline__ uint32_t scale_pair(uint32_t scales_plus_126) {
  return __byte_perm(scales_plus_126, 0, kByte == 0 ? 0x4040 : kByte == 1 ? 0x4141 : kByte == 2 ? 0x4242 : 0x4343) << 7;
}
constexpr uint32_t kScaleBias = 0x7E7E7E7Eu;  // add to four raw scales before scale_pair

// Float `2^(s - 127)` of byte `kByte`, for scaling accumulators.
template <int kByte>
__device__ __forceinline__ float scale_float(uint32_t scales) {
  const uint32_t bits = kByte == 0 ? scales << 23 : kByte == 1 ? scales << 15 : kByte == 2 ? scales << 7 : scales >> 1;
  return __uint_as_float(bits & 0x7F800000u);
}

}  // namespace gossamer::mxfp4
