// Decode attention, many rows (token, KV head): a block has several rows, each shared by `kRowWarps` of its warps. The fewer, the less
// a row costs beside its keys, and the longer it takes.
//
// Invariant: the grid depends on the launch's arguments alone, so a captured launch stays right whatever lengths become.
#pragma once
#include "decode_split.cuh"

namespace gossamer::attention {

template <Math kM, int kRowWarps>
__global__ void __launch_bounds__(kSplitThreads, 2) rows_kernel(const __grid_constant__ GossamerDecodeAttentionArgs p) {
  constexpr int kRows = kSplitWarps / kRowWarps;  // of a block
  __shared__ Merge merge[kRowWarps > 1 ? kSplitWarps : 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, rows = p.tokens * p.kv_heads;
  const auto number = [&](int of_block) { return static_cast<int>(blockIdx.x) * kRows + of_block; };
  const auto out_row = [&](int token) { return static_cast<size_t>(p.query_starts ? p.query_starts[token] : token); };
  // Warps without a row take part in the last one, and write nothing.
  const int mine = min(number(warp / kRowWarps), rows - 1), token = mine / p.kv_heads, head = mine % p.kv_heads;
  Stretch<kM, kRowWarps> stretch(p, token, head);
  const size_t row = out_row(token);
  stretch.begin(stretch.token.template first_tile<kM>() + warp % kRowWarps, stretch.token.template end_tile<kM>(), lane);
  // Sinks: a warp that has a row alone, of two heads; else its head of each of the block's rows.
  float own_sinks[2], head_sinks[kRows];
  if constexpr (kRowWarps == 1) {
    own_sinks[0] = sink_of(p, head, 2 * (lane & 3)), own_sinks[1] = sink_of(p, head, 2 * (lane & 3) + 1);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) head_sinks[i] = sink_of(p, number(i) % p.kv_heads, warp);
  }
  ptx::launch_dependents();
  ptx::dependency_wait();
  Walk<kM> walk;
  stretch.run(walk, query_of(p, row, head), p.group, score_scale<kM>(p, head), lane, [] {});
  if constexpr (kRowWarps == 1) {
    if (number(warp) < rows) walk.write(row_end<kM>(p, row, head), own_sinks, lane);
  } else {
    walk.put(merge[warp], lane);
    __syncthreads();
    // A warp takes one head of each row.
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int other = number(i);
      if (other >= rows) break;
      const Part all = merge_pieces(kRowWarps, [&](int w) { return part_of(merge[i * kRowWarps + w], warp, lane); });
      write_part<kM>(row_end<kM>(p, out_row(other / p.kv_heads), other % p.kv_heads), head_sinks[i], warp, lane, all);
    }
  }
}

}  // namespace gossamer::attention
