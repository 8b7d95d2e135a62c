// archs: 90a 100a
// Rotary embedding of queries and keys, with the write of keys and values into the paged cache.
#include <cuda_bf16.h>

#include "gossamer/clock.cuh"
#include "gossamer/decode.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "rope.cuh"

namespace gossamer::attention {
namespace {

__device__ __forceinline__ void unpack4(uint2 raw, float (&f)[4]) {
  f[0] = __uint_as_float(raw.x << 16), f[1] = __uint_as_float(raw.x & 0xFFFF0000u);
  f[2] = __uint_as_float(raw.y << 16), f[3] = __uint_as_float(raw.y & 0xFFFF0000u);
}
__device__ __forceinline__ uint2 pack4(const float (&f)[4]) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(f[0], f[1]), high = __floats2bfloat162_rn(f[2], f[3]);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

// A warp takes every `parts`th group of four heads of one token. Lane i finds the angle of pair i; then lane i has four pairs, from
// 4 (i % 8) on, of head i / 8 of each group, so that a warp reads and writes whole rows.
__global__ void __launch_bounds__(256) rope_kv_kernel(const __grid_constant__ GossamerRopeKvArgs p, int parts) {
  clocks::Clock clock(clocks::kRope);
  const int lane = threadIdx.x & 31, heads = p.kv_heads * (p.group + 2);
  const int unit = blockIdx.x * 8 + threadIdx.x / 32;
  ptx::launch_dependents();
  if (unit >= p.tokens * parts) return;
  const int token = unit / parts, pair = 4 * (lane & 7);
  const Angle own = angle_of(p, token, lane);
  Angle angles[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) angles[i] = {__shfl_sync(~0u, own.sine, pair + i), __shfl_sync(~0u, own.cosine, pair + i)};
  const uint64_t slot = p.slots[token];
  const int q_heads = p.kv_heads * p.group;
  const auto turn = [&](int head, uint2 low, uint2 high, __nv_bfloat16* x) {
    float a[4], b[4];
    unpack4(low, a);
    unpack4(high, b);
    const bool value = head >= q_heads + p.kv_heads;
    if (!value) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rotate(a[i], b[i], angles[i]);
      low = pack4(a);
      high = pack4(b);
    }
    if (head < q_heads) {
      *reinterpret_cast<uint2*>(x) = low;
      *reinterpret_cast<uint2*>(x + 32) = high;
      return;
    }
    const int kv_head = (head - q_heads) % p.kv_heads;
    const size_t at = kv_place(p, slot, value, kv_head) + pair;
    if (p.fp8) {
      const float inverse = kv_inverse_scale(p, value, kv_head);
      const auto codes = [&](const float (&f)[4]) {
        return ptx::floats_to_e4m3(f[0] * inverse, f[1] * inverse) | static_cast<uint32_t>(ptx::floats_to_e4m3(f[2] * inverse, f[3] * inverse)) << 16;
      };
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.kv) + at) = codes(a);
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.kv) + at + 32) = codes(b);
    } else {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.kv) + at) = low;
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.kv) + at + 32) = high;
    }
  };
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);
  // Four rounds' loads are under way before the first store, which the compiler could not swap.
  for (int first = unit % parts * 4 + lane / 8; first < heads; first += 16 * parts) {
    uint2 lows[4], highs[4];
    const auto at_head = [&](int head) { return static_cast<__nv_bfloat16*>(p.qkv) + (static_cast<size_t>(token) * heads + head) * kDim + pair; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = first + 4 * parts * i;
      if (head >= heads) break;
      lows[i] = __ldcg(reinterpret_cast<const uint2*>(at_head(head)));
      highs[i] = __ldcg(reinterpret_cast<const uint2*>(at_head(head) + 32));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = first + 4 * parts * i;
      if (head >= heads) break;
      turn(head, lows[i], highs[i], at_head(head));
    }
  }
}

}  // namespace
}  // namespace gossamer::attention

extern "C" int gossamer_rope_kv(const GossamerRopeKvArgs* args, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::attention;
  GossamerRopeKvArgs p = *args;
  if (!p.group) p.group = kHeads;
  // Few tokens: as many warps as there are groups of heads. Many: an angle serves four of them.
  const int groups = (p.kv_heads * (p.group + 2) + 3) / 4, parts = p.tokens <= 256 ? groups : (groups + 3) / 4;
  const int64_t units = static_cast<int64_t>(p.tokens) * parts;
  if (p.tokens < 1 || p.kv_heads < 1 || p.group < 1 || units > INT32_MAX - 8) return GOSSAMER_BAD_SHAPE;
  return launch(rope_kv_kernel, dim3((units + 7) / 8), dim3(256), 0, stream, true, p, parts);
}

extern "C" int gossamer_rope_kv_op(const GossamerRopeKvWriteDesc* d, const GossamerRopeKvWriteArgs* a, cudaStream_t stream) {
  GossamerRopeKvArgs p;
  if (!gossamer::attention::rope_args(*d, *a, &p)) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  return gossamer_rope_kv(&p, stream);
}
