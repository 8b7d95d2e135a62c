// Layout `mxfp4-sm90-v2` (see kernels/LAYOUTS.md) and the conversion of its codes to bf16 pairs.
// Refuses nothing at run time: shapes are checked by the launchers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/ptx/sm90.cuh"

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

constexpr uint32_t kSign = 0x80008000u;
constexpr uint32_t kMagnitude = 0x01C001C0u;
constexpr uint32_t kCode = kSign | kMagnitude;  // as a bf16 pair: `value * 2^-126` (subnormal included, hence exact)

// The codes of two k16 steps, registers 0..3 of the A fragment each, lie in two words, `even` and `odd`. A register is a word turned
// left by so many bits, under the mask kCode; registers 3 come from the bits that the others leave, brought together in `both`.
constexpr uint32_t kOfEven = 0x06030603u;  // bits of `both` that are even's; the rest are odd's two bits further down
__host__ __device__ constexpr int turn_of(int odd, int reg) { return reg == 0 ? 0 : reg == 1 ? 10 : reg == 2 ? 4 : odd ? 12 : 6; }
// Where bit `bit` (0..2 magnitude, 3 sign) of a code is: 0..31 in even, 32..63 in odd. `half`: the lower (0) or upper column of a pair.
__host__ __device__ constexpr int place_of_bit(int odd, int reg, int half, int bit) {
  const int at = ((bit == 3 ? 15 : 6 + bit) + 16 * half + 32 - turn_of(odd, reg)) % 32;
  if (reg < 3) return 32 * odd + at;
  return (kOfEven >> at) & 1 ? at : 32 + at - 2;
}
// Writes a code into, or reads it from, the four words of a lane.
__host__ __device__ inline void place(uint32_t* words, int step, int reg, int half, uint32_t code) {
  for (int bit = 0; bit < 4; ++bit) {
    const int at = place_of_bit(step % 2, reg, half, bit);
    words[step / 2 * 2 + at / 32] |= ((code >> bit) & 1u) << (at % 32);
  }
}
__host__ __device__ inline uint32_t pick(const uint32_t* words, int step, int reg, int half) {
  uint32_t code = 0;
  for (int bit = 0; bit < 4; ++bit) {
    const int at = place_of_bit(step % 2, reg, half, bit);
    code |= ((words[step / 2 * 2 + at / 32] >> (at % 32)) & 1u) << bit;
  }
  return code;
}

__device__ __forceinline__ uint32_t turn_left(uint32_t word, int bits) { return word << bits | word >> (32 - bits); }
__device__ __forceinline__ uint32_t join(uint32_t even, uint32_t odd) { return ptx::choose_bits(kOfEven, even, odd << 2); }

// Two words of codes -> the A-fragment registers of two k16 steps as bf16 pairs, each `value * 2^-126`.
__device__ __forceinline__ void codes_to_bf16(uint32_t even, uint32_t odd, uint32_t (&a)[4], uint32_t (&b)[4]) {
  const uint32_t both = join(even, odd);
  a[0] = even & kCode;
  a[1] = turn_left(even, 10) & kCode;
  a[2] = (even << 4) & kCode;
  a[3] = (both << 6) & kCode;
  b[0] = odd & kCode;
  b[1] = turn_left(odd, 10) & kCode;
  b[2] = (odd << 4) & kCode;
  b[3] = turn_left(both, 12) & kCode;
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
