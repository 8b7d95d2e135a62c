// The small kernels before the grouped products: which tokens each expert gets, the tokens in that order (bf16, or quantised to
// E4M3), and the largest scale of each row of weights.
#pragma once
#include "gossamer/ptx/sm90.cuh"
#include "plan.cuh"

namespace gossamer::grouped {
namespace {

constexpr uint32_t kGatherThreads = 128, kMaxChoices = 32;
static_assert(kGatherThreads == 4 * 32 && kMaxChoices <= kGatherThreads);

// A block places kPlanThreads pairs. For that it counts all pairs, each block for itself: that takes less time than waiting for others.
//
// Counters are `copies` per expert, one for every lane or few lanes of a warp, since equal addresses in a warp are added one after
// the other. A counter has the pairs before this block's in its upper half and all pairs in its lower half.
// Invariant: pairs / copies < 2^16 (checked at launch).
constexpr uint32_t kPlanThreads = 1024, kCounters = 8192, kAtOnce = 8;
__host__ __device__ constexpr uint32_t log_copies(uint32_t experts) { return experts <= kCounters / 32 ? 5 : experts <= kCounters / 16 ? 4 : 3; }
static_assert(kMaxExperts << log_copies(kMaxExperts) <= kCounters && kMaxExperts <= kPlanThreads);

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Plan p) {
  __shared__ uint32_t counters[kCounters], places[kMaxExperts], sums[32], sets[kSets];
  ptx::launch_dependents();
  const uint32_t pairs = a.tokens * d.top_k, e = threadIdx.x, lane = e % 32, own = blockIdx.x * kPlanThreads;
  const uint32_t shift = log_copies(d.local_experts), copies = 1u << shift;
  const uint32_t* ids = reinterpret_cast<const uint32_t*>(a.expert_ids);
  for (uint32_t i = e; i < kCounters; i += kPlanThreads) counters[i] = 0;
  if (e < kSets) sets[e] = 0;
  __syncthreads();
  const bool aligned = a.expert_ids % 16 == 0;
  for (uint32_t first = 4 * e; first < pairs; first += kAtOnce * 4 * kPlanThreads) {
    uint4 four[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = first + i * 4 * kPlanThreads;
      four[i] = make_uint4(~0u, ~0u, ~0u, ~0u);  // nobody's
      if (aligned && at + 4 <= pairs) {
        four[i] = *reinterpret_cast<const uint4*>(ids + at);
      } else {
        if (at < pairs) four[i].x = ids[at];
        if (at + 1 < pairs) four[i].y = ids[at + 1];
        if (at + 2 < pairs) four[i].z = ids[at + 2];
        if (at + 3 < pairs) four[i].w = ids[at + 3];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t one = first + i * 4 * kPlanThreads < own ? 0x10001u : 1u;  // `own` is a multiple of four
      const uint32_t experts[4] = {four[i].x, four[i].y, four[i].z, four[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t expert = experts[j] - d.first_expert;
        if (expert < d.local_experts) atomicAdd(&counters[(expert << shift) + (lane & (copies - 1))], one);
      }
    }
  }
  __syncthreads();
  uint32_t count = 0, before = 0;
  if (e < d.local_experts) {
    for (uint32_t i = 0; i < copies; ++i) {
      const uint32_t counter = counters[(e << shift) + ((i + e) & (copies - 1))];
      count += counter & 0xFFFF, before += counter >> 16;
    }
  }
  // Sums over the experts before.
  uint32_t start = count;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, start, step);
    if (lane >= step) start += below;
  }
  if (lane == 31) sums[e / 32] = start;
  start -= count;
  __syncthreads();
  if (e < 32) {
    uint32_t sum = sums[e];
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += below;
    }
    sums[e] = sum;
  }
  __syncthreads();
  if (e >= 32) start += sums[e / 32 - 1];
  places[e] = start + before;
  __syncthreads();
  if (own + e < pairs) {
    const uint32_t expert = ids[own + e] - d.first_expert;
    if (expert < d.local_experts) {
      const uint32_t row = atomicAdd(&places[expert], 1u);
      p.pairs[row] = own + e, p.places[own + e] = row;
    }
  }
  if (blockIdx.x) return;
  if (count) {
    const uint32_t tiles = (count + p.most - 1) / p.most, width = width_for((count + tiles - 1) / tiles);  // at most p.most, so the last tile has rows
    const uint32_t set = set_of(width), at = set * p.tiles_per_set + atomicAdd(&sets[set], tiles);
    for (uint32_t i = 0; i < tiles; ++i) p.tiles[at + i] = {e, start + i * width, min(count - i * width, width), width}, p.finished[at + i] = 0;
  }
  __syncthreads();
  if (e < kSets) p.tile_counts[e] = sets[e];
}

// A block per token: to its place under each of its experts; the outputs of experts held elsewhere are zero. Its blocks may be there
// before the plan is.
struct Places {
  uint32_t rows[kMaxChoices];  // of the sorted order, or kElsewhere
  static constexpr uint32_t kElsewhere = ~0u;
  __device__ void find(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& p, uint32_t token) {
    if (threadIdx.x < d.top_k) {
      const uint32_t pair = token * d.top_k + threadIdx.x;
      rows[threadIdx.x] = reinterpret_cast<const uint32_t*>(a.expert_ids)[pair] - d.first_expert < d.local_experts ? p.places[pair] : kElsewhere;
    }
    __syncthreads();
  }
  // Sixteen bytes of a row of `chunks` such.
  __device__ void put(const GossamerExpertsDesc& d, void* sorted, uint32_t chunks, uint32_t i, uint4 value) const {
    for (uint32_t c = 0; c < d.top_k; ++c)
      if (rows[c] != kElsewhere) static_cast<uint4*>(sorted)[static_cast<size_t>(rows[c]) * chunks + i] = value;
  }
  __device__ void zero_elsewhere(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, uint32_t token) const {
    const uint32_t chunks = d.hidden / 8;
    for (uint32_t c = 0; c < d.top_k; ++c) {
      if (rows[c] != kElsewhere) continue;
      uint4* out = reinterpret_cast<uint4*>(a.out) + (static_cast<size_t>(token) * d.top_k + c) * chunks;
      for (uint32_t i = threadIdx.x; i < chunks; i += blockDim.x) out[i] = make_uint4(0, 0, 0, 0);
    }
  }
};

__global__ void __launch_bounds__(kGatherThreads) gather_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Plan p) {
  __shared__ Places places;
  const uint32_t token = blockIdx.x, chunks = d.hidden / 8;
  ptx::launch_dependents();
  ptx::dependency_wait();
  places.find(d, a, p, token);
  const uint4* x = reinterpret_cast<const uint4*>(a.x) + static_cast<size_t>(token) * chunks;
  for (uint32_t i = threadIdx.x; i < chunks; i += kGatherThreads) places.put(d, p.x, chunks, i, x[i]);
  places.zero_elsewhere(d, a, token);
}

// The same, to E4M3 with a scale per token that takes its largest value to 448. Columns in the order of `place_of`.
__global__ void __launch_bounds__(kGatherThreads) gather_e4m3_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Plan p) {
  __shared__ Places places;
  __shared__ float tops[kGatherThreads / 32];
  const uint32_t token = blockIdx.x, groups = d.hidden / 16;
  ptx::launch_dependents();
  ptx::dependency_wait();
  places.find(d, a, p, token);
  const uint4* x = reinterpret_cast<const uint4*>(a.x) + static_cast<size_t>(token) * 2 * groups;
  const auto load = [&](uint32_t group, float (&v)[16]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 piece = x[group * 2 + half];
      const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[half * 8 + 2 * i] = __uint_as_float(words[i] << 16);
        v[half * 8 + 2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      }
    }
  };
  float v[16], top = 1e-20f;  // a row of zeros keeps a scale
  for (uint32_t group = threadIdx.x; group < groups; group += kGatherThreads) {
    load(group, v);
#pragma unroll
    for (int i = 0; i < 16; ++i) top = fmaxf(top, fabsf(v[i]));
  }
  for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
  top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
  if (threadIdx.x < d.top_k && places.rows[threadIdx.x] != Places::kElsewhere) p.token_scales[places.rows[threadIdx.x]] = top / 448.f;
  const float inverse = 448.f / top;
  for (uint32_t group = threadIdx.x; group < groups; group += kGatherThreads) {
    load(group, v);
    // Word t holds columns 2t + 8, 2t, 2t + 9, 2t + 1.
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * t + 8] * inverse, v[2 * t] * inverse), __NV_SATFINITE, __NV_E4M3);
      const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * t + 9] * inverse, v[2 * t + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
      words[t] = low | high << 16;
    }
    places.put(d, p.x, groups, group, make_uint4(words[0], words[1], words[2], words[3]));
  }
  places.zero_elsewhere(d, a, token);
}
static_assert(place_of(8) == 0 && place_of(0) == 1 && place_of(9) == 2 && place_of(1) == 3 && place_of(15) == 14);

// Largest scale of each row of `mxfp4-sm90-v2` matrices, in the layout's row order. A warp per strip.
__global__ void __launch_bounds__(256) maxima_kernel(const uint8_t* packed, uint8_t* out, uint32_t strips, uint32_t k_tiles) {
  const uint32_t strip = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (strip >= strips) return;
  const uint8_t* tiles = packed + static_cast<size_t>(strip) * k_tiles * mxfp4::kTileBytes;
  uint32_t top = 0;  // bytes: row g twice, row g + 8 twice
  for (uint32_t k = lane / 8; k < k_tiles; k += 4)
    top = __vmaxu4(top, *reinterpret_cast<const uint32_t*>(tiles + k * mxfp4::kTileBytes + mxfp4::kCodeBytes + lane % 8 * 4));
  top = __vmaxu4(top, __shfl_xor_sync(~0u, top, 8));
  top = __vmaxu4(top, __shfl_xor_sync(~0u, top, 16));
  if (lane < 8) {
    out[strip * 16 + lane] = max(top & 255, top >> 8 & 255);
    out[strip * 16 + lane + 8] = max(top >> 16 & 255, top >> 24);
  }
}
}  // namespace
}  // namespace gossamer::grouped
