// What rotary embedding with the KV write is made of, for the kernel of its own and for the product that has it inside.
#pragma once
#include "gossamer/backend_ops.h"
#include "gossamer/ops.h"
#include "gossamer/ptx/sm90.cuh"
#include "shape.cuh"

namespace gossamer::attention {

// The operation's arguments as the kernels'; false where they do not take it.
inline bool rope_args(const GossamerRopeKvWriteDesc& d, const GossamerRopeKvWriteArgs& a, GossamerRopeKvArgs* p) {
  if (d.head_dim != kDim || d.block_size != kPage || !d.kv_heads || d.heads % d.kv_heads || d.activation != GOSSAMER_BF16 || (d.kv != GOSSAMER_BF16 && d.kv != GOSSAMER_F8E4M3)) return false;
  *p = {};
  p->qkv = reinterpret_cast<void*>(a.qkv);
  p->positions = reinterpret_cast<const int*>(a.positions);
  p->slots = reinterpret_cast<const uint64_t*>(a.slots);
  p->inv_freq = reinterpret_cast<const float*>(a.inverse_frequencies);
  p->kv = reinterpret_cast<void*>(a.kv);
  p->kv_scales = reinterpret_cast<const float*>(a.kv_scales);
  p->attention_scaling = d.magnitude;
  p->tokens = static_cast<int>(a.tokens);
  p->kv_heads = static_cast<int>(d.kv_heads);
  p->group = static_cast<int>(d.heads / d.kv_heads);
  p->fp8 = d.kv == GOSSAMER_F8E4M3;
  return true;
}

// Sine and cosine of a pair of a token's heads, with YaRN's factor.
struct Angle {
  float sine, cosine;
};
__device__ __forceinline__ Angle angle_of(const GossamerRopeKvArgs& p, int token, int pair) {
  Angle a;
  sincosf(p.positions[token] * p.inv_freq[pair], &a.sine, &a.cosine);
  return {a.sine * p.attention_scaling, a.cosine * p.attention_scaling};
}
__device__ __forceinline__ void rotate(float& low, float& high, Angle a) {
  const float rotated = low * a.cosine - high * a.sine;
  high = high * a.cosine + low * a.sine;
  low = rotated;
}

// Of the elements of a layer's pages, the first of a token's key or value of one head.
__device__ __forceinline__ size_t kv_place(const GossamerRopeKvArgs& p, uint64_t slot, bool value, int kv_head) {
  return ((slot / kPage * 2 + value) * p.kv_heads + kv_head) * (kPage * kDim) + slot % kPage * kDim;
}
// What E4M3 codes are times their values.
__device__ __forceinline__ float kv_inverse_scale(const GossamerRopeKvArgs& p, bool value, int kv_head) { return p.kv_scales ? 1.f / p.kv_scales[value * p.kv_heads + kv_head] : 1.f; }

}  // namespace gossamer::attention
