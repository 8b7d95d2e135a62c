// archs: 90a
// Checks and times decode attention with RoPE + KV write. `attention_harness check [small]`, `attention_harness time [few|many|long]`.
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
// Of queries and probabilities rounded to E4M3 (a half step is a sixteenth): see LAYOUTS.md.
constexpr double kProductsBound = 0.1;

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
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  struct Way {
    int form, splits, max_kv;
  };
  std::vector<Way> ways = {{0, 0, longest}, {0, 0, 4 * longest}, {0, 0, 32 * longest}, {0, 0, 0}};
  for (int warps : {1, 2, 4, 8}) ways.push_back({GOSSAMER_DECODE_ROWS, warps, longest});
  for (int splits : {0, 1, 3, 64}) ways.push_back({GOSSAMER_DECODE_SPLIT, splits, longest});
  for (int splits : {0, 1, 2, 4, 8}) ways.push_back({GOSSAMER_DECODE_CLUSTER, splits, longest});
  for (int products = 0; products <= fp8; ++products)
    for (const Way& way : ways) {
      GossamerDecodeAttentionArgs a = {};
      a.q = d_qkv.p, a.kv = cache, a.block_tables = d_table.p, a.lengths = d_lengths.p, a.sinks = sinks ? d_sink.p : nullptr, a.kv_scales = fp8 ? d_scales.p : nullptr, a.out = out.p,
      a.workspace = ws.p, a.workspace_bytes = ws_bytes, a.scale = 0.125f, a.q_stride = width, a.tokens = tokens, a.kv_heads = kv_heads, a.max_blocks = max_blocks, a.window = window,
      a.fp8 = fp8, a.splits = way.splits, a.max_kv = way.max_kv, a.form = way.form, a.fp8_products = products;
      out.poison();
      REQUIRE_OK(gossamer_decode_attention(&a, 0));
      const auto first = out.get();
      out.poison();
      REQUIRE_OK(gossamer_decode_attention(&a, 0));
      const auto again = out.get();
      const std::string what = std::string(products ? "E4M3 products, " : "") + "attention, form " + std::to_string(way.form) + " splits " + std::to_string(way.splits) + ", " + name;
      expect_below(what, relative_error(ref, doubles(first)), products ? kProductsBound : 5e-3);
      if (std::memcmp(first.data(), again.data(), first.size() * 2)) expect(what + ": second run bitwise the same", false);
      // Right behind the kernel that writes the newest key.
      d_qkv.put(qkv);
      out.poison();
      REQUIRE_OK(gossamer_rope_kv(&ra, 0));
      REQUIRE_OK(gossamer_decode_attention(&a, 0));
      const auto chained = out.get();
      if (std::memcmp(first.data(), chained.data(), first.size() * 2)) expect(what + ": the same right behind the rotary write", false);
    }
  const auto counters = ws.get();
  if (!std::all_of(counters.begin(), counters.begin() + 4096, [](uint8_t v) { return v == 0; })) expect(std::string(name) + ": counters are zero again", false);
}

// Clears one exponent bit of each E4M3 code, so that none is NaN.
__global__ void no_nan(uint32_t* p, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) p[i] &= 0xBFBFBFBFu;
}

// Layers' caches with shuffled pages, and all else that a launch of attention reads.
struct Timed {
  static constexpr int kv_heads = 8, heads = 64, width = 80 * kDim;
  int tokens, layers, window, longest, max_blocks;
  bool fp8;
  double bytes = 0;
  size_t pages = 0;
  std::vector<uint8_t*> kv;
  Device<int> table, lengths;
  Device<float> scales;
  Device<bf16> q, sinks, out;
  Device<uint8_t> ws;
  size_t ws_bytes;

  static int blocks_of(int length) {
    int blocks = 1;
    while (blocks * kPage < length) blocks *= 2;
    return blocks;
  }
  // A token's pages from among all of them, in no order.
  static std::vector<int> shuffled(const std::vector<int>& lens, int max_blocks) {
    std::vector<int> ids, rows(lens.size() * max_blocks);
    for (int l : lens)
      for (int b = 0; b * kPage < l; ++b) ids.push_back(static_cast<int>(ids.size()));
    std::mt19937 rng(5);
    std::shuffle(ids.begin(), ids.end(), rng);
    for (size_t i = 0, used = 0; i < lens.size(); ++i)
      for (int b = 0; b * kPage < lens[i]; ++b) rows[i * max_blocks + b] = ids[used++];
    return rows;
  }

  Timed(const std::vector<int>& lens, int window_, bool fp8_, int layers_)
      : tokens(static_cast<int>(lens.size())), layers(layers_), window(window_), longest(*std::max_element(lens.begin(), lens.end())), max_blocks(blocks_of(longest)), fp8(fp8_),
        table(shuffled(lens, max_blocks)), lengths(lens), scales(std::vector<float>(2 * kv_heads, 0.02f)), q(lens.size() * width), sinks(heads), out(lens.size() * heads * kDim),
        ws(std::max(gossamer_decode_attention_workspace(tokens, kv_heads, 8), gossamer_decode_attention_workspace(tokens, kv_heads, 0))), ws_bytes(ws.n) {
    for (int l : lens) pages += (l + kPage - 1) / kPage, bytes += static_cast<double>(window ? std::min(l, window) : l) * 2 * kv_heads * kDim * (fp8 ? 1 : 2);
    const size_t layer_bytes = pages * 2 * kv_heads * kPage * kDim * (fp8 ? 1 : 2);
    for (int l = 0; l < layers; ++l) {
      kv.emplace_back();
      CHECK(cudaMalloc(&kv[l], layer_bytes));
      if (fp8) {
        fill_random(kv[l], layer_bytes, l);
        no_nan<<<1056, 256>>>(reinterpret_cast<uint32_t*>(kv[l]), layer_bytes / 4);
        CHECK(cudaGetLastError());
      } else {
        fill_bf16(kv[l], layer_bytes / 2, 1.f, l);
      }
    }
    fill_bf16(q.p, q.n, 1.f, 3);
    fill_bf16(sinks.p, sinks.n, 1.f, 4);
    CHECK(cudaMemset(ws.p, 0, ws_bytes));
  }
  ~Timed() {
    for (auto p : kv) cudaFree(p);
  }
  GossamerDecodeAttentionArgs args(int layer, int form, int splits, int products) const {
    GossamerDecodeAttentionArgs a = {};
    a.q = q.p, a.kv = kv[layer], a.block_tables = table.p, a.lengths = lengths.p, a.sinks = sinks.p, a.kv_scales = fp8 ? scales.p : nullptr, a.out = out.p, a.workspace = ws.p,
    a.workspace_bytes = ws_bytes, a.scale = 0.125f, a.q_stride = width, a.tokens = tokens, a.kv_heads = kv_heads, a.max_blocks = max_blocks, a.window = window, a.fp8 = fp8,
    a.max_kv = longest, a.form = form, a.splits = splits, a.fp8_products = products;
    return a;
  }
};

const char* const kForms[] = {"auto", "split", "cluster", "rows"};

void time_attention(const char* name, const std::vector<int>& lengths, int window, bool fp8, int layers, std::vector<std::pair<int, int>> ways) {
  Timed t(lengths, window, fp8, layers);
  for (int products = 0; products <= fp8; ++products)
    for (const auto& [form, splits] : ways) {
      const double us = graph_time([&, form = form, splits = splits](cudaStream_t st) {
        for (int l = 0; l < layers; ++l) {
          const auto a = t.args(l, form, splits, products);
          REQUIRE_OK(gossamer_decode_attention(&a, st));
        }
      });
      char what[96];
      std::snprintf(what, sizeof what, "%s %s%s %s%d", products ? "e4m3 products" : fp8 ? "e4m3" : "bf16", name, window ? " window" : "", kForms[form], splits);
      record("attention", what, t.tokens, form, us / layers, t.bytes);
    }
}

// What a step has around attention: product, rotary write, attention, product; each layer with its own weights.
void time_chain(int tokens, int length, int window, bool fp8, std::vector<std::pair<int, int>> ways) {
  constexpr int kLayers = 18, kHidden = 2880;
  Timed t(std::vector<int>(tokens, length), window, fp8, kLayers);
  const size_t qkv_elements = static_cast<size_t>(Timed::width) * kHidden, o_elements = static_cast<size_t>(kHidden) * Timed::heads * kDim;
  Device<bf16> weights((qkv_elements + o_elements) * kLayers), x(static_cast<size_t>(tokens) * kHidden), bias(Timed::width);
  fill_bf16(weights.p, weights.n, 0.02f, 1);
  fill_bf16(x.p, x.n, 1.f, 2);
  fill_bf16(bias.p, bias.n, 0.1f, 3);
  std::vector<uint64_t> slots;
  for (int i = 0; i < tokens; ++i) slots.push_back(static_cast<uint64_t>(t.table.get()[static_cast<size_t>(i) * t.max_blocks + (length - 1) / kPage]) * kPage + (length - 1) % kPage);
  Device<uint64_t> d_slots(slots);
  Device<int> positions(std::vector<int>(tokens, length - 1));
  Device<float> inv(std::vector<float>(32, 0.01f));
  for (int with = -1; with < 2; ++with)  // -1: neither rotary write nor attention
    for (const auto& [form, splits] : with > 0 ? ways : std::vector<std::pair<int, int>>{{0, 0}}) {
      const double us = graph_time([&, form = form, splits = splits](cudaStream_t st) {
        for (int l = 0; l < kLayers; ++l) {
          const bf16* const qkv = weights.p + l * (qkv_elements + o_elements);
          GossamerTinyGemmArgs g = {x.p, bias.p, qkv, bias.p, nullptr, t.q.p, 1e-5f, tokens, Timed::width, kHidden, 0, -1};
          REQUIRE_OK(gossamer_tiny_gemm(&g, st));
          GossamerRopeKvArgs ra = {t.q.p, positions.p, d_slots.p, inv.p, t.kv[l], fp8 ? t.scales.p : nullptr, 1.f, tokens, Timed::kv_heads, fp8, 8};
          if (with >= 0) REQUIRE_OK(gossamer_rope_kv(&ra, st));
          const auto a = t.args(l, form, splits, 0);
          if (with > 0) REQUIRE_OK(gossamer_decode_attention(&a, st));
          GossamerTinyGemmArgs o = {t.out.p, nullptr, qkv + qkv_elements, bias.p, x.p, x.p, 1e-5f, tokens, kHidden, Timed::heads * kDim, 0, -1};
          REQUIRE_OK(gossamer_tiny_gemm(&o, st));
        }
      });
      char what[96];
      std::snprintf(what, sizeof what, "%s %d keys%s %s%d", fp8 ? "e4m3" : "bf16", length, window ? " window" : "", with > 0 ? kForms[form] : with ? "products alone" : "without attention", splits);
      record("chain", what, tokens, form, us / kLayers, 0);
    }
}

// Rotary write and attention of many tokens, one after the other.
void time_pair(const char* name, const std::vector<int>& lengths, int window, bool fp8, int layers, std::vector<std::pair<int, int>> ways) {
  Timed t(lengths, window, fp8, layers);
  std::vector<uint64_t> slots;
  std::vector<int> positions;
  const auto table = t.table.get();
  for (int i = 0; i < t.tokens; ++i) {
    positions.push_back(lengths[i] - 1);
    slots.push_back(static_cast<uint64_t>(table[static_cast<size_t>(i) * t.max_blocks + positions[i] / kPage]) * kPage + positions[i] % kPage);
  }
  Device<uint64_t> d_slots(slots);
  Device<int> d_positions(positions);
  Device<float> inv(std::vector<float>(32, 0.01f));
  for (int with = 0; with < 2; ++with)
    for (const auto& [form, splits] : with ? ways : std::vector<std::pair<int, int>>{{0, 0}}) {
      const double us = graph_time([&, form = form, splits = splits](cudaStream_t st) {
        for (int l = 0; l < layers; ++l) {
          GossamerRopeKvArgs ra = {t.q.p, d_positions.p, d_slots.p, inv.p, t.kv[l], fp8 ? t.scales.p : nullptr, 1.f, t.tokens, Timed::kv_heads, fp8, 8};
          REQUIRE_OK(gossamer_rope_kv(&ra, st));
          const auto a = t.args(l, form, splits, 0);
          if (with) REQUIRE_OK(gossamer_decode_attention(&a, st));
        }
      });
      char what[96];
      std::snprintf(what, sizeof what, "%s %s%s %s%d", fp8 ? "e4m3" : "bf16", name, window ? " window" : "", with ? kForms[form] : "without attention", splits);
      record("pair", what, t.tokens, form, us / layers, 0);
    }
}

// Rotary embedding inside the qkv product: what product and rotary write leave one after the other, to the bit.
void check_inside(int tokens, bool fp8, std::mt19937& rng) {
  constexpr int kKvHeads = 8, kGroup = 8, kHidden = 2880, kRows = kKvHeads * (kGroup + 2) * kDim, kQueries = kKvHeads * kGroup * kDim, kPages = 4;
  Device<bf16> x(static_cast<size_t>(tokens) * kHidden), gain(kHidden), weight(static_cast<size_t>(kRows) * kHidden), bias(kRows), out(static_cast<size_t>(tokens) * kRows);
  fill_bf16(x.p, x.n, 1.f, rng()), fill_bf16(gain.p, gain.n, 1.f, rng()), fill_bf16(weight.p, weight.n, 0.05f, rng()), fill_bf16(bias.p, bias.n, 1.f, rng());
  std::vector<int> positions;
  std::vector<uint64_t> slots;
  std::vector<float> inverse, scale;
  for (int i = 0; i < tokens; ++i) positions.push_back(static_cast<int>(rng() % 131072)), slots.push_back((i * 37 + 5) % (kPages * kPage));
  for (int i = 0; i < 32; ++i) inverse.push_back(static_cast<float>(std::pow(150000.0, -i / 32.0)));
  for (int i = 0; i < 2 * kKvHeads; ++i) scale.push_back(0.01f + 0.001f * i);
  Device<int> d_positions(positions);
  Device<uint64_t> d_slots(slots);
  Device<float> d_inverse(inverse), d_scale(scale);
  Device<uint8_t> pages(static_cast<size_t>(kPages) * 2 * kKvHeads * kPage * kDim * (fp8 ? 1 : 2));
  GossamerTinyGemmArgs a = {};
  a.x = x.p, a.norm_weight = gain.p, a.weight = weight.p, a.bias = bias.p, a.out = out.p, a.epsilon = 1e-5f, a.tokens = tokens, a.rows = kRows, a.k = kHidden, a.tactic = -1;
  const GossamerRopeKvArgs r = {out.p, d_positions.p, d_slots.p, d_inverse.p, pages.p, d_scale.p, 1.3f, tokens, kKvHeads, fp8, kGroup};
  std::vector<uint8_t> written[2];
  std::vector<uint16_t> queries[2];
  for (int inside = 0; inside < 2; ++inside) {
    out.poison(), pages.poison();
    REQUIRE_OK(inside ? gossamer_tiny_qkv(&a, &r, 0) : gossamer_tiny_gemm(&a, 0));
    if (!inside) REQUIRE_OK(gossamer_rope_kv(&r, 0));
    written[inside] = pages.get();
    const auto all = out.get();
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < kQueries; ++i) {
        uint16_t bits;
        std::memcpy(&bits, &all[static_cast<size_t>(t) * kRows + i], 2);
        queries[inside].push_back(bits);
      }
  }
  char name[120];
  std::snprintf(name, sizeof name, "rotary embedding inside the product, %d tokens, %s", tokens, fp8 ? "E4M3" : "bf16");
  expect(name, queries[0] == queries[1] && written[0] == written[1]);
}

std::vector<int> spread(int tokens, int from, int to) {
  std::mt19937 rng(11);
  std::vector<int> lengths;
  for (int i = 0; i < tokens; ++i) lengths.push_back(std::uniform_int_distribution<int>(from, to)(rng));
  return lengths;
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_OK(gossamer_prepare());
  const std::string mode = argc > 1 ? argv[1] : "check";
  std::mt19937 rng(argc > 3 ? std::atoi(argv[3]) : std::random_device{}());
  if (mode == "check") {
    const bool small = argc > 2 && std::string(argv[2]) == "small", least = argc > 2 && std::string(argv[2]) == "least";
    if (least) {  // for tools that make everything a thousand times slower
      check({5, 90, 300}, 1, 0, false, true, rng);
      check_inside(2, false, rng), check_inside(13, true, rng);
    } else for (bool fp8 : {false, true}) {
      for (int tokens : {1, 2, 5, 8, 13, 16}) check_inside(tokens, fp8, rng);
      check({1, 2, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 130}, 2, 0, fp8, true, rng);
      check({1, 64, 127, 128, 129, 200, 333}, 2, 128, fp8, true, rng);
      check({5, 90}, 1, 0, fp8, false, rng);
      if (small) continue;
      check({3000, 1, 777, 0, 1025}, 8, 0, fp8, true, rng);
      check({3000, 1, 777, 1025}, 8, 128, fp8, true, rng);
      check({9001}, 8, 0, fp8, true, rng);
      std::vector<int> many;
      for (int i = 0; i < 150; ++i) many.push_back(1 + i * 7 % 130);
      many[17] = 0, many[18] = 1000;
      check(many, 8, 0, fp8, true, rng);
      check(many, 8, 37, fp8, true, rng);
    }
    std::printf(failed() ? "attention: FAILED\n" : "attention: all checks passed\n");
    return failed();
  }
  const bool all = argc < 3;
  const auto wants = [&](const char* what) { return all || std::string(argv[2]) == what; };
  const bool autos = argc > 3;  // only the launcher's own choice: what an earlier library has as well
  using Ways = std::vector<std::pair<int, int>>;
  const auto ways = [&](const Ways& w) { return autos ? Ways{{0, 0}} : w; };
  const auto same = [](int tokens, int length) { return std::vector<int>(tokens, length); };
  if (wants("few")) {
    const Ways few = {{0, 0}, {2, 1}, {2, 2}, {2, 4}, {2, 8}};
    for (int length : {200, 1000}) time_chain(1, length, 0, false, ways(few));
    time_chain(1, 1000, 128, false, ways({{0, 0}, {2, 1}, {2, 2}, {3, 8}}));
    time_chain(4, 1000, 0, false, ways({{0, 0}, {2, 2}, {2, 4}, {2, 8}}));
    time_chain(16, 1000, 0, false, ways({{0, 0}, {2, 1}, {2, 2}, {3, 8}}));
    for (bool fp8 : {false, true}) {
      for (int tokens : {1, 4}) time_attention("1000 keys", same(tokens, 1000), 0, fp8, 18, ways(few));
      time_attention("200 keys", same(1, 200), 0, fp8, 18, ways({{0, 0}, {2, 1}, {2, 2}, {2, 4}}));
      time_attention("2000 keys", same(1, 2000), 0, fp8, 18, ways({{0, 0}, {2, 8}}));
    }
  }
  if (wants("many"))
    for (bool fp8 : {false, true}) {
      const Ways many = {{0, 0}, {3, 1}, {3, 2}, {3, 4}, {3, 8}};
      for (int tokens : {32, 64, 128, 256, 512}) {
        time_attention("300 keys", same(tokens, 300), 0, fp8, 10, ways(many));
        time_attention("100-1000 keys", spread(tokens, 100, 1000), 0, fp8, 6, ways(many));
        time_attention("300 keys", same(tokens, 300), 128, fp8, 10, ways(many));
      }
      for (int tokens : {32, 128, 512}) {
        time_pair("300 keys", same(tokens, 300), 0, fp8, 10, ways(many));
        time_pair("300 keys", same(tokens, 300), 128, fp8, 10, ways(many));
      }
      time_attention("300 keys", same(1000, 300), 0, fp8, 4, ways(many));
      time_attention("1000 keys", same(128, 1000), 0, fp8, 6, ways(many));
      time_attention("1000 keys", same(16, 1000), 0, fp8, 18, ways(many));
    }
  if (wants("long"))
    for (bool fp8 : {false, true}) {
      const Ways either = {{0, 0}};
      time_attention("8192 keys", same(1, 8192), 0, fp8, 18, ways(either));
      time_attention("131072 keys", same(1, 131072), 0, fp8, 8, ways(either));
      time_attention("32768 keys", same(4, 32768), 0, fp8, 8, ways(either));
      time_attention("8192 keys", same(8, 8192), 0, fp8, 18, ways(either));
      time_attention("8192 keys", same(64, 8192), 0, fp8, 8, ways(either));
    }
  return 0;
}
