// archs: 90a
// Checks and times decode attention with RoPE + KV write. `attention_harness check [small]`, `attention_harness time`.
// Oracle: float64 on the host over the same cache contents; the cache is full of NaN wherever no key was written.
#include <cstring>
#include <numeric>

#include "gossamer/ops.h"
#include "harness.h"
#include <cuda_fp8.h>

using namespace harness;
using bf16 = __nv_bfloat16;

namespace {

constexpr int kDim = 64, kPage = 64;

float e4m3(uint8_t code) {
  __nv_fp8_e4m3 v;
  v.__x = code;
  return static_cast<float>(v);
}

void check(const std::vector<int>& lengths, int kv_heads, int window, bool fp8, bool sinks, std::mt19937& rng) {
  const int tokens = static_cast<int>(lengths.size()), heads = 8 * kv_heads;
  const int max_blocks = *std::max_element(lengths.begin(), lengths.end()) / kPage + 2;
  std::normal_distribution<float> normal(0.f, 1.f);
  // Pages of all sequences, shuffled.
  int pages = 0;
  for (int l : lengths) pages += (l + kPage - 1) / kPage;
  std::vector<int> order(pages + 3);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<int> table(static_cast<size_t>(tokens) * max_blocks, -1);
  for (int i = 0, next = 0; i < tokens; ++i)
    for (int b = 0; b * kPage < lengths[i]; ++b) table[static_cast<size_t>(i) * max_blocks + b] = order[next++];
  const size_t run = kPage * kDim, elements = static_cast<size_t>(pages + 3) * 2 * kv_heads * run;
  std::vector<uint16_t> bits(fp8 ? 0 : elements, 0xFFFF);
  std::vector<uint8_t> codes(fp8 ? elements : 0, 0xFF);  // NaN in both
  std::vector<float> scales(2 * kv_heads);
  for (auto& s : scales) s = 0.01f + 0.02f * std::uniform_real_distribution<float>()(rng);
  auto at = [&](int i, int pos, int v, int h, int d) {
    return ((static_cast<size_t>(table[static_cast<size_t>(i) * max_blocks + pos / kPage]) * 2 + v) * kv_heads + h) * run + pos % kPage * kDim + d;
  };
  auto put = [&](size_t where, float x, float scale) {
    if (fp8) codes[where] = __nv_fp8_e4m3(x / scale).__x;
    else {
      const bf16 b = __float2bfloat16(x);
      std::memcpy(&bits[where], &b, 2);
    }
  };
  for (int i = 0; i < tokens; ++i)
    for (int pos = 0; pos + 1 < lengths[i]; ++pos)  // the last key comes from rope_kv
      for (int v = 0; v < 2; ++v)
        for (int h = 0; h < kv_heads; ++h)
          for (int d = 0; d < kDim; ++d) put(at(i, pos, v, h, d), normal(rng), scales[v * kv_heads + h]);
  const int width = (heads + 2 * kv_heads) * kDim;
  std::vector<bf16> qkv(static_cast<size_t>(tokens) * width), sink(heads);
  for (auto& e : qkv) e = __float2bfloat16(normal(rng) * 2.f);
  for (auto& e : sink) e = __float2bfloat16(normal(rng) * 2.f);
  std::vector<float> inv(32);
  for (int i = 0; i < 32; ++i) inv[i] = static_cast<float>(std::pow(150000.0, -i / 32.0));
  std::vector<int> positions(tokens);
  for (int i = 0; i < tokens; ++i) positions[i] = std::max(0, lengths[i] - 1);
  const float scaling = 1.3465735902799727f;

  Device<uint16_t> d_bits(bits);
  Device<uint8_t> d_codes(codes);
  void* cache = fp8 ? static_cast<void*>(d_codes.p) : d_bits.p;
  std::vector<uint64_t> slots(tokens);
  for (int i = 0; i < tokens; ++i) {
    const int page = table[static_cast<size_t>(i) * max_blocks + positions[i] / kPage];
    slots[i] = static_cast<uint64_t>(page < 0 ? order[pages] : page) * kPage + positions[i] % kPage;  // rows of length 0 get a spare page
  }
  Device<uint64_t> d_slots(slots);
  Device<int> d_table(table), d_positions(positions), d_lengths(lengths);
  Device<float> d_inv(inv), d_scales(scales);
  Device<bf16> d_qkv(qkv), d_sink(sink), out(static_cast<size_t>(tokens) * heads * kDim);
  GossamerRopeKvArgs ra = {d_qkv.p, d_positions.p, d_slots.p, d_inv.p, cache, d_scales.p, scaling, tokens, kv_heads, fp8, 8};
  REQUIRE_OK(gossamer_rope_kv(&ra, 0));
  CHECK(cudaDeviceSynchronize());
  const auto rotated = d_qkv.get();
  if (fp8) codes = d_codes.get();
  else bits = d_bits.get();
  auto get = [&](size_t where, float scale) {
    if (fp8) return static_cast<double>(e4m3(codes[where])) * scale;
    bf16 b;
    std::memcpy(static_cast<void*>(&b), &bits[where], 2);
    return static_cast<double>(__bfloat162float(b));
  };
  char name[160];
  std::snprintf(name, sizeof name, "%s, %d rows to %d keys, %d KV heads, window %d%s", fp8 ? "E4M3" : "bf16", tokens, *std::max_element(lengths.begin(), lengths.end()), kv_heads, window,
                sinks ? ", sinks" : "");
  // RoPE and the written keys against float64 (angles in float, as the model defines them).
  std::vector<double> rope_ref, rope_got, kv_ref, kv_got;
  for (int i = 0; i < tokens; ++i) {
    if (lengths[i] == 0) continue;
    for (int h = 0; h < heads + 2 * kv_heads; ++h)
      for (int d = 0; d < 32; ++d) {
        const size_t w = static_cast<size_t>(i) * width + h * kDim + d;
        const double a = __bfloat162float(qkv[w]), b = __bfloat162float(qkv[w + 32]), angle = positions[i] * inv[d];
        double x = a, y = b;
        if (h < heads + kv_heads) {
          x = (a * std::cos(angle) - b * std::sin(angle)) * scaling;
          y = (b * std::cos(angle) + a * std::sin(angle)) * scaling;
        }
        if (h < heads) {
          rope_ref.push_back(x), rope_ref.push_back(y);
          rope_got.push_back(__bfloat162float(rotated[w])), rope_got.push_back(__bfloat162float(rotated[w + 32]));
        } else {
          const int v = h >= heads + kv_heads, kh = (h - heads) % kv_heads;
          const float s = scales[v * kv_heads + kh];
          if (fp8) x = std::clamp<double>(x, -448.0 * s, 448.0 * s), y = std::clamp<double>(y, -448.0 * s, 448.0 * s);
          kv_ref.push_back(x), kv_ref.push_back(y);
          kv_got.push_back(get(at(i, positions[i], v, kh, d), s)), kv_got.push_back(get(at(i, positions[i], v, kh, d + 32), s));
        }
      }
  }
  expect_below(std::string("rope q, ") + name, relative_error(rope_ref, rope_got), 3e-3);
  expect_below(std::string("rope k and v write, ") + name, relative_error(kv_ref, kv_got), fp8 ? 4e-2 : 3e-3);

  std::vector<double> ref(static_cast<size_t>(tokens) * heads * kDim, 0.0);
  for (int i = 0; i < tokens; ++i)
    for (int h = 0; h < heads; ++h) {
      const int kh = h / 8, first = window ? std::max(0, lengths[i] - window) : 0;
      if (lengths[i] == 0) continue;
      std::vector<double> s(lengths[i] - first);
      double most = sinks ? static_cast<double>(__bfloat162float(sink[h])) : -1e300;
      for (int pos = first; pos < lengths[i]; ++pos) {
        double dot = 0;
        for (int d = 0; d < kDim; ++d) dot += static_cast<double>(__bfloat162float(rotated[static_cast<size_t>(i) * width + h * kDim + d])) * get(at(i, pos, 0, kh, d), scales[kh]);
        most = std::max(most, s[pos - first] = dot * 0.125);
      }
      double sum = sinks ? std::exp(__bfloat162float(sink[h]) - most) : 0;
      for (auto& v : s) sum += v = std::exp(v - most);
      for (int pos = first; pos < lengths[i]; ++pos)
        for (int d = 0; d < kDim; ++d) ref[(static_cast<size_t>(i) * heads + h) * kDim + d] += s[pos - first] / sum * get(at(i, pos, 1, kh, d), scales[kv_heads + kh]);
    }
  const size_t ws_bytes = std::max(gossamer_decode_attention_workspace(tokens, kv_heads, 64), gossamer_decode_attention_workspace(tokens, kv_heads, 0));
  Device<uint8_t> ws(ws_bytes);
  ws.poison();
  CHECK(cudaMemset(ws.p, 0, 4096));
  for (int splits : {0, 1, 3, 64}) {
    GossamerDecodeAttentionArgs a = {};
    a.q = d_qkv.p, a.kv = cache, a.block_tables = d_table.p, a.lengths = d_lengths.p, a.sinks = sinks ? d_sink.p : nullptr, a.kv_scales = fp8 ? d_scales.p : nullptr, a.out = out.p,
    a.workspace = ws.p, a.workspace_bytes = ws_bytes, a.scale = 0.125f, a.q_stride = width, a.tokens = tokens, a.kv_heads = kv_heads, a.max_blocks = max_blocks, a.window = window,
    a.fp8 = fp8, a.splits = splits, a.max_kv = *std::max_element(lengths.begin(), lengths.end());
    out.poison();
    REQUIRE_OK(gossamer_decode_attention(&a, 0));
    const auto first = out.get();
    out.poison();
    REQUIRE_OK(gossamer_decode_attention(&a, 0));
    const auto again = out.get();
    expect_below(std::string("attention, splits ") + std::to_string(splits) + ", " + name, relative_error(ref, doubles(first)), 5e-3);
    if (std::memcmp(first.data(), again.data(), first.size() * 2)) expect(std::string(name) + ": second run bitwise the same", false);
  }
}

// Clears one exponent bit of each E4M3 code, so that none is NaN.
__global__ void no_nan(uint32_t* p, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) p[i] &= 0xBFBFBFBFu;
}

void time_one(int tokens, int length, int window, bool fp8, int layers) {
  const int kv_heads = 8, heads = 64, width = 80 * kDim;
  const int used = (length + kPage - 1) / kPage;
  const size_t layer_bytes = static_cast<size_t>(tokens) * used * 2 * kv_heads * kPage * kDim * (fp8 ? 1 : 2);
  std::vector<uint8_t*> kv(layers);
  for (int l = 0; l < layers; ++l) {
    CHECK(cudaMalloc(&kv[l], layer_bytes));
    if (fp8) {
      fill_random(kv[l], layer_bytes, l);
      no_nan<<<1056, 256>>>(reinterpret_cast<uint32_t*>(kv[l]), layer_bytes / 4);
      CHECK(cudaGetLastError());
    } else {
      fill_bf16(kv[l], layer_bytes / 2, 1.f, l);
    }
  }
  std::vector<int> table(static_cast<size_t>(tokens) * used), lengths(tokens, length);
  std::iota(table.begin(), table.end(), 0);
  std::mt19937 rng(5);
  std::shuffle(table.begin(), table.end(), rng);
  Device<int> d_table(table), d_lengths(lengths);
  Device<float> scales(std::vector<float>(2 * kv_heads, 0.02f));
  Device<bf16> q(static_cast<size_t>(tokens) * width), sinks(heads), out(static_cast<size_t>(tokens) * heads * kDim);
  fill_bf16(q.p, q.n, 1.f, 3);
  fill_bf16(sinks.p, sinks.n, 1.f, 4);
  const size_t ws_bytes = gossamer_decode_attention_workspace(tokens, kv_heads, 0);
  Device<uint8_t> ws(ws_bytes);
  CHECK(cudaMemset(ws.p, 0, ws_bytes));
  const double us = graph_time([&](cudaStream_t st) {
    for (int l = 0; l < layers; ++l) {
      GossamerDecodeAttentionArgs a = {};
      a.q = q.p, a.kv = kv[l], a.block_tables = d_table.p, a.lengths = d_lengths.p, a.sinks = sinks.p, a.kv_scales = scales.p, a.out = out.p, a.workspace = ws.p,
      a.workspace_bytes = ws_bytes, a.scale = 0.125f, a.q_stride = width, a.tokens = tokens, a.kv_heads = kv_heads, a.max_blocks = used, a.window = window, a.fp8 = fp8, a.max_kv = length;
      REQUIRE_OK(gossamer_decode_attention(&a, st));
    }
  });
  char what[64];
  std::snprintf(what, sizeof what, "%s %d keys%s", fp8 ? "e4m3" : "bf16", length, window ? " window" : "");
  const int seen = window ? std::min(length, window) : length;
  record("attention", what, tokens, 0, us / layers, static_cast<double>(tokens) * seen * 2 * kv_heads * kDim * (fp8 ? 1 : 2));
  for (auto p : kv) cudaFree(p);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  std::mt19937 rng(argc > 3 ? std::atoi(argv[3]) : std::random_device{}());
  if (mode == "check") {
    const bool small = argc > 2 && std::string(argv[2]) == "small";
    for (bool fp8 : {false, true}) {
      check({1, 2, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 130}, 2, 0, fp8, true, rng);
      check({1, 64, 127, 128, 129, 200, 333}, 2, 128, fp8, true, rng);
      check({5, 90}, 1, 0, fp8, false, rng);
      if (small) continue;
      check({3000, 1, 777, 0, 1025}, 8, 0, fp8, true, rng);
      check({3000, 1, 777, 1025}, 8, 128, fp8, true, rng);
      check({9001}, 8, 0, fp8, true, rng);
    }
    std::printf(failed() ? "attention: FAILED\n" : "attention: all checks passed\n");
    return failed();
  }
  for (bool fp8 : {false, true}) {
    for (int tokens : {1, 4, 8, 64}) time_one(tokens, 1024, 0, fp8, 18);
    time_one(1, 8192, 0, fp8, 18);
    time_one(1, 32768, 0, fp8, 18);
    time_one(1, 131072, 0, fp8, 8);
    time_one(4, 32768, 0, fp8, 8);
    time_one(8, 8192, 0, fp8, 18);
    time_one(64, 8192, 0, fp8, 8);
    for (int tokens : {1, 8, 64}) time_one(tokens, 4096, 128, fp8, 18);
  }
  return 0;
}
