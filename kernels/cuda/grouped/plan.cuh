// Which tokens each expert gets, cut into tiles.
//
// (token, choice) pairs are sorted by expert. An expert's pairs become as few tiles as the largest width allows, of equal
// width: a narrow rest would read all weights for few tokens. There is one list of tiles per width, because there is one kernel
// per width, and an expert's tiles stand side by side in it, so that they share weights in the cache. The order of pairs inside an expert is not
// fixed; no result depends on it.
//
// Which widths there are at all depends on the number of tokens: a launch that finds nothing to do costs time too. Widths near the
// tokens that an expert gets on average are all there, others in coarse steps.
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
constexpr uint32_t kClasses = 13;
// Tokens per tile of a class, rising.
__host__ __device__ constexpr uint32_t width_of(uint32_t c) {
  constexpr uint32_t kWidths[kClasses] = {8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 256};
  return kWidths[c];
}
constexpr uint32_t kMaxWidth = width_of(kClasses - 1);
// Classes of a type of tokens. NOTES: bf16 stops at 192: twice 128 tokens with 192 rows a block bring fewer tokens through the cache
// than 256 tokens with 128 rows.
__host__ __device__ constexpr uint32_t classes_of(bool fp8) { return fp8 ? kClasses : kClasses - 1; }

// Tokens of an expert's tile, on average.
inline uint32_t mean_of(const GossamerExpertsDesc& d, uint32_t tokens) { return (tokens * d.top_k + d.experts - 1) / d.experts; }
// A bit per class that tiles may have. Invariant: depends on the description and the number of tokens alone, as the sequence of launches
// does, so that a captured graph serves every routing.
inline uint32_t classes_for(const GossamerExpertsDesc& d, uint32_t tokens, bool fp8) {
  // More tokens than the widest tile has become several tiles of about half that width and more, hence the 128.
  const uint32_t mean = mean_of(d, tokens), needed = std::min(tokens, std::max(4 * mean, 32u));  // more tokens than that: several tiles
  uint32_t widest = 0;
  while (widest + 1 < classes_of(fp8) && width_of(widest) < needed) ++widest;
  uint32_t classes = 1u << widest;
  for (uint32_t c = 0; c < widest; ++c) {
    const uint32_t width = width_of(c);
    const bool power = (width & (width - 1)) == 0, near = 2 * width >= std::min(mean, 128u) && width <= 2 * mean;
    if (near || (power && 8 * width >= mean) || width == 192) classes |= 1u << c;
  }
  return classes;
}

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
  uint32_t classes;       // those that tiles may have, a bit each
  uint32_t most;          // tokens of a tile: the widest of them
  uint32_t* pairs;        // [tokens * top_k]: token * top_k + choice
  void* x;                // [tokens * top_k, hidden], sorted, bf16 or E4M3
  void* inner;            // [tokens * top_k, intermediate], sorted, likewise
  // E4M3 alone:
  float* token_scales;    // per sorted row, and kMaxWidth more that are read and not used
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
