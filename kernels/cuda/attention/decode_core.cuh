// Decode attention, what every form shares: tiles of keys and values in registers, one warp's walk over them, merging of walks.
//
// A tile's keys are the rows of the scores' A operand and its values, turned, those of the output's; the 8 query heads of a KV head
// are the columns of both. So no row of an m16n8 product is wasted, and a lane's two columns (heads 2t and 2t + 1) are the same in
// scores and output. A lane's 16 contiguous bytes of a key row are its A fragments under a permutation of the head dimension that q
// shares. Of values a lane reads 8 neighbouring dimensions (from 8g on) of the keys 2t, 2t + 1, 2t + 8, 2t + 9 and pairs two keys'
// halves with PRMT: row g of product j is dimension 8g + 2j, row g + 8 the next. MOVMATRIX turns probabilities into the B operand.
//
// Invariant: keys and values outside [first, length) never reach a sum, whatever bits they hold: values there are not even read.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gossamer/ops.h"
#include "gossamer/ptx/sm90.cuh"
#include "shape.cuh"

namespace gossamer::attention {

// kHeads: query heads that a KV head may have; columns beyond those there are hold zeros.
constexpr float kLog2e = 1.4426950408889634f;

// kBf16: bf16 pages and products. kF16: E4M3 pages, which go to f16 exactly. kE4m3: E4M3 pages and products; a query is rounded to
// E4M3 under a scale of its own (its largest value becomes 448), probabilities under 2^8.
enum class Math { kBf16, kF16, kE4m3 };

template <Math kM>
struct Shape {
  static constexpr bool kFp8 = kM != Math::kBf16;
  static constexpr int kParts = kFp8 ? 2 : 1;   // groups of 16 keys of a tile
  static constexpr int kKeys = 16 * kParts;     // 4 KB of keys and values either way
  static constexpr int kTilesOfPage = kPage / kKeys;
  static constexpr size_t kRow = kDim * (kFp8 ? 1 : 2), kRun = kPage * kRow;  // one head's K or V: of a key, of a page
};

template <Math kM>
struct Tile {
  static constexpr bool kFp8 = Shape<kM>::kFp8;
  static constexpr int kParts = Shape<kM>::kParts;
  uint4 k[kParts][kFp8 ? 2 : 4];  // bf16: [8-key half][32 dimensions]; E4M3: [8-key half]
  uint4 v[kParts][kFp8 ? 2 : 4];  // bf16: a key each; E4M3: two
  // Keys of the tile outside [low, high) become zero where `kEdge`.
  template <bool kEdge>
  __device__ __forceinline__ void load(const uint8_t* keys, const uint8_t* values, int lane, int low, int high) {
    const int g = lane >> 2, t = lane & 3;
    const auto seen = [&](int key) { return !kEdge || (key >= low && key < high); };
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = 16 * part + 8 * half + g;
        const bool in_sight = seen(key);
        if constexpr (kFp8) {
          k[part][half] = in_sight ? ptx::load_streaming(keys + key * kDim + 16 * t) : make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll
          for (int s = 0; s < 2; ++s) k[part][2 * half + s] = in_sight ? ptx::load_streaming(keys + (key * kDim + 32 * s + 8 * t) * 2) : make_uint4(0, 0, 0, 0);
        }
      }
      uint2 pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * part + 8 * (i >> 1) + 2 * t + (i & 1);
        const bool in_sight = seen(key);
        if constexpr (kFp8) pair[i] = in_sight ? ptx::load_streaming_pair(values + key * kDim + 8 * g) : make_uint2(0, 0);
        else v[part][i] = in_sight ? ptx::load_streaming(values + (key * kDim + 8 * g) * 2) : make_uint4(0, 0, 0, 0);
      }
      if constexpr (kFp8) {
        v[part][0] = make_uint4(pair[0].x, pair[0].y, pair[1].x, pair[1].y);
        v[part][1] = make_uint4(pair[2].x, pair[2].y, pair[3].x, pair[3].y);
      }
    }
  }
  // Four dimensions' codes of key i of a part: dimensions 8g + 4 * `high` on.
  __device__ __forceinline__ uint32_t codes(int part, int i, int high) const {
    const uint4& w = v[part][i >> 1];
    return i & 1 ? (high ? w.w : w.z) : (high ? w.y : w.x);
  }
};

// Brings a tile's 128-byte lines (or half lines) towards the multiprocessors. May come before the wait for the previous grids:
// L2 is where their writes go too, so nothing stale is kept.
template <Math kM>
__device__ __forceinline__ void prefetch_tile(const uint8_t* keys, const uint8_t* values, int lane) {
  constexpr int kLines = Shape<kM>::kKeys * Shape<kM>::kRow / 128;
  if (lane < kLines) ptx::prefetch_l2(keys + 128 * lane);
  else if (lane < 2 * kLines) ptx::prefetch_l2(values + 128 * (lane - kLines));
}

// One warp's result over some keys of a row (token, KV head).
struct alignas(16) Merge {
  float o[kHeads][kDim + 4];
  float maximum[kHeads], sum[kHeads];
};

// Where a row's output goes. Its parts, and sinks, are found before the wait: at a launch's end their latency would be the launch's.
struct RowEnd {
  __nv_bfloat16* out;  // of the row's first head
  float value_scale;
  int group;
};

template <Math kM>
struct Walk {
  static constexpr int kParts = Shape<kM>::kParts;
  static constexpr float kBoost = kM == Math::kE4m3 ? 8.f : 0.f;  // on the exponents of probabilities and their sums
  uint32_t q[4][2];     // bf16, f16: B fragments of four k16 steps. E4M3: [0][0..1] and [1][0..1] of two k32 steps
  float scale[2];       // on scores of heads 2t and 2t + 1, to base 2
  float o[4][4];        // dimensions 8g + 2j, 8g + 2j + 1 of heads 2t, 2t + 1: [j][2 * dimension + head]
  float maximum[2], sum[2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.f;
  }

  // `piece(i)` gives 16 bytes of head g's query, dimensions 8i to 8i + 7; zeros where there is no such head.
  template <class Piece>
  __device__ __forceinline__ void load_query(Piece piece, float score_scale, int lane) {
    const int t = lane & 3;
    scale[0] = scale[1] = score_scale;
    if constexpr (kM == Math::kE4m3) q[2][0] = q[2][1] = q[3][0] = q[3][1] = 0;
    if constexpr (kM == Math::kBf16) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint4 w = piece(4 * s + t);
        q[2 * s][0] = w.x, q[2 * s][1] = w.y, q[2 * s + 1][0] = w.z, q[2 * s + 1][1] = w.w;
      }
    } else {
      const uint4 w[2] = {piece(2 * t), piece(2 * t + 1)};
      const uint32_t words[8] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
      if constexpr (kM == Math::kF16) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const __half2 v = __floats2half2_rn(fminf(fmaxf(ptx::bf16_low(words[i]), -65504.f), 65504.f), fminf(fmaxf(ptx::bf16_high(words[i]), -65504.f), 65504.f));
          q[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(&v);
        }
      } else {
        float most = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) most = fmaxf(most, fmaxf(fabsf(ptx::bf16_low(words[i])), fabsf(ptx::bf16_high(words[i]))));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        // A query of zeros keeps a scale above zero, so that masked scores stay minus infinity.
        const float unit = most > 0.f ? most * (1.f / 448.f) : 1.f, inverse = 1.f / unit;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t low = ptx::floats_to_e4m3(ptx::bf16_low(words[2 * i]) * inverse, ptx::bf16_high(words[2 * i]) * inverse);
          const uint32_t high = ptx::floats_to_e4m3(ptx::bf16_low(words[2 * i + 1]) * inverse, ptx::bf16_high(words[2 * i + 1]) * inverse);
          q[i / 2][i % 2] = low | high << 16;
        }
        scale[0] *= __shfl_sync(~0u, unit, 8 * t);
        scale[1] *= __shfl_sync(~0u, unit, 8 * t + 4);
      }
    }
  }

  // Rows g, g + 8: keys; columns 2t, 2t + 1: heads.
  __device__ __forceinline__ void scores(const Tile<kM>& tile, float (&c)[kParts][4]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      c[part][0] = c[part][1] = c[part][2] = c[part][3] = 0.f;
      if constexpr (kM == Math::kBf16) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint4 &x = tile.k[part][s >> 1], &y = tile.k[part][2 + (s >> 1)];
          const uint32_t a[4] = {s & 1 ? x.z : x.x, s & 1 ? y.z : y.x, s & 1 ? x.w : x.y, s & 1 ? y.w : y.y};
          ptx::mma_bf16(c[part], a, q[s][0], q[s][1]);
        }
      } else {
        const uint4 &x = tile.k[part][0], &y = tile.k[part][1];
        const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
        if constexpr (kM == Math::kF16) {
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            const uint32_t a[4] = {ptx::e4m3_to_f16(xs[s]), ptx::e4m3_to_f16(ys[s]), ptx::e4m3_to_f16(xs[s] >> 16), ptx::e4m3_to_f16(ys[s] >> 16)};
            ptx::mma_f16(c[part], a, q[s][0], q[s][1]);
          }
        } else {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const uint32_t a[4] = {xs[2 * s], ys[2 * s], xs[2 * s + 1], ys[2 * s + 1]};
            ptx::mma_e4m3(c[part], a, q[s][0], q[s][1]);
          }
        }
      }
    }
  }

  // Adds probabilities e[part] (as scores lie) times the tile's values.
  __device__ __forceinline__ void add_values(const Tile<kM>& tile, const float (&e)[kParts][4]) {
    if constexpr (kM == Math::kE4m3) {
      // Codes of two keys of a head are one element of the matrix that is turned; bytes then are keys 2t, 2t + 8, 2t + 1, 2t + 9.
      uint32_t b[2];
#pragma unroll
      for (int part = 0; part < 2; ++part)
        b[part] = ptx::transpose_matrix(ptx::floats_to_e4m3(e[part][0], e[part][2]) | static_cast<uint32_t>(ptx::floats_to_e4m3(e[part][1], e[part][3])) << 16);
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        uint32_t dims[2][4];  // [part][dimension of four]
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint32_t w0 = tile.codes(part, 0, high), w1 = tile.codes(part, 1, high), w2 = tile.codes(part, 2, high), w3 = tile.codes(part, 3, high);
          const uint32_t even[2] = {__byte_perm(w0, w2, 0x5140), __byte_perm(w0, w2, 0x7362)}, odd[2] = {__byte_perm(w1, w3, 0x5140), __byte_perm(w1, w3, 0x7362)};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            dims[part][2 * i] = __byte_perm(even[i], odd[i], 0x5410);
            dims[part][2 * i + 1] = __byte_perm(even[i], odd[i], 0x7632);
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t a[4] = {dims[0][2 * i], dims[0][2 * i + 1], dims[1][2 * i], dims[1][2 * i + 1]};
          ptx::mma_e4m3(o[2 * high + i], a, b[0], b[1]);
        }
      }
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t r[4][4];  // key i, dimensions 8g + 2w and the next
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kM == Math::kF16) {
            const uint32_t low = tile.codes(part, i, 0), high = tile.codes(part, i, 1);
            r[i][0] = ptx::e4m3_to_f16(low), r[i][1] = ptx::e4m3_to_f16(low >> 16), r[i][2] = ptx::e4m3_to_f16(high), r[i][3] = ptx::e4m3_to_f16(high >> 16);
          } else {
            const uint4& w = tile.v[part][i];
            r[i][0] = w.x, r[i][1] = w.y, r[i][2] = w.z, r[i][3] = w.w;
          }
        }
        uint32_t b[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (kM == Math::kF16) {
            const __half2 two = __floats2half2_rn(e[part][2 * half], e[part][2 * half + 1]);
            b[half] = ptx::transpose_matrix(*reinterpret_cast<const uint32_t*>(&two));
          } else {
            b[half] = ptx::transpose_matrix(ptx::pack_bf16(e[part][2 * half], e[part][2 * half + 1]));
          }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t a[4] = {__byte_perm(r[0][j], r[1][j], 0x5410), __byte_perm(r[0][j], r[1][j], 0x7632), __byte_perm(r[2][j], r[3][j], 0x5410),
                                 __byte_perm(r[2][j], r[3][j], 0x7632)};
          if constexpr (kM == Math::kF16) ptx::mma_f16(o[j], a, b[0], b[1]);
          else ptx::mma_bf16(o[j], a, b[0], b[1]);
        }
      }
    }
  }

  // `key`: of the tile's first.
  __device__ __forceinline__ void absorb(const Tile<kM>& tile, int key, int first, int length, int lane) {
    const int g = lane >> 2;
    float c[kParts][4];
    scores(tile, c);
    if (key < first || key + Shape<kM>::kKeys > length) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = key + 16 * part + 8 * half + g;
          if (at < first || at >= length) c[part][2 * half] = c[part][2 * half + 1] = -INFINITY;
        }
    }
    float most[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(c[0][i], c[0][2 + i]);
      if constexpr (kParts == 2) most[i] = fmaxf(most[i], fmaxf(c[1][i], c[1][2 + i]));
      most[i] *= scale[i];
    }
    // Every lane of a column works under the same maximum; it seldom moves once some keys were seen.
    if (__any_sync(~0u, most[0] > maximum[0] || most[1] > maximum[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], lanes));
        const float next = fmaxf(maximum[i], most[i]), old = maximum[i] == -INFINITY ? 0.f : ptx::exp2_flushed(maximum[i] - next);
        maximum[i] = next;
        sum[i] *= old;
#pragma unroll
        for (int j = 0; j < 4; ++j) o[j][i] *= old, o[j][2 + i] *= old;
      }
    }
    float e[kParts][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float base = (maximum[i] == -INFINITY ? 0.f : maximum[i]) - kBoost;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        e[part][i] = ptx::exp2_flushed(fmaf(c[part][i], scale[i], -base));
        e[part][2 + i] = ptx::exp2_flushed(fmaf(c[part][2 + i], scale[i], -base));
        sum[i] += e[part][i] + e[part][2 + i];
      }
    }
    add_values(tile, e);
  }

  // Sums over all keys of the walk; before this a lane has those of its own rows.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], lanes);
  }

  // After finish().
  __device__ __forceinline__ void put(Merge& to, int lane) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (g == 0) to.maximum[2 * t + i] = maximum[i], to.sum[2 * t + i] = sum[i];
#pragma unroll
      for (int j = 0; j < 4; j += 2) *reinterpret_cast<float4*>(&to.o[2 * t + i][8 * g + 2 * j]) = make_float4(o[j][i], o[j][2 + i], o[j + 1][i], o[j + 1][2 + i]);
    }
  }

  // After finish(): the row's output, where the walk saw all of its keys.
  __device__ __forceinline__ void write(const RowEnd& end, const float (&sinks)[2], int lane) const;
};

// What a head's sums are multiplied by. The sink (to base 2; minus infinity: none) joins the denominator once.
template <Math kM>
__device__ __forceinline__ float output_factor(const RowEnd& end, float sink, float maximum, float sum) {
  float factor = 1.f;
  if (maximum != -INFINITY) {
    const float most = fmaxf(maximum, sink);
    factor = ptx::exp2_flushed(maximum - most);
    sum = fmaf(sum, factor, ptx::exp2_flushed(sink - most + Walk<kM>::kBoost));
  }
  return sum > 0.f ? factor * end.value_scale / sum : 0.f;
}

template <Math kM>
__device__ __forceinline__ void Walk<kM>::write(const RowEnd& end, const float (&sinks)[2], int lane) const {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = 2 * t + i;
    if (head >= end.group) continue;
    const float factor = output_factor<kM>(end, sinks[i], maximum[i], sum[i]);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = ptx::pack_bf16(o[j][i] * factor, o[j][2 + i] * factor);
    *reinterpret_cast<uint4*>(end.out + head * kDim + 8 * g) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Two dimensions of one head, merged: a lane's share where a warp has a head.
struct Part {
  float maximum, sum;
  float2 y;
};
// Adds pieces under a maximum that is none of theirs' less; `count` is the same for all lanes.
template <class Piece>
__device__ __forceinline__ Part merge_pieces(int count, Piece piece) {
  Part all = {-INFINITY, 0.f, make_float2(0.f, 0.f)};
  for (int i = 0; i < count; ++i) all.maximum = fmaxf(all.maximum, piece(i).maximum);
  for (int i = 0; i < count; ++i) {
    const Part p = piece(i);
    const float f = p.maximum == -INFINITY ? 0.f : ptx::exp2_flushed(p.maximum - all.maximum);
    all.sum = fmaf(p.sum, f, all.sum);
    all.y.x = fmaf(p.y.x, f, all.y.x);
    all.y.y = fmaf(p.y.y, f, all.y.y);
  }
  return all;
}
template <Math kM>
__device__ __forceinline__ void write_part(const RowEnd& end, float sink, int head, int lane, const Part& p) {
  if (head >= end.group) return;
  const float factor = output_factor<kM>(end, sink, p.maximum, p.sum);
  *reinterpret_cast<uint32_t*>(end.out + head * kDim + 2 * lane) = ptx::pack_bf16(p.y.x * factor, p.y.y * factor);
}
__device__ __forceinline__ Part part_of(const Merge& m, int head, int lane) { return {m.maximum[head], m.sum[head], *reinterpret_cast<const float2*>(&m.o[head][2 * lane])}; }

// Partial results in global memory: output sums of all heads, then maximum and sum of each.
constexpr int kPartial = kHeads * (kDim + 2);
__device__ __forceinline__ void store_partial(float* to, int head, int lane, const Part& p) {
  __stcg(reinterpret_cast<float2*>(to + head * kDim + 2 * lane), p.y);
  if (lane == 0) __stcg(reinterpret_cast<float2*>(to + kHeads * kDim + 2 * head), make_float2(p.maximum, p.sum));
}
// Merges the pieces 0..count-1 at `piece(i)`, `kMost` of them at most. A warp's lanes share one head.
template <int kMost, class Place>
__device__ __forceinline__ Part merge_partials(int count, Place piece, int head, int lane) {
  Part all = {-INFINITY, 0.f, make_float2(0.f, 0.f)};
  constexpr int kEach = (kMost + 31) / 32;  // lane i looks after maximum and sum of pieces i, i + 32, ...
  constexpr int kAtOnce = 36;               // reads under way together take as long as one; a row of eight KV heads has 33 pieces on 132 multiprocessors
  float2 ms[kEach], part[kAtOnce];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    ms[i] = at < count ? __ldcg(reinterpret_cast<const float2*>(piece(at) + kHeads * kDim + 2 * head)) : make_float2(-INFINITY, 0.f);
  }
  const auto request = [&](int from) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) part[k] = from + k < count ? __ldcg(reinterpret_cast<const float2*>(piece(from + k) + head * kDim + 2 * lane)) : make_float2(0.f, 0.f);
  };
  request(0);
#pragma unroll
  for (int i = 0; i < kEach; ++i) all.maximum = fmaxf(all.maximum, ms[i].x);
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) all.maximum = fmaxf(all.maximum, __shfl_xor_sync(~0u, all.maximum, lanes));
  const float base = all.maximum == -INFINITY ? 0.f : all.maximum;
  float f[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    f[i] = ptx::exp2_flushed(ms[i].x - base);
    all.sum = fmaf(ms[i].y, f[i], all.sum);
  }
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) all.sum += __shfl_xor_sync(~0u, all.sum, lanes);
#pragma unroll
  for (int from = 0; from < kMost; from += kAtOnce) {
    if (from >= count) break;
    if (from) request(from);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = from + k;
      if (at >= kMost) break;
      const float factor = __shfl_sync(~0u, f[at / 32], at & 31);
      all.y.x = fmaf(part[k].x, factor, all.y.x);
      all.y.y = fmaf(part[k].y, factor, all.y.y);
    }
  }
  return all;
}

// Rows of q and out, and the number of a token's first visible key.
struct Token {
  int length, first;
  __device__ __forceinline__ Token(int keys, int window) : length(keys), first(window > 0 ? max(0, keys - window) : 0) {}
  template <Math kM>
  __device__ __forceinline__ int first_tile() const {
    return first / Shape<kM>::kKeys;
  }
  template <Math kM>
  __device__ __forceinline__ int end_tile() const {
    return (length + Shape<kM>::kKeys - 1) / Shape<kM>::kKeys;
  }
};

// One KV head's pages.
template <Math kM>
struct Pages {
  const uint8_t* base;
  size_t values_at, page_bytes;
  __device__ __forceinline__ Pages(const GossamerDecodeAttentionArgs& p, int head)
      : base(static_cast<const uint8_t*>(p.kv) + head * Shape<kM>::kRun), values_at(p.kv_heads * Shape<kM>::kRun), page_bytes(2 * values_at) {}
  __device__ __forceinline__ const uint8_t* tile(int page, int number) const {
    return base + page * page_bytes + number % Shape<kM>::kTilesOfPage * (Shape<kM>::kKeys * Shape<kM>::kRow);
  }
  __device__ __forceinline__ void request(Tile<kM>& to, int page, int number, const Token& token, int lane) const {
    const uint8_t* at = tile(page, number);
    const int key = number * Shape<kM>::kKeys;
    if (key < token.first || key + Shape<kM>::kKeys > token.length) to.template load<true>(at, at + values_at, lane, token.first - key, token.length - key);
    else to.template load<false>(at, at + values_at, lane, 0, 0);
  }
  __device__ __forceinline__ void prefetch(int page, int number, int lane) const {
    const uint8_t* at = tile(page, number);
    prefetch_tile<kM>(at, at + values_at, lane);
  }
};

template <Math kM>
__device__ __forceinline__ float score_scale(const GossamerDecodeAttentionArgs& p, int head) {
  return p.scale * kLog2e * (Shape<kM>::kFp8 && p.kv_scales ? p.kv_scales[head] : 1.f);
}
template <Math kM>
__device__ __forceinline__ RowEnd row_end(const GossamerDecodeAttentionArgs& p, size_t out_row, int head) {
  return {static_cast<__nv_bfloat16*>(p.out) + (out_row * p.kv_heads + head) * p.group * kDim, Shape<kM>::kFp8 && p.kv_scales ? p.kv_scales[p.kv_heads + head] : 1.f, p.group};
}

// A warp's walk over every kStride-th tile of a row, two of them under way at any time.
// NOTES: lengths and block tables come with the step, long before this layer; q and this token's keys do not. Neither need those of
// the keys before, by the contract of ops.h: what is brought nearer before the wait is not looked at.
template <Math kM, int kStride>
struct Stretch {
  using S = Shape<kM>;
  const Token token;
  const Pages<kM> pages;
  const int* const table;
  int number, end, page0 = 0, page1 = 0;

  __device__ __forceinline__ Stretch(const GossamerDecodeAttentionArgs& p, int row, int head)
      : token(p.lengths[row], p.window), pages(p, head), table(p.block_tables + static_cast<size_t>(row) * p.max_blocks - (p.first_blocks ? p.first_blocks[row] : 0)), number(0), end(0) {}
  __device__ __forceinline__ int page_of(int tile) const { return tile < end ? __ldg(table + tile / S::kTilesOfPage) : 0; }
  // Before the wait. Tiles from `from` on, below `to`.
  __device__ __forceinline__ void begin(int from, int to, int lane) {
    number = from, end = to;
    page0 = page_of(number), page1 = page_of(number + kStride);
    if (number < end) pages.prefetch(page0, number, lane);
    if (number + kStride < end) pages.prefetch(page1, number + kStride, lane);
  }
  __device__ __forceinline__ void request(Tile<kM>& to, int tile, int page, int lane) const {
    if (tile < end) pages.request(to, page, tile, token, lane);
  }
  // After it. `q`: of the row's first head; `launched` is called when the first loads are under way.
  template <class Launched>
  __device__ __forceinline__ void run(Walk<kM>& walk, const __nv_bfloat16* q, int group, float scale, int lane, Launched launched) {
    const auto piece = [&](int i) {
      const int g = lane >> 2;
      return g < group ? __ldcg(reinterpret_cast<const uint4*>(q + g * kDim + 8 * i)) : make_uint4(0, 0, 0, 0);
    };
    Tile<kM> even, odd;
    request(even, number, page0, lane);
    walk.reset();
    walk.load_query(piece, scale, lane);
    launched();
    for (; number < end; number += 2 * kStride) {
      request(odd, number + kStride, page1, lane);
      page0 = page_of(number + 2 * kStride);
      page1 = page_of(number + 3 * kStride);
      walk.absorb(even, number * S::kKeys, token.first, token.length, lane);
      request(even, number + 2 * kStride, page0, lane);
      if (number + kStride < end) walk.absorb(odd, (number + kStride) * S::kKeys, token.first, token.length, lane);
    }
    walk.finish();
  }
};
// To base 2. `head`: of the KV head's group.
__device__ __forceinline__ float sink_of(const GossamerDecodeAttentionArgs& p, int kv_head, int head) {
  return p.sinks && head < p.group ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.sinks)[kv_head * p.group + head]) * kLog2e : -INFINITY;
}
__device__ __forceinline__ const __nv_bfloat16* query_of(const GossamerDecodeAttentionArgs& p, size_t out_row, int head) {
  return static_cast<const __nv_bfloat16*>(p.q) + out_row * p.q_stride + head * p.group * kDim;
}

}  // namespace gossamer::attention
