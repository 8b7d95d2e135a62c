// Problems of attention over a paged cache, and their answers in float64: shared by the harness on the device and the emulated one.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gossamer/backend_ops.h"

namespace harness {

struct Sequence {
  uint32_t queries, kv_len;
};
struct Case {
  uint32_t heads, kv_heads, window;
  bool sinks, fp8;
  float spread;  // queries are uniform in (-spread, spread)
  std::vector<Sequence> sequences;

  std::string name() const {
    std::string what = "heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " window " + std::to_string(window) + (sinks ? "" : " no sinks") + (fp8 ? " fp8" : "") +
                       " spread " + std::to_string(static_cast<int>(spread));
    for (size_t i = 0; i < sequences.size() && i < 12; ++i) what += " " + std::to_string(sequences[i].queries) + "@" + std::to_string(sequences[i].kv_len);
    return what + (sequences.size() > 12 ? " and " + std::to_string(sequences.size() - 12) + " more" : "");
  }
};

// Everything of one call on the host. Cache entries that no token owns are NaN, unused table entries are far out of range.
struct AttentionProblem {
  static constexpr uint32_t kD = 64, kBlock = 64;
  Case c;
  GossamerAttentionDesc d;
  uint32_t stride, tokens = 0, table_stride, max_query = 0, max_kv = 0;
  std::vector<uint32_t> starts{0}, lens, first, table;
  std::vector<uint8_t> cache;
  std::vector<__nv_bfloat16> q, sinks;
  std::vector<float> scales;

  size_t head_bytes() const { return kBlock * kD * (c.fp8 ? 1 : 2); }
  uint8_t* entry(uint32_t s, uint32_t token, int value, uint32_t head) {
    const size_t block = table[static_cast<size_t>(s) * table_stride + token / kBlock - first[s]];
    return &cache[((block * 2 + value) * c.kv_heads + head) * head_bytes() + token % kBlock * kD * (c.fp8 ? 1 : 2)];
  }
  double kv(uint32_t s, uint32_t token, int value, uint32_t head, uint32_t i) {
    const uint8_t* p = entry(s, token, value, head);
    if (!c.fp8) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p)[i]);
    __nv_fp8_e4m3 v;
    v.__x = p[i];
    return static_cast<double>(static_cast<float>(v)) * scales[value * c.kv_heads + head];
  }

  AttentionProblem(const Case& what, uint32_t seed)
      : c(what),
        d{c.heads, c.kv_heads, kD, kBlock, c.window, c.sinks, GOSSAMER_BF16, static_cast<uint32_t>(c.fp8 ? GOSSAMER_F8E4M3 : GOSSAMER_BF16), 0.125f},
        stride((c.heads + 2 * c.kv_heads) * kD) {
    std::mt19937 rng(seed);
    std::vector<uint32_t> blocks;
    for (const Sequence& s : c.sequences) {
      const int low = static_cast<int>(s.kv_len - s.queries) - static_cast<int>(c.window) + 1;
      first.push_back(c.window ? std::max(0, low) / static_cast<int>(kBlock) : 0);
      blocks.push_back((s.kv_len + kBlock - 1) / kBlock - first.back());
      starts.push_back(tokens += s.queries);
      lens.push_back(s.kv_len);
      max_query = std::max(max_query, s.queries), max_kv = std::max(max_kv, s.kv_len);
    }
    table_stride = *std::max_element(blocks.begin(), blocks.end()) + 3;
    table.assign(blocks.size() * table_stride, 0x3FFFFFFF);
    std::vector<uint32_t> ids(std::accumulate(blocks.begin(), blocks.end(), 0u) + 3);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    uint32_t used = 0;
    for (size_t s = 0; s < blocks.size(); ++s)
      for (uint32_t b = 0; b < blocks[s]; ++b) table[s * table_stride + b] = ids[used++];
    cache.assign(ids.size() * 2 * c.kv_heads * head_bytes(), 0xFF);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (uint32_t h = 0; h < 2 * c.kv_heads; ++h) scales.push_back(0.5f + 0.1f * h);
    for (uint32_t s = 0; s < blocks.size(); ++s)
      for (uint32_t token = first[s] * kBlock; token < lens[s]; ++token)
        for (uint32_t h = 0; h < 2 * c.kv_heads; ++h) {
          uint8_t* p = entry(s, token, h % 2, h / 2);
          for (uint32_t i = 0; i < kD; ++i) {
            if (c.fp8) p[i] = __nv_fp8_e4m3(uniform(rng)).__x;
            else reinterpret_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(uniform(rng));
          }
        }
    for (size_t i = 0; i < static_cast<size_t>(tokens) * stride; ++i) q.push_back(__float2bfloat16(uniform(rng) * c.spread));
    for (uint32_t h = 0; h < c.heads; ++h) sinks.push_back(__float2bfloat16(uniform(rng) * 3));
  }

  // One row in float64.
  std::vector<double> reference(uint32_t s, uint32_t query, uint32_t head) {
    const uint32_t position = lens[s] - c.sequences[s].queries + query, kv_head = head / (c.heads / c.kv_heads);
    const uint32_t low = c.window && position + 1 > c.window ? position + 1 - c.window : 0;
    const __nv_bfloat16* row = &q[static_cast<size_t>(starts[s] + query) * stride + head * kD];
    std::vector<double> score, result(kD);
    double top = c.sinks ? static_cast<double>(__bfloat162float(sinks[head])) : -1e300, sum = 0;
    for (uint32_t token = low; token <= position; ++token) {
      double v = 0;
      for (uint32_t i = 0; i < kD; ++i) v += static_cast<double>(__bfloat162float(row[i])) * kv(s, token, 0, kv_head, i);
      score.push_back(v * d.scale);
      top = std::max(top, score.back());
    }
    if (c.sinks) sum = std::exp(static_cast<double>(__bfloat162float(sinks[head])) - top);
    for (uint32_t token = low; token <= position; ++token) {
      const double p = std::exp(score[token - low] - top);
      sum += p;
      for (uint32_t i = 0; i < kD; ++i) result[i] += p * kv(s, token, 1, kv_head, i);
    }
    for (double& v : result) v /= sum;
    return result;
  }
};

}  // namespace harness
