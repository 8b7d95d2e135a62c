// Which tokens each expert gets, cut into tiles.
//
// (token, choice) pairs are sorted by expert. An expert's pairs become as few tiles as the largest width allows, of equal
// width: a narrow rest would read all weights for few tokens. There is one list of tiles per set of widths, because there is one
// kernel per set, and an expert's tiles stand side by side in it, so that they share weights in the cache. The order of pairs inside
// an expert is not fixed; no result depends on it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <algorithm>

#include "gossamer/grouped.h"
#include "gossamer/mxfp4.cuh"

namespace gossamer::grouped {

using bf16 = __nv_bfloat16;

constexpr uint32_t kMaxExperts = 1024;

// Widths (tokens of a tile) in sets, each of which one kernel serves. NOTES: as many as the assembler's registers bear (see product.cuh).
constexpr uint32_t kSets = 8;
__host__ __device__ constexpr uint32_t widest_of(uint32_t set) {
  constexpr uint32_t kWidest[kSets] = {32, 48, 72, 96, 128, 160, 192, 256};
  return kWidest[set];
}
// NOTES: the widest set is one width: four of them (208 to 256) in one kernel took 10 % longer at 8192 tokens in E4M3.
__host__ __device__ constexpr uint32_t step_of(uint32_t set) { return set < 6 ? 8 : set < 7 ? 16 : 64; }
__host__ __device__ constexpr uint32_t narrowest_of(uint32_t set) { return (set ? widest_of(set - 1) : 0) + step_of(set); }
__host__ __device__ constexpr uint32_t widths_of(uint32_t set) { return (widest_of(set) - narrowest_of(set)) / step_of(set) + 1; }
__host__ __device__ constexpr uint32_t set_of(uint32_t width) {
  uint32_t set = 0;
  while (widest_of(set) < width) ++set;
  return set;
}
// The width for so many tokens.
__host__ __device__ constexpr uint32_t width_for(uint32_t count) {
  const uint32_t step = step_of(set_of(count));
  return (count + step - 1) / step * step;
}
constexpr uint32_t kMaxWidth = widest_of(kSets - 1);
// NOTES: bf16 stops at 192: twice 128 tokens with 192 rows a block are faster than 256 tokens with 128 rows.
__host__ __device__ constexpr uint32_t sets_of(bool fp8) { return fp8 ? kSets : kSets - 1; }

// Tokens of an expert's tile, on average.
inline uint32_t mean_of(const GossamerExpertsDesc& d, uint32_t tokens) { return (tokens * d.top_k + d.experts - 1) / d.experts; }
// Tokens of a tile at most; an expert with more becomes several tiles. Invariant: depends on the description and the number of tokens
// alone, as the sequence of launches does (all sets up to this width's), so that a captured graph serves every routing.
inline uint32_t most_of(const GossamerExpertsDesc& d, uint32_t tokens, bool fp8) {
  return width_for(std::min({tokens, std::max(4 * mean_of(d, tokens), 32u), widest_of(sets_of(fp8) - 1)}));
}

struct TokenTile {
  uint32_t expert;  // local
  uint32_t first;   // row in the sorted order
  uint32_t count;   // rows that are this tile's own
  uint32_t width;   // of the tile, at least these
};

// Copies of a tile's words start and end at 16 bytes and are as long as the tile is wide.
constexpr uint32_t kPastEnd = kMaxWidth + 3;

struct Plan {
  uint32_t* tile_counts;  // [kSets]
  TokenTile* tiles;       // [kSets][tiles_per_set]
  uint32_t tiles_per_set;
  int* finished;          // [kSets][tiles_per_set]: rounds of gate_up that are stored
  uint32_t most;          // tokens of a tile at most
  uint32_t* pairs;        // [tokens * top_k]: token * top_k + choice; kPastEnd more are read and not used
  uint32_t* places;       // [tokens * top_k]: of a pair in the sorted order; not set where another rank has its expert
  void* x;                // [tokens * top_k, hidden], sorted, bf16 or E4M3
  void* inner;            // [tokens * top_k, intermediate], sorted, likewise
  // E4M3 alone:
  float* token_scales;    // per sorted row, and likewise
  const uint8_t *gate_up_maxima, *down_maxima;
};

// `inner` is at most (limit + 1) * limit = 56 in size for the model's limit of 7, so one scale does for all of it: 56 x 8 = 448.
// E4M3 is a floating type: only values below 2^-9 lose digits, and they are a thousandth of what such a scale is for.
constexpr float kInnerScale = 8.f;

// Byte that column `c` of a k16 step takes (see product.cuh).
__host__ __device__ constexpr int place_of(int c) { return 4 * (c % 8 / 2) + 2 * (c & 1) + (c < 8 ? 1 : 0); }

int products_bf16(const GossamerExpertsDesc&, const GossamerExpertsArgs&, const Plan&, cudaStream_t);
int products_fp8(const GossamerExpertsDesc&, const GossamerExpertsArgs&, const Plan&, cudaStream_t);
bool prepare_bf16();
bool prepare_fp8();

}  // namespace gossamer::grouped
