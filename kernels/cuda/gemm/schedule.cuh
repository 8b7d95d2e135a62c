// Which tiles a block of the tiled product makes, whole or in part, and in which order.
//
// Tiles go to the blocks in turn. Those of the last turn, if they leave blocks idle, may be cut along K into equal parts, one block
// each: part 0 finishes the tile with the sums of the others.
//
// NOTES: parts are equal, and all blocks of a turn begin together, so blocks that read the same operand read it at the same time and
// the L2 serves them as one. Dealing all steps out in equal runs ("stream-K") has less idle time on paper, but blocks at different
// places of K took about a third longer a step on the H200.
//
// Invariant: a block waits only for blocks with a higher number. Numbers run against blockIdx, so what is waited for was started
// first: no wait needs all blocks to be resident.
#pragma once
#include <cstdint>

namespace gossamer::dense {

struct Schedule {
  uint32_t tiles, k_tiles, row_tiles, column_tiles, blocks;
  uint32_t cut_tiles, parts;  // the last `cut_tiles` go in `parts` parts each
  uint32_t group;             // row tiles that share a pass over the columns, so that both operands of a turn stay in L2

  // A part has at least kLeast steps, and a tile at most kMostParts, or adding them up would cost more than they save.
  static constexpr uint32_t kLeast = 6, kMostParts = 4;
  static Schedule make(uint32_t row_tiles, uint32_t column_tiles, uint32_t k_tiles, uint32_t group, uint32_t processors, bool split) {
    Schedule s = {row_tiles * column_tiles, k_tiles, row_tiles, column_tiles, 0, 0, 1, group};
    const uint32_t rest = s.tiles % processors;
    s.blocks = s.tiles < processors ? s.tiles : processors;
    if (!split || !rest) return s;
    uint32_t parts = processors / rest;
    if (parts > k_tiles / kLeast) parts = k_tiles / kLeast;
    if (parts > kMostParts) parts = kMostParts;
    if (parts < 2) return s;
    s.cut_tiles = rest, s.parts = parts;
    if (s.tiles < processors) s.blocks = rest * parts;
    return s;
  }

  // Cuts every tile into three or four parts, as clusters that take half of the device at most; `room[n]` is how many clusters of n
  // blocks are resident.
  // NOTES: beside a kernel that ends, clusters find room late. Alone, o at 128 tokens was 0.8 us faster as 23 clusters of four than as
  // 46 of two; in a row of kernels it was 2.4 us slower.
  bool cut_all(const int* room) {
    for (uint32_t n = kMostParts; n >= 3; --n)
      if (tiles <= static_cast<uint32_t>(room[n]) / 2 && n * kLeast <= k_tiles) {
        cut_tiles = tiles, parts = n, blocks = tiles * n;
        return true;
      }
    return false;
  }

  __device__ void place(uint32_t tile, uint32_t& row, uint32_t& column) const {
    const uint32_t each = group * column_tiles, first = tile / each * group, rows = min(group, row_tiles - first), in_group = tile % each;
    row = first + in_group % rows, column = in_group / rows;
  }
};

struct Piece {
  uint32_t tile, k_begin, k_end;
};

struct Walk {
  uint32_t tile, block;
  bool done = false;
  __device__ Walk(const Schedule&, uint32_t number) : tile(number), block(number) {}
  __device__ bool next(const Schedule& s, Piece& piece) {
    const uint32_t whole = s.tiles - s.cut_tiles;
    if (tile < whole) {
      piece = {tile, 0, s.k_tiles};
      tile += s.blocks;
      return true;
    }
    if (done || block >= s.cut_tiles * s.parts) return false;
    done = true;
    const uint32_t part = block / s.cut_tiles;
    piece = {whole + block % s.cut_tiles, s.k_tiles * part / s.parts, s.k_tiles * (part + 1) / s.parts};
    return true;
  }
};

}  // namespace gossamer::dense
