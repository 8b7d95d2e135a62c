// Work of the experts kernel for a handful of tokens (`few.cu`): what each block and each warp does. A group is an expert with its
// tokens; a unit is a strip of a group.
//
// gate_up: a block takes a run of units, a warp one at a time over its whole K. down: the two blocks of a cluster own some of the
// output's strips for every group and take half of K each, so that they can finish the sum over a token's experts by themselves.
#pragma once
#include "gossamer/mxfp4.cuh"
#include "plan.cuh"

namespace gossamer::moe::few {

constexpr int kWarps = 12, kThreads = 32 * kWarps, kCluster = 2;
constexpr int kMaxTokens = 8;  // at most 32 groups, a lane each, and one group an expert
constexpr int kMaxOwned = 8;
constexpr int kMaxJobs = 32;  // of a warp, a lane each
constexpr int kHalfEights = (kMaxTiles + 1) / kCluster * 8 + 8;  // eights of a block's half of K, rounded up: 192
static_assert(kMaxTiles * 8 <= kThreads && kThreads % kHalfEights == 0);

struct Job {
  uint32_t tile;  // first one, counted from the matrix' begin
  uint16_t strip;
  uint8_t group, tiles;
};

struct Shape {
  int gate_up_strips, gate_up_tiles, down_strips, down_tiles;
};
__host__ __device__ inline Shape shape_of(int hidden, int intermediate) {
  return {2 * intermediate / 16, mxfp4::tiles_of(hidden), hidden / 16, mxfp4::tiles_of(intermediate)};
}
__host__ __device__ inline int most_owned(const Shape& s, int blocks) { return (s.down_strips + blocks / kCluster - 1) / (blocks / kCluster); }
// Jobs of a warp at most.
__host__ inline int most_jobs(const Shape& s, int groups, int blocks) {
  const int units = (groups * s.gate_up_strips + blocks - 1) / blocks;
  return (units + kWarps - 1) / kWarps + (groups * most_owned(s, blocks) + kWarps - 1) / kWarps;
}

// A block's part, whatever the routing.
struct Part {
  int own, owned;         // strips of down
  int tile, tiles;        // of their K
  __device__ __forceinline__ Part(const Shape& s, int rank) {
    const int clusters = gridDim.x / kCluster, cluster = blockIdx.x / kCluster;
    own = s.down_strips * cluster / clusters;
    owned = s.down_strips * (cluster + 1) / clusters - own;
    tile = s.down_tiles * rank / kCluster;
    tiles = s.down_tiles * (rank + 1) / kCluster - tile;
  }
};

// How many jobs a warp has, and how many of them in gate_up, which come first.
struct Counts {
  int gate_up, all;
};
// `job`: that of this lane's number, its tile counted from its expert's begin, for the expert may not be known yet.
__device__ __forceinline__ Counts plan(Job& job, const Shape& s, const Part& part, int groups) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const unsigned units = groups * s.gate_up_strips;
  const int begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
  Counts n;
  n.gate_up = (end - begin - warp + kWarps - 1) / kWarps;
  n.all = n.gate_up + (groups * part.owned - warp + kWarps - 1) / kWarps;
  if (lane < n.gate_up) {
    const unsigned unit = begin + lane * kWarps + warp, group = unit / static_cast<unsigned>(s.gate_up_strips);
    job.group = static_cast<uint8_t>(group);
    job.strip = static_cast<uint16_t>(unit - group * s.gate_up_strips);
    job.tiles = static_cast<uint8_t>(s.gate_up_tiles);
    job.tile = job.strip * s.gate_up_tiles;
  } else {
    const unsigned unit = (lane - n.gate_up) * kWarps + warp, group = unit / static_cast<unsigned>(max(part.owned, 1));
    job.group = static_cast<uint8_t>(group);
    job.strip = static_cast<uint16_t>(part.own + unit - group * part.owned);
    job.tiles = static_cast<uint8_t>(part.tiles);
    job.tile = job.strip * s.down_tiles + part.tile;
  }
  return n;
}

}  // namespace gossamer::moe::few
