// archs: 90a
// Checks the grouped expert products against the portable kernels and both against float64, then times them.
// usage: grouped_harness [check|small|time|rested|all] [TOKENS|SEED]
//   rested: times with a pause before each replay; time: without, at 700 W after a second
//   TOKENS: time this count alone (for a profiler); SEED: of the checks
#include <cuda_fp8.h>

#include <cstring>
#include <set>

#include "gossamer/grouped.h"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include "harness.h"

using namespace harness;
using bf16 = __nv_bfloat16;

__global__ void scales_kernel(uint8_t* p, size_t n, uint32_t seed, uint32_t spread) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = 121 - ((i * 2654435761u + seed) >> 13) % spread;
}

struct Layer {
  GossamerExpertsDesc d;
  Device<uint8_t> gate_up, down;
  Device<bf16> gate_up_bias, down_bias;
  Device<uint8_t> gate_up_maxima, down_maxima;
  uint32_t spread;

  // Block scales take `spread` neighbouring powers of two.
  Layer(uint32_t hidden, uint32_t intermediate, uint32_t experts, uint32_t first, uint32_t local, uint32_t seed, uint32_t scale_spread = 4)
      : d{hidden, intermediate, experts, first, local, 4, 7.f, 1.702f, GOSSAMER_BF16, GOSSAMER_MXFP4, 1},
        gate_up(local * gossamer::mxfp4::matrix_bytes(2 * intermediate, hidden)),
        down(local * gossamer::mxfp4::matrix_bytes(hidden, intermediate)),
        gate_up_bias(static_cast<size_t>(local) * 2 * intermediate),
        down_bias(static_cast<size_t>(local) * hidden),
        gate_up_maxima(static_cast<size_t>(local) * 2 * intermediate),
        down_maxima(static_cast<size_t>(local) * hidden),
        spread(scale_spread) {
    fill(gate_up, gate_up_maxima, 2 * intermediate, hidden, true, seed);
    fill(down, down_maxima, hidden, intermediate, false, seed + 1);
    fill_bf16(gate_up_bias.p, gate_up_bias.n, 0.1f, seed + 2);
    fill_bf16(down_bias.p, down_bias.n, 0.1f, seed + 3);
  }
  GossamerExpertsArgs args(const void* x, const uint32_t* ids, void* out, uint32_t tokens, bool maxima) const {
    return {address(x),
            address(ids),
            {address(gate_up.p), maxima ? address(gate_up_maxima.p) : 0, address(gate_up_bias.p)},
            {address(down.p), maxima ? address(down_maxima.p) : 0, address(down_bias.p)},
            address(out),
            tokens};
  }
  void fill(Device<uint8_t>& packed, Device<uint8_t>& maxima, uint32_t rows, uint32_t k, bool interleaved, uint32_t seed) {
    Device<uint8_t> blocks(static_cast<size_t>(d.local_experts) * rows * k / 2), scales(static_cast<size_t>(d.local_experts) * rows * k / 32);
    fill_random(blocks.p, blocks.n, seed);
    scales_kernel<<<1024, 256>>>(scales.p, scales.n, seed, spread);
    GossamerRepackArgs r = {blocks.p, scales.p, packed.p, nullptr, static_cast<int>(d.local_experts), static_cast<int>(rows), static_cast<int>(k), interleaved, 0, 0};
    REQUIRE_OK(gossamer_repack_mxfp4(&r, 0));
    r.packed = maxima.p;
    REQUIRE_OK(gossamer_repack_mxfp4_maxima(&r, 0));
    Device<uint8_t> again(maxima.n);
    REQUIRE_OK(gossamer_grouped_maxima(packed.p, again.p, d.local_experts, rows, k, 0));
    CHECK(cudaDeviceSynchronize());
    expect("largest scales of rows out of the checkpoint's are those of the tiles", maxima.get() == again.get());
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

double e4m3(double v) { return static_cast<float>(__nv_fp8_e4m3(static_cast<float>(v))); }

double swiglu(double gate, double up) {
  gate = std::min(gate, 7.0);
  up = std::clamp(up, -7.0, 7.0);
  return (up + 1) * gate / (1 + std::exp(-1.702 * gate));
}

// One (token, choice) in float64, with the intermediate rounded to bf16 as every kernel stores it; `quantised`: with activations
// rounded as the FP8 tactic does. (The reference's own weights are exact in both.)
//
// `flips`: a sum on the device differs a little, and where a value lies at the border of two codes, it gets the other one, which is
// as right. What that does to the outputs, squared and summed, is added here: for each value the largest step between codes that
// sums make which are off by 2^-10 of their terms' root sum of squares (products of E4M3 keep 13 or 14 bits of a running sum), times
// the norm of the value's column of weights. Columns of random weights are nearly orthogonal, so squares add.
std::vector<double> reference(const Layer& l, const std::vector<bf16>& x, uint32_t token, uint32_t expert, bool quantised, double* flips = nullptr) {
  const uint32_t H = l.d.hidden, I = l.d.intermediate;
  const auto wg = l.matrix(l.gate_up, expert, 2 * I, H, true), wd = l.matrix(l.down, expert, H, I, false);
  const auto bg = l.gate_up_bias.get(), bd = l.down_bias.get();
  std::vector<double> row(H), inner(I), out(H);
  float top = 0;
  for (uint32_t i = 0; i < H; ++i) row[i] = __bfloat162float(x[static_cast<size_t>(token) * H + i]), top = std::max(top, static_cast<float>(std::abs(row[i])));
  if (quantised)
    for (double& v : row) v = e4m3(static_cast<float>(v) * (448.f / top)) * static_cast<double>(top / 448.f);
  for (uint32_t c = 0; c < I; ++c) {
    double sums[2], off[2];
    for (int which = 0; which < 2; ++which) {
      const float* w = &wg[static_cast<size_t>(2 * c + which) * H];
      double squares = 0;
      sums[which] = __bfloat162float(bg[static_cast<size_t>(expert) * 2 * I + 2 * c + which]);
      for (uint32_t i = 0; i < H; ++i) sums[which] += row[i] * w[i], squares += row[i] * w[i] * row[i] * w[i];
      off[which] = std::sqrt(squares) / 1024;
    }
    const double v = swiglu(sums[0], sums[1]);
    inner[c] = quantised ? e4m3(8 * v) / 8 : rounded(v);
    if (!flips) continue;
    double step = 0, column = 0;
    for (int corner = 0; corner < 4; ++corner) {
      const double other = swiglu(sums[0] + (corner & 1 ? off[0] : -off[0]), sums[1] + (corner & 2 ? off[1] : -off[1]));
      step = std::max(step, std::abs(e4m3(8 * other) / 8 - inner[c]));
    }
    for (uint32_t r = 0; r < H; ++r) column += static_cast<double>(wd[static_cast<size_t>(r) * I + c]) * wd[static_cast<size_t>(r) * I + c];
    *flips += step * step * column;
  }
  for (uint32_t r = 0; r < H; ++r) {
    out[r] = __bfloat162float(bd[static_cast<size_t>(expert) * H + r]);
    for (uint32_t i = 0; i < I; ++i) out[r] += inner[i] * wd[static_cast<size_t>(r) * I + i];
  }
  return out;
}

bool same(const std::vector<bf16>& a, const std::vector<bf16>& b) { return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)); }

// One replay of a graph that `enqueue` fills.
void replay(const std::function<void(cudaStream_t)>& enqueue) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  enqueue(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
}

void check(const Layer& l, uint32_t tokens, bool skewed, bool against_float64, uint32_t seed, float size = 1.7f) {
  std::mt19937 rng(seed);
  const uint32_t H = l.d.hidden;
  Device<bf16> x(static_cast<size_t>(tokens) * H), got(static_cast<size_t>(tokens) * 4 * H), got_fp8(got.n), expected(got.n);
  fill_bf16(x.p, x.n, size, seed);
  const auto ids = route(tokens, l.d.experts, skewed, rng);
  Device<uint32_t> ids_device(ids), other_ids(route(tokens, l.d.experts, !skewed, rng));
  Device<bf16> other_x(x.n), other_out(got.n);
  fill_bf16(other_x.p, other_x.n, size, seed + 1);
  Device<uint8_t> workspace(std::max(gossamer_grouped_workspace(&l.d, tokens, GOSSAMER_GROUPED_BF16), gossamer_grouped_workspace(&l.d, tokens, GOSSAMER_GROUPED_FP8))),
      workspace2(gossamer_portable_experts_workspace(&l.d, tokens));
  char what[160];
  std::snprintf(what, sizeof what, "H %u I %u E %u (%u from %u) scales 2^%u x %.2g tokens %u%s", H, l.d.intermediate, l.d.experts, l.d.local_experts, l.d.first_expert,
                l.spread, size, tokens, skewed ? " skewed" : "");
  workspace2.poison(), got.poison(), got_fp8.poison(), expected.poison();
  for (int tactic : {GOSSAMER_GROUPED_BF16, GOSSAMER_GROUPED_FP8}) {
    const bool fp8 = tactic == GOSSAMER_GROUPED_FP8;
    Device<bf16>& out = fp8 ? got_fp8 : got;
    const auto a = l.args(x.p, ids_device.p, out.p, tokens, fp8 && tokens % 2), other = l.args(other_x.p, other_ids.p, other_out.p, tokens, a.gate_up.scales);
    const auto run = [&](const GossamerExpertsArgs& args, cudaStream_t s) { REQUIRE_OK(gossamer_grouped_experts(&l.d, &args, tactic, workspace.p, workspace.n, s)); };
    workspace.poison(), other_out.poison();
    run(other, 0), run(a, 0);
    CHECK(cudaDeviceSynchronize());
    // The same in a graph, where kernels follow each other most closely: between other tokens, so that a run that begins before the last one
    // has ended spoils one of them.
    const auto before = out.get(), other_before = other_out.get();
    workspace.poison(), out.poison(), other_out.poison();
    replay([&](cudaStream_t s) { run(other, s), run(a, s), run(other, s); });
    expect(std::string(what) + (fp8 ? ": fp8" : ": bf16") + " in a graph is the same to the bit", same(out.get(), before) && same(other_out.get(), other_before));
  }
  const auto a = l.args(x.p, ids_device.p, expected.p, tokens, false);
  REQUIRE_OK(gossamer_portable_experts(&l.d, &a, 1, workspace2.p, 0));
  CHECK(cudaDeviceSynchronize());
  const auto g = doubles(got.get()), f = doubles(got_fp8.get()), e = doubles(expected.get());
  expect_below(std::string(what) + ": bf16 vs portable", relative_error(e, g), 4e-3);
  expect_below(std::string(what) + ": fp8 vs portable", relative_error(e, f), 8e-2);
  if (!against_float64) return;
  const auto host_x = x.get();
  std::vector<double> r, q, rg, rf, rp;
  double flips = 0, norm = 0;
  for (int sample = 0; sample < 3; ++sample) {
    const uint32_t pair = rng() % (tokens * 4), expert = ids[pair] - l.d.first_expert;
    if (expert >= l.d.local_experts) continue;
    const auto append = [&](std::vector<double>& all, const std::vector<double>& one) { all.insert(all.end(), one.begin(), one.end()); };
    const auto slice = [&](const std::vector<double>& v) { return std::vector<double>(v.begin() + static_cast<size_t>(pair) * H, v.begin() + static_cast<size_t>(pair + 1) * H); };
    append(r, reference(l, host_x, pair / 4, expert, false)), append(q, reference(l, host_x, pair / 4, expert, true, &flips));
    append(rg, slice(g)), append(rf, slice(f)), append(rp, slice(e));
  }
  expect_below(std::string(what) + ": bf16 vs float64", relative_error(r, rg), 6e-3);
  expect_below(std::string(what) + ": portable vs float64", relative_error(r, rp), 6e-3);
  expect_below(std::string(what) + ": fp8 vs float64", relative_error(r, rf), 8e-2);
  for (double v : q) norm += v * v;
  expect_below(std::string(what) + ": fp8 vs float64 of quantised activations", relative_error(q, rf), 6e-3 + std::sqrt(flips / std::max(norm, 1e-300)));
}

void time_all(uint32_t only, int rest) {
  Layer l(2880, 2880, 128, 0, 128, 77);
  std::mt19937 rng(5);
  for (uint32_t tokens : {64u, 128u, 256u, 512u, 1024u, 2048u, 4096u, 8192u}) {
    if (only && tokens != only) continue;
    Device<bf16> x(static_cast<size_t>(tokens) * 2880), out(static_cast<size_t>(tokens) * 4 * 2880);
    fill_bf16(x.p, x.n, 1.7f, tokens);
    const auto ids = route(tokens, 128, false, rng);
    Device<uint32_t> ids_device(ids);
    const size_t touched = std::set<uint32_t>(ids.begin(), ids.end()).size();
    const auto a = l.args(x.p, ids_device.p, out.p, tokens, true), without = l.args(x.p, ids_device.p, out.p, tokens, false);
    Device<uint8_t> workspace(std::max(gossamer_grouped_workspace(&l.d, tokens, 0), gossamer_portable_experts_workspace(&l.d, tokens)));
    const double operations = 2.0 * tokens * 4 * (3.0 * 2880 * 2880), bytes = touched * 3.0 * 2880 * 2880 * 4.25 / 8;
    const auto report = [&](const char* name, double us) {
      std::printf("time %-26s tokens %5u: %9.1f us, %6.1f TFLOP/s, weights %.2f TB/s\n", name, tokens, us, operations / us / 1e6, bytes / us / 1e6);
      if (const char* path = std::getenv("GOSSAMER_RESULTS"))
        if (FILE* f = std::fopen(path, "a")) {
          std::fprintf(f, "{\"op\":\"moe-experts\",\"kernel\":\"%s\",\"tokens\":%u,\"us\":%.2f,\"tflops\":%.1f,\"weights_tb_s\":%.3f}\n", name, tokens, us,
                       operations / us / 1e6, bytes / us / 1e6);
          std::fclose(f);
        }
    };
    for (bool maxima : {true, false})
      if (maxima || tokens == 2048)
        report(maxima ? "grouped-fp8" : "grouped-fp8 without maxima",
               graph_time([&](cudaStream_t s) { REQUIRE_OK(gossamer_grouped_experts(&l.d, maxima ? &a : &without, GOSSAMER_GROUPED_FP8, workspace.p, workspace.n, s)); }, 10, 30, rest));
    report("grouped", graph_time([&](cudaStream_t s) { REQUIRE_OK(gossamer_grouped_experts(&l.d, &a, GOSSAMER_GROUPED_BF16, workspace.p, workspace.n, s)); }, 10, 30, rest));
    if (tokens == 64 || tokens == 2048) report("portable", graph_time([&](cudaStream_t s) { REQUIRE_OK(gossamer_portable_experts(&l.d, &a, 1, workspace.p, s)); }, 5));
  }
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "all";
  REQUIRE_OK(gossamer_prepare());
  REQUIRE_OK(gossamer_grouped_prepare());
  std::random_device device;
  const bool rested = !std::strcmp(mode, "rested"), times = rested || !std::strcmp(mode, "time");
  const uint32_t seed = !times && argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : device();
  std::printf("seed %u\n", seed);
  if (!times) {
    {
      Layer small(288, 352, 16, 0, 16, seed), shard(96, 32 * 5, 16, 4, 6, seed + 9), wide(576, 288, 8, 0, 8, seed + 3, 15);
      // Pieces so short that several fit the rings, and several for each block.
      Layer brief(64, 2048, 32, 0, 32, seed + 5), less_brief(640, 2048, 32, 0, 32, seed + 7);
      for (uint32_t tokens : {8u, 64u, 300u, 1000u}) check(brief, tokens, false, false, seed + tokens), check(less_brief, tokens, true, false, seed + tokens);
      check(wide, 65, false, true, seed), check(wide, 200, false, true, seed + 1, 0.02f);
      for (uint32_t tokens : {1u, 2u, 3u, 5u, 17u, 64u, 129u, 300u}) check(small, tokens, false, tokens < 20, seed + tokens), check(shard, tokens, tokens > 17, false, seed + tokens);
    }
    if (std::strcmp(mode, "small")) {
      Layer full(2880, 2880, 128, 0, 128, seed);
      for (uint32_t tokens : {1u, 8u, 127u, 300u, 1000u, 8192u}) check(full, tokens, tokens == 1000, tokens == 300, seed + tokens);
    }
  }
  if (times || !std::strcmp(mode, "all")) time_all(argc > 2 && times ? std::atoi(argv[2]) : 0, rested ? 20 : 0);
  std::printf(failed() ? "FAILED\n" : "all checks passed\n");
  return failed();
}
