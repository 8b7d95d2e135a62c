// Grouped expert products, emulated, against float64: bf16 and E4M3 tokens.
#include "emulation.h"

#include "../grouped/experts.cu"
#include "../grouped/product.cuh"
#include "expert_weights.h"

namespace gossamer::grouped {
int products_bf16(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  if (const int status = product<false, true>(d, a, plan, stream)) return status;
  return product<false, false>(d, a, plan, stream);
}
int products_fp8(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  if (const int status = product<true, true>(d, a, plan, stream)) return status;
  return product<true, false>(d, a, plan, stream);
}
bool prepare_bf16() { return allow<false, true>(Sets<false>{}) && allow<false, false>(Sets<false>{}); }
bool prepare_fp8() { return allow<true, true>(Sets<true>{}) && allow<true, false>(Sets<true>{}); }
}  // namespace gossamer::grouped

static bool check(uint32_t hidden, uint32_t intermediate, uint32_t experts, uint32_t first, uint32_t local, uint32_t tokens, uint32_t spread, float size, uint32_t seed) {
  std::mt19937 rng(seed);
  const GossamerExpertsDesc d = {hidden, intermediate, experts, first, local, 2, 7.f, 1.702f, GOSSAMER_BF16, GOSSAMER_MXFP4, 1};
  const Matrices gate_up(local, 2 * intermediate, hidden, true, spread, rng), down(local, hidden, intermediate, false, spread, rng);
  const auto random = [&](size_t n, float scale) { return random_bf16(n, scale, rng); };
  const auto x = random(static_cast<size_t>(tokens) * hidden, size), gate_up_bias = random(static_cast<size_t>(local) * 2 * intermediate, .1f),
             down_bias = random(static_cast<size_t>(local) * hidden, .1f);
  std::vector<uint32_t> ids;
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint32_t one = rng() % experts;
    ids.push_back(one), ids.push_back((one + 1 + rng() % (experts - 1)) % experts);
  }
  std::vector<uint8_t> maxima(static_cast<size_t>(local) * 2 * intermediate);
  bool ok = gossamer_grouped_maxima(gate_up.packed.data(), maxima.data(), local, 2 * intermediate, hidden, 0) == GOSSAMER_OK;
  for (int tactic : {GOSSAMER_GROUPED_BF16, GOSSAMER_GROUPED_FP8}) {
    const bool fp8 = tactic == GOSSAMER_GROUPED_FP8;
    std::vector<uint16_t> out(static_cast<size_t>(tokens) * 2 * hidden, 0xFFFF);
    std::vector<uint8_t> workspace(gossamer_grouped_workspace(&d, tokens, tactic) + 1024, 0xFF);
    uint8_t* aligned = workspace.data() + (1024 - reinterpret_cast<uintptr_t>(workspace.data()) % 1024);
    const auto address = [](const auto& v) { return reinterpret_cast<uint64_t>(v.data()); };
    const GossamerExpertsArgs a = {address(x), address(ids), {address(gate_up.packed), fp8 && seed % 2 ? address(maxima) : 0, address(gate_up_bias)},
                                   {address(down.packed), 0, address(down_bias)}, address(out), tokens};
    const int status = gossamer_grouped_experts(&d, &a, tactic, aligned, workspace.size() - 1024, 0);
    if (status) {
      std::printf("FAIL status %d\n", status);
      return false;
    }
    double difference = 0, norm = 0, loss = 0;
    for (uint32_t pair = 0; pair < tokens * 2; ++pair) {
      if (tokens > 20 && pair % 5) continue;
      const uint32_t e = ids[pair] - first;
      const auto got = [&](uint32_t c) { return static_cast<double>(gossamer::ptx::bf16_bits(out[static_cast<size_t>(pair) * hidden + c])); };
      if (e >= local) {
        for (uint32_t c = 0; c < hidden; ++c) ok &= got(c) == 0;
        continue;
      }
      // The same arithmetic in float64, once with the tactic's rounding of activations and once with bf16's.
      const auto reference = [&](bool quantised) {
        std::vector<double> row(hidden);
        float top = 0;
        for (uint32_t i = 0; i < hidden; ++i) row[i] = __bfloat162float(x[pair / 2 * hidden + i]), top = std::max(top, static_cast<float>(std::abs(row[i])));
        if (quantised)
          for (double& v : row) v = e4m3(static_cast<float>(v) * (448.f / top)) * static_cast<double>(top / 448.f);
        return expert_output(gate_up, gate_up_bias, down, down_bias, e, row, [&](double v) { return quantised ? e4m3(8 * v) / 8 : rounded(v); });
      };
      const auto exact = reference(false), own = fp8 ? reference(true) : exact;
      for (uint32_t c = 0; c < hidden; ++c) {
        const double v = got(c);
        difference += std::isfinite(v) ? (v - own[c]) * (v - own[c]) : 1e30;
        loss += (v - exact[c]) * (v - exact[c]);
        norm += exact[c] * exact[c];
      }
    }
    const double error = std::sqrt(difference / norm), bound = 6e-3;
    ok &= error < bound;
    std::printf("%s %s hidden %u intermediate %u experts %u (%u from %u) tokens %u scales 2^%u x %.2g: error %.2e (%.0e)", error < bound ? "ok  " : "FAIL", fp8 ? "fp8 " : "bf16", hidden,
                intermediate, experts, local, first, tokens, spread, size, error, bound);
    if (fp8) std::printf(", with the rounding of activations %.2e", std::sqrt(loss / norm));
    std::printf("\n");
    std::fflush(stdout);
  }
  return ok;
}

int main(int argc, char** argv) {
  const uint32_t seed = emulation::new_seed();
  if (argc > 1 && !std::strcmp(argv[1], "full")) return !check(2880, 2880, 2, 0, 2, 2, 4, 1.7f, seed);  // a minute
  bool ok = check(128, 64, 4, 0, 4, 5, 4, 1.7f, seed);
  ok &= check(96, 160, 5, 1, 3, 30, 4, 1.7f, seed + 1);
  ok &= check(192, 96, 3, 0, 3, 150, 15, 1.7f, seed + 2);
  ok &= check(192, 96, 2, 0, 2, 300, 4, 1.7f, seed + 3);
  ok &= check(192, 96, 3, 0, 3, 20, 4, .02f, seed + 4);
  ok &= check(640, 352, 2, 0, 2, 60, 4, 1.7f, seed + 5);  // K of two whole chunks, and of one and a rest
  ok &= check(352, 960, 3, 0, 3, 13, 4, 1.7f, seed + 6);
  ok &= check(64, 32, 3, 1, 2, 1101, 4, 1.7f, seed + 7);  // pairs of several blocks of the plan, no multiple of four
  return emulation::verdict(ok);
}
