// archs: 90a
// Checks attention for many queries against the portable kernel and both against float64, then times it.
// usage: prefill_attention_harness [check|time|all]
#include "attention_problem.h"
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include "gossamer/prefill.h"
#include "harness.h"

using namespace harness;
using bf16 = __nv_bfloat16;

constexpr uint32_t kD = AttentionProblem::kD, kBlock = AttentionProblem::kBlock;

// Clears the top exponent bit of E4M3 codes: random numbers below 2, none of them NaN.
__global__ void tame_kernel(uint32_t* p, size_t words) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words; i += static_cast<size_t>(gridDim.x) * blockDim.x) p[i] &= 0xBFBFBFBF;
}

// A problem on the device.
struct Problem : AttentionProblem {
  GossamerAttentionArgs a;
  Device<uint8_t> cache_device;
  Device<bf16> q_device, sinks_device, out;
  Device<uint32_t> starts_device, lens_device, first_device, table_device;
  Device<float> scales_device;
  Device<uint8_t> workspace;

  Problem(const Case& what, uint32_t seed)
      : AttentionProblem(what, seed),
        cache_device(cache),
        q_device(q),
        sinks_device(sinks),
        out(static_cast<size_t>(tokens) * c.heads * kD),
        starts_device(starts),
        lens_device(lens),
        first_device(first),
        table_device(table),
        scales_device(scales),
        workspace(GOSSAMER_PREFILL_WORKSPACE) {
    const auto address = [](const auto& x) { return reinterpret_cast<uint64_t>(x.p); };
    a = {address(q_device), stride, static_cast<uint32_t>(lens.size()), address(starts_device), address(lens_device), address(table_device), table_stride, max_query,
         max_kv, tokens, address(first_device), c.sinks ? address(sinks_device) : 0, address(cache_device), c.fp8 ? address(scales_device) : 0, address(out)};
  }
};

void check(const Case& c, uint32_t seed) {
  Problem p(c, seed);
  std::mt19937 rng(seed);
  p.out.poison(), p.workspace.poison();
  REQUIRE_OK(gossamer_prefill_attention(&p.d, &p.a, p.workspace.p, p.workspace.n, 0));
  CHECK(cudaDeviceSynchronize());
  const auto got = doubles(p.out.get());
  p.out.poison();
  REQUIRE_OK(gossamer_portable_attention(&p.d, &p.a, 0));
  CHECK(cudaDeviceSynchronize());
  const auto expected = doubles(p.out.get());
  const std::string what = c.name();
  std::vector<double> r, g, e;
  for (int sample = 0; sample < 48; ++sample) {
    const uint32_t s = rng() % c.sequences.size(), n = c.sequences[s].queries, head = rng() % c.heads;
    const uint32_t query = sample % 4 == 0 ? n - 1 : sample % 4 == 1 ? 0 : rng() % n;
    const auto one = p.reference(s, query, head);
    const size_t at = (static_cast<size_t>(p.starts[s] + query) * c.heads + head) * kD;
    r.insert(r.end(), one.begin(), one.end());
    g.insert(g.end(), got.begin() + at, got.begin() + at + kD);
    e.insert(e.end(), expected.begin() + at, expected.begin() + at + kD);
  }
  const double against_portable = relative_error(expected, got), own = relative_error(r, g), theirs = relative_error(r, e);
  const bool ok = against_portable <= 8e-3 && own <= 6e-3 && theirs <= 6e-3;
  if (!ok) failed() = true;
  std::printf("%s %s: vs portable %.2e (8e-3), vs float64 %.2e (6e-3), portable vs float64 %.2e (6e-3)\n", ok ? "ok  " : "FAIL", what.c_str(), against_portable, own, theirs);
}

void check_all(uint32_t seed) {
  for (uint32_t n : {1u, 2u, 3u, 5u, 17u, 64u, 127u, 128u, 129u, 300u, 1000u})
    for (uint32_t window : {0u, 128u}) check({64, 8, window, true, false, 6, {{n, n}}}, seed + n);
  const std::vector<Sequence> mixed = {{5, 70}, {64, 64}, {1, 300}, {300, 1000}, {129, 129}, {1, 1}, {17, 2000}, {2, 65}, {1, 64}, {24, 193}};
  for (bool fp8 : {false, true})
    for (uint32_t window : {0u, 32u, 128u}) {
      check({64, 8, window, true, fp8, 6, mixed}, seed + 1);
      check({4, 2, window, true, fp8, 6, mixed}, seed + 2);
      check({6, 2, window, false, fp8, 30, mixed}, seed + 3);
    }
  check({64, 8, 0, true, false, 60, {{700, 700}}}, seed + 4);
  check({32, 1, 0, true, false, 6, mixed}, seed + 5);
  check({64, 8, 0, true, true, 6, {{1000, 1000}}}, seed + 6);
  check({64, 8, 128, true, true, 6, {{1000, 3000}}}, seed + 7);
  std::vector<Sequence> many;
  for (uint32_t i = 0; i < 700; ++i) many.push_back({1 + i % 3, 3 + i % 90});
  check({4, 2, 0, true, false, 6, many}, seed + 8);
  // Scores far apart: references move again and again, also in steps without a mask.
  for (bool fp8 : {false, true})
    for (bool sinks : {false, true}) check({64, 8, 0, sinks, fp8, 400, {{300, 3000}, {1000, 1000}, {5, 700}}}, seed + 9);
  // Refusals.
  Problem p({64, 8, 0, true, false, 6, {{5, 5}}}, seed);
  GossamerAttentionDesc d = p.d;
  d.head_dim = 128;
  expect("head_dim 128 is refused", gossamer_prefill_attention(&d, &p.a, p.workspace.p, p.workspace.n, 0) == GOSSAMER_BAD_SHAPE);
  expect("a small workspace is refused", gossamer_prefill_attention(&p.d, &p.a, p.workspace.p, 8, 0) == GOSSAMER_BAD_SHAPE);
}

// 120b: 64 query heads, 8 KV heads. One sequence whose `queries` tokens are the last of `kv_len`.
double time_one(uint32_t queries, uint32_t kv_len, uint32_t window, bool fp8, bool portable = false) {
  const uint32_t blocks = (kv_len + kBlock - 1) / kBlock, stride = 80 * kD;
  Device<uint8_t> cache(static_cast<size_t>(blocks) * 16 * kBlock * kD * (fp8 ? 1 : 2)), workspace(GOSSAMER_PREFILL_WORKSPACE);
  Device<bf16> q(static_cast<size_t>(queries) * stride), out(static_cast<size_t>(queries) * 64 * kD), sinks(64);
  fill_bf16(q.p, q.n, 6, 1);
  fill_bf16(sinks.p, 64, 3, 2);
  if (fp8) fill_random(cache.p, cache.n, 3), tame_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(cache.p), cache.n / 4);
  else fill_bf16(cache.p, cache.n / 2, 1, 3);
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::mt19937 rng(7);
  std::shuffle(table.begin(), table.end(), rng);
  Device<uint32_t> starts(std::vector<uint32_t>{0, queries}), lens(std::vector<uint32_t>{kv_len}), first(std::vector<uint32_t>{0}), tables(table);
  const GossamerAttentionDesc d = {64, 8, kD, kBlock, window, 1, GOSSAMER_BF16, static_cast<uint32_t>(fp8 ? GOSSAMER_F8E4M3 : GOSSAMER_BF16), 0.125f};
  const auto address = [](const auto& x) { return reinterpret_cast<uint64_t>(x.p); };
  const GossamerAttentionArgs a = {address(q), stride, 1, address(starts), address(lens), address(tables), blocks, queries, kv_len, queries, address(first), address(sinks),
                                   address(cache), 0, address(out)};
  const double us = graph_time(
      [&](cudaStream_t s) {
        if (portable) REQUIRE_OK(gossamer_portable_attention(&d, &a, s));
        else REQUIRE_OK(gossamer_prefill_attention(&d, &a, workspace.p, workspace.n, s));
      },
      portable ? 3 : 15);
  double pairs = 0;  // (query, key) pairs in sight
  for (uint32_t i = 0; i < queries; ++i) pairs += window ? std::min(window, kv_len - queries + i + 1) : kv_len - queries + i + 1;
  const double tflops = 4.0 * kD * 64 * pairs / us / 1e6;
  std::printf("time %-8s queries %5u kv %5u window %3u %s: %8.1f us, %6.1f TFLOP/s\n", portable ? "portable" : "prefill", queries, kv_len, window,
              fp8 ? "fp8 " : "bf16", us, tflops);
  if (const char* path = std::getenv("GOSSAMER_RESULTS"))
    if (FILE* f = std::fopen(path, "a")) {
      std::fprintf(f, "{\"op\":\"attention\",\"kernel\":\"%s\",\"queries\":%u,\"kv_len\":%u,\"window\":%u,\"kv\":\"%s\",\"us\":%.2f,\"tflops\":%.1f}\n",
                   portable ? "portable" : "prefill", queries, kv_len, window, fp8 ? "e4m3" : "bf16", us, tflops);
      std::fclose(f);
    }
  return us;
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  REQUIRE_OK(gossamer_prepare());
  REQUIRE_OK(gossamer_prefill_attention_prepare());
  std::random_device device;
  const uint32_t seed = device();
  std::printf("seed %u\n", seed);
  if (mode == "check" || mode == "all") check_all(seed);
  if (mode == "time" || mode == "all") {
    for (uint32_t n : {512u, 1024u, 2048u, 4096u, 8192u})
      for (uint32_t window : {0u, 128u})
        for (bool fp8 : {false, true}) time_one(n, n, window, fp8);
    time_one(2048, 16384, 0, false);
    time_one(8192, 32000, 0, false);
    time_one(512, 8192, 0, false);
    time_one(2048, 2048, 0, false, true);
    time_one(4096, 4096, 0, false, true);
  }
  std::printf(failed() ? "FAILED\n" : "all checks passed\n");
  return failed();
}
