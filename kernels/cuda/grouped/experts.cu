// archs: 90a
// Grouped expert products: plan, gather (and quantisation) of the tokens, launch.
#include "gossamer/launch.cuh"
#include "gather.cuh"

namespace gossamer::grouped {
namespace {

// Tiles of one set at most. A tile's largest width is at least 32, or the number of tokens, when an expert has one tile. Invariant:
// never falls as tokens rise, so that a workspace for many serves fewer.
inline uint32_t most_tiles(const GossamerExpertsDesc& d, uint32_t tokens) { return tokens * d.top_k / 32 + d.local_experts + 1; }

int maxima(const void* packed, uint8_t* out, uint32_t matrices, uint32_t rows, uint32_t k, cudaStream_t stream) {
  const uint32_t strips = matrices * (rows / 16);
  return launch(maxima_kernel, (strips + 7) / 8, 256, 0, stream, false, static_cast<const uint8_t*>(packed), out, strips, static_cast<uint32_t>(mxfp4::tiles_of(k)));
}

size_t aligned(size_t bytes) { return (bytes + 1023) / 1024 * 1024; }

Plan carve(const GossamerExpertsDesc& d, uint32_t tokens, bool fp8, void* workspace, size_t* bytes) {
  const size_t pairs = static_cast<size_t>(tokens) * d.top_k;
  uint8_t* p = static_cast<uint8_t*>(workspace);
  size_t used = 0;
  const auto take = [&](size_t n) {
    uint8_t* here = p + used;
    used += aligned(n);
    return here;
  };
  Plan plan = {};
  plan.most = most_of(d, tokens, fp8);
  plan.tile_counts = reinterpret_cast<uint32_t*>(take(kSets * 4));
  plan.tiles_per_set = most_tiles(d, tokens);
  plan.tiles = reinterpret_cast<TokenTile*>(take(kSets * plan.tiles_per_set * sizeof(TokenTile)));
  plan.finished = reinterpret_cast<int*>(take(kSets * plan.tiles_per_set * sizeof(int)));
  plan.pairs = reinterpret_cast<uint32_t*>(take((pairs + kPastEnd) * 4));
  plan.places = reinterpret_cast<uint32_t*>(take(pairs * 4));
  plan.x = take(pairs * d.hidden * (fp8 ? 1 : 2));
  plan.inner = take(pairs * d.intermediate * (fp8 ? 1 : 2));
  if (fp8) {
    plan.token_scales = reinterpret_cast<float*>(take((pairs + kPastEnd) * 4));
    plan.gate_up_maxima = take(static_cast<size_t>(d.local_experts) * 2 * d.intermediate);
    plan.down_maxima = take(static_cast<size_t>(d.local_experts) * d.hidden);
  }
  if (bytes) *bytes = used;
  return plan;
}

}  // namespace
}  // namespace gossamer::grouped

extern "C" size_t gossamer_grouped_workspace(const GossamerExpertsDesc* d, unsigned tokens, int tactic) {
  size_t bytes;
  gossamer::grouped::carve(*d, tokens, tactic == GOSSAMER_GROUPED_FP8, nullptr, &bytes);
  return bytes;
}

extern "C" int gossamer_grouped_maxima(const void* packed, void* out, int matrices, int rows, int k, cudaStream_t stream) {
  if (matrices <= 0 || rows <= 0 || rows % 16 || k <= 0 || k % 32) return GOSSAMER_BAD_SHAPE;
  return gossamer::grouped::maxima(packed, static_cast<uint8_t*>(out), matrices, rows, k, stream);
}

extern "C" int gossamer_grouped_experts(const GossamerExpertsDesc* d, const GossamerExpertsArgs* a, int tactic, void* workspace, size_t workspace_bytes,
                                        cudaStream_t stream) {
  using namespace gossamer::grouped;
  const bool fp8 = tactic == GOSSAMER_GROUPED_FP8;
  if (tactic != GOSSAMER_GROUPED_BF16 && !(fp8 && d->allow_fp8)) return GOSSAMER_BAD_TACTIC;
  if (d->hidden % 32 || d->intermediate % 32 || d->local_experts > kMaxExperts || d->top_k > kMaxChoices || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  const uint32_t pairs = a->tokens * d->top_k;
  if (pairs >> log_copies(d->local_experts) >= 65536) return GOSSAMER_BAD_SHAPE;
  size_t needed;
  Plan plan = carve(*d, a->tokens, fp8, workspace, &needed);
  if (workspace_bytes < needed) return GOSSAMER_BAD_SHAPE;
  if (fp8) {
    const auto rows = [&](const GossamerExpertWeights& w, const uint8_t*& out, uint32_t rows, uint32_t k) {
      if (w.scales) return out = reinterpret_cast<const uint8_t*>(w.scales), static_cast<int>(GOSSAMER_OK);
      return maxima(reinterpret_cast<const void*>(w.data), const_cast<uint8_t*>(out), d->local_experts, rows, k, stream);
    };
    if (const int status = rows(a->gate_up, plan.gate_up_maxima, 2 * d->intermediate, d->hidden)) return status;
    if (const int status = rows(a->down, plan.down_maxima, d->hidden, d->intermediate)) return status;
  }
  // Invariant: plan starts when everything before it in the stream is complete, an ordinary launch; gather and the first kernel of
  // gate_up may start early, and each waits for the one before it, so for all before that.
  if (const int status = gossamer::launch(plan_kernel, (pairs + kPlanThreads - 1) / kPlanThreads, kPlanThreads, 0, stream, false, *d, *a, plan)) return status;
  if (const int status = gossamer::launch(fp8 ? gather_e4m3_kernel : gather_kernel, a->tokens, kGatherThreads, 0, stream, true, *d, *a, plan)) return status;
  return fp8 ? products_fp8(*d, *a, plan, stream) : products_bf16(*d, *a, plan, stream);
}

extern "C" int gossamer_grouped_prepare(void) {
  using namespace gossamer::grouped;
  return prepare_bf16() && prepare_fp8() ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
