// Codes of `mxfp4-sm90-v2` to A fragments of warpgroup products, half a tile (32 columns of K, one block scale a row) at a time.
//
// E4M3 weights: an E4M3 number holds E2M1 x 2^(6 + s - m) exactly while the block's scale s is at most 14 below the row's largest, m
// (what is smaller is below 2^-14 of the row's largest weight). The row's 2^(m - 133) goes on the sum. A table of the eight
// magnitudes per distance m - s makes the conversion one PRMT for four codes; its subnormal entries are exact too.
#pragma once
#include <cuda_fp8.h>

#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::grouped {
namespace {

// What a warp holds of the tile that it decodes: four words of codes, and the scales of rows g and g + 8.
struct Piece {
  uint4 codes;
  uint32_t scales;
  template <int kHalf>
  __device__ __forceinline__ uint32_t word(int i) const {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    return words[2 * kHalf + i];
  }
};

// --- bf16 ----------------------------------------------------------------------------------------------------------------
// bf16 pair 2^(s - 1) of byte `kByte` of four scales: one byte, one multiplication that also adds the bias.
template <int kByte>
__device__ __forceinline__ uint32_t scale_pair(uint32_t scales) {
  return __byte_perm(scales, 0, 0x4440 + kByte) * 0x00800080u + 0x3F003F00u;
}
template <int kHalf>
__device__ __forceinline__ void decode_bf16(const Piece& p, uint32_t (&a)[2][4]) {
  const uint32_t s[2] = {scale_pair<kHalf>(p.scales), scale_pair<2 + kHalf>(p.scales)};
  mxfp4::codes_to_bf16(p.word<kHalf>(0), p.word<kHalf>(1), a[0], a[1]);
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int r = 0; r < 4; ++r) a[step][r] = ptx::multiply_bf16x2(a[step][r], s[r & 1]);
  }
}

// --- E4M3 ----------------------------------------------------------------------------------------------------------------
constexpr int kTableBytes = 2048;

// Byte b of entry d: E2M1 magnitude b times 2^(6 - d), exact while d <= 14. Filled by the whole block.
__device__ __forceinline__ void fill_table(uint8_t* table, int threads) {
  for (int i = threadIdx.x; i < kTableBytes; i += threads) {
    const int code = i % 8, magnitude2 = code < 4 ? code : code < 6 ? 2 * code - 4 : 4 * code - 16;  // twice the magnitude: 0 1 2 3 4 6 8 12
    table[i] = __nv_cvt_float_to_fp8(ldexpf(static_cast<float>(magnitude2), 5 - i / 8), __NV_SATFINITE, __NV_E4M3);
  }
}

// 2^(m - 133) for a row whose largest scale is m.
__device__ __forceinline__ float row_scale(uint32_t m) { return __uint_as_float((m > 6 ? m - 6 : 0) << 23); }

// The tables of rows g and g + 8 for one half of a tile. `distances`: row maximum minus scale, a byte as in the layout.
// `eight` comes with the launch's parameters, so that the compiler does not make a shift of it.
struct Tables {
  uint2 low, high;
  template <int kHalf>
  __device__ __forceinline__ void load(uint32_t table, uint32_t distances, uint32_t eight) {
    low = ptx::load_shared_pair(table + __byte_perm(distances, 0, 0x4440 + kHalf) * eight);
    high = ptx::load_shared_pair(table + __byte_perm(distances, 0, 0x4442 + kHalf) * eight);
  }
};

// The A fragment of a k32 step. Bytes 0..3 of a register: columns 2t + 8, 2t, 2t + 9, 2t + 1 of a k16 step, so the codes of row g
// are registers 2 and 0 of `mxfp4.cuh`, those of row g + 8 registers 3 and 1.
//
// A row's eight codes of both words come as nibbles into one word that picks from the table, the even word's in its low half. What
// bounds this is the pipe of logic, shifts and byte permutations, of which a warp gets one instruction in two cycles.
template <int kHalf>
__device__ __forceinline__ void decode_e4m3(const Piece& p, const Tables& t, uint32_t (&a)[4]) {
  constexpr uint32_t kCodes = 0x77777777u, kSignUpper = 0x80008000u, kSignLower = 0x00800080u, kUpper = 0xF000F000u;
  const uint32_t even = p.word<kHalf>(0), odd = p.word<kHalf>(1), both = mxfp4::join(even, odd), lowered = (both >> 2);
  // Registers 0 and 2: side by side in bytes 1 and 3 after a shift.
  const uint32_t low = ptx::pick_bytes(even << 6, odd << 6, 0x7531) & kCodes;
  a[0] = ptx::merge_bits(ptx::merge_bits(ptx::pick_bytes(t.low.x, t.low.y, low), even, kSignUpper), (even >> 4), kSignLower);
  a[2] = ptx::merge_bits(ptx::merge_bits(ptx::pick_bytes(t.low.x, t.low.y, (low >> 16)), odd, kSignUpper), (odd >> 4), kSignLower);
  // Registers 1 are in the upper halves of bytes 3 and 1; registers 3 come beside them.
  const uint32_t of_even = ptx::choose_bits(kUpper, even, mxfp4::turn_left(both, 24)), of_odd = ptx::choose_bits(kUpper, odd, lowered);
  const uint32_t high = ptx::pick_bytes(of_even, of_odd, 0x5713) & kCodes;
  a[1] = ptx::merge_bits(ptx::merge_bits(ptx::pick_bytes(t.high.x, t.high.y, high), even << 10, kSignUpper), lowered, kSignLower);
  a[3] = ptx::merge_bits(ptx::merge_bits(ptx::pick_bytes(t.high.x, t.high.y, (high >> 16)), odd << 10, kSignUpper), both << 4, kSignLower);
}

}  // namespace
}  // namespace gossamer::grouped
