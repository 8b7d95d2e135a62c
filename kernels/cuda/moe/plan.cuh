// What a block of the few-token experts kernel must know before it starts: workspace, shared memory, its share of the work.
#pragma once
#include "gossamer/mxfp4.cuh"
#include "route.cuh"

namespace gossamer::moe {

constexpr int kMaxConsumers = 16;
constexpr int kFillerThreads = 128;
constexpr int kMaxTiles = 45;

struct Workspace {  // offsets in bytes
  size_t ready, valid, activations, partials, total;
};
__host__ __device__ inline Workspace workspace_of(int tokens, int hidden, int intermediate) {
  Workspace w;
  w.ready = 0;  // per group: gate_up strips done; zero between launches
  w.valid = 1024;
  w.activations = w.valid + kMaxTokens * kTopK;
  w.partials = w.activations + (static_cast<size_t>(tokens) * kTopK * intermediate * 2 + 255) / 256 * 256;
  w.total = w.partials + static_cast<size_t>(tokens) * kTopK * hidden * 4;
  return w;
}
static_assert(kMaxGroups * sizeof(int) <= 1024);

// Bytes of one token column: 128 a tile, and 64 more so that neighbouring tokens fall on different banks.
__host__ __device__ constexpr int column_bytes(int tiles) { return tiles * 128 + 64; }

// The part of one matrix that this block does.
struct Share {
  int strips, tiles, chunks, begin, end, split, rows;
  int begin_group, begin_strip;
};
// The place of one consumer in a matrix: its row, its part of K and that part's chunks.
struct Place {
  int8_t row, part, chunk_begin, chunk_end;
};

// Everything in shared memory but the ring and the token columns.
struct Control {
  RouteTable table;
  float4 partials[2][kMaxConsumers][32];
  uint64_t full[kMaxConsumers][4];  // rings
  uint64_t columns_full[2], columns_empty[2];
  Share share[2];
  Place place[2][kMaxConsumers];
  int phase_end[2];
  uint8_t column_of_group[2][kMaxGroups + 16];  // by matrix: first token column of a group inside its buffer
};
constexpr int kControlBytes = (sizeof(Control) + 127) / 128 * 128;

template <int kConsumers, int kStages, int kChunk>
int shared_bytes(int capacity, int tiles) {
  static_assert(kStages <= 4 && kConsumers <= kMaxConsumers);
  return kConsumers * kStages * kChunk * mxfp4::kTileBytes + kControlBytes + 2 * capacity * column_bytes(tiles);
}

// By one warp: a lane weighs one split, then finds the place of one consumer.
__device__ __forceinline__ void share_of(Share& s, Place* place, int consumers, int chunk, int groups, int rows_out, int k) {
  const unsigned lane = threadIdx.x & 31;
  const unsigned strips = rows_out / 16, tiles = mxfp4::tiles_of(k), chunks = (tiles + chunk - 1) / chunk;
  const unsigned total = groups * strips, blocks = gridDim.x;  // below 2^31 / blocks
  const unsigned most = (total + blocks - 1) / blocks;
  // Every block has the same split: the least time for the largest share, a strip costing 3.5 tiles besides.
  const unsigned split = lane + 1, rows = consumers / split;
  unsigned cost = ~0u;
  if (split <= 8 && rows * split == static_cast<unsigned>(consumers)) cost = ((most + rows - 1) / rows) * (2 * chunk * ((chunks + split - 1) / split) + 7) * 32 + lane;
  const unsigned best = __reduce_min_sync(~0u, cost);
  const unsigned chosen = best % 32 + 1, chosen_rows = consumers / chosen;
  if (lane < static_cast<unsigned>(consumers)) {
    const unsigned row = lane / chosen, part = lane - row * chosen;
    const unsigned first = chunks * part / chosen, last = chunks * (part + 1) / chosen;
    place[lane] = {static_cast<int8_t>(row), static_cast<int8_t>(part), static_cast<int8_t>(first), static_cast<int8_t>(last)};
  }
  if (lane == 31) {
    s.strips = strips;
    s.tiles = tiles;
    s.chunks = chunks;
    s.begin = total * blockIdx.x / blocks;
    s.end = total * (blockIdx.x + 1) / blocks;
    s.split = chosen;
    s.rows = chosen_rows;
    s.begin_group = s.begin / s.strips;
    s.begin_strip = s.begin - s.begin_group * s.strips;
  }
}

}  // namespace gossamer::moe
