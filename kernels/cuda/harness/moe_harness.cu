// archs: 90a
// Checks and times the few-token MoE. `moe_harness check [small]`, `moe_harness time [LAYERS]`, `moe_harness chain [LAYERS]`.
// Oracle: plain CUDA in float64 that reads the checkpoint layout, not the packed one.
#include <cstring>
#include <numeric>

#include "gossamer/mxfp4.cuh"
#include "gossamer/ops.h"
#include "harness.h"

#ifdef GOSSAMER_TRACE
extern "C" void gossamer_moe_trace();
extern "C" void gossamer_few_trace();
#endif

using namespace harness;
using bf16 = __nv_bfloat16;

namespace {

struct Shape {
  int hidden, intermediate, experts;
};

__device__ double code_value(int c) {
  const double m[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (c & 8) ? -m[c & 7] : m[c & 7];
}
// y[slot][row] = sum_k W[e][row][k] x[.][k] + bias, one thread an output, float64, checkpoint layout.
__global__ void oracle_product(const uint8_t* blocks, const uint8_t* scales, const bf16* bias, const int* ids, const double* x, double* y, int slots, int rows,
                               int k, int per_token) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= slots * rows) return;
  const int slot = i / rows, row = i % rows;
  const size_t r = static_cast<size_t>(ids[slot]) * rows + row;
  const double* xs = x + static_cast<size_t>(per_token ? slot / 4 : slot) * k;
  double sum = 0;
  for (int b = 0; b < k / 32; ++b) {
    double part = 0;
    for (int j = 0; j < 32; ++j) {
      const uint8_t byte = blocks[r * (k / 2) + b * 16 + j / 2];
      part += code_value(j & 1 ? byte >> 4 : byte & 15) * xs[b * 32 + j];
    }
    sum += part * exp2(static_cast<double>(scales[r * (k / 32) + b]) - 127);
  }
  y[i] = sum + static_cast<double>(__bfloat162float(bias[r]));
}

std::vector<bf16> random_bf16(size_t n, float scale, std::mt19937& rng) {
  std::normal_distribution<float> d(0.f, scale);
  std::vector<bf16> v(n);
  for (auto& e : v) e = __float2bfloat16(d(rng));
  return v;
}

void check(Shape s, int tokens, int skew, std::mt19937& rng) {
  const int h = s.hidden, im = s.intermediate, e = s.experts;
  auto random_bytes = [&](size_t n, int low, int high) {
    std::vector<uint8_t> v(n);
    for (auto& b : v) b = static_cast<uint8_t>(low + rng() % (high - low + 1));
    return v;
  };
  const size_t gu_rows = static_cast<size_t>(e) * 2 * im, d_rows = static_cast<size_t>(e) * h;
  Device<uint8_t> gu_blocks(gu_rows * (h / 2)), gu_scales(random_bytes(gu_rows * (h / 32), 113, 121)), d_blocks(d_rows * (im / 2)),
      d_scales(random_bytes(d_rows * (im / 32), 113, 121));
  fill_random(gu_blocks.p, gu_blocks.n, rng());
  fill_random(d_blocks.p, d_blocks.n, rng());
  Device<bf16> gu_bias(random_bf16(gu_rows, 0.5f, rng)), d_bias(random_bf16(d_rows, 0.5f, rng));
  const auto host_x = random_bf16(static_cast<size_t>(tokens) * h, 1.f, rng);
  auto host_rw = random_bf16(static_cast<size_t>(e) * h, 0.05f, rng), host_rb = random_bf16(e, skew ? 0.01f : 0.5f, rng), host_nw = random_bf16(h, 1.f, rng);
  if (skew) for (int i = 0; i < 4; ++i) host_rb[(i * 7 + 3) % e] = __float2bfloat16(100.f + i);  // every token to the same four
  Device<bf16> x(host_x), rw(host_rw), rb(host_rb), nw(host_nw), normed(static_cast<size_t>(tokens) * h), out(static_cast<size_t>(tokens) * h);
  Device<float> logits(static_cast<size_t>(tokens) * e);
  Device<uint8_t> gu(static_cast<size_t>(e) * gossamer::mxfp4::matrix_bytes(2 * im, h)), dn(static_cast<size_t>(e) * gossamer::mxfp4::matrix_bytes(h, im));
  gu.poison();
  dn.poison();
  GossamerRepackArgs rp = {gu_blocks.p, gu_scales.p, gu.p, nullptr, e, 2 * im, h, 1, 0, 0};
  REQUIRE_OK(gossamer_repack_mxfp4(&rp, 0));
  rp = {d_blocks.p, d_scales.p, dn.p, nullptr, e, h, im, 0, 0, 0};
  REQUIRE_OK(gossamer_repack_mxfp4(&rp, 0));
  char name[160];
  std::snprintf(name, sizeof name, "h %d i %d e %d, %d tokens%s", h, im, e, tokens, skew ? ", one set of experts" : "");

  logits.poison();
  normed.poison();
  GossamerRouterArgs ra = {x.p, nw.p, rw.p, rb.p, logits.p, normed.p, 1e-5f, tokens, h, e};
  REQUIRE_OK(gossamer_router(&ra, 0));
  CHECK(cudaDeviceSynchronize());
  // Router against float64.
  std::vector<double> ref_logits(static_cast<size_t>(tokens) * e), ref_normed(static_cast<size_t>(tokens) * h);
  for (int t = 0; t < tokens; ++t) {
    double ss = 0;
    for (int i = 0; i < h; ++i) ss += std::pow(static_cast<double>(__bfloat162float(host_x[static_cast<size_t>(t) * h + i])), 2);
    const double f = 1 / std::sqrt(ss / h + 1e-5);
    for (int i = 0; i < h; ++i) ref_normed[static_cast<size_t>(t) * h + i] = f * __bfloat162float(host_x[static_cast<size_t>(t) * h + i]) * __bfloat162float(host_nw[i]);
    for (int j = 0; j < e; ++j) {
      double sum = __bfloat162float(host_rb[j]);
      for (int i = 0; i < h; ++i) sum += ref_normed[static_cast<size_t>(t) * h + i] * __bfloat162float(host_rw[static_cast<size_t>(j) * h + i]);
      ref_logits[static_cast<size_t>(t) * e + j] = sum;
    }
  }
  const auto got_logits = logits.get();
  const auto got_normed = normed.get();
  expect_below(std::string("router logits, ") + name, relative_error(ref_logits, doubles(got_logits)), 2e-6);
  expect_below(std::string("router normed, ") + name, relative_error(ref_normed, doubles(got_normed)), 3e-3);

  // Top-4 on the kernel's own logits, exact.
  std::vector<int> ids(tokens * 4);
  std::vector<double> weights(tokens * 4);
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> order(e);
    std::iota(order.begin(), order.end(), 0);
    const float* l = got_logits.data() + static_cast<size_t>(t) * e;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += weights[t * 4 + k] = std::exp(static_cast<double>(l[order[k]]) - l[order[0]]);
    for (int k = 0; k < 4; ++k) weights[t * 4 + k] /= sum, ids[t * 4 + k] = order[k];
  }
  Device<int> got_ids(tokens * 4);
  Device<float> got_weights(tokens * 4);
  got_ids.poison();
  got_weights.poison();
  GossamerTopkArgs ta = {logits.p, got_ids.p, got_weights.p, tokens, e};
  REQUIRE_OK(gossamer_topk(&ta, 0));
  expect(std::string("top-4 ids exact, ") + name, got_ids.get() == ids);
  expect_below(std::string("top-4 weights, ") + name, relative_error(weights, doubles(got_weights.get())), 1e-6);

  // Experts against float64 on the normed input as rounded by the router.
  const int slots = tokens * 4;
  Device<int> d_ids(ids);
  Device<double> d_x(doubles(got_normed)), d_gu(static_cast<size_t>(slots) * 2 * im), d_act(static_cast<size_t>(slots) * im), d_down(static_cast<size_t>(slots) * h);
  oracle_product<<<(slots * 2 * im + 127) / 128, 128>>>(gu_blocks.p, gu_scales.p, gu_bias.p, d_ids.p, d_x.p, d_gu.p, slots, 2 * im, h, 1);
  CHECK(cudaGetLastError());
  const auto gu_out = d_gu.get();
  std::vector<double> act(static_cast<size_t>(slots) * im);
  for (size_t i = 0; i < act.size(); ++i) {
    const double gate = std::min(gu_out[2 * i], 7.0), up = std::clamp(gu_out[2 * i + 1], -7.0, 7.0);
    act[i] = (up + 1) * gate / (1 + std::exp(-1.702 * gate));
  }
  d_act.put(act);
  oracle_product<<<(slots * h + 127) / 128, 128>>>(d_blocks.p, d_scales.p, d_bias.p, d_ids.p, d_act.p, d_down.p, slots, h, im, 0);
  CHECK(cudaGetLastError());
  const auto down = d_down.get();
  std::vector<double> ref(static_cast<size_t>(tokens) * h), ref_residual(ref.size());
  for (int t = 0; t < tokens; ++t)
    for (int i = 0; i < h; ++i) {
      double v = 0;
      for (int k = 0; k < 4; ++k) v += weights[t * 4 + k] * down[static_cast<size_t>(t * 4 + k) * h + i];
      ref[static_cast<size_t>(t) * h + i] = v;
      ref_residual[static_cast<size_t>(t) * h + i] = v + __bfloat162float(host_x[static_cast<size_t>(t) * h + i]);
    }
  const size_t ws_bytes = gossamer_moe_workspace(tokens, h, im);
  Device<uint8_t> ws(ws_bytes);
  for (int tactic = -1; tactic < GOSSAMER_MOE_TACTICS; ++tactic) {
    ws.poison();
    CHECK(cudaMemset(ws.p, 0, 1024));
    GossamerMoeArgs a = {};
    a.normed = normed.p, a.logits = logits.p, a.gate_up = gu.p, a.gate_up_bias = gu_bias.p, a.down = dn.p, a.down_bias = d_bias.p, a.residual = nullptr, a.output = out.p,
    a.workspace = ws.p, a.workspace_bytes = ws_bytes, a.tokens = tokens, a.hidden_size = h, a.intermediate = im, a.experts = e, a.expert_begin = 0, a.experts_local = e,
    a.swiglu_limit = 7.f, a.swiglu_alpha = 1.702f, a.tactic = tactic;
    out.poison();
    const int status = gossamer_moe(&a, 0);
    if (status == GOSSAMER_BAD_TACTIC) continue;  // does not fit this many tokens
    REQUIRE_OK(status);
    const auto first = out.get();
    char line[220];
    std::snprintf(line, sizeof line, "experts tactic %d, %s", tactic, name);
    expect_below(line, relative_error(ref, doubles(first)), 4e-3);
    out.poison();
    REQUIRE_OK(gossamer_moe(&a, 0));
    const auto again = out.get();
    if (std::memcmp(first.data(), again.data(), first.size() * 2)) expect(std::string(line) + ": second run bitwise the same", false);
    // residual, and ids from outside instead of logits, split over two ranks of experts
    a.residual = x.p;
    out.poison();
    REQUIRE_OK(gossamer_moe(&a, 0));
    const double with_residual = relative_error(ref_residual, doubles(out.get()));
    if (!(with_residual < 4e-3)) expect_below(std::string(line) + " with residual", with_residual, 4e-3);
    a.residual = nullptr, a.logits = nullptr, a.ids = got_ids.p, a.weights = got_weights.p;
    std::vector<double> summed(ref.size(), 0.0);
    for (int rank = 0; rank < 2; ++rank) {
      a.expert_begin = rank * (e / 2), a.experts_local = rank ? e - e / 2 : e / 2;
      a.gate_up = gu.p + a.expert_begin * gossamer::mxfp4::matrix_bytes(2 * im, h), a.down = dn.p + a.expert_begin * gossamer::mxfp4::matrix_bytes(h, im);
      a.gate_up_bias = gu_bias.p + static_cast<size_t>(a.expert_begin) * 2 * im, a.down_bias = d_bias.p + static_cast<size_t>(a.expert_begin) * h;
      out.poison();
      REQUIRE_OK(gossamer_moe(&a, 0));
      const auto part = doubles(out.get());
      for (size_t i = 0; i < part.size(); ++i) summed[i] += part[i];
    }
    const double split = relative_error(ref, summed);
    if (!(split < 5e-3)) expect_below(std::string(line) + " over two ranks", split, 5e-3);
  }
}

// Packed weights of `layers` layers with their own memory; times router + experts as one graph.
void time_layers(int layers) {
  const Shape s = {2880, 2880, 128};
  const size_t gu_bytes = s.experts * gossamer::mxfp4::matrix_bytes(2 * s.intermediate, s.hidden), dn_bytes = s.experts * gossamer::mxfp4::matrix_bytes(s.hidden, s.intermediate);
  std::vector<uint8_t*> gu(layers), dn(layers);
  std::vector<bf16*> rw(layers);
  Device<uint8_t> raw_blocks(static_cast<size_t>(s.experts) * 5760 * 1440), raw_scales(static_cast<size_t>(s.experts) * 5760 * 90);
  {
    std::vector<uint8_t> sc(raw_scales.n);
    std::mt19937 rng(3);
    for (auto& b : sc) b = static_cast<uint8_t>(113 + rng() % 9);
    raw_scales.put(sc);
  }
  for (int l = 0; l < layers; ++l) {
    CHECK(cudaMalloc(&gu[l], gu_bytes));
    CHECK(cudaMalloc(&dn[l], dn_bytes));
    CHECK(cudaMalloc(&rw[l], static_cast<size_t>(s.experts) * s.hidden * 2));
    fill_random(raw_blocks.p, raw_blocks.n, 77 + l);
    GossamerRepackArgs rp = {raw_blocks.p, raw_scales.p, gu[l], nullptr, s.experts, 2 * s.intermediate, s.hidden, 1, 0, 0};
    REQUIRE_OK(gossamer_repack_mxfp4(&rp, 0));
    rp = {raw_blocks.p, raw_scales.p, dn[l], nullptr, s.experts, s.hidden, s.intermediate, 0, 0, 0};
    REQUIRE_OK(gossamer_repack_mxfp4(&rp, 0));
    fill_bf16(rw[l], static_cast<size_t>(s.experts) * s.hidden, 0.05f, 1000 + l);
  }
  Device<bf16> gu_bias(static_cast<size_t>(s.experts) * 5760), dn_bias(static_cast<size_t>(s.experts) * 2880), rb(s.experts), nw(s.hidden);
  fill_bf16(gu_bias.p, gu_bias.n, 0.5f, 1);
  fill_bf16(dn_bias.p, dn_bias.n, 0.5f, 2);
  fill_bf16(rb.p, rb.n, 0.1f, 3);
  fill_bf16(nw.p, nw.n, 1.f, 4);
  for (int tokens : {1, 2, 3, 4, 6, 8, 16, 32, 64}) {
    if (const char* only = std::getenv("GOSSAMER_TOKENS"))
      if (std::atoi(only) != tokens) continue;
    Device<bf16> x(static_cast<size_t>(tokens) * s.hidden), normed(x.n), out(x.n);
    fill_bf16(x.p, x.n, 1.f, 5);
    std::vector<float*> logits(layers);
    for (auto& l : logits) CHECK(cudaMalloc(&l, tokens * s.experts * 4));
    const size_t ws_bytes = gossamer_moe_workspace(tokens, s.hidden, s.intermediate);
    Device<uint8_t> ws(ws_bytes);
    CHECK(cudaMemset(ws.p, 0, ws_bytes));
    auto router = [&](int l, cudaStream_t stream) {
      GossamerRouterArgs ra = {x.p, nw.p, rw[l], rb.p, logits[l], normed.p, 1e-5f, tokens, s.hidden, s.experts};
      REQUIRE_OK(gossamer_router(&ra, stream));
    };
    auto experts = [&](int l, int tactic, cudaStream_t stream) {
      GossamerMoeArgs a = {};
      a.normed = normed.p, a.logits = logits[l], a.gate_up = gu[l], a.gate_up_bias = gu_bias.p, a.down = dn[l], a.down_bias = dn_bias.p, a.residual = x.p, a.output = out.p,
      a.workspace = ws.p, a.workspace_bytes = ws_bytes, a.tokens = tokens, a.hidden_size = s.hidden, a.intermediate = s.intermediate, a.experts = s.experts, a.expert_begin = 0,
      a.experts_local = s.experts, a.swiglu_limit = 7.f, a.swiglu_alpha = 1.702f, a.tactic = tactic;
      return gossamer_moe(&a, stream);
    };
    for (int l = 0; l < layers; ++l) router(l, 0);
    CHECK(cudaDeviceSynchronize());
    double bytes = 0;
    for (int l = 0; l < layers; ++l) {  // only experts that are really read
      std::vector<float> host(tokens * s.experts);
      CHECK(cudaMemcpy(host.data(), logits[l], host.size() * 4, cudaMemcpyDeviceToHost));
      std::vector<char> used(s.experts, 0);
      for (int t = 0; t < tokens; ++t) {
        std::vector<int> order(s.experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return host[t * s.experts + a] > host[t * s.experts + b]; });
        for (int k = 0; k < 4; ++k) used[order[k]] = 1;
      }
      bytes += std::accumulate(used.begin(), used.end(), 0) * static_cast<double>((gu_bytes + dn_bytes) / s.experts) + s.experts * s.hidden * 2.0;
    }
    char what[64];
    std::snprintf(what, sizeof what, "%d layers", layers);
    for (int tactic = 0; tactic < GOSSAMER_MOE_TACTICS; ++tactic) {
      const int status = experts(0, tactic, 0);
      if (status == GOSSAMER_BAD_TACTIC) continue;  // does not fit this many tokens
      REQUIRE_OK(status);
      const double us = graph_time([&](cudaStream_t st) {
        for (int l = 0; l < layers; ++l) {
          router(l, st);
          REQUIRE_OK(experts(l, tactic, st));
        }
      });
#ifdef GOSSAMER_TRACE
      tactic < 5 ? gossamer_moe_trace() : gossamer_few_trace();
#endif
      record("moe", what, tokens, tactic, us / layers, bytes / layers);
    }
    const double us = graph_time([&](cudaStream_t st) {
      for (int l = 0; l < layers; ++l) router(l, st);
    });
    std::printf("time router alone, %d tokens: %.2f us a layer\n", tokens, us / layers);
    for (auto l : logits) cudaFree(l);
  }
}

// Whole layers as in a step, a sequence of 1000 keys a token: what a kernel leaves to its neighbours (and takes from them) counts as well.
void time_chain(int layers) {
  constexpr Shape s = {2880, 2880, 128};
  constexpr int kRows = 5120, kHeads = 4096, kKeys = 1000, kPages = 16;
  const size_t gu_bytes = s.experts * gossamer::mxfp4::matrix_bytes(2 * s.intermediate, s.hidden), dn_bytes = s.experts * gossamer::mxfp4::matrix_bytes(s.hidden, s.intermediate);
  const size_t page_elements = 2 * 8 * 64 * 64;
  std::vector<uint8_t*> gu(layers), dn(layers);
  std::vector<bf16*> rw(layers), qkv(layers), ow(layers), kv(layers);
  for (int l = 0; l < layers; ++l) {
    CHECK(cudaMalloc(&gu[l], gu_bytes));
    CHECK(cudaMalloc(&dn[l], dn_bytes));
    CHECK(cudaMalloc(&rw[l], static_cast<size_t>(s.experts) * s.hidden * 2));
    CHECK(cudaMalloc(&qkv[l], static_cast<size_t>(kRows) * s.hidden * 2));
    CHECK(cudaMalloc(&ow[l], static_cast<size_t>(kHeads) * s.hidden * 2));
    CHECK(cudaMalloc(&kv[l], 8 * kPages * page_elements * 2));
    fill_bf16(ow[l], static_cast<size_t>(kHeads) * s.hidden, 0.05f, 3000 + l);
    fill_random(gu[l], gu_bytes, 77 + l);
    fill_random(dn[l], dn_bytes, 177 + l);
    fill_bf16(rw[l], static_cast<size_t>(s.experts) * s.hidden, 0.05f, 1000 + l);
    fill_bf16(qkv[l], static_cast<size_t>(kRows) * s.hidden, 0.05f, 2000 + l);
    fill_bf16(kv[l], 8 * kPages * page_elements, 1.f, 4000 + l);
  }
  Device<bf16> gu_bias(static_cast<size_t>(s.experts) * 5760), dn_bias(static_cast<size_t>(s.experts) * 2880), rb(s.experts), nw(s.hidden), sinks(64);
  fill_bf16(gu_bias.p, gu_bias.n, 0.5f, 1);
  fill_bf16(dn_bias.p, dn_bias.n, 0.5f, 2);
  fill_bf16(rb.p, rb.n, 0.1f, 3);
  fill_bf16(nw.p, nw.n, 1.f, 4);
  fill_bf16(sinks.p, sinks.n, 1.f, 6);
  Device<float> inv(std::vector<float>(32, 0.01f));
  for (int tokens : {1, 2, 4, 8}) {
    Device<bf16> x(static_cast<size_t>(tokens) * s.hidden), normed(x.n), out(x.n), heads(static_cast<size_t>(tokens) * kRows), mixed(static_cast<size_t>(tokens) * kHeads);
    fill_bf16(x.p, x.n, 1.f, 5);
    Device<float> logits(static_cast<size_t>(tokens) * s.experts);
    const size_t ws_bytes = gossamer_moe_workspace(tokens, s.hidden, s.intermediate), attention_bytes = gossamer_decode_attention_workspace(tokens, 8, 0);
    Device<uint8_t> ws(ws_bytes), attention_ws(attention_bytes);
    CHECK(cudaMemset(ws.p, 0, ws_bytes));
    CHECK(cudaMemset(attention_ws.p, 0, attention_bytes));
    std::vector<int> table;
    std::vector<uint64_t> slots;
    for (int i = 0; i < tokens * kPages; ++i) table.push_back(i);
    for (int i = 0; i < tokens; ++i) slots.push_back(static_cast<uint64_t>(i) * kPages * 64 + kKeys - 1);
    Device<int> tables(table), lengths(std::vector<int>(tokens, kKeys)), positions(std::vector<int>(tokens, kKeys - 1));
    Device<uint64_t> d_slots(slots);
    for (int tactic : {4, 5}) {
        const double us = graph_time([&](cudaStream_t stream) {
          for (int l = 0; l < layers; ++l) {
            GossamerTinyGemmArgs q = {};
            q.x = x.p, q.norm_weight = nw.p, q.weight = qkv[l], q.out = heads.p, q.epsilon = 1e-5f, q.tokens = tokens, q.rows = kRows, q.k = s.hidden, q.tactic = -1;
            REQUIRE_OK(gossamer_tiny_gemm(&q, stream));
            GossamerRopeKvArgs r = {heads.p, positions.p, d_slots.p, inv.p, kv[l], nullptr, 1.f, tokens, 8, 0, 8};
            REQUIRE_OK(gossamer_rope_kv(&r, stream));
            GossamerDecodeAttentionArgs t = {};
            t.q = heads.p, t.kv = kv[l], t.block_tables = tables.p, t.lengths = lengths.p, t.sinks = sinks.p, t.out = mixed.p, t.workspace = attention_ws.p, t.workspace_bytes = attention_bytes;
            t.scale = 0.125f, t.q_stride = kRows, t.tokens = tokens, t.kv_heads = 8, t.max_blocks = kPages, t.window = l % 2 ? 0 : 128, t.max_kv = kKeys;
            REQUIRE_OK(gossamer_decode_attention(&t, stream));
            GossamerTinyGemmArgs o = {};
            o.x = mixed.p, o.weight = ow[l], o.out = out.p, o.residual = x.p, o.tokens = tokens, o.rows = s.hidden, o.k = kHeads, o.tactic = -1;
            REQUIRE_OK(gossamer_tiny_gemm(&o, stream));
            GossamerRouterArgs ra = {x.p, nw.p, rw[l], rb.p, logits.p, normed.p, 1e-5f, tokens, s.hidden, s.experts};
            REQUIRE_OK(gossamer_router(&ra, stream));
            GossamerMoeArgs a = {};
            a.normed = normed.p, a.logits = logits.p, a.gate_up = gu[l], a.gate_up_bias = gu_bias.p, a.down = dn[l], a.down_bias = dn_bias.p, a.residual = x.p, a.output = out.p,
            a.workspace = ws.p, a.workspace_bytes = ws_bytes, a.tokens = tokens, a.hidden_size = s.hidden, a.intermediate = s.intermediate, a.experts = s.experts, a.expert_begin = 0,
            a.experts_local = s.experts, a.swiglu_limit = 7.f, a.swiglu_alpha = 1.702f, a.tactic = tactic;
            REQUIRE_OK(gossamer_moe(&a, stream));
          }
        });
        std::printf("time layer, experts tactic %d, %d tokens: %.2f us\n", tactic, tokens, us / layers);
      }
  }
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  std::mt19937 rng(argc > 3 ? std::atoi(argv[3]) : std::random_device{}());
  if (mode == "check") {
    const bool small = argc > 2 && std::string(argv[2]) == "small";
    // shards of the intermediate size: 736 = 23 blocks of 32, 352 = 11
    for (Shape s : {Shape{256, 736, 32}, Shape{320, 352, 8}})
      for (int tokens : {1, 3, 6, 17, 64}) check(s, tokens, 0, rng);
    for (int tokens : {1, 5, 64}) check({256, 96, 128}, tokens, 1, rng);
    if (!small) {
      for (int tokens : {1, 2, 3, 4, 5, 6, 8, 17, 64}) check({2880, 2880, 32}, tokens, 0, rng);
      for (int tokens : {1, 4, 6}) check({2880, 2880, 128}, tokens, 0, rng);
      check({2880, 2880, 32}, 64, 1, rng);
      check({2880, 2880, 128}, 64, 0, rng);
    }
    std::printf(failed() ? "moe: FAILED\n" : "moe: all checks passed\n");
    return failed();
  }
  if (mode == "time") time_layers(argc > 2 ? std::atoi(argv[2]) : 36);
  if (mode == "chain") time_chain(argc > 2 ? std::atoi(argv[2]) : 36);
  return 0;
}
