// archs: 90a
// Times what lies between products of a step: sampling by kind of row, rotary embedding, and the kernels of a layer without attention
// and experts, in a row as a step has them: alone they look faster than there. What they compute is `gpu-check conformance`'s to check.
#include <memory>

#include "gossamer/dense.h"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include "harness.h"

using namespace harness;
using bf16 = __nv_bfloat16;

namespace {

// Floats normally distributed; every `peak_every`th row of `columns` has one that stands out by 25.
__global__ void fill_logits(float* p, size_t n, uint32_t columns, uint32_t peak_every, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = normal_of(random_bits(i, seed)) + (peak_every && i / columns % peak_every == 0 && i % columns == i / columns * 7919 % columns ? 25.f : 0.f);
}

void time_sampling() {
  constexpr uint32_t kVocab = 201088;
  const struct { const char* name; float temperature, top_p; uint32_t peaks; } kinds[] = {{"greedy", 0, 1, 0}, {"temperature 1, flat", 1, 1, 0}, {"temperature 1, peaked", 1, 1, 1}, {"top-p 0.9, peaked", 1, .9f, 1}};
  for (uint32_t count : {1u, 16u, 64u, 256u, 512u, 1000u}) {
    Device<float> logits(static_cast<size_t>(count) * kVocab), logprobs(count), top_logprobs(count);
    Device<uint32_t> tokens(count), top_ids(count);
    Device<uint8_t> workspace(gossamer_portable_sample_workspace(count));
    for (const auto& kind : kinds) {
      if (kind.top_p < 1 && count > 64) continue;  // the rows' logits are changed in place: slow, and no step of the serving tests has them
      fill_logits<<<1024, 256>>>(logits.p, logits.n, kVocab, kind.peaks, count);
      std::vector<GossamerSampleRow> rows(count);
      for (uint32_t i = 0; i < count; ++i) rows[i] = {i * 1234567ull + 99, 300 + i, 0, kind.temperature, kind.top_p, 0, 0, 0, 0, ~0u, 0};
      Device<GossamerSampleRow> at(rows);
      GossamerSampleDesc d = {kVocab, 0, GOSSAMER_F32, 1};
      GossamerSampleArgs a = {address(logits.p), address(at.p), 0, 0, address(tokens.p), address(logprobs.p), address(top_ids.p), address(top_logprobs.p), count};
      const double us = graph_time([&](cudaStream_t st) { REQUIRE_OK(gossamer_portable_sample(&d, &a, workspace.p, st)); }, 11);
      record("sample", kind.name, count, 0, us, logits.n * 4.0);
    }
  }
}

void time_rope() {
  constexpr int kKvHeads = 8, kRow = (64 + 2 * kKvHeads) * 64, kMost = 8192;
  Device<bf16> qkv(static_cast<size_t>(kMost) * kRow), kv(static_cast<size_t>(kMost) * 2 * kKvHeads * 64);
  fill_bf16(qkv.p, qkv.n, 1.f, 1);
  std::vector<int> positions(kMost);
  std::vector<uint64_t> slots(kMost);
  std::vector<float> frequencies(32);
  for (int i = 0; i < kMost; ++i) positions[i] = i, slots[i] = i;
  for (int i = 0; i < 32; ++i) frequencies[i] = std::pow(150000.f, -i / 32.f);
  Device<int> p(positions);
  Device<uint64_t> s(slots);
  Device<float> f(frequencies);
  for (int tokens : {1, 16, 64, 128, 256, 512, 1024, 2048, 8192}) {
    GossamerRopeKvArgs a = {qkv.p, p.p, s.p, f.p, kv.p, nullptr, 1.f, tokens, kKvHeads, 0, 8};
    const double us = graph_time([&](cudaStream_t st) { for (int i = 0; i < 36; ++i) REQUIRE_OK(gossamer_rope_kv(&a, st)); }) / 36;
    record("rope", "36 in a row", tokens, 0, us, 2.0 * tokens * kRow * 2);
  }
}

// Norm, qkv, rotary embedding, o, norm and router, choice: with weights of their own for every layer.
void time_layer(int layers) {
  const int hidden = 2880, experts = 128, columns = 5120, heads = 4096, most = 1024;
  std::vector<std::unique_ptr<Device<bf16>>> weights[3];
  const size_t sizes[3] = {static_cast<size_t>(columns) * hidden, static_cast<size_t>(hidden) * heads, static_cast<size_t>(experts) * hidden};
  for (int l = 0; l < layers; ++l)
    for (int i = 0; i < 3; ++i) {
      weights[i].emplace_back(new Device<bf16>(sizes[i]));
      fill_bf16(weights[i][l]->p, sizes[i], .02f, 3 * l + i);
    }
  Device<bf16> x(static_cast<size_t>(most) * hidden), normed(x.n), qkv(static_cast<size_t>(most) * columns), kv(static_cast<size_t>(most) * 1024), gain(hidden), bias(columns);
  fill_bf16(x.p, x.n, 1.f, 1000);
  fill_bf16(qkv.p, qkv.n, 1.f, 1001);
  fill_bf16(gain.p, gain.n, 1.f, 1002);
  fill_bf16(bias.p, bias.n, .1f, 1003);
  Device<float> logits(static_cast<size_t>(most) * experts), chosen(most * 4);
  Device<int> ids(most * 4);
  std::vector<int> positions(most);
  std::vector<uint64_t> slots(most);
  std::vector<float> frequencies(32, .01f);
  for (int i = 0; i < most; ++i) positions[i] = slots[i] = i;
  Device<int> p(positions);
  Device<uint64_t> s(slots);
  Device<float> f(frequencies);
  size_t space = 0;
  for (int tactic = 0; tactic < GOSSAMER_DENSE_TACTICS; ++tactic) space = std::max(space, gossamer_dense_workspace(tactic));
  Device<uint8_t> workspace(space);
  CHECK(cudaMemset(workspace.p, 0, workspace.n));
  // Tokens, and the tactics of qkv and o.
  const struct { uint32_t tokens; int qkv, o; } cases[] = {{64, 11, 11}, {128, 9, 9}, {128, 8, 5}, {256, 4, 5}, {256, 4, 3}, {512, 2, 4}, {512, 2, 3}, {1024, 4, 2}};
  for (const auto& c : cases) {
    const uint32_t tokens = c.tokens;
    const GossamerRmsNormDesc norm = {static_cast<uint32_t>(hidden), 1e-5f, GOSSAMER_BF16};
    const GossamerRmsNormArgs norm_args = {address(x.p), address(gain.p), address(normed.p), tokens};
    const auto dense = [&](const void* from, const Device<bf16>& w, uint32_t k, uint32_t rows, bool residual, bool wide, void* to, int tactic, cudaStream_t st) {
      GossamerGemmDesc d = {k, {rows, 0, 0}, GOSSAMER_BF16, static_cast<uint32_t>(wide ? GOSSAMER_F32 : GOSSAMER_BF16), GOSSAMER_BF16, 0, 0, residual, 0};
      GossamerGemmArgs a = {address(from), 0, 0, {{address(w.p), address(bias.p)}, {}, {}}, residual ? address(to) : 0, address(to), tokens};
      REQUIRE_OK(gossamer_dense_gemm(&d, &a, tactic, workspace.p, workspace.n, st));
    };
    const auto qkv_product = [&](int l, int tactic, cudaStream_t st) { dense(normed.p, *weights[0][l], hidden, columns, false, false, qkv.p, tactic, st); };
    const auto o_product = [&](int l, int tactic, cudaStream_t st) { dense(qkv.p, *weights[1][l], heads, hidden, true, false, x.p, tactic, st); };
    const auto router_alone = [&](int l, cudaStream_t st) {
      GossamerRouterArgs ra = {x.p, gain.p, weights[2][l]->p, bias.p, logits.p, normed.p, 1e-5f, static_cast<int>(tokens), hidden, experts};
      REQUIRE_OK(gossamer_router(&ra, st));
    };
    std::printf("tactics %d (qkv), %d (o)\n", c.qkv, c.o);
    record("layer", "router alone", tokens, 0, graph_time([&](cudaStream_t st) { for (int l = 0; l < layers; ++l) router_alone(l, st); }) / layers, 2.0 * sizes[2]);
    enum { kNone, kFused, kWhole, kCut };
    for (int router : {kNone, kFused, kWhole, kCut}) {
      const double us = graph_time([&](cudaStream_t st) {
        for (int l = 0; l < layers; ++l) {
          REQUIRE_OK(gossamer_portable_rms_norm(&norm, &norm_args, st));
          qkv_product(l, c.qkv, st);
          GossamerRopeKvArgs r = {qkv.p, p.p, s.p, f.p, kv.p, nullptr, 1.f, static_cast<int>(tokens), 8, 0, 8};
          REQUIRE_OK(gossamer_rope_kv(&r, st));
          o_product(l, c.o, st);
          if (router == kNone) continue;
          if (router == kFused) {
            router_alone(l, st);
          } else {
            REQUIRE_OK(gossamer_portable_rms_norm(&norm, &norm_args, st));
            dense(normed.p, *weights[2][l], hidden, experts, false, true, logits.p, router == kWhole ? 10 : 11, st);
          }
          GossamerTopkArgs t = {logits.p, ids.p, chosen.p, static_cast<int>(tokens), experts};
          REQUIRE_OK(gossamer_topk(&t, st));
        }
      }) / layers;
      const char* const names[] = {"without router", "router with its norm", "norm, router whole", "norm, router cut"};
      record("layer", names[router], tokens, 0, us, 2.0 * (sizes[0] + sizes[1] + sizes[2]));
    }
  }
}

}  // namespace

int main() {
  REQUIRE_OK(gossamer_prepare());
  REQUIRE_OK(gossamer_dense_prepare());
  time_sampling();
  time_rope();
  time_layer(36);
  return 0;
}
