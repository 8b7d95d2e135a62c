// Decode attention, a row (token, KV head) over several blocks: few rows. The blocks of a row are a cluster and exchange their
// results through its shared memory; or, where more than a cluster pay, they leave them in global memory and whichever block arrives
// last adds them up.
//
// Invariant: partial results are combined in split order, whoever combines them: repeatable.
// Invariant: how many splits a row has depends on its own length and on what the launch was given; the grid, on the latter alone. So a
// captured launch stays right when lengths change, as long as none passes `max_kv`.
#pragma once
#include "decode_core.cuh"
#include "gossamer/clock.cuh"

namespace gossamer::attention {

constexpr int kSplitWarps = 8, kSplitThreads = 32 * kSplitWarps;
constexpr int kMaxSplits = 64, kMaxCluster = 8;
constexpr int kEarlyBlocks = 64;
constexpr int kWalked = clocks::kWaited + 1;  // a mark of its clock
// Counters of arrivals come first in the workspace, in the part that starts as zeros.
constexpr size_t kCounterBytes = 4096;
constexpr int kMaxRows = kCounterBytes / sizeof(int);  // rows that may be split through global memory

template <Math kM, bool kCluster>
__global__ void __launch_bounds__(kSplitThreads, 2) split_kernel(const __grid_constant__ GossamerDecodeAttentionArgs p, int splits_most) {
  clocks::Clock clock(clocks::kAttention);
  __shared__ Merge merge[kSplitWarps];
  __shared__ float4 exchange[kCluster ? kHeads : 1][32];  // [split][head of this block's][lane]: a Part
  __shared__ int arrived;
  __shared__ uint64_t exchanged;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;

  if constexpr (kCluster) {
    if (threadIdx.x == 0) ptx::barrier_init(&exchanged, 1);
    ptx::barrier_init_fence();
    if (threadIdx.x == 0) ptx::barrier_expect(&exchanged, sizeof exchange);
    ptx::cluster_arrive_relaxed();  // this block runs, and others may write to it
  }
  Stretch<kM, kSplitWarps> stretch(p, row, head);
  const size_t out_row = p.query_starts ? p.query_starts[row] : row;
  const int tile_first = stretch.token.template first_tile<kM>(), tiles = stretch.token.template end_tile<kM>() - tile_first;
  // At least one tile a warp before a further split pays.
  const int splits = kCluster ? splits_most : max(1, min(splits_most, (tiles + 2 * kSplitWarps - 1) / (2 * kSplitWarps)));
  stretch.begin(tile_first + tiles * split / splits + warp, split < splits ? tile_first + tiles * (split + 1) / splits : 0, lane);
  const RowEnd last = row_end<kM>(p, out_row, head);
  const int own = kCluster ? warp * splits_most + split : warp;  // the head that this warp finishes, if it finishes one
  const float sink = sink_of(p, head, own);
  // What comes next may bring its weights as soon as multiprocessors are free for it; but where this grid takes most of them, not before
  // its own reads are under way.
  const bool early = gridDim.x * gridDim.y * gridDim.z <= kEarlyBlocks;
  if (early) ptx::launch_dependents();
  ptx::dependency_wait();
  clock.mark(clocks::kWaited);
  if (!kCluster && split >= splits) return;
  Walk<kM> walk;
  stretch.run(walk, query_of(p, out_row, head), p.group, score_scale<kM>(p, head), lane, [&] {
    if (!early) ptx::launch_dependents();
  });
  walk.put(merge[warp], lane);
  __syncthreads();
  clock.mark(kWalked);

  // The block's result: a warp takes one head, a lane two dimensions.
  Part mine = merge_pieces(kSplitWarps, [&](int i) { return part_of(merge[i], warp, lane); });
  if constexpr (kCluster) {
    ptx::cluster_wait();
    if (splits == 1) {
      write_part<kM>(last, sink, own, lane, mine);
      return;
    }
    // Heads go round the cluster's blocks; each adds up its own.
    const int heads_here = kHeads / splits;
    ptx::cluster_send(&exchange[split * heads_here + warp / splits][lane], &exchanged, warp % splits, make_float4(mine.maximum, mine.sum, mine.y.x, mine.y.y));
    ptx::barrier_wait(&exchanged, 0);
    if (warp < heads_here)
      write_part<kM>(last, sink, own, lane, merge_pieces(splits, [&](int i) {
                                         const float4 v = exchange[i * heads_here + warp][lane];
                                         return Part{v.x, v.y, make_float2(v.z, v.w)};
                                       }));
  } else {
    if (splits > 1) {
      const int at = row * p.kv_heads + head;
      int* const counters = static_cast<int*>(p.workspace);
      float* const partials = reinterpret_cast<float*>(static_cast<uint8_t*>(p.workspace) + kCounterBytes) + static_cast<size_t>(at) * splits_most * kPartial;
      store_partial(partials + split * kPartial, warp, lane, mine);
      __syncthreads();
      if (threadIdx.x == 0) arrived = ptx::arrive_add(counters + at, 1);
      __syncthreads();
      if (arrived != splits - 1) return;
      if (threadIdx.x == 0) counters[at] = 0;
      mine = merge_partials<kMaxSplits>(splits, [&](int i) { return partials + i * kPartial; }, warp, lane);
    }
    write_part<kM>(last, sink, own, lane, mine);
  }
}

}  // namespace gossamer::attention
