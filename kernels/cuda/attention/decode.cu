// archs: 90a 100a
// Decode attention: one query token a sequence, keys and values in 64-token pages, split over blocks along the keys.
//
// No shared memory in the loop. A warp takes tiles of 16 keys. Scores: m16n8k16 with the 8 query heads of a KV head as rows
// (8 of 16 used) and keys as columns; a lane's 16 contiguous bytes of a key row are its B fragments under a permutation of
// the head dimension that q shares. Output: the probabilities are A fragments as they stand; a lane reads 8 neighbouring
// dimensions of four keys and pairs two keys' halves with PRMT into B fragments, column g of tile j being dimension 8 g + j.
// E4M3 pages go to f16 exactly and use f16 products; the scales go on the scores and on the output.
//
// Invariant: keys and values outside [first, length) never reach a sum, whatever bits they hold.
// Invariant: partial results are combined in split order by whichever block arrives last: repeatable.
// Invariant: how many splits a sequence has depends on its own length and on what the launch was given; the grid, on the latter
// alone. So a captured launch stays right when lengths change, as long as none passes `max_kv`.
// Refuses: more than 8 query heads a KV head, other than head size 64 and blocks of 64.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gossamer/decode.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::attention {
namespace {

// kHeads: query heads that a KV head may have; rows of a fragment beyond those there are hold zeros.
constexpr int kHeads = 8, kDim = 64, kPage = 64, kTile = 16;
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMaxSplits = 64;
// Counters of arrivals come first in the workspace, in the part that starts as zeros.
constexpr size_t kCounterBytes = 4096;
constexpr int kMaxRows = kCounterBytes / sizeof(int);  // rows that may be split
constexpr int kPartial = kHeads * (kDim + 2);  // floats: output sums, then maximum and sum of each head
constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ void unpack4(uint2 raw, float (&f)[4]) {
  f[0] = __uint_as_float(raw.x << 16), f[1] = __uint_as_float(raw.x & 0xFFFF0000u);
  f[2] = __uint_as_float(raw.y << 16), f[3] = __uint_as_float(raw.y & 0xFFFF0000u);
}
__device__ __forceinline__ uint2 pack4(const float (&f)[4]) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(f[0], f[1]), high = __floats2bfloat162_rn(f[2], f[3]);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

// One tile in registers. bf16: 4 + 4 vectors of 16 bytes; E4M3: half of that.
template <bool kFp8>
struct Tile {
  uint4 k[kFp8 ? 2 : 4];
  uint4 v[kFp8 ? 2 : 4];
  __device__ __forceinline__ void load(const uint8_t* keys, const uint8_t* values, int lane) {
    const int g = lane >> 2, t = lane & 3;
    if constexpr (kFp8) {
#pragma unroll
      for (int h = 0; h < 2; ++h) k[h] = ptx::load_streaming(keys + (8 * h + g) * kDim + 16 * t);
      uint2 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = __ldcs(reinterpret_cast<const uint2*>(values + (8 * (i >> 1) + 2 * t + (i & 1)) * kDim + 8 * g));
      v[0] = make_uint4(r[0].x, r[0].y, r[1].x, r[1].y);
      v[1] = make_uint4(r[2].x, r[2].y, r[3].x, r[3].y);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < 2; ++s) k[2 * h + s] = ptx::load_streaming(keys + ((8 * h + g) * kDim + 32 * s + 8 * t) * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = ptx::load_streaming(values + ((8 * (i >> 1) + 2 * t + (i & 1)) * kDim + 8 * g) * 2);
    }
  }
  // Values of the keys 2t, 2t+1, 2t+8, 2t+9 that are not in sight become zero.
  __device__ __forceinline__ void clear_value(int i) {
    if constexpr (kFp8) {
      uint4& w = v[i >> 1];
      if (i & 1) w.z = w.w = 0;
      else w.x = w.y = 0;
    } else {
      v[i] = make_uint4(0, 0, 0, 0);
    }
  }
};

struct Query {
  uint32_t a[4][2];  // rows g of four k16 steps; rows g + 8 are zero
};

template <bool kFp8>
__device__ __forceinline__ void scores_of(const Tile<kFp8>& tile, const Query& q, float (&c)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    c[h][0] = c[h][1] = c[h][2] = c[h][3] = 0.f;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t a[4] = {q.a[s][0], 0u, q.a[s][1], 0u};
      if constexpr (kFp8) {
        const uint4& w = tile.k[h];
        const uint32_t word = s == 0 ? w.x : s == 1 ? w.y : s == 2 ? w.z : w.w;
        ptx::mma_f16(c[h], a, ptx::e4m3_to_f16(word), ptx::e4m3_to_f16(word >> 16));
      } else {
        const uint4& w = tile.k[2 * h + (s >> 1)];
        ptx::mma_bf16(c[h], a, s & 1 ? w.z : w.x, s & 1 ? w.w : w.y);
      }
    }
  }
}

template <bool kFp8>
__device__ __forceinline__ void add_values(const Tile<kFp8>& tile, const uint32_t (&a)[4], float (&o)[8][4]) {
  uint32_t r[4][4];  // key i, dimensions 2 w and 2 w + 1
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kFp8) {
      const uint4& w = tile.v[i >> 1];
      const uint32_t low = i & 1 ? w.z : w.x, high = i & 1 ? w.w : w.y;
      r[i][0] = ptx::e4m3_to_f16(low);
      r[i][1] = ptx::e4m3_to_f16(low >> 16);
      r[i][2] = ptx::e4m3_to_f16(high);
      r[i][3] = ptx::e4m3_to_f16(high >> 16);
    } else {
      r[i][0] = tile.v[i].x, r[i][1] = tile.v[i].y, r[i][2] = tile.v[i].z, r[i][3] = tile.v[i].w;
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int pick = j & 1 ? 0x7632 : 0x5410;
    const uint32_t b0 = __byte_perm(r[0][j / 2], r[1][j / 2], pick), b1 = __byte_perm(r[2][j / 2], r[3][j / 2], pick);
    if constexpr (kFp8) ptx::mma_f16(o[j], a, b0, b1);
    else ptx::mma_bf16(o[j], a, b0, b1);
  }
}

struct Merge {  // one warp's result
  float maximum[kHeads], sum[kHeads], o[kHeads][kDim];
};

// kRowWarps: warps that share a row (token, KV head). All of a block, with rows split over blocks; or one, where there are rows
// enough: then nothing is merged, and a block's fixed costs serve eight rows.
template <bool kFp8, int kRowWarps>
__global__ void __launch_bounds__(kThreads, 2) decode_kernel(const __grid_constant__ GossamerDecodeAttentionArgs p, int splits_most) {
  constexpr bool kAlone = kRowWarps == 1;
  __shared__ Merge merge[kAlone ? 1 : kWarps];
  __shared__ int arrived;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int alone = blockIdx.x * kWarps + warp;
  const int split = kAlone ? 0 : blockIdx.x, head = kAlone ? alone % p.kv_heads : blockIdx.y, token = kAlone ? alone / p.kv_heads : blockIdx.z;
  if (kAlone && token >= p.tokens) return;

  if (p.prefetch && threadIdx.x == 0) {
    const size_t blocks = static_cast<size_t>(gridDim.x) * gridDim.y * gridDim.z, me = (static_cast<size_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const size_t share = (p.prefetch_bytes / blocks + 127) / 128 * 128, to = min((me + 1) * share, p.prefetch_bytes / 16 * 16);
    for (size_t from = me * share; from < to; from += 16384)
      ptx::bulk_prefetch_l2(static_cast<const uint8_t*>(p.prefetch) + from, static_cast<uint32_t>(min(to - from, static_cast<size_t>(16384))));
  }
  // Lengths and block tables come with the step, long before this layer; q and this token's keys do not.
  const int length = p.lengths[token], first_page = p.first_blocks ? p.first_blocks[token] : 0;
  const size_t out_row = p.query_starts ? p.query_starts[token] : token;
  const int first = p.window > 0 ? max(0, length - p.window) : 0;
  const int tile_first = first / kTile, tiles = (length + kTile - 1) / kTile - tile_first;
  // At least one tile a warp before a further split pays.
  const int splits = kAlone ? 1 : max(1, min(splits_most, (tiles + 2 * kWarps - 1) / (2 * kWarps)));
  ptx::launch_dependents();
  ptx::dependency_wait();
  if (split >= splits) return;
  const int begin = tile_first + tiles * split / splits, end = tile_first + tiles * (split + 1) / splits;

  Query q;
  {
    const __nv_bfloat16* at = static_cast<const __nv_bfloat16*>(p.q) + out_row * p.q_stride + (head * p.group + g) * kDim;
    if (g >= p.group) {
#pragma unroll
      for (int s = 0; s < 4; ++s) q.a[s][0] = q.a[s][1] = 0;
    } else if constexpr (kFp8) {
      const uint4 w[2] = {__ldcg(reinterpret_cast<const uint4*>(at + 16 * t)), __ldcg(reinterpret_cast<const uint4*>(at + 16 * t) + 1)};
      const __nv_bfloat162* x = reinterpret_cast<const __nv_bfloat162*>(w);
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 f = __bfloat1622float2(x[2 * s + h]);
          const __half2 v = __floats2half2_rn(fminf(fmaxf(f.x, -65504.f), 65504.f), fminf(fmaxf(f.y, -65504.f), 65504.f));
          q.a[s][h] = *reinterpret_cast<const uint32_t*>(&v);
        }
    } else {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint4 w = __ldcg(reinterpret_cast<const uint4*>(at + 32 * s + 8 * t));
        q.a[2 * s][0] = w.x, q.a[2 * s][1] = w.y, q.a[2 * s + 1][0] = w.z, q.a[2 * s + 1][1] = w.w;
      }
    }
  }
  const float scale = p.scale * kLog2e * (kFp8 && p.kv_scales ? p.kv_scales[head] : 1.f);
  constexpr size_t kElement = kFp8 ? 1 : 2, kRun = kPage * kDim * kElement;  // one head's K or V of a page
  const uint8_t* const kv = static_cast<const uint8_t*>(p.kv) + head * kRun;
  const size_t values_at = p.kv_heads * kRun;
  const int* const table = p.block_tables + static_cast<size_t>(token) * p.max_blocks - first_page;
  auto page_of = [&](int tile) { return tile < end ? __ldg(table + tile / (kPage / kTile)) : 0; };
  auto request = [&](Tile<kFp8>& to, int tile, int page) {
    if (tile >= end) return;
    const uint8_t* at = kv + static_cast<size_t>(page) * 2 * values_at + tile % (kPage / kTile) * (kTile * kDim * kElement);
    to.load(at, at + values_at, lane);
  };

  float o[8][4], maximum = -INFINITY, sum = 0.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
  auto absorb = [&](Tile<kFp8>& tile, int number) {
    float c[2][4];
    scores_of<kFp8>(tile, q, c);
    const int key = number * kTile;
    if (key < first || key + kTile > length) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = key + 8 * h + 2 * t + e;
          if (at < first || at >= length) {
            c[h][e] = -INFINITY;
            tile.clear_value(2 * h + e);
          }
        }
    }
    float most = fmaxf(fmaxf(c[0][0], c[0][1]), fmaxf(c[1][0], c[1][1])) * scale;
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (__any_sync(~0u, most > maximum)) {
      const float next = fmaxf(maximum, most), old = maximum == -INFINITY ? 0.f : exp2f(maximum - next);
      maximum = next;
      sum *= old;
#pragma unroll
      for (int j = 0; j < 8; ++j) o[j][0] *= old, o[j][1] *= old;
    }
    const float base = maximum == -INFINITY ? 0.f : maximum;
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) e[i] = exp2f(fmaf(c[i >> 1][i & 1], scale, -base));
    sum += (e[0] + e[1]) + (e[2] + e[3]);
    uint32_t a[4] = {0, 0, 0, 0};
    if constexpr (kFp8) {
      const __half2 p0 = __floats2half2_rn(e[0], e[1]), p1 = __floats2half2_rn(e[2], e[3]);
      a[0] = *reinterpret_cast<const uint32_t*>(&p0), a[2] = *reinterpret_cast<const uint32_t*>(&p1);
    } else {
      const __nv_bfloat162 p0 = __floats2bfloat162_rn(e[0], e[1]), p1 = __floats2bfloat162_rn(e[2], e[3]);
      a[0] = *reinterpret_cast<const uint32_t*>(&p0), a[2] = *reinterpret_cast<const uint32_t*>(&p1);
    }
    add_values<kFp8>(tile, a, o);
  };

  Tile<kFp8> even, odd;
  int number = kAlone ? begin : begin + warp;
  int page0 = page_of(number), page1 = page_of(number + kRowWarps);
  request(even, number, page0);
  for (; number < end; number += 2 * kRowWarps) {
    request(odd, number + kRowWarps, page1);
    page0 = page_of(number + 2 * kRowWarps);
    page1 = page_of(number + 3 * kRowWarps);
    absorb(even, number);
    request(even, number + 2 * kRowWarps, page0);
    if (number + kRowWarps < end) absorb(odd, number + kRowWarps);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);

  const auto out_at = [&](int of_group) { return static_cast<__nv_bfloat16*>(p.out) + (out_row * p.kv_heads * p.group + head * p.group + of_group) * kDim; };
  const auto sink_of = [&](int of_group) { return __bfloat162float(static_cast<const __nv_bfloat16*>(p.sinks)[head * p.group + of_group]) * kLog2e; };
  const float value_scale = kFp8 && p.kv_scales ? p.kv_scales[p.kv_heads + head] : 1.f;
  if constexpr (kAlone) {
    if (g >= p.group) return;
    float factor = 1.f;
    if (p.sinks && maximum != -INFINITY) {
      const float sink = sink_of(g), most = fmaxf(maximum, sink);
      factor = exp2f(maximum - most);
      sum = fmaf(sum, factor, exp2f(sink - most));
    }
    factor = sum > 0.f ? factor * value_scale / sum : 0.f;
    // A lane's sums are 16 neighbouring dimensions: column 2t of tile j is dimension 8 * 2t + j.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(o[2 * i][half] * factor, o[2 * i + 1][half] * factor);
        words[i] = *reinterpret_cast<const uint32_t*>(&two);
      }
      *reinterpret_cast<uint4*>(out_at(g) + 16 * t + 8 * half) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return;
  }

  Merge& mine = merge[kAlone ? 0 : warp];
  if (t == 0) {
    mine.maximum[g] = maximum;
    mine.sum[g] = sum;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    mine.o[g][8 * (2 * t) + j] = o[j][0];  // column 2t of tile j is dimension 8 * 2t + j
    mine.o[g][8 * (2 * t + 1) + j] = o[j][1];
  }
  __syncthreads();

  // The block's result: thread i takes two dimensions of one head.
  const int h = threadIdx.x / 32, d = 2 * lane;
  float block_max = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) block_max = fmaxf(block_max, merge[w].maximum[h]);
  float block_sum = 0.f;
  float2 y = make_float2(0.f, 0.f);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float f = merge[w].maximum[h] == -INFINITY ? 0.f : exp2f(merge[w].maximum[h] - block_max);
    block_sum = fmaf(merge[w].sum[h], f, block_sum);
    const float2 part = *reinterpret_cast<const float2*>(&merge[w].o[h][d]);
    y.x = fmaf(part.x, f, y.x);
    y.y = fmaf(part.y, f, y.y);
  }
  const int row = token * p.kv_heads + head;
  if (splits > 1) {
    int* const counters = static_cast<int*>(p.workspace);
    float* const partials = reinterpret_cast<float*>(static_cast<uint8_t*>(p.workspace) + kCounterBytes) + static_cast<size_t>(row) * splits_most * kPartial;
    float* const at = partials + split * kPartial;
    __stcg(reinterpret_cast<float2*>(at + h * kDim + d), y);
    if (lane == 0) __stcg(reinterpret_cast<float2*>(at + kHeads * kDim + 2 * h), make_float2(block_max, block_sum));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(counters + row, 1);
    __syncthreads();
    if (arrived != splits - 1) return;
    __threadfence();
    if (threadIdx.x == 0) counters[row] = 0;
    // Lane i looks after splits i and i + 32; a warp's lanes share one head.
    float2 ms[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int s = lane + 32 * i;
      ms[i] = s < splits ? __ldcg(reinterpret_cast<const float2*>(partials + s * kPartial + kHeads * kDim + 2 * h)) : make_float2(-INFINITY, 0.f);
    }
    block_max = fmaxf(ms[0].x, ms[1].x);
#pragma unroll
    for (int i = 16; i; i /= 2) block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, i));
    const float base = block_max == -INFINITY ? 0.f : block_max;
    float f[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) f[i] = exp2f(ms[i].x - base);
    block_sum = fmaf(ms[0].y, f[0], ms[1].y * f[1]);
#pragma unroll
    for (int i = 16; i; i /= 2) block_sum += __shfl_xor_sync(~0u, block_sum, i);
    y = make_float2(0.f, 0.f);
    for (int s0 = 0; s0 < splits; s0 += 8) {
      float2 part[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        part[i] = s0 + i < splits ? __ldcg(reinterpret_cast<const float2*>(partials + (s0 + i) * kPartial + h * kDim + d)) : make_float2(0.f, 0.f);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float factor = __shfl_sync(~0u, s0 + i < 32 ? f[0] : f[1], (s0 + i) & 31);
        y.x = fmaf(part[i].x, factor, y.x);
        y.y = fmaf(part[i].y, factor, y.y);
      }
    }
  }
  if (h >= p.group) return;
  // The sink joins the denominator once.
  if (p.sinks && block_max != -INFINITY) {
    const float sink = sink_of(h), most = fmaxf(block_max, sink), f = exp2f(block_max - most);
    block_sum = fmaf(block_sum, f, exp2f(sink - most));
    y.x *= f;
    y.y *= f;
  }
  const float factor = block_sum > 0.f ? value_scale / block_sum : 0.f;
  *reinterpret_cast<__nv_bfloat162*>(out_at(h) + d) = __floats2bfloat162_rn(y.x * factor, y.y * factor);
}

// A warp takes every `parts`th group of four heads of one token. Lane i finds the angle of pair i; then lane i has four pairs, from
// 4 (i % 8) on, of head i / 8 of each group, so that a warp reads and writes whole rows.
__global__ void __launch_bounds__(256) rope_kv_kernel(const __grid_constant__ GossamerRopeKvArgs p, int parts) {
  const int lane = threadIdx.x & 31, heads = p.kv_heads * (p.group + 2);
  const int unit = blockIdx.x * 8 + threadIdx.x / 32;
  ptx::launch_dependents();
  if (unit >= p.tokens * parts) return;
  const int token = unit / parts, pair = 4 * (lane & 7);
  float sine, cosine, sines[4], cosines[4];
  sincosf(p.positions[token] * p.inv_freq[lane], &sine, &cosine);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sines[i] = __shfl_sync(~0u, sine, pair + i) * p.attention_scaling;
    cosines[i] = __shfl_sync(~0u, cosine, pair + i) * p.attention_scaling;
  }
  const uint64_t slot = p.slots[token];
  const int q_heads = p.kv_heads * p.group;
  const auto turn = [&](int head, uint2 low, uint2 high, __nv_bfloat16* x) {
    float a[4], b[4];
    unpack4(low, a);
    unpack4(high, b);
    const bool value = head >= q_heads + p.kv_heads;
    if (!value) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float rotated = a[i] * cosines[i] - b[i] * sines[i];
        b[i] = b[i] * cosines[i] + a[i] * sines[i];
        a[i] = rotated;
      }
      low = pack4(a);
      high = pack4(b);
    }
    if (head < q_heads) {
      *reinterpret_cast<uint2*>(x) = low;
      *reinterpret_cast<uint2*>(x + 32) = high;
      return;
    }
    const int kv_head = (head - q_heads) % p.kv_heads;
    const size_t at = ((slot / kPage * 2 + value) * p.kv_heads + kv_head) * (kPage * kDim) + slot % kPage * kDim + pair;
    if (p.fp8) {
      const float inverse = p.kv_scales ? 1.f / p.kv_scales[value * p.kv_heads + kv_head] : 1.f;
      const auto codes = [&](const float (&f)[4]) {
        return ptx::floats_to_e4m3(f[0] * inverse, f[1] * inverse) | static_cast<uint32_t>(ptx::floats_to_e4m3(f[2] * inverse, f[3] * inverse)) << 16;
      };
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.kv) + at) = codes(a);
      *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.kv) + at + 32) = codes(b);
    } else {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.kv) + at) = low;
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.kv) + at + 32) = high;
    }
  };
  ptx::dependency_wait();
  // Four rounds' loads are under way before the first store, which the compiler could not swap.
  for (int first = unit % parts * 4 + lane / 8; first < heads; first += 16 * parts) {
    uint2 lows[4], highs[4];
    const auto at_head = [&](int head) { return static_cast<__nv_bfloat16*>(p.qkv) + (static_cast<size_t>(token) * heads + head) * kDim + pair; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = first + 4 * parts * i;
      if (head >= heads) break;
      lows[i] = __ldcg(reinterpret_cast<const uint2*>(at_head(head)));
      highs[i] = __ldcg(reinterpret_cast<const uint2*>(at_head(head) + 32));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = first + 4 * parts * i;
      if (head >= heads) break;
      turn(head, lows[i], highs[i], at_head(head));
    }
  }
}

}  // namespace
}  // namespace gossamer::attention

namespace {

// Keys of a row at most; 0: unknown.
int most_keys(const GossamerDecodeAttentionArgs& p) {
  using namespace gossamer::attention;
  return p.window > 0 && (p.max_kv == 0 || p.window < p.max_kv) ? p.window + kTile : p.max_kv;
}

// Whether each warp takes rows of its own. It walks over a row's keys alone, about 3 us every 16 keys when memory is busy, so there
// must be rows enough that the others take as long: 2112 warps run at once, and sharing a row costs a block about 8 us.
bool takes_rows_alone(const GossamerDecodeAttentionArgs& p) {
  const int rows = p.tokens * p.kv_heads, keys = most_keys(p);
  return !p.splits && keys > 0 && rows >= 3 * keys;
}

// Blocks a row (token, KV head) at most.
int splits_of(const GossamerDecodeAttentionArgs& p) {
  using namespace gossamer::attention;
  const int rows = p.tokens * p.kv_heads;
  if (rows > kMaxRows) return 1;
  int splits = p.splits;
  if (!splits) {  // few rows: all blocks in one wave, two a multiprocessor; many rows: two waves even out
    splits = (rows <= gossamer::multiprocessors() / 2 ? 2 : 4) * gossamer::multiprocessors() / rows;
    splits = splits < 1 ? 1 : splits > kMaxSplits ? kMaxSplits : splits;
  }
  // Blocks beyond those that the longest row can use would only start and end.
  const int keys = most_keys(p);
  const int useful = keys ? ((keys + kTile - 1) / kTile + 2 * kWarps - 1) / (2 * kWarps) : kMaxSplits;
  return splits > useful ? useful : splits;
}

}  // namespace

extern "C" size_t gossamer_decode_attention_workspace(int tokens, int kv_heads, int splits) {
  using namespace gossamer::attention;
  // By the launcher's own choice, rows times splits are at most four blocks a multiprocessor.
  const size_t partials = splits ? static_cast<size_t>(tokens) * kv_heads * splits : 4 * gossamer::multiprocessors();
  return kCounterBytes + sizeof(float) * kPartial * partials;
}

extern "C" int gossamer_decode_attention(const GossamerDecodeAttentionArgs* args, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::attention;
  GossamerDecodeAttentionArgs p = *args;
  if (!p.group) p.group = kHeads;
  if (p.tokens < 1 || p.tokens > 65535 || p.kv_heads < 1 || p.group < 1 || p.group > kHeads || p.max_blocks < 1 || p.q_stride % 8 || p.splits < 0 || p.splits > kMaxSplits ||
      reinterpret_cast<uintptr_t>(p.q) % 16)
    return GOSSAMER_BAD_SHAPE;
  if (!multiprocessors()) return GOSSAMER_NOT_PREPARED;
  if (takes_rows_alone(p)) {
    const dim3 grid((p.tokens * p.kv_heads + kWarps - 1) / kWarps);
    return launch(p.fp8 ? decode_kernel<true, 1> : decode_kernel<false, 1>, grid, dim3(kThreads), 0, stream, true, p, 1);
  }
  const int splits = splits_of(p);
  if (splits > 1 && p.workspace_bytes < kCounterBytes + sizeof(float) * kPartial * p.tokens * p.kv_heads * splits) return GOSSAMER_BAD_SHAPE;
  const dim3 grid(splits, p.kv_heads, p.tokens);
  return launch(p.fp8 ? decode_kernel<true, kWarps> : decode_kernel<false, kWarps>, grid, dim3(kThreads), 0, stream, true, p, splits);
}

extern "C" int gossamer_decode_attention_op(const GossamerAttentionDesc* d, const GossamerAttentionArgs* a, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (!d->single || d->head_dim != 64 || d->block_size != 64 || !d->kv_heads || d->heads % d->kv_heads || d->activation != GOSSAMER_BF16 ||
      (d->kv != GOSSAMER_BF16 && d->kv != GOSSAMER_F8E4M3) || (d->kv == GOSSAMER_BF16 && a->kv_scales))
    return GOSSAMER_BAD_SHAPE;
  if (!a->sequences) return GOSSAMER_OK;
  const auto address = [](uint64_t at) { return reinterpret_cast<const void*>(at); };
  GossamerDecodeAttentionArgs p = {};
  p.q = address(a->q);
  p.kv = address(a->kv);
  p.query_starts = static_cast<const unsigned*>(address(a->query_starts));
  p.first_blocks = static_cast<const int*>(address(a->first_blocks));
  p.block_tables = static_cast<const int*>(address(a->block_tables));
  p.lengths = static_cast<const int*>(address(a->kv_lens));
  p.sinks = d->sinks ? address(a->sinks) : nullptr;
  p.kv_scales = static_cast<const float*>(address(a->kv_scales));
  p.out = reinterpret_cast<void*>(a->out);
  p.workspace = workspace;
  p.workspace_bytes = workspace_bytes;
  p.scale = d->scale;
  p.q_stride = static_cast<int>(a->q_stride);
  p.tokens = static_cast<int>(a->sequences);
  p.kv_heads = static_cast<int>(d->kv_heads);
  p.group = static_cast<int>(d->heads / d->kv_heads);
  p.max_blocks = static_cast<int>(a->table_stride);
  p.max_kv = static_cast<int>(a->max_kv);
  p.window = static_cast<int>(d->window);
  p.fp8 = d->kv == GOSSAMER_F8E4M3;
  return gossamer_decode_attention(&p, stream);
}

extern "C" int gossamer_rope_kv(const GossamerRopeKvArgs* args, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::attention;
  GossamerRopeKvArgs p = *args;
  if (!p.group) p.group = kHeads;
  // Few tokens: as many warps as there are groups of heads. Many: an angle serves four of them.
  const int groups = (p.kv_heads * (p.group + 2) + 3) / 4, parts = p.tokens < 128 ? groups : (groups + 3) / 4;
  const int64_t units = static_cast<int64_t>(p.tokens) * parts;
  if (p.tokens < 1 || p.kv_heads < 1 || p.group < 1 || units > INT32_MAX - 8) return GOSSAMER_BAD_SHAPE;
  return launch(rope_kv_kernel, dim3((units + 7) / 8), dim3(256), 0, stream, true, p, parts);
}

extern "C" int gossamer_rope_kv_op(const GossamerRopeKvWriteDesc* d, const GossamerRopeKvWriteArgs* a, cudaStream_t stream) {
  if (d->head_dim != 64 || d->block_size != 64 || !d->kv_heads || d->heads % d->kv_heads || d->activation != GOSSAMER_BF16 ||
      (d->kv != GOSSAMER_BF16 && d->kv != GOSSAMER_F8E4M3))
    return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  GossamerRopeKvArgs p = {};
  p.qkv = reinterpret_cast<void*>(a->qkv);
  p.positions = reinterpret_cast<const int*>(a->positions);
  p.slots = reinterpret_cast<const uint64_t*>(a->slots);
  p.inv_freq = reinterpret_cast<const float*>(a->inverse_frequencies);
  p.kv = reinterpret_cast<void*>(a->kv);
  p.kv_scales = reinterpret_cast<const float*>(a->kv_scales);
  p.attention_scaling = d->magnitude;
  p.tokens = static_cast<int>(a->tokens);
  p.kv_heads = static_cast<int>(d->kv_heads);
  p.group = static_cast<int>(d->heads / d->kv_heads);
  p.fp8 = d->kv == GOSSAMER_F8E4M3;
  return gossamer_rope_kv(&p, stream);
}
