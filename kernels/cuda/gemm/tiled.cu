// archs: 90a
// Launcher of the tiled dense product: tensor maps, schedule, choice of the tile's size.
#include "tiled.cuh"

#include "gossamer/dense.h"

namespace gossamer::dense {
namespace {

constexpr uint32_t kGroupTokens = 2048;  // tokens that share a pass over the weights

template <class S>
int units = 0;  // blocks, or pairs of them, that are resident at once
template <class S>
int clusters[Schedule::kMostParts + 1] = {};  // the same of clusters of so many blocks

template <class S>
int start(const GossamerGemmDesc& d, const GossamerGemmArgs& a, bool split, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  Maps maps;
  Product p = {};
  const bf16* weights[3];
  if (!ptx::make_tensor_map(&maps.tokens, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<const void*>(a.x), a.tokens, d.in_features, S::kTokens)) return GOSSAMER_BAD_SHAPE;
  uint32_t tiles = 0;
  const size_t size = d.out == GOSSAMER_BF16 ? 2 : 4;
  bool vectors = a.out % 16 == 0 && (!d.residual || a.residual % 16 == 0);
  for (int i = 0; i < 3; ++i) {
    p.first_tile[i] = tiles, p.first_column[i] = p.columns, p.features[i] = d.out_features[i];
    p.bias[i] = reinterpret_cast<const bf16*>(a.segments[i].bias);
    weights[i] = reinterpret_cast<const bf16*>(a.segments[i].weight);
    vectors &= d.out_features[i] * size % 128 == 0;
    tiles += (d.out_features[i] + S::kFeatures - 1) / S::kFeatures;
    p.columns += d.out_features[i];
    if (!d.out_features[i]) continue;
    if (!ptx::make_tensor_map(&maps.weights[i], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, weights[i], d.out_features[i], d.in_features,
                              S::kFeatures / S::kCluster))
       return GOSSAMER_BAD_SHAPE;
  }
  if (!tiles) return GOSSAMER_OK;
  p.vectors = vectors;
  p.schedule = Schedule::make((a.tokens + S::kUnitTokens - 1) / S::kUnitTokens, tiles, (d.in_features + kK - 1) / kK, kGroupTokens / S::kUnitTokens, units<S>, split);
  if (S::kCluster == 1 && split) p.cluster = p.schedule.cut_all(clusters<S>);
  const uint32_t blocks = p.schedule.blocks * S::kCluster;
  p.residual = d.residual ? reinterpret_cast<const void*>(a.residual) : nullptr;
  p.out = reinterpret_cast<void*>(a.out);
  p.tokens = a.tokens;
  p.float_out = d.out != GOSSAMER_BF16;
  if (p.schedule.cut_tiles && !p.cluster) {
    if (workspace_bytes < GOSSAMER_DENSE_FLAGS + blocks * S::kPartBytes || blocks * 4 > GOSSAMER_DENSE_FLAGS) return GOSSAMER_BAD_SHAPE;
    p.flags = static_cast<uint32_t*>(workspace);
    p.parts = reinterpret_cast<float4*>(static_cast<uint8_t*>(workspace) + GOSSAMER_DENSE_FLAGS);
  }
  if (p.cluster) return launch_cluster(tiled_kernel<S>, blocks, kThreads, p.schedule.parts, S::kSharedBytes, stream, true, maps, p);
  if constexpr (S::kCluster > 1) return launch_cluster(tiled_kernel<S>, blocks, kThreads, S::kCluster, S::kSharedBytes, stream, true, maps, p);
  else return launch(tiled_kernel<S>, blocks, kThreads, S::kSharedBytes, stream, true, maps, p);
}

template <class S>
bool allow() {
  if (!allow_shared(tiled_kernel<S>, S::kSharedBytes)) return false;
  units<S> = S::kCluster > 1 ? resident_clusters(tiled_kernel<S>, kThreads, S::kCluster, S::kSharedBytes) : multiprocessors();
  for (uint32_t parts = 3; parts <= Schedule::kMostParts; ++parts) clusters<S>[parts] = S::kCluster > 1 ? 0 : resident_clusters(tiled_kernel<S>, kThreads, parts, S::kSharedBytes);
  return units<S> > 0;
}
template <class S>
size_t part_bytes() {
  return units<S> * S::kCluster * S::kPartBytes;
}

struct Size {
  int (*start)(const GossamerGemmDesc&, const GossamerGemmArgs&, bool, void*, size_t, cudaStream_t);
  bool (*allow)();
  size_t (*part_bytes)();
};
template <int kM, int kN, int kBlocks>
constexpr Size size_of() {
  using S = Shape<kM, kN, kBlocks>;
  return {start<S>, allow<S>, part_bytes<S>};
}
// As numbered in dense.h.
constexpr Size kSizes[] = {size_of<128, 256, 1>(), size_of<128, 192, 1>(), size_of<128, 128, 1>(), size_of<64, 256, 1>(),
                           size_of<64, 128, 1>(),  size_of<64, 64, 1>(),   size_of<128, 256, 2>(), size_of<128, 192, 2>()};
static_assert(2 * sizeof kSizes / sizeof kSizes[0] == GOSSAMER_DENSE_TACTICS);
bool prepared = false;

}  // namespace
}  // namespace gossamer::dense

extern "C" int gossamer_dense_prepare(void) {
  using namespace gossamer::dense;
  if (gossamer::multiprocessors() < 1 || !gossamer::ptx::tensor_encoder()) return GOSSAMER_NOT_PREPARED;
  for (const Size& size : kSizes)
    if (!size.allow()) return GOSSAMER_LAUNCH_FAILED;
  prepared = true;
  return GOSSAMER_OK;
}

extern "C" size_t gossamer_dense_workspace(int tactic) {
  using namespace gossamer::dense;
  if (tactic < 0 || tactic >= GOSSAMER_DENSE_TACTICS) return 0;
  return GOSSAMER_DENSE_FLAGS + (tactic % 2 ? kSizes[tactic / 2].part_bytes() : 0);
}

extern "C" int gossamer_dense_gemm(const GossamerGemmDesc* d, const GossamerGemmArgs* a, int tactic, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  using namespace gossamer::dense;
  if (d->in_features < 8 || d->in_features % 8 || d->norm || d->gather || d->activation != GOSSAMER_BF16 || d->weight != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (tactic < 0 || tactic >= GOSSAMER_DENSE_TACTICS) return GOSSAMER_BAD_TACTIC;
  if (!prepared) return GOSSAMER_NOT_PREPARED;
  if (!a->tokens) return GOSSAMER_OK;
  return kSizes[tactic / 2].start(*d, *a, tactic % 2, workspace, workspace_bytes, stream);
}
