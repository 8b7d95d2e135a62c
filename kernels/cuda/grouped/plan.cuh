// Which tokens each expert gets, cut into tiles.
//
// (token, choice) pairs are sorted by expert. An expert's pairs become tiles of the largest width and one for the rest, in the
// least width that holds it. There is one list of tiles per width, because there is one kernel per width. The order inside an
// expert is not fixed; no result depends on it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "gossamer/grouped.h"

namespace gossamer::grouped {

constexpr uint32_t kMaxExperts = 1024;
constexpr uint32_t kClasses = 8;
// Tokens per tile of a class, rising.
__host__ __device__ constexpr uint32_t width_of(uint32_t c) {
  constexpr uint32_t kWidths[kClasses] = {32, 64, 80, 96, 128, 160, 192, 256};
  return kWidths[c];
}
constexpr uint32_t kMaxWidth = width_of(kClasses - 1);

struct TokenTile {
  uint32_t expert;  // local
  uint32_t first;   // row in the sorted order
  uint32_t count;   // rows that are this tile's own
};

struct Plan {
  uint32_t* total;        // rows in the sorted order
  uint32_t* tile_counts;  // [kClasses]
  TokenTile* tiles;       // [kClasses][tiles_per_class]
  uint32_t tiles_per_class;
  uint32_t* pairs;        // [tokens * top_k]: token * top_k + choice
  __nv_bfloat16* x;       // [tokens * top_k, hidden], sorted
  __nv_bfloat16* inner;   // [tokens * top_k, intermediate], sorted
};

// Tiles of one width at most: full ones, and one rest per expert.
inline uint32_t most_tiles(const GossamerExpertsDesc& d, uint32_t tokens) { return tokens * d.top_k / kMaxWidth + d.local_experts + 1; }

__global__ void __launch_bounds__(1024) plan_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Plan p) {
  __shared__ uint32_t counts[kMaxExperts], classes[kClasses];
  const uint32_t pairs = a.tokens * d.top_k, e = threadIdx.x;
  const uint32_t* ids = reinterpret_cast<const uint32_t*>(a.expert_ids);
  counts[e] = 0;
  if (e < kClasses) classes[e] = 0;
  __syncthreads();
  for (uint32_t i = e; i < pairs; i += 1024) {
    const uint32_t expert = ids[i] - d.first_expert;
    if (expert < d.local_experts) atomicAdd(&counts[expert], 1u);
  }
  __syncthreads();
  const uint32_t count = counts[e];
  for (uint32_t step = 1; step < kMaxExperts; step *= 2) {  // inclusive prefix sums
    __syncthreads();
    const uint32_t below = e >= step ? counts[e - step] : 0;
    __syncthreads();
    counts[e] += below;
  }
  __syncthreads();
  const uint32_t start = counts[e] - count;
  if (e == kMaxExperts - 1) *p.total = counts[e];
  for (uint32_t first = 0; first < count;) {
    const uint32_t rest = min(count - first, kMaxWidth);
    uint32_t c = 0;
    while (width_of(c) < rest) ++c;
    p.tiles[c * p.tiles_per_class + atomicAdd(&classes[c], 1u)] = {e, start + first, rest};
    first += rest;
  }
  __syncthreads();
  if (e < kClasses) p.tile_counts[e] = classes[e];
  counts[e] = start;
  __syncthreads();
  for (uint32_t i = e; i < pairs; i += 1024) {
    const uint32_t expert = ids[i] - d.first_expert;
    if (expert < d.local_experts) p.pairs[atomicAdd(&counts[expert], 1u)] = i;
  }
}

// One block per sorted row, and per row of an expert held elsewhere, whose output is zero.
__global__ void gather_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a, Plan p) {
  const uint32_t row = blockIdx.x, chunks = d.hidden / 8;
  const uint32_t* ids = reinterpret_cast<const uint32_t*>(a.expert_ids);
  if (ids[row] - d.first_expert >= d.local_experts) {
    uint4* out = reinterpret_cast<uint4*>(a.out) + static_cast<size_t>(row) * chunks;
    for (uint32_t i = threadIdx.x; i < chunks; i += blockDim.x) out[i] = make_uint4(0, 0, 0, 0);
  }
  if (row >= *p.total) return;
  const uint4* x = reinterpret_cast<const uint4*>(a.x) + static_cast<size_t>(p.pairs[row] / d.top_k) * chunks;
  uint4* out = reinterpret_cast<uint4*>(p.x) + static_cast<size_t>(row) * chunks;
  for (uint32_t i = threadIdx.x; i < chunks; i += blockDim.x) out[i] = x[i];
}

}  // namespace gossamer::grouped
