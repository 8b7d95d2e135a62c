// archs: 90a 100a
// Decode attention: one query token a sequence, keys and values in 64-token pages. Which form does a launch, and its interface.
// `decode_core.cuh` has what the forms share, `decode_split.cuh` and `decode_rows.cuh` what they are.
//
// Refuses: more than 8 query heads a KV head, other than head size 64 and blocks of 64.
#include "gossamer/decode.h"
#include "gossamer/launch.cuh"

#include "decode_rows.cuh"

namespace gossamer::attention {
namespace {

// Keys of a row at most; 0: unknown.
int most_keys(const GossamerDecodeAttentionArgs& p) {
  return p.window > 0 && (p.max_kv == 0 || p.window < p.max_kv) ? p.window + 16 : p.max_kv;
}
// Tiles of a row at most; 0: unknown.
int most_tiles(const GossamerDecodeAttentionArgs& p) {
  const int keys = p.fp8 ? 32 : 16;
  return (most_keys(p) + keys - 1) / keys;
}

// Blocks of a row's cluster: enough that a warp has one tile, as long as each has a multiprocessor of its own. What counts where rows
// are few is how long a block takes, and a second tile a warp costs it 0.8 us.
int cluster_of(const GossamerDecodeAttentionArgs& p) {
  if (p.splits) return p.splits;
  const int rows = p.tokens * p.kv_heads, useful = (most_tiles(p) + kSplitWarps - 1) / kSplitWarps;
  int splits = 1;
  while (splits < kMaxCluster && splits < useful && 2 * splits * rows <= multiprocessors()) splits *= 2;
  return splits;
}

// Blocks of a row at most, where they meet in global memory.
int splits_of(const GossamerDecodeAttentionArgs& p) {
  const int rows = p.tokens * p.kv_heads;
  if (rows > kMaxRows) return 1;
  int splits = p.splits;
  if (!splits) {  // few rows: all blocks in one wave, two a multiprocessor; many rows: two waves even out
    splits = (rows <= multiprocessors() / 2 ? 2 : 4) * multiprocessors() / rows;
    splits = splits < 1 ? 1 : splits > kMaxSplits ? kMaxSplits : splits;
  }
  // Blocks beyond those that can use two tiles a warp of the longest row would only start and end.
  const int tiles = most_tiles(p), useful = tiles ? (tiles + 2 * kSplitWarps - 1) / (2 * kSplitWarps) : kMaxSplits;
  return splits > useful ? useful : splits;
}

// Warps of a row: all rows in one wave of 16 warps a multiprocessor, or one warp each. More where rows are long, since their lengths
// will differ then, and a wave takes as long as its longest row.
int row_warps_of(const GossamerDecodeAttentionArgs& p) {
  if (p.splits) return p.splits;
  const int rows = p.tokens * p.kv_heads, tiles = most_tiles(p);
  int warps = tiles == 0 || tiles > 128 ? 8 : tiles > 32 ? 4 : 1;
  while (warps < kSplitWarps && 2 * warps * rows <= 16 * multiprocessors()) warps *= 2;
  return warps;
}

constexpr int kLongKeys = 2048;

int form_of(const GossamerDecodeAttentionArgs& p) {
  if (p.form) return p.form;
  const int keys = most_keys(p);
  if (p.splits || !keys) return GOSSAMER_DECODE_SPLIT;
  if (keys <= kLongKeys && cluster_of(p) > 1) return GOSSAMER_DECODE_CLUSTER;
  return keys > kLongKeys && splits_of(p) > 1 ? GOSSAMER_DECODE_SPLIT : GOSSAMER_DECODE_ROWS;
}

template <Math kM>
int launch_form(const GossamerDecodeAttentionArgs& p, cudaStream_t stream) {
  const auto needs = [&](size_t partials) { return p.workspace_bytes < kCounterBytes + sizeof(float) * kPartial * partials; };
  const int form = form_of(p);
  if (form == GOSSAMER_DECODE_ROWS) {
    const auto rows = [&](auto kernel, int warps) {
      return launch(kernel, dim3((p.tokens * p.kv_heads * warps + kSplitWarps - 1) / kSplitWarps), dim3(kSplitThreads), 0, stream, true, p);
    };
    switch (row_warps_of(p)) {
      case 1: return rows(rows_kernel<kM, 1>, 1);
      case 2: return rows(rows_kernel<kM, 2>, 2);
      case 4: return rows(rows_kernel<kM, 4>, 4);
      case 8: return rows(rows_kernel<kM, 8>, 8);
      default: return GOSSAMER_BAD_SHAPE;
    }
  }
  if (form == GOSSAMER_DECODE_CLUSTER) {
    const int splits = cluster_of(p);
    if (splits > kMaxCluster || splits & (splits - 1)) return GOSSAMER_BAD_SHAPE;
    return launch_cluster(split_kernel<kM, true>, dim3(splits, p.kv_heads, p.tokens), dim3(kSplitThreads), splits, 0, stream, true, p, splits);
  }
  if (form != GOSSAMER_DECODE_SPLIT) return GOSSAMER_BAD_SHAPE;
  const int splits = splits_of(p);
  if (splits > 1 && needs(static_cast<size_t>(p.tokens) * p.kv_heads * splits)) return GOSSAMER_BAD_SHAPE;
  return launch(split_kernel<kM, false>, dim3(splits, p.kv_heads, p.tokens), dim3(kSplitThreads), 0, stream, true, p, splits);
}

}  // namespace
}  // namespace gossamer::attention

extern "C" size_t gossamer_decode_attention_workspace(int tokens, int kv_heads, int splits) {
  using namespace gossamer::attention;
  // By the launcher's own choice, rows times splits are at most four blocks a multiprocessor.
  const size_t partials = splits ? static_cast<size_t>(tokens) * kv_heads * splits : 4 * gossamer::multiprocessors();
  return kCounterBytes + sizeof(float) * kPartial * partials;
}

extern "C" int gossamer_decode_attention(const GossamerDecodeAttentionArgs* args, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::attention;
  GossamerDecodeAttentionArgs p = *args;
  if (!p.group) p.group = kHeads;
  if (p.tokens < 1 || p.tokens > 65535 || p.kv_heads < 1 || p.group < 1 || p.group > kHeads || p.max_blocks < 1 || p.q_stride % 8 || p.splits < 0 || p.splits > kMaxSplits ||
      reinterpret_cast<uintptr_t>(p.q) % 16 || (p.fp8_products && !p.fp8))
    return GOSSAMER_BAD_SHAPE;
  if (!multiprocessors()) return GOSSAMER_NOT_PREPARED;
  if (p.fp8_products) return launch_form<Math::kE4m3>(p, stream);
  return p.fp8 ? launch_form<Math::kF16>(p, stream) : launch_form<Math::kBf16>(p, stream);
}

extern "C" int gossamer_decode_attention_op(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, int tactic, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (tactic != GOSSAMER_DECODE_EXACT && (tactic != GOSSAMER_DECODE_FP8 || !d->allow_fp8)) return GOSSAMER_BAD_TACTIC;
  if (!d->single || d->head_dim != 64 || d->block_size != 64 || !d->kv_heads || d->heads % d->kv_heads || d->activation != GOSSAMER_BF16 ||
      (d->kv != GOSSAMER_BF16 && d->kv != GOSSAMER_F8E4M3) || (d->kv == GOSSAMER_BF16 && (a->kv_scales || tactic == GOSSAMER_DECODE_FP8)))
    return GOSSAMER_BAD_SHAPE;
  if (!a->sequences) return GOSSAMER_OK;
  const auto address = [](uint64_t at) { return reinterpret_cast<const void*>(at); };
  GossamerDecodeAttentionArgs p = {};
  p.q = address(a->q);
  p.kv = address(a->kv);
  p.query_starts = static_cast<const unsigned*>(address(a->query_starts));
  p.first_blocks = static_cast<const int*>(address(a->first_blocks));
  p.block_tables = static_cast<const int*>(address(a->block_tables));
  p.lengths = static_cast<const int*>(address(a->kv_lens));
  p.sinks = d->sinks ? address(a->sinks) : nullptr;
  p.kv_scales = static_cast<const float*>(address(a->kv_scales));
  p.out = reinterpret_cast<void*>(a->out);
  p.workspace = workspace;
  p.workspace_bytes = workspace_bytes;
  p.scale = d->scale;
  p.q_stride = static_cast<int>(a->q_stride);
  p.tokens = static_cast<int>(a->sequences);
  p.kv_heads = static_cast<int>(d->kv_heads);
  p.group = static_cast<int>(d->heads / d->kv_heads);
  p.max_blocks = static_cast<int>(a->table_stride);
  p.max_kv = static_cast<int>(a->max_kv);
  p.window = static_cast<int>(d->window);
  p.fp8 = d->kv == GOSSAMER_F8E4M3;
  p.fp8_products = tactic == GOSSAMER_DECODE_FP8;
  return gossamer_decode_attention(&p, stream);
}

