// What becomes of the sums of a strip and a tile's tokens: scales, bias, SwiGLU, and the stores.
//
// A lane has rows g and g + 8 of the strip (gate_up: gate and up of one column; down: two columns) for tokens 2t and 2t + 1 of every
// eight. What bounds it is latency: a load or a branch between two tokens costs hundreds of cycles, in which no product runs. So what
// is known of each token comes to shared memory with the tokens, and sixteen tokens' chains of arithmetic run side by side; only stores
// ask whether a token is there.
#pragma once
#include "decode.cuh"
#include "plan.cuh"

namespace gossamer::grouped {
namespace {

// (up + 1) * gate / (1 + exp(-alpha * gate)), clamped, divided by `part`.
struct Swiglu {
  float limit, slope, part;
  __device__ __forceinline__ Swiglu(float clamp, float alpha, float divisor) : limit(clamp), slope(-alpha * 1.44269504f), part(divisor) {}
  __device__ __forceinline__ float operator()(float gate, float up) const {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return fmaf(up, gate, gate) * ptx::reciprocal_flushed(fmaf(ptx::exp2_flushed(gate * slope), part, part));
  }
};

// Rows of `out` hold `row_bytes`; of E4M3 tokens gate_up's are E4M3, everything else is bf16. Tokens from `count` on are not stored.
// `words`: in shared memory, one per token, scales for gate_up and pairs for down.
template <bool kFp8, bool kGateUp, int kWidest>
__device__ __forceinline__ void store_strip(const float (&sums)[kWidest / 2], const uint32_t* words, float scale0, float scale1, float bias0, float bias1,
                                            const Swiglu& swiglu, uint8_t* out, uint32_t row_bytes, uint32_t strip, const TokenTile& tile, uint32_t count) {
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
  const uint32_t odd = g & 1, place = 2 * t + odd;
  // Neighbouring g exchange a token, so that each stores two columns of one token at once; E4M3 columns of a strip do not lie side by side.
  if constexpr (kGateUp && kFp8) out += static_cast<size_t>(tile.first + 2 * t) * row_bytes + strip / 2 * 16 + place_of(strip % 2 * 8 + g);
  else if constexpr (kGateUp) out += static_cast<size_t>(tile.first + place) * row_bytes + (strip * 8 + (g & ~1)) * 2;
  else out += (strip * 16 + (g & ~1)) * 2;
  words += kGateUp ? 2 * t : place;
#pragma unroll
  for (int first = 0; first < kWidest / 8; first += 2) {
    if (first * 8 >= tile.width) break;
#pragma unroll
    for (int j = first; j < first + 2 && j < kWidest / 8; ++j) {
      float v[4] = {sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]};
      if constexpr (kFp8 && kGateUp) {
        const float of0 = __uint_as_float(ptx::load_shared_word(words + j * 8)), of1 = __uint_as_float(ptx::load_shared_word(words + j * 8 + 1));
        v[0] *= of0, v[1] *= of1, v[2] *= of0, v[3] *= of1;
      }
      if constexpr (kFp8) v[0] = fmaf(v[0], scale0, bias0), v[1] = fmaf(v[1], scale0, bias0), v[2] = fmaf(v[2], scale1, bias1), v[3] = fmaf(v[3], scale1, bias1);
      else v[0] += bias0, v[1] += bias0, v[2] += bias1, v[3] += bias1;
      if constexpr (kGateUp && kFp8) {
        const uint32_t codes = __nv_cvt_float2_to_fp8x2(make_float2(swiglu(v[0], v[2]), swiglu(v[1], v[3])), __NV_SATFINITE, __NV_E4M3);
        uint8_t* to = out + static_cast<size_t>(j * 8) * row_bytes;
        if (j * 8 + 2 * t < count) to[0] = static_cast<uint8_t>(codes);
        if (j * 8 + 2 * t + 1 < count) to[row_bytes] = static_cast<uint8_t>(codes >> 8);
      } else if constexpr (kGateUp) {
        const uint32_t both = ptx::pack_bf16(swiglu(v[0], v[2]), swiglu(v[1], v[3]));
        const uint32_t pair = ptx::pick_bytes(both, __shfl_xor_sync(~0u, both, 4), odd ? 0x3276 : 0x5410);
        if (j * 8 + place < count) *reinterpret_cast<uint32_t*>(out + static_cast<size_t>(j * 8) * row_bytes) = pair;
      } else {
        const uint32_t one = ptx::pack_bf16(v[0], v[2]), two = ptx::pack_bf16(v[1], v[3]);  // rows g and g + 8 of a token
        const uint32_t own = odd ? two : one, got = __shfl_xor_sync(~0u, odd ? one : two, 4);
        uint8_t* to = out + static_cast<size_t>(ptx::load_shared_word(words + j * 8)) * row_bytes;
        const uint32_t low = ptx::pick_bytes(own, got, odd ? 0x1054 : 0x5410), high = ptx::pick_bytes(own, got, odd ? 0x3276 : 0x7632);
        if (j * 8 + place < count) *reinterpret_cast<uint32_t*>(to) = low, *reinterpret_cast<uint32_t*>(to + 16) = high;
      }
    }
  }
}

}  // namespace
}  // namespace gossamer::grouped
