// Layers of gpt-oss-120b's shape with weights of their own, random: the kernels of a decode step, for what is timed over a graph of them.
#pragma once
#include "gossamer/decode.h"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ops.h"
#include "harness.h"

namespace harness {

// Router and experts.
struct MoeLayers {
  using bf16 = __nv_bfloat16;
  static constexpr int kHidden = 2880, kIntermediate = 2880, kExperts = 128;
  static constexpr size_t kGateUpBytes = kExperts * gossamer::mxfp4::matrix_bytes(2 * kIntermediate, kHidden), kDownBytes = kExperts * gossamer::mxfp4::matrix_bytes(kHidden, kIntermediate);
  std::vector<uint8_t*> gate_up, down;
  std::vector<bf16*> router;
  Device<bf16> gate_up_bias{static_cast<size_t>(kExperts) * 2 * kIntermediate}, down_bias{static_cast<size_t>(kExperts) * kHidden}, router_bias{kExperts}, norm{kHidden};

  explicit MoeLayers(int layers) : gate_up(layers), down(layers), router(layers) {
    Device<uint8_t> codes(static_cast<size_t>(kExperts) * 2 * kIntermediate * kHidden / 2), scales(codes.n / 16);
    std::vector<uint8_t> host(scales.n);
    std::mt19937 rng(3);
    for (auto& scale : host) scale = static_cast<uint8_t>(113 + rng() % 9);
    scales.put(host);
    for (int l = 0; l < layers; ++l) {
      CHECK(cudaMalloc(&gate_up[l], kGateUpBytes));
      CHECK(cudaMalloc(&down[l], kDownBytes));
      CHECK(cudaMalloc(&router[l], static_cast<size_t>(kExperts) * kHidden * 2));
      fill_random(codes.p, codes.n, 77 + l);
      GossamerRepackArgs repack = {codes.p, scales.p, gate_up[l], nullptr, kExperts, 2 * kIntermediate, kHidden, 1, 0, 0};
      REQUIRE_OK(gossamer_repack_mxfp4(&repack, 0));
      repack = {codes.p, scales.p, down[l], nullptr, kExperts, kHidden, kIntermediate, 0, 0, 0};
      REQUIRE_OK(gossamer_repack_mxfp4(&repack, 0));
      fill_bf16(router[l], static_cast<size_t>(kExperts) * kHidden, 0.05f, 1000 + l);
    }
    fill_bf16(gate_up_bias.p, gate_up_bias.n, 0.5f, 1);
    fill_bf16(down_bias.p, down_bias.n, 0.5f, 2);
    fill_bf16(router_bias.p, router_bias.n, 0.1f, 3);
    fill_bf16(norm.p, norm.n, 1.f, 4);
    CHECK(cudaDeviceSynchronize());  // before codes and scales go
  }

  // Tokens, and what the kernels write for them.
  struct Batch {
    int tokens;
    Device<bf16> x, normed, out;
    Device<uint8_t> workspace;
    explicit Batch(int n)
        : tokens(n), x(static_cast<size_t>(n) * kHidden), normed(x.n), out(x.n), workspace(gossamer_moe_workspace(n, kHidden, kIntermediate)) {
      fill_bf16(x.p, x.n, 1.f, 5);
      CHECK(cudaMemset(workspace.p, 0, workspace.n));
    }
  };

  void route(int layer, Batch& b, float* logits, cudaStream_t stream) const {
    GossamerRouterArgs a = {b.x.p, norm.p, router[layer], router_bias.p, logits, b.normed.p, 1e-5f, b.tokens, kHidden, kExperts};
    REQUIRE_OK(gossamer_router(&a, stream));
  }
  int experts(int layer, Batch& b, const float* logits, int tactic, cudaStream_t stream) const {
    GossamerMoeArgs a = {};
    a.normed = b.normed.p, a.logits = logits, a.gate_up = gate_up[layer], a.gate_up_bias = gate_up_bias.p, a.down = down[layer], a.down_bias = down_bias.p, a.residual = b.x.p, a.output = b.out.p,
    a.workspace = b.workspace.p, a.workspace_bytes = b.workspace.n, a.tokens = b.tokens, a.hidden_size = kHidden, a.intermediate = kIntermediate, a.experts = kExperts, a.expert_begin = 0,
    a.experts_local = kExperts, a.swiglu_limit = 7.f, a.swiglu_alpha = 1.702f, a.tactic = tactic;
    return gossamer_moe(&a, stream);
  }
};

// Whole layers, a sequence of 1000 keys a token.
struct LayerChain {
  using bf16 = __nv_bfloat16;
  static constexpr int kFew = GOSSAMER_MOE_TACTICS - 1;  // the few-token experts
  static constexpr int kQkv = 5120, kHeads = 4096, kKeys = 1000, kPages = 16, kMostTokens = 8;
  static constexpr size_t kPageElements = 2 * 8 * 64 * 64;
  MoeLayers moe;
  std::vector<bf16*> qkv, out, kv;
  Device<bf16> sinks{64};
  Device<float> inverse_frequencies{std::vector<float>(32, 0.01f)};

  explicit LayerChain(int layers) : moe(layers), qkv(layers), out(layers), kv(layers) {
    for (int l = 0; l < layers; ++l) {
      CHECK(cudaMalloc(&qkv[l], static_cast<size_t>(kQkv) * MoeLayers::kHidden * 2));
      CHECK(cudaMalloc(&out[l], static_cast<size_t>(kHeads) * MoeLayers::kHidden * 2));
      CHECK(cudaMalloc(&kv[l], kMostTokens * kPages * kPageElements * 2));
      fill_bf16(qkv[l], static_cast<size_t>(kQkv) * MoeLayers::kHidden, 0.05f, 2000 + l);
      fill_bf16(out[l], static_cast<size_t>(kHeads) * MoeLayers::kHidden, 0.05f, 3000 + l);
      fill_bf16(kv[l], kMostTokens * kPages * kPageElements, 1.f, 4000 + l);
    }
    fill_bf16(sinks.p, sinks.n, 1.f, 6);
  }
  int layers() const { return static_cast<int>(qkv.size()); }

  struct Batch {
    MoeLayers::Batch moe;
    Device<bf16> heads, mixed;
    Device<float> logits;
    Device<uint8_t> workspace;
    Device<int> tables, lengths, positions;
    Device<uint64_t> slots;
    explicit Batch(int n)
        : moe(n), heads(static_cast<size_t>(n) * kQkv), mixed(static_cast<size_t>(n) * kHeads), logits(static_cast<size_t>(n) * MoeLayers::kExperts),
          workspace(gossamer_decode_attention_workspace(n, 8, 0)), tables(static_cast<size_t>(n) * kPages), lengths(std::vector<int>(n, kKeys)), positions(std::vector<int>(n, kKeys - 1)), slots(n) {
      CHECK(cudaMemset(workspace.p, 0, workspace.n));
      std::vector<int> table(tables.n);
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int>(i);
      tables.put(table);
      std::vector<uint64_t> last(n);
      for (int i = 0; i < n; ++i) last[i] = static_cast<uint64_t>(i) * kPages * 64 + kKeys - 1;
      slots.put(last);
    }
  };

  // `rope_inside`: rotary embedding is in the qkv product's kernel.
  void run(Batch& b, bool rope_inside, cudaStream_t stream) const {
    const int tokens = b.moe.tokens;
    for (int l = 0; l < layers(); ++l) {
      GossamerTinyGemmArgs q = {};
      q.x = b.moe.x.p, q.norm_weight = moe.norm.p, q.weight = qkv[l], q.out = b.heads.p, q.epsilon = 1e-5f, q.tokens = tokens, q.rows = kQkv, q.k = MoeLayers::kHidden, q.tactic = -1;
      GossamerRopeKvArgs r = {b.heads.p, b.positions.p, b.slots.p, inverse_frequencies.p, kv[l], nullptr, 1.f, tokens, 8, 0, 8};
      REQUIRE_OK(rope_inside ? gossamer_tiny_qkv(&q, &r, stream) : gossamer_tiny_gemm(&q, stream));
      if (!rope_inside) REQUIRE_OK(gossamer_rope_kv(&r, stream));
      GossamerDecodeAttentionArgs t = {};
      t.q = b.heads.p, t.kv = kv[l], t.block_tables = b.tables.p, t.lengths = b.lengths.p, t.sinks = sinks.p, t.out = b.mixed.p, t.workspace = b.workspace.p, t.workspace_bytes = b.workspace.n;
      t.scale = 0.125f, t.q_stride = kQkv, t.tokens = tokens, t.kv_heads = 8, t.max_blocks = kPages, t.window = l % 2 ? 0 : 128, t.max_kv = kKeys;
      REQUIRE_OK(gossamer_decode_attention(&t, stream));
      GossamerTinyGemmArgs o = {};
      o.x = b.mixed.p, o.weight = out[l], o.out = b.moe.out.p, o.residual = b.moe.x.p, o.tokens = tokens, o.rows = MoeLayers::kHidden, o.k = kHeads, o.tactic = -1;
      REQUIRE_OK(gossamer_tiny_gemm(&o, stream));
      moe.route(l, b.moe, b.logits.p, stream);
      REQUIRE_OK(moe.experts(l, b.moe, b.logits.p, kFew, stream));
    }
  }
};

}  // namespace harness
