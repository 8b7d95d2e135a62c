// archs: 90a
// Launcher of the attention kernel for many queries.
#include "prefill.cuh"

namespace gossamer::prefill {
namespace {

// Variants, bf16 and E4M3 cache. The first is the one used.
template <bool kFp8>
struct Variants {
  using V0 = Config<3, 0, true, kFp8>;
  using V1 = Config<3, 0, false, kFp8>;
  using V2 = Config<3, 1, true, kFp8>;
  using V3 = Config<3, 2, true, kFp8>;
  using V4 = Config<2, 0, true, kFp8>;
  using V5 = Config<2, 0, false, kFp8>;
};

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

template <bool kFp8>
int start_variant(const GossamerAttentionDesc& d, const GossamerAttentionArgs& a, int variant, void* workspace, cudaStream_t stream) {
  using V = Variants<kFp8>;
  switch (variant) {
    case 0: return start<typename V::V0>(d, a, workspace, stream);
    case 1: return start<typename V::V1>(d, a, workspace, stream);
    case 2: return start<typename V::V2>(d, a, workspace, stream);
    case 3: return start<typename V::V3>(d, a, workspace, stream);
    case 4: return start<typename V::V4>(d, a, workspace, stream);
    case 5: return start<typename V::V5>(d, a, workspace, stream);
    default: return GOSSAMER_BAD_TACTIC;
  }
}

template <class... C>
bool allow() {
  return (allow_shared(kernel<C>, C::kSharedBytes) && ...);
}
template <bool kFp8>
bool prepare() {
  using V = Variants<kFp8>;
  return allow<typename V::V0, typename V::V1, typename V::V2, typename V::V3, typename V::V4, typename V::V5>();
}

}  // namespace
}  // namespace gossamer::prefill

extern "C" int gossamer_prefill_attention_variant(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, int variant, void* workspace,
                                                  size_t workspace_bytes, cudaStream_t stream) {
  using namespace gossamer::prefill;
  if (d->head_dim != kHeadDim || d->block_size != kBlockTokens || !d->kv_heads || d->heads % d->kv_heads || d->heads / d->kv_heads > 128 ||
      d->activation != GOSSAMER_BF16 || (d->kv != GOSSAMER_BF16 && d->kv != GOSSAMER_F8E4M3) || !(d->scale > 0) || a->q % 16 || a->q_stride % 8 ||
      a->sequences > GOSSAMER_PREFILL_MAX_SEQUENCES || workspace_bytes < GOSSAMER_PREFILL_WORKSPACE)
    return GOSSAMER_BAD_SHAPE;
  if (!a->sequences || !a->tokens) return GOSSAMER_OK;
  if (!gossamer::multiprocessors()) return GOSSAMER_NOT_PREPARED;
  return d->kv == GOSSAMER_F8E4M3 ? start_variant<true>(*d, *a, variant, workspace, stream) : start_variant<false>(*d, *a, variant, workspace, stream);
}

extern "C" int gossamer_prefill_attention(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, void* workspace, size_t workspace_bytes,
                                          cudaStream_t stream) {
  return gossamer_prefill_attention_variant(d, a, 0, workspace, workspace_bytes, stream);
}

extern "C" int gossamer_prefill_attention_prepare(void) {
  using namespace gossamer::prefill;
  return prepare<false>() && prepare<true>() ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
