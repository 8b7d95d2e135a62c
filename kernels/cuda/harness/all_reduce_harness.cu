// archs: 90a
// Checks and times sums over ranks.
//
//     all_reduce_harness check      every rank a stream of this device: sums, fused forms, bits, replays
//     all_reduce_harness two        the same with two ranks on two devices that reach each other's memory, and times
//     all_reduce_harness time       times of two ranks on this device
#include "gossamer/ops.h"
#include "gossamer/portable.h"
#include <cstring>

#include "harness.h"

using harness::address;
using harness::expect;
using harness::expect_below;

namespace {

constexpr uint32_t kHidden = 2880;
constexpr float kEps = 1e-5f;
using bf16 = __nv_bfloat16;

struct Rank {
  int device = 0;
  cudaStream_t stream = nullptr;
  bf16 *x = nullptr, *residual = nullptr, *out = nullptr, *weight = nullptr;
  uint8_t* region = nullptr;
};

// A group of ranks with buffers for up to `most` tokens.
struct Group {
  std::vector<Rank> ranks;
  uint32_t most;
  size_t region_bytes;

  Group(uint32_t count, uint32_t most, bool two_devices) : ranks(count), most(most) {
    const size_t row = kHidden * sizeof(bf16), once = static_cast<size_t>(count) * std::min(most, 64u);
    region_bytes = GOSSAMER_REGION_HEADER + 2 * ((std::max<size_t>(once, 2 * (most + count)) * row + 255) / 256 * 256);
    for (uint32_t r = 0; r < count; ++r) {
      Rank& rank = ranks[r];
      rank.device = two_devices ? static_cast<int>(r) : 0;
      CHECK(cudaSetDevice(rank.device));
      for (uint32_t other = 0; two_devices && other < count; ++other)
        if (other != r) {
          const cudaError_t reached = cudaDeviceEnablePeerAccess(static_cast<int>(other), 0);
          if (reached == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
          else CHECK(reached);
        }
      CHECK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
      for (bf16** p : {&rank.x, &rank.residual, &rank.out}) CHECK(cudaMalloc(p, most * row));
      CHECK(cudaMalloc(&rank.weight, row));
      CHECK(cudaMalloc(&rank.region, region_bytes));
      CHECK(cudaMemset(rank.region, 0xFF, region_bytes));  // data may hold anything
      CHECK(cudaMemset(rank.region, 0, GOSSAMER_REGION_HEADER));
      CHECK(cudaDeviceSynchronize());
    }
  }

  void enqueue(uint32_t r, uint32_t tokens, bool norm, cudaStream_t stream) {
    const Rank& rank = ranks[r];
    CHECK(cudaSetDevice(rank.device));
    const GossamerAllReduceDesc desc = {static_cast<uint32_t>(ranks.size()), kHidden, GOSSAMER_BF16};
    GossamerAllReduceArgs args = {};
    args.x = address(rank.x), args.region_bytes = region_bytes, args.rank = r, args.tokens = tokens;
    for (size_t i = 0; i < ranks.size(); ++i) args.regions[i] = address(ranks[i].region);
    if (!norm) {
      REQUIRE_OK(gossamer_all_reduce(&desc, &args, stream));
      return;
    }
    const GossamerAllReduceNormDesc fused = {desc, kEps};
    const GossamerAllReduceNormArgs all = {args, address(rank.residual), address(rank.weight), address(rank.out)};
    REQUIRE_OK(gossamer_all_reduce_norm(&fused, &all, stream));
  }

  void wait() {
    for (Rank& rank : ranks) {
      CHECK(cudaSetDevice(rank.device));
      CHECK(cudaStreamSynchronize(rank.stream));
    }
  }

  void fill(uint32_t seed, const std::vector<bf16>& residual, const std::vector<bf16>& weight) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      Rank& rank = ranks[r];
      CHECK(cudaSetDevice(rank.device));
      harness::fill_bf16(rank.x, static_cast<size_t>(most) * kHidden, 2.f, seed + static_cast<uint32_t>(r));
      CHECK(cudaMemcpy(rank.residual, residual.data(), residual.size() * sizeof(bf16), cudaMemcpyHostToDevice));
      CHECK(cudaMemcpy(rank.weight, weight.data(), weight.size() * sizeof(bf16), cudaMemcpyHostToDevice));
      CHECK(cudaMemset(rank.out, 0xFF, static_cast<size_t>(most) * kHidden * sizeof(bf16)));
      CHECK(cudaDeviceSynchronize());
    }
  }

  std::vector<bf16> get(const Rank& rank, const bf16* from, size_t count) {
    CHECK(cudaSetDevice(rank.device));
    std::vector<bf16> host(count);
    CHECK(cudaMemcpy(host.data(), from, count * sizeof(bf16), cudaMemcpyDeviceToHost));
    return host;
  }
};

std::vector<bf16> random_rows(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> rows(count);
  for (bf16& v : rows) v = __float2bfloat16(normal(random));
  return rows;
}

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) { return std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0; }

struct Seen {
  double sum = 0, added = 0, normed = 0;
  bool bits = true, fused = true;
};

// One launch of each form over the same rows, against double. `seen` keeps the worst.
void check_once(Group& group, uint32_t tokens, uint32_t seed, Seen& seen) {
  const size_t count = static_cast<size_t>(tokens) * kHidden;
  const auto residual = random_rows(count, seed), weight = random_rows(kHidden, seed + 1);
  std::vector<bf16> sums, rows[2], first;
  std::vector<double> exact(count);
  group.fill(seed, residual, weight);
  for (const Rank& rank : group.ranks) {
    const auto x = group.get(rank, rank.x, count);
    for (size_t i = 0; i < count; ++i) exact[i] += __bfloat162float(x[i]);
  }
  for (uint32_t r = 0; r < group.ranks.size(); ++r) group.enqueue(r, tokens, false, group.ranks[r].stream);
  group.wait();
  sums = group.get(group.ranks[0], group.ranks[0].x, count);
  for (const Rank& rank : group.ranks) seen.bits &= same_bits(sums, group.get(rank, rank.x, count));
  seen.sum = std::max(seen.sum, harness::relative_error(exact, harness::doubles(sums)));
  group.fill(seed, residual, weight);
  for (uint32_t r = 0; r < group.ranks.size(); ++r) group.enqueue(r, tokens, true, group.ranks[r].stream);
  group.wait();
  const Rank& zero = group.ranks[0];
  rows[0] = group.get(zero, zero.residual, count), rows[1] = group.get(zero, zero.out, count);
  for (const Rank& rank : group.ranks)
    seen.bits &= same_bits(rows[0], group.get(rank, rank.residual, count)) && same_bits(rows[1], group.get(rank, rank.out, count));
  // What the unfused operations make of the sum.
  std::vector<bf16> added(count);
  std::vector<double> normed(count), exact_added(count);
  for (size_t i = 0; i < count; ++i) {
    added[i] = __float2bfloat16(__bfloat162float(residual[i]) + __bfloat162float(sums[i]));
    exact_added[i] = exact[i] + __bfloat162float(residual[i]);
  }
  seen.fused &= same_bits(added, rows[0]);
  for (size_t row = 0; row < tokens; ++row) {
    double square = 0;
    for (size_t i = 0; i < kHidden; ++i) square += std::pow(static_cast<double>(__bfloat162float(added[row * kHidden + i])), 2);
    for (size_t i = 0; i < kHidden; ++i)
      normed[row * kHidden + i] = __bfloat162float(added[row * kHidden + i]) / std::sqrt(square / kHidden + kEps) * __bfloat162float(weight[i]);
  }
  seen.added = std::max(seen.added, harness::relative_error(exact_added, harness::doubles(rows[0])));
  seen.normed = std::max(seen.normed, harness::relative_error(normed, harness::doubles(rows[1])));
}

// Each rank's launches as a graph: `calls` of them, alternately of `tokens` and `others` tokens.
std::vector<cudaGraphExec_t> capture(Group& group, uint32_t tokens, uint32_t others, bool norm, int calls) {
  std::vector<cudaGraphExec_t> graphs(group.ranks.size());
  for (uint32_t r = 0; r < graphs.size(); ++r) {
    CHECK(cudaSetDevice(group.ranks[r].device));
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(group.ranks[r].stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) group.enqueue(r, i % 2 ? others : tokens, norm, group.ranks[r].stream);
    CHECK(cudaStreamEndCapture(group.ranks[r].stream, &graph));
    CHECK(cudaGraphInstantiate(&graphs[r], graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }
  return graphs;
}

void replay(Group& group, const std::vector<cudaGraphExec_t>& graphs) {
  for (size_t r = 0; r < graphs.size(); ++r) {
    CHECK(cudaSetDevice(group.ranks[r].device));
    CHECK(cudaGraphLaunch(graphs[r], group.ranks[r].stream));
  }
}

void release(const std::vector<cudaGraphExec_t>& graphs) {
  for (cudaGraphExec_t graph : graphs) CHECK(cudaGraphExecDestroy(graph));
}

void check(uint32_t ranks, bool two_devices) {
  const std::string name = std::to_string(ranks) + " ranks" + (two_devices ? " on two devices" : "");
  Group group(ranks, 1024, two_devices);
  Seen seen;
  uint32_t seed = 1;
  // Some blocks of every rank must be there at once. One device has room for 396 of the largest kernel: eight ranks of 63 blocks (500
  // tokens) hang, since the last rank gets none.
  const uint32_t large = ranks == 8 ? 304 : 1024;
  for (uint32_t tokens : {1u, 2u, 3u, 8u, 63u, 64u, 65u, 129u, 300u, large, 7u, large - 24, 1u}) check_once(group, tokens, seed += 17, seen);
  // bf16 sums: half a unit in the last place of each, relative to the whole.
  expect_below(name + ": sum", seen.sum, 2.5e-3);
  expect_below(name + ": sum and residual", seen.added, 3.5e-3);
  expect_below(name + ": norm of it", seen.normed, 2.5e-3);
  expect(name + ": every rank has the same bits", seen.bits);
  expect(name + ": fused = unfused, bit for bit", seen.fused);
  // Replays: the sum of a sum grows by the number of ranks each time. Powers of two stay exact.
  const size_t count = static_cast<size_t>(1024) * kHidden;
  std::vector<bf16> ones(count, __float2bfloat16(1.f));
  for (uint32_t tokens : {5u, large - 100}) {
    for (Rank& rank : group.ranks) {
      CHECK(cudaSetDevice(rank.device));
      CHECK(cudaMemcpy(rank.x, ones.data(), count * sizeof(bf16), cudaMemcpyHostToDevice));
      CHECK(cudaDeviceSynchronize());
    }
    const auto graphs = capture(group, tokens, tokens, false, 2);
    constexpr int kReplays = 10;
    for (int i = 0; i < kReplays; ++i) replay(group, graphs);
    group.wait();
    bool right = true;
    for (const Rank& rank : group.ranks) {
      const auto got = group.get(rank, rank.x, static_cast<size_t>(tokens) * kHidden);
      for (bf16 v : got) right &= __bfloat162float(v) == std::pow(static_cast<float>(ranks), 2.f * kReplays);
    }
    expect(name + ": " + std::to_string(2 * kReplays) + " sums in a replayed graph, " + std::to_string(tokens) + " tokens", right);
    release(graphs);
  }
  // One shot and two shots, few blocks and many, in turns.
  const auto mixed = capture(group, 3, large - 50, true, 6);
  for (int i = 0; i < 10; ++i) replay(group, mixed);
  group.wait();
  release(mixed);
  check_once(group, 77, seed, seen);
  expect(name + ": right after mixed replays", seen.bits && seen.fused);
}

void time(bool two_devices) {
  constexpr int kCalls = 40, kReplays = 12;
  Group group(2, 1024, two_devices);
  for (bool norm : {false, true})
    for (uint32_t tokens : {1u, 8u, 64u, 1024u}) {
      group.fill(3, random_rows(static_cast<size_t>(tokens) * kHidden, 5), random_rows(kHidden, 6));
      const auto graphs = capture(group, tokens, tokens, norm, kCalls);
      std::vector<float> times;
      CHECK(cudaSetDevice(group.ranks[0].device));
      cudaEvent_t a, b;
      CHECK(cudaEventCreate(&a));
      CHECK(cudaEventCreate(&b));
      for (int i = 0; i < kReplays; ++i) {
        CHECK(cudaSetDevice(group.ranks[0].device));
        CHECK(cudaEventRecord(a, group.ranks[0].stream));
        replay(group, graphs);
        CHECK(cudaSetDevice(group.ranks[0].device));
        CHECK(cudaEventRecord(b, group.ranks[0].stream));
        group.wait();
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (i > 1) times.push_back(ms * 1000 / kCalls);
      }
      std::sort(times.begin(), times.end());
      release(graphs);
      const std::string op = norm ? "all-reduce-norm" : "all-reduce";
      // What crosses the link in one direction.
      harness::record(op, two_devices ? "2 ranks on two devices" : "2 ranks on one device", static_cast<int>(tokens), -1, times[times.size() / 2],
                      static_cast<double>(tokens) * kHidden * sizeof(bf16));
    }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "check";
  // Streams that share a queue of the device would wait for each other.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  REQUIRE_OK(gossamer_prepare());
  if (what == "two") {
    int devices = 0, reach = 0;
    CHECK(cudaGetDeviceCount(&devices));
    if (devices < 2) {
      std::printf("FAIL two: expected two devices, got %d\n", devices);
      return 1;
    }
    CHECK(cudaDeviceCanAccessPeer(&reach, 0, 1));
    if (!reach) {
      std::printf("FAIL two: device 0 does not reach the memory of device 1\n");
      return 1;
    }
    check(2, true);
    time(true);
  } else if (what == "time") {
    time(false);
  } else {
    for (uint32_t ranks : {2u, 4u, 8u}) check(ranks, false);
  }
  return harness::failed() ? 1 : 0;
}
