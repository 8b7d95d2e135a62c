// archs: 90a
// Sampling from whole rows, greedy and at temperature 1: `sample_harness check` compares the tokens drawn with those of a kernel that
// passes over none, `sample_harness time` prints microseconds a launch, and without a word it does both. It needs portable/sample.cu
// alone, so that two versions of that file can be linked with it and timed in turns.
//
//   rows: of logits; spread: their standard deviation; warm: launches one after the other; cold: each after a kernel with more code than
//   instruction caches hold, whose own time is taken off, as in a step, where 180 others lie between two draws.
#include <cstring>

#include "gossamer/launch.cuh"
#include "gossamer/portable.h"
#include "gossamer/ptx/sm90.cuh"
#include "harness.h"

using namespace harness;

namespace {

constexpr uint32_t kVocab = 201088;

// --- what has to be drawn -------------------------------------------------------------------------------------------------

__device__ uint4 philox(uint64_t seed, uint32_t group, uint32_t position, uint32_t choice) {
  uint32_t c[4] = {group, position, choice, 0}, k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = 0xD2511F53ull * c[0], second = 0xCD9E8D57ull * c[2];
    c[0] = static_cast<uint32_t>(second >> 32) ^ c[1] ^ k[0], c[1] = static_cast<uint32_t>(second);
    c[2] = static_cast<uint32_t>(first >> 32) ^ c[3] ^ k[1], c[3] = static_cast<uint32_t>(first);
    k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
  }
  return make_uint4(c[0], c[1], c[2], c[3]);
}
// A token's score in the arithmetic of the kernel: the last product and the sum are one operation there too.
__device__ float score_of(float logit, const GossamerSampleRow& r, uint32_t token) {
  const float v = r.temperature > 0 ? logit * (1.f / r.temperature) : logit;
  if (!(v > -INFINITY)) return -INFINITY;
  if (r.temperature == 0) return v;
  const uint4 words = philox(r.seed, token / 4, r.position, r.choice);
  const uint32_t word = token % 4 == 0 ? words.x : token % 4 == 1 ? words.y : token % 4 == 2 ? words.z : words.w, n = word >> 8, rest = 0xFFFFFFu - n;
  const float inner = n < rest ? logf((static_cast<float>(n) + .5f) * 0x1p-24f) : log1pf((static_cast<float>(rest) + .5f) * -0x1p-24f);
  return v + -__logf(-inner);
}
__device__ unsigned long long ranked(float score, uint32_t token) {
  const uint32_t bits = __float_as_uint(score + 0.f);
  return static_cast<unsigned long long>(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | ~token;
}
// A block a row. `differ` counts rows whose token is another, `wrong` those of them whose token has a lower score.
__global__ void compare(const float* logits, const GossamerSampleRow* rows, const GossamerLogitEdit* edits, const uint32_t* tokens, uint32_t* differ, uint32_t* wrong) {
  __shared__ unsigned long long best;
  const GossamerSampleRow r = rows[blockIdx.x];
  const float* const x = logits + static_cast<size_t>(blockIdx.x) * kVocab;
  const auto logit = [&](uint32_t i) {
    float v = x[i];
    for (uint32_t e = r.first_edit; e < r.first_edit + r.edits; ++e)
      if (edits[e].token == i) v = __fadd_rn(v, edits[e].add);
    return v;
  };
  if (threadIdx.x == 0) best = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (uint32_t i = threadIdx.x; i < kVocab; i += blockDim.x) own = max(own, ranked(score_of(logit(i), r, i), i));
  atomicMax(&best, own);
  __syncthreads();
  if (threadIdx.x) return;
  const uint32_t drawn = tokens[blockIdx.x], wanted = ~static_cast<uint32_t>(best);
  if (drawn == wanted) return;
  atomicAdd(differ, 1);
  if (drawn >= kVocab || ranked(score_of(logit(drawn), r, drawn), 0) >> 32 != best >> 32) atomicAdd(wrong, 1);
}

// --- problems -------------------------------------------------------------------------------------------------------------

enum Kind { kNormal, kEqual, kHalfForbidden, kEdited };
const char* const kKindNames[] = {"normal", "equal", "half minus infinity", "edited"};

__global__ void fill_logits(float* p, size_t n, Kind kind, float spread, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const uint64_t bits = random_bits(i, seed);
    p[i] = kind == kEqual ? spread : kind == kHalfForbidden && bits % 3 ? -INFINITY : spread * normal_of(bits);
  }
}

// Rows of logits, and ways to draw from them: `draws` times as many, each with its own seed.
struct Problem {
  uint32_t count;
  Device<float> logits, logprobs, top_logprobs;
  Device<uint32_t> tokens, top_ids;
  Device<GossamerSampleRow> rows;
  Device<GossamerLogitEdit> edits;
  Device<uint8_t> workspace;

  Problem(uint32_t count, uint32_t draws, Kind kind, float spread, float temperature)
      : count(count), logits(static_cast<size_t>(count) * kVocab), logprobs(count), top_logprobs(count), tokens(count), top_ids(count), rows(count * draws), edits(3 * count * draws),
        workspace(gossamer_portable_sample_workspace(count)) {
    fill_logits<<<1024, 256>>>(logits.p, logits.n, kind, spread, count);
    CHECK(cudaMemset(workspace.p, 0, workspace.n));
    std::mt19937_64 rng(count * 1000 + static_cast<uint32_t>(10 * spread));
    std::vector<GossamerSampleRow> all(count * draws);
    std::vector<GossamerLogitEdit> changes(edits.n);
    for (uint32_t i = 0; i < all.size(); ++i) {
      all[i] = {rng(), static_cast<uint32_t>(rng() % 100000), static_cast<uint32_t>(rng() % 3), temperature, 1.f, 0.f, 0, 3 * i, kind == kEdited ? 3u : 0u, ~0u, 0, 0, 0, 1.f, 0.f};
      for (uint32_t e = 0; e < 3; ++e) changes[3 * i + e] = {static_cast<uint32_t>(e * (kVocab / 3) + rng() % (kVocab / 3)), 1.f, e ? 5 * spread : -INFINITY, 0.f};
    }
    rows.put(all);
    edits.put(changes);
  }
  void sample(uint32_t draw, cudaStream_t stream) {
    const GossamerSampleDesc d = {kVocab, 0, GOSSAMER_F32, 1};
    const GossamerSampleArgs a = {address(logits.p), address(rows.p + draw * count), address(edits.p), 0, address(tokens.p), address(logprobs.p), address(top_ids.p), address(top_logprobs.p), count};
    REQUIRE_OK(gossamer_portable_sample(&d, &a, workspace.p, stream));
  }
};

void check() {
  constexpr uint32_t kDraws = 40;
  const struct { Kind kind; float spread, temperature; } cases[] = {{kNormal, 1, 0},  {kNormal, 1, 1},   {kNormal, 3, 1},  {kNormal, 6, 1},        {kNormal, 6, .7f},
                                                                    {kNormal, 30, 1}, {kNormal, .1f, 1}, {kEqual, .5f, 1}, {kHalfForbidden, 3, 1}, {kEdited, 3, 1}};
  Device<uint32_t> counts(2);
  uint64_t all_tokens = 14695981039346656037ull;
  for (const auto& c : cases) {
    uint32_t drawn = 0;
    CHECK(cudaMemset(counts.p, 0, 8));
    for (uint32_t count : {1u, 2u, 4u, 5u, 16u, 64u, 300u}) {
      Problem problem(count, kDraws, c.kind, c.spread, c.temperature);
      Device<float> unedited(c.kind == kEdited ? problem.logits.n : 0);
      CHECK(cudaMemcpy(unedited.p, problem.logits.p, unedited.n * 4, cudaMemcpyDeviceToDevice));
      for (uint32_t i = 0; i < (count > 64 ? 4 : kDraws); ++i) {
        problem.tokens.poison();
        problem.sample(i, 0);
        if (c.kind == kEdited) CHECK(cudaMemcpy(problem.logits.p, unedited.p, unedited.n * 4, cudaMemcpyDeviceToDevice));
        compare<<<count, 1024>>>(problem.logits.p, problem.rows.p + i * count, problem.edits.p, problem.tokens.p, counts.p, counts.p + 1);
        for (uint32_t token : problem.tokens.get()) all_tokens = (all_tokens ^ token) * 1099511628211ull;
        drawn += count;
      }
      const std::vector<uint8_t> after = problem.workspace.get();
      if (!std::all_of(after.begin(), after.begin() + 4096, [](uint8_t b) { return b == 0; })) expect("the workspace is zero after a launch", false);
    }
    const std::vector<uint32_t> found = counts.get();
    char what[160];
    std::snprintf(what, sizeof what, "%s, spread %g, temperature %g: %u tokens, %u others of equal score, %u wrong", kKindNames[c.kind], c.spread, c.temperature, drawn, found[0] - found[1], found[1]);
    expect(what, found[1] == 0);
  }
  std::printf("all tokens: %016llx\n", static_cast<unsigned long long>(all_tokens));
}

// --- time -----------------------------------------------------------------------------------------------------------------

#define FOUR(x) x x x x
// 192 KiB of instructions, 16 bytes each.
__global__ void crowd(float* out) {
  gossamer::ptx::launch_dependents();
  gossamer::ptx::dependency_wait();
  float v = threadIdx.x;
  asm volatile(FOUR(FOUR(FOUR(FOUR(FOUR(FOUR("fma.rn.f32 %0, %0, %0, %0;\n fma.rn.f32 %0, %0, %0, %0;\n fma.rn.f32 %0, %0, %0, %0;\n")))))) : "+f"(v));
  if (v == 1.f) *out = v;
}
#undef FOUR

void time() {
  constexpr int kLaunches = 20;
  Device<float> nowhere(1);
  const auto launches = [&](Problem* problem, bool cold) {
    return graph_time([&](cudaStream_t stream) {
             for (int i = 0; i < kLaunches; ++i) {
               if (cold) REQUIRE_OK(gossamer::launch_early(crowd, 2 * 132, 32, stream, nowhere.p));
               if (problem) problem->sample(i, stream);
             }
           }) / kLaunches;
  };
  const double alone = launches(nullptr, true);
  std::printf("microseconds a launch (the kernel between cold ones takes %.2f)\n%6s %12s %8s %8s %8s\n", alone, "rows", "temperature", "spread", "warm", "cold");
  for (uint32_t count : {1u, 2u, 4u, 8u, 16u, 64u, 256u})
    for (float temperature : {0.f, 1.f})
      for (float spread : {1.f, 3.f, 6.f}) {
        if (temperature == 0 && spread != 3.f) continue;
        Problem problem(count, kLaunches, kNormal, spread, temperature);
        std::printf("%6u %12g %8g %8.2f %8.2f\n", count, temperature, spread, launches(&problem, false), launches(&problem, true) - alone);
        std::fflush(stdout);
      }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what != "" && what != "check" && what != "time") {
    std::printf("usage: sample_harness [check|time]\n");
    return 2;
  }
  if (what != "time") check();
  if (what != "check") time();
  return failed();
}
