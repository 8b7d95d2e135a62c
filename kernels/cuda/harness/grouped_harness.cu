// archs: 90a
// Checks the grouped expert products against the portable kernels and both against float64, then times them.
// usage: grouped_harness [check|time|all]
#include <cstring>
#include <set>

#include "gossamer/grouped.h"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include "harness.h"

using namespace harness;
using bf16 = __nv_bfloat16;

__global__ void scales_kernel(uint8_t* p, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = 117 + ((i * 2654435761u + seed) >> 13) % 4;
}

struct Layer {
  GossamerExpertsDesc d;
  Device<uint8_t> gate_up, down;
  Device<bf16> gate_up_bias, down_bias;

  Layer(uint32_t hidden, uint32_t intermediate, uint32_t experts, uint32_t first, uint32_t local, uint32_t seed)
      : d{hidden, intermediate, experts, first, local, 4, 7.f, 1.702f, GOSSAMER_BF16, GOSSAMER_MXFP4, 0},
        gate_up(local * gossamer::mxfp4::matrix_bytes(2 * intermediate, hidden)),
        down(local * gossamer::mxfp4::matrix_bytes(hidden, intermediate)),
        gate_up_bias(static_cast<size_t>(local) * 2 * intermediate),
        down_bias(static_cast<size_t>(local) * hidden) {
    fill(gate_up, 2 * intermediate, hidden, true, seed);
    fill(down, hidden, intermediate, false, seed + 1);
    fill_bf16(gate_up_bias.p, gate_up_bias.n, 0.1f, seed + 2);
    fill_bf16(down_bias.p, down_bias.n, 0.1f, seed + 3);
  }
  void fill(Device<uint8_t>& packed, uint32_t rows, uint32_t k, bool interleaved, uint32_t seed) {
    Device<uint8_t> blocks(static_cast<size_t>(d.local_experts) * rows * k / 2), scales(static_cast<size_t>(d.local_experts) * rows * k / 32);
    fill_random(blocks.p, blocks.n, seed);
    scales_kernel<<<1024, 256>>>(scales.p, scales.n, seed);
    GossamerRepackArgs r = {blocks.p, scales.p, packed.p, nullptr, static_cast<int>(d.local_experts), static_cast<int>(rows), static_cast<int>(k), interleaved, 0, 0};
    REQUIRE_OK(gossamer_repack_mxfp4(&r, 0));
    CHECK(cudaDeviceSynchronize());
  }
  std::vector<float> matrix(const Device<uint8_t>& packed, int expert, int rows, int k, bool interleaved) const {
    Device<float> out(static_cast<size_t>(rows) * k);
    GossamerUnpackArgs u = {packed.p, out.p, expert, rows, k, interleaved};
    REQUIRE_OK(gossamer_unpack_mxfp4(&u, 0));
    CHECK(cudaDeviceSynchronize());
    return out.get();
  }
};

std::vector<uint32_t> route(uint32_t tokens, uint32_t experts, bool skewed, std::mt19937& rng) {
  std::vector<uint32_t> ids;
  for (uint32_t t = 0; t < tokens; ++t) {
    std::set<uint32_t> chosen;
    while (chosen.size() < 4) chosen.insert(skewed && rng() % 4 ? rng() % 5 : rng() % experts);
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

double rounded(double v) { return __bfloat162float(__float2bfloat16(static_cast<float>(v))); }

// One (token, choice) in float64, with the intermediate rounded to bf16 as every kernel stores it.
std::vector<double> reference(const Layer& l, const std::vector<bf16>& x, uint32_t token, uint32_t expert) {
  const uint32_t H = l.d.hidden, I = l.d.intermediate;
  const auto wg = l.matrix(l.gate_up, expert, 2 * I, H, true), wd = l.matrix(l.down, expert, H, I, false);
  const auto bg = l.gate_up_bias.get(), bd = l.down_bias.get();
  std::vector<double> inner(I), out(H);
  for (uint32_t c = 0; c < I; ++c) {
    double gate = __bfloat162float(bg[static_cast<size_t>(expert) * 2 * I + 2 * c]), up = __bfloat162float(bg[static_cast<size_t>(expert) * 2 * I + 2 * c + 1]);
    for (uint32_t i = 0; i < H; ++i) {
      const double v = __bfloat162float(x[static_cast<size_t>(token) * H + i]);
      gate += v * wg[static_cast<size_t>(2 * c) * H + i];
      up += v * wg[static_cast<size_t>(2 * c + 1) * H + i];
    }
    gate = std::min(gate, 7.0);
    up = std::clamp(up, -7.0, 7.0);
    inner[c] = rounded((up + 1) * gate / (1 + std::exp(-1.702 * gate)));
  }
  for (uint32_t r = 0; r < H; ++r) {
    out[r] = __bfloat162float(bd[static_cast<size_t>(expert) * H + r]);
    for (uint32_t i = 0; i < I; ++i) out[r] += inner[i] * wd[static_cast<size_t>(r) * I + i];
  }
  return out;
}

void check(const Layer& l, uint32_t tokens, bool skewed, bool against_float64, uint32_t seed) {
  std::mt19937 rng(seed);
  const uint32_t H = l.d.hidden;
  Device<bf16> x(static_cast<size_t>(tokens) * H), got(static_cast<size_t>(tokens) * 4 * H), expected(got.n);
  fill_bf16(x.p, x.n, 1.7f, seed);
  const auto ids = route(tokens, l.d.experts, skewed, rng);
  Device<uint32_t> ids_device(ids);
  GossamerExpertsArgs a = {};
  a.x = reinterpret_cast<uint64_t>(x.p);
  a.expert_ids = reinterpret_cast<uint64_t>(ids_device.p);
  a.gate_up = {reinterpret_cast<uint64_t>(l.gate_up.p), 0, reinterpret_cast<uint64_t>(l.gate_up_bias.p)};
  a.down = {reinterpret_cast<uint64_t>(l.down.p), 0, reinterpret_cast<uint64_t>(l.down_bias.p)};
  a.tokens = tokens;
  Device<uint8_t> workspace(gossamer_grouped_workspace(&l.d, tokens, 0)), workspace2(gossamer_portable_experts_workspace(&l.d, tokens));
  workspace.poison(), workspace2.poison(), got.poison(), expected.poison();
  a.out = reinterpret_cast<uint64_t>(got.p);
  REQUIRE_OK(gossamer_grouped_experts(&l.d, &a, GOSSAMER_GROUPED_BF16, workspace.p, workspace.n, 0));
  CHECK(cudaDeviceSynchronize());
  a.out = reinterpret_cast<uint64_t>(expected.p);
  REQUIRE_OK(gossamer_portable_experts(&l.d, &a, 1, workspace2.p, 0));
  CHECK(cudaDeviceSynchronize());
  const auto g = doubles(got.get()), e = doubles(expected.get());
  char what[128];
  std::snprintf(what, sizeof what, "grouped H %u I %u E %u (%u from %u) tokens %u%s vs portable", H, l.d.intermediate, l.d.experts, l.d.local_experts, l.d.first_expert,
                tokens, skewed ? " skewed" : "");
  expect_below(what, relative_error(e, g), 4e-3);
  if (!against_float64) return;
  const auto host_x = x.get();
  std::vector<double> r, rg, rp;
  for (int sample = 0; sample < 3; ++sample) {
    const uint32_t pair = rng() % (tokens * 4), expert = ids[pair] - l.d.first_expert;
    if (expert >= l.d.local_experts) continue;
    const auto one = reference(l, host_x, pair / 4, expert);
    r.insert(r.end(), one.begin(), one.end());
    rg.insert(rg.end(), g.begin() + static_cast<size_t>(pair) * H, g.begin() + static_cast<size_t>(pair + 1) * H);
    rp.insert(rp.end(), e.begin() + static_cast<size_t>(pair) * H, e.begin() + static_cast<size_t>(pair + 1) * H);
  }
  expect_below(std::string(what) + ": grouped vs float64", relative_error(r, rg), 6e-3);
  expect_below(std::string(what) + ": portable vs float64", relative_error(r, rp), 6e-3);
}

void time_all() {
  Layer l(2880, 2880, 128, 0, 128, 77);
  std::mt19937 rng(5);
  for (uint32_t tokens : {64u, 128u, 256u, 512u, 1024u, 2048u, 4096u, 8192u}) {
    Device<bf16> x(static_cast<size_t>(tokens) * 2880), out(static_cast<size_t>(tokens) * 4 * 2880);
    fill_bf16(x.p, x.n, 1.7f, tokens);
    const auto ids = route(tokens, 128, false, rng);
    Device<uint32_t> ids_device(ids);
    const size_t touched = std::set<uint32_t>(ids.begin(), ids.end()).size();
    GossamerExpertsArgs a = {};
    a.x = reinterpret_cast<uint64_t>(x.p);
    a.expert_ids = reinterpret_cast<uint64_t>(ids_device.p);
    a.gate_up = {reinterpret_cast<uint64_t>(l.gate_up.p), 0, reinterpret_cast<uint64_t>(l.gate_up_bias.p)};
    a.down = {reinterpret_cast<uint64_t>(l.down.p), 0, reinterpret_cast<uint64_t>(l.down_bias.p)};
    a.out = reinterpret_cast<uint64_t>(out.p);
    a.tokens = tokens;
    Device<uint8_t> workspace(std::max(gossamer_grouped_workspace(&l.d, tokens, 0), gossamer_portable_experts_workspace(&l.d, tokens)));
    const double operations = 2.0 * tokens * 4 * (3.0 * 2880 * 2880), bytes = touched * 3.0 * 2880 * 2880 * 4.25 / 8;
    const auto report = [&](const char* name, double us) {
      std::printf("time %-10s tokens %5u: %9.1f us, %6.1f TFLOP/s, weights %.2f TB/s\n", name, tokens, us, operations / us / 1e6, bytes / us / 1e6);
      if (const char* path = std::getenv("GOSSAMER_RESULTS"))
        if (FILE* f = std::fopen(path, "a")) {
          std::fprintf(f, "{\"op\":\"moe-experts\",\"kernel\":\"%s\",\"tokens\":%u,\"us\":%.2f,\"tflops\":%.1f,\"weights_tb_s\":%.3f}\n", name, tokens, us,
                       operations / us / 1e6, bytes / us / 1e6);
          std::fclose(f);
        }
    };
    report("grouped", graph_time([&](cudaStream_t s) { REQUIRE_OK(gossamer_grouped_experts(&l.d, &a, GOSSAMER_GROUPED_BF16, workspace.p, workspace.n, s)); }, 10));
    if (tokens == 64 || tokens == 2048) report("portable", graph_time([&](cudaStream_t s) { REQUIRE_OK(gossamer_portable_experts(&l.d, &a, 1, workspace.p, s)); }, 5));
  }
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "all";
  REQUIRE_OK(gossamer_prepare());
  REQUIRE_OK(gossamer_grouped_prepare());
  std::random_device device;
  const uint32_t seed = device();
  std::printf("seed %u\n", seed);
  if (std::strcmp(mode, "time")) {
    {
      Layer small(288, 352, 16, 0, 16, seed), shard(96, 32 * 5, 16, 4, 6, seed + 9);
      for (uint32_t tokens : {1u, 2u, 3u, 5u, 17u, 64u, 129u, 300u}) check(small, tokens, false, tokens < 20, seed + tokens), check(shard, tokens, tokens > 17, false, seed + tokens);
    }
    if (std::strcmp(mode, "small")) {
      Layer full(2880, 2880, 128, 0, 128, seed);
      for (uint32_t tokens : {1u, 8u, 127u, 300u, 1000u, 8192u}) check(full, tokens, tokens == 1000, tokens == 300, seed + tokens);
    }
  }
  if (!std::strcmp(mode, "time") || !std::strcmp(mode, "all")) time_all();
  std::printf(failed() ? "FAILED\n" : "all checks passed\n");
  return failed();
}
