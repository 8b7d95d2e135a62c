// Attention over the paged cache for many queries: warpgroup products, one producer warpgroup, online softmax (Dao 2023; the
// overlap of softmax and products after Shah et al. 2024).
//
// A tile is `kRows` query rows of one sequence and one KV head; a row is (query position, head of the group), so that the heads of
// a group share keys and values. Consumer warpgroups own 64 rows each. They walk the cache from the tile's last block down, a block
// (64 tokens) a step: while the softmax of a step is computed, the output product of the step before and the scores of the step after
// run, across tiles too. Blocks of the grid are persistent and take tiles from a counter, those with the most keys first.
//
// Shared memory: queries [2][kRows][128 B] | blocks [kStages]: keys [64][128 B], values, the same | E4M3 codes on their way | tiles of
// work | barriers | tile starts per sequence. Queries, keys and values are in the 128-byte swizzle.
//
// Invariant: entries past `kv_len`, and blocks that the table does not hold, are never used, whatever they hold (also NaN): their
// scores are replaced, and their rows of the values are zeroed before the product.
// Invariant: every consumer warpgroup makes the same number of steps of a tile, also one whose rows are all past the end.
// Invariant: a tile's queries are given back after its last softmax, not when its result is stored, which is a step later: the first
// step of a tile may be its last, and then already needs the queries of the next.
#pragma once
#include "prefill_consume.cuh"
#include "prefill_produce.cuh"

namespace gossamer::prefill {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap cache,
                                                         const __grid_constant__ Params p) {
  const Shared<C> s(ptx::dynamic_shared());
  if (threadIdx.x == 0) s.init();
  split_rows<C>(p, s.rows);
  count_tiles(p, s.starts, reinterpret_cast<uint32_t*>(s.work));
  if (threadIdx.x < 128) {
    ptx::give_registers<C::kProducerRegisters>();
    produce<C>(p, &queries, &cache, s);
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    Consumer<C>(p, s).run();
  }
}

}  // namespace gossamer::prefill
