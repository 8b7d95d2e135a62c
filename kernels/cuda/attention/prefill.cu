// archs: 90a
// Launcher of the attention kernel for many queries.
#include "prefill.cuh"

namespace gossamer::prefill {
namespace {

template <class C>
int start(const GossamerAttentionDesc& d, const GossamerAttentionArgs& a, void* workspace, cudaStream_t stream) {
  const uint32_t group = d.heads / d.kv_heads, positions = C::kRows / group;
  CUtensorMap queries, cache = {};
  if (!ptx::make_tensor_map_3d(&queries, reinterpret_cast<const void*>(a.q), a.tokens, d.heads, a.q_stride, positions, group)) return GOSSAMER_BAD_SHAPE;
  // The cache's true number of rows is not known here; block ids are the caller's.
  if (!C::kFp8 && !ptx::make_tensor_map(&cache, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<const void*>(a.kv), 1ull << 31, kHeadDim, kBlockTokens))
    return GOSSAMER_BAD_SHAPE;
  const uint64_t tiles = (a.tokens / positions + a.sequences) * static_cast<uint64_t>(d.kv_heads);  // at most
  const uint32_t grid = tiles < static_cast<uint64_t>(multiprocessors()) ? static_cast<uint32_t>(tiles) : multiprocessors();
  uint32_t* counter = tiles > grid ? static_cast<uint32_t*>(workspace) : nullptr;
  if (counter && cudaMemsetAsync(counter, 0, sizeof(uint32_t), stream) != cudaSuccess) return GOSSAMER_LAUNCH_FAILED;
  const Params p = {d, a, group, positions, counter};
  return launch(kernel<C>, grid, C::kThreads, C::kSharedBytes, stream, false, queries, cache, p);
}

}  // namespace
}  // namespace gossamer::prefill

extern "C" int gossamer_prefill_attention(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, void* workspace, size_t workspace_bytes,
                                          cudaStream_t stream) {
  using namespace gossamer::prefill;
  if (d->head_dim != kHeadDim || d->block_size != kBlockTokens || !d->kv_heads || d->heads % d->kv_heads || d->heads / d->kv_heads > 128 ||
      d->activation != GOSSAMER_BF16 || (d->kv != GOSSAMER_BF16 && d->kv != GOSSAMER_F8E4M3) || !(d->scale > 0) || a->q % 16 || a->q_stride % 8 ||
      a->sequences > GOSSAMER_PREFILL_MAX_SEQUENCES || workspace_bytes < GOSSAMER_PREFILL_WORKSPACE)
    return GOSSAMER_BAD_SHAPE;
  if (!a->sequences || !a->tokens) return GOSSAMER_OK;
  if (!gossamer::multiprocessors()) return GOSSAMER_NOT_PREPARED;
  return d->kv == GOSSAMER_F8E4M3 ? start<Config<true>>(*d, *a, workspace, stream) : start<Config<false>>(*d, *a, workspace, stream);
}

extern "C" int gossamer_prefill_attention_prepare(void) {
  using namespace gossamer;
  using namespace gossamer::prefill;
  return allow_shared(kernel<Config<false>>, Config<false>::kSharedBytes) && allow_shared(kernel<Config<true>>, Config<true>::kSharedBytes) ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
