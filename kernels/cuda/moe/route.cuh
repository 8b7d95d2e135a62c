// Device side of routing: top-4 per token and the list of (expert, up to 8 tokens) groups, computed by every block for
// itself: cheaper than one more grid between router and experts.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "gossamer/ops.h"

namespace gossamer::moe {

constexpr int kTopK = 4;
constexpr int kMaxTokens = GOSSAMER_MOE_MAX_TOKENS;
constexpr int kMaxExperts = 128;
constexpr int kGroupTokens = 8;
// sum of ceil(n_e / 8) over experts with n_e > 0, for 256 slots on 128 experts: at most (256 + 7 * 128) / 8.
constexpr int kMaxGroups = 144;
constexpr uint8_t kNoExpert = 255;

struct Group {
  uint16_t expert, count;
  uint8_t slots[kGroupTokens];  // token * 4 + rank among the token's four
};

struct RouteTable {
  uint32_t ids[kMaxTokens];  // four expert numbers a token, local to this rank; kNoExpert: elsewhere
  float weights[kMaxTokens * kTopK];
  uint32_t members[kMaxExperts][2];  // tokens of an expert, a bit each; zero before route_tokens
  int groups;
  int warp_totals[4];
  Group group[kMaxGroups];
};

__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t b = __float_as_uint(v);
  const uint32_t key = (b & 0x80000000u) ? ~b : b | 0x80000000u;
  return key == 0 ? 1u : key;  // 0 marks a taken expert, so that NaN logits still give valid ids
}

// Top-4 of one token by one warp, in order of falling logit, ties to the lower expert; every lane gets the result.
__device__ __forceinline__ void top4(const float* logits, int experts, int (&id)[kTopK], float (&weight)[kTopK]) {
  const int lane = threadIdx.x & 31;
  float v[4];
  uint32_t key[4];
  if (experts % 4 == 0) {  // many multiprocessors read the same lines: one request a line
    const float4 four = 4 * lane < experts ? __ldcg(reinterpret_cast<const float4*>(logits) + lane) : make_float4(0.f, 0.f, 0.f, 0.f);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = 4 * lane + i < experts ? __ldcg(logits + 4 * lane + i) : 0.f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) key[i] = 4 * lane + i < experts ? ordered(v[i]) : 0u;
#pragma unroll
  for (int k = 0; k < kTopK; ++k) {
    const uint32_t mine = max(max(key[0], key[1]), max(key[2], key[3]));
    const uint32_t best = __reduce_max_sync(~0u, mine);
    const int winner = __ffs(__ballot_sync(~0u, mine == best)) - 1;  // lowest lane holds the lowest experts
    const int i = key[0] == best ? 0 : key[1] == best ? 1 : key[2] == best ? 2 : 3;
    const float value = i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];
    id[k] = 4 * winner + __shfl_sync(~0u, i, winner);
    weight[k] = __shfl_sync(~0u, value, winner);
    if (lane == winner) {
      if (i == 0) key[0] = 0;
      else if (i == 1) key[1] = 0;
      else if (i == 2) key[2] = 0;
      else key[3] = 0;
    }
  }
  float sum = 0.f;
  const float top = weight[0];
#pragma unroll
  for (int k = 0; k < kTopK; ++k) sum += weight[k] = __expf(weight[k] - top);
  const float scale = __fdividef(1.f, sum);
#pragma unroll
  for (int k = 0; k < kTopK; ++k) weight[k] *= scale;
}

// First half: ids and weights of the tokens warp, warp + warps, ... into `table`.
__device__ __forceinline__ void route_tokens(RouteTable& table, const GossamerMoeArgs& p, int warp, int warps) {
  const int lane = threadIdx.x & 31;
  for (int t = warp; t < p.tokens; t += warps) {
    int id[kTopK];
    float weight[kTopK];
    if (p.logits) {
      top4(p.logits + static_cast<size_t>(t) * p.experts, p.experts, id, weight);
    } else {
#pragma unroll
      for (int k = 0; k < kTopK; ++k) {
        id[k] = __ldcg(p.ids + t * kTopK + k);
        weight[k] = __ldcg(p.weights + t * kTopK + k);
      }
    }
    if (lane == 0) {
      uint32_t packed = 0;
#pragma unroll
      for (int k = 0; k < kTopK; ++k) {
        const int local = id[k] - p.expert_begin;
        const bool here = id[k] >= 0 && local >= 0 && local < p.experts_local;
        packed |= static_cast<uint32_t>(here ? local : kNoExpert) << (8 * k);
        if (here && p.tokens > 1) atomicOr(&table.members[local][t / 32], 1u << (t % 32));
        table.weights[t * kTopK + k] = weight[k];
      }
      table.ids[t] = packed;
    }
  }
}

// Second half: the groups. All threads of the block (at least 128) take part; begins and ends with a block barrier.
__device__ __forceinline__ void route_groups(RouteTable& table, const GossamerMoeArgs& p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  __syncthreads();
  if (p.tokens == 1) {  // at most four groups of one slot, in rank order
    if (threadIdx.x == 0) {
      int n = 0;
#pragma unroll
      for (int k = 0; k < kTopK; ++k) {
        const uint32_t e = (table.ids[0] >> (8 * k)) & 255u;
        if (e == kNoExpert) continue;
        Group& g = table.group[n++];
        g.expert = static_cast<uint16_t>(e);
        g.count = 1;
        g.slots[0] = static_cast<uint8_t>(k);
      }
      table.groups = n;
    }
    __syncthreads();
    return;
  }
  int count = 0, groups = 0, before = 0;
  const int e = threadIdx.x;
  if (e < kMaxExperts) {
    count = __popc(table.members[e][0]) + __popc(table.members[e][1]);
    groups = (count + kGroupTokens - 1) / kGroupTokens;
    before = groups;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += other;
    }
    if (lane == 31) table.warp_totals[warp] = before;
    before -= groups;
  }
  __syncthreads();
  if (e < kMaxExperts) {
    for (int w = 0; w < warp; ++w) before += table.warp_totals[w];
    if (e == kMaxExperts - 1) table.groups = before + groups;
    int n = 0;
#pragma unroll
    for (int word = 0; word < 2; ++word)
      for (uint32_t left = table.members[e][word]; left; left &= left - 1, ++n) {
        const int t = 32 * word + __ffs(left) - 1;
        const int k = (__ffs(__vcmpeq4(table.ids[t], 0x01010101u * e)) - 1) / 8;
        Group& g = table.group[before + n / kGroupTokens];
        g.slots[n % kGroupTokens] = static_cast<uint8_t>(t * kTopK + k);
        if (n % kGroupTokens == 0) {
          g.expert = static_cast<uint16_t>(e);
          g.count = static_cast<uint16_t>(min(kGroupTokens, count - n));
        }
      }
  }
  __syncthreads();
}

}  // namespace gossamer::moe
