// archs: 90a
// Checks and times the few-token MoE. `moe_harness check [small|least]`, `moe_harness time [LAYERS]`, `moe_harness chain [LAYERS]`.
// Oracle: plain CUDA in float64 that reads the checkpoint layout, not the packed one.
#include <cstring>
#include <numeric>

#include "layer_chain.h"

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

// Router and experts of `layers` layers as one graph.
void time_layers(int layers) {
  const MoeLayers moe(layers);
  constexpr int kExperts = MoeLayers::kExperts;
  for (int tokens : {1, 2, 3, 4, 6, 8, 16, 32, 64}) {
    if (const char* only = std::getenv("GOSSAMER_TOKENS"))
      if (std::atoi(only) != tokens) continue;
    MoeLayers::Batch batch(tokens);
    Device<float> all_logits(static_cast<size_t>(layers) * tokens * kExperts);
    const auto logits = [&](int l) { return all_logits.p + static_cast<size_t>(l) * tokens * kExperts; };
    for (int l = 0; l < layers; ++l) moe.route(l, batch, logits(l), 0);
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> host = all_logits.get();
    double bytes = 0;
    for (int l = 0; l < layers; ++l) {  // only experts that are really read
      std::vector<char> used(kExperts, 0);
      for (int t = 0; t < tokens; ++t) {
        const float* const row = &host[(static_cast<size_t>(l) * tokens + t) * kExperts];
        std::vector<int> order(kExperts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        for (int k = 0; k < 4; ++k) used[order[k]] = 1;
      }
      bytes += std::accumulate(used.begin(), used.end(), 0) * static_cast<double>((MoeLayers::kGateUpBytes + MoeLayers::kDownBytes) / kExperts) + kExperts * MoeLayers::kHidden * 2.0;
    }
    char what[64];
    std::snprintf(what, sizeof what, "%d layers", layers);
    for (int tactic = 0; tactic < GOSSAMER_MOE_TACTICS; ++tactic) {
      const int status = moe.experts(0, batch, logits(0), tactic, 0);
      if (status == GOSSAMER_BAD_TACTIC) continue;  // does not fit this many tokens
      REQUIRE_OK(status);
      const double us = graph_time([&](cudaStream_t stream) {
        for (int l = 0; l < layers; ++l) {
          moe.route(l, batch, logits(l), stream);
          REQUIRE_OK(moe.experts(l, batch, logits(l), tactic, stream));
        }
      });
      record("moe", what, tokens, tactic, us / layers, bytes / layers);
    }
    const double us = graph_time([&](cudaStream_t stream) {
      for (int l = 0; l < layers; ++l) moe.route(l, batch, logits(l), stream);
    });
    std::printf("time router alone, %d tokens: %.2f us a layer\n", tokens, us / layers);
  }
}

// Whole layers as in a step: what a kernel leaves to its neighbours (and takes from them) counts as well.
void time_chain(int layers) {
  const LayerChain chain(layers);
  for (int tokens : {1, 2, 4, 6, 8}) {
    LayerChain::Batch batch(tokens);
    for (const bool inside : {false, true}) {
      const double us = graph_time([&](cudaStream_t stream) { chain.run(batch, inside, stream); });
      std::printf("time layer, rotary embedding %s, %d tokens: %.2f us\n", inside ? "inside" : "apart", tokens, us / layers);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  std::mt19937 rng(argc > 3 ? std::atoi(argv[3]) : std::random_device{}());
  if (mode == "check" && argc > 2 && std::string(argv[2]) == "least") {  // for tools that make everything a thousand times slower
    for (int tokens : {1, 3, 6}) check({96, 64, 8}, tokens, 0, rng);
    std::printf(failed() ? "moe: FAILED\n" : "moe: all checks passed\n");
    return failed();
  }
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
