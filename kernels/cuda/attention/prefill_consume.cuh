// The consumer warpgroups of the attention kernel: scores, softmax, output.
#pragma once
#include "prefill_types.cuh"

namespace gossamer::prefill {

// 2^x for finite x on the multiply-add units: 2^round(x) times a polynomial, relative error 7.5e-5 (P is rounded to bf16: 2e-3).
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kMagic = 12582912.f;  // 1.5 x 2^23: adding it rounds to an integer
  x = fmaxf(x, -120.f);
  const float r = x + kMagic, f = x - (r - kMagic);
  const float y = fmaf(fmaf(fmaf(0.055171669f, f, 0.24261112f), f, 0.69326099f), f, 0.99992807f);
  return __int_as_float(__float_as_int(y) + (__float_as_int(r) << 23));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Two rows of a thread: g and g + 8 of its warp's 16.
struct Rows {
  int position[2], low[2];  // a row sees tokens in (low, position]
  float maximum[2], sum[2];
};

// Scores -> probabilities (unnormalised). `factor`: what earlier sums and outputs are to be multiplied by.
template <class C, bool kMasked>
__device__ __forceinline__ void softmax(float (&s)[kColumns / 2], Rows& rows, float (&factor)[2], float scale, int first_column) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kMasked) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = first_column + j * 8 + t * 2 + e;
          if (column > rows.position[h] || column <= rows.low[h]) s[j * 4 + h * 2 + e] = -INFINITY;
        }
    }
    float top0 = s[h * 2], top1 = s[h * 2 + 1];
#pragma unroll
    for (int j = 1; j < kColumns / 8; ++j) top0 = fmaxf(top0, s[j * 4 + h * 2]), top1 = fmaxf(top1, s[j * 4 + h * 2 + 1]);
    float top = fmaxf(top0, top1);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale;
    const float before = rows.maximum[h];
    const float after = top > before + kSlack ? top : before;
    factor[h] = ptx::exp2_flushed(before - after);
    rows.maximum[h] = after;
    float sum0 = 0, sum1 = 0;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const bool polynomial = !kMasked && j * C::kPoly % 8 < C::kPoly;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& v = s[j * 4 + h * 2 + e];
        const float x = fmaf(v, scale, -after);
        v = polynomial ? exp2_polynomial(x) : ptx::exp2_flushed(x);
        if (e) sum1 += v;
        else sum0 += v;
      }
    }
    rows.sum[h] = rows.sum[h] * factor[h] + (sum0 + sum1);
  }
}

// A consumer warpgroup's walk over one tile.
template <class C>
struct Walk {
  const Shared<C>& s;
  const Work& w;
  Ring<C::kStages>& keys;
  Ring<C::kStages>& values;
  uint64_t query;  // descriptor
  float scale;
  Rows rows;
  float scores[kColumns / 2], out[kHeadDim / 2];
  uint32_t p[kColumns / 16][4];

  __device__ __forceinline__ int group() const { return threadIdx.x / 128 - 1; }
  __device__ __forceinline__ int first_column(int n) const { return (w.last_block - 2 * n - 1) * kBlockTokens; }
  __device__ __forceinline__ void release(uint64_t* empty, bool condition = true) const {
    __syncwarp();
    ptx::barrier_arrive_if(empty, condition && threadIdx.x % 32 == 0);
  }
  __device__ __forceinline__ void start_scores() {
    const uint64_t b = ptx::wgmma_descriptor(ptx::shared_address(s.keys + keys.stage * kTileBytes));
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) ptx::Wgmma<kColumns>::bf16_shared(scores, ptx::descriptor_plus(query, 32 * k), ptx::descriptor_plus(b, 32 * k), k != 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_output(bool first) {
    const uint64_t b = ptx::wgmma_descriptor(ptx::shared_address(s.values + values.stage * kTileBytes));
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) ptx::Wgmma<kHeadDim>::bf16_transposed(out, p[k], ptx::descriptor_plus(b, 2048 * k), k != 0 || !first);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void pack_probabilities() {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k)
#pragma unroll
      for (int r = 0; r < 4; ++r) p[k][r] = pack(scores[(2 * k + r / 2) * 4 + r % 2 * 2], scores[(2 * k + r / 2) * 4 + r % 2 * 2 + 1]);
  }
  // Waits for the values of step n and zeroes the rows that must not be used. The other warpgroups write the same zeros.
  __device__ __forceinline__ void wait_values(int n, int steps) {
    ptx::barrier_wait(&s.value_full[values.stage], values.phase);
    if constexpr (!C::kFp8) {
      if (n != 0 && n != steps - 1) return;
      const int low = w.last_block - 2 * n - 1 < w.first_block ? kBlockTokens : 0, high = min(kColumns, w.kv_len - first_column(n));
      if (low == 0 && high == kColumns) return;
      uint8_t* tile = s.values + values.stage * kTileBytes;
      for (int i = threadIdx.x % 128; i < kColumns * 8; i += 128)
        if (i / 8 < low || i / 8 >= high) *reinterpret_cast<uint4*>(tile + i * 16) = make_uint4(0, 0, 0, 0);
      ptx::proxy_fence();
      ptx::named_sync(kOwn + group(), 128);
    }
  }
  template <bool kMasked>
  __device__ __forceinline__ void step(int n, int steps) {
    float factor[2];
    wait_values(n - 1, steps);
    ptx::barrier_wait(&s.key_full[keys.stage], keys.phase);
    if constexpr (C::kTurns) ptx::named_sync(kTurn + group(), 256);
    ptx::wgmma_fence();
    start_scores();
    start_output(n == 1);
    if constexpr (C::kTurns) ptx::named_arrive(kTurn + (group() + 1) % C::kGroups, 256);
    ptx::wgmma_wait<1>();
    softmax<C, kMasked>(scores, rows, factor, scale, first_column(n));
    // NOTES: the assembler moves the next wait up over any arithmetic, and the softmax would wait for the product that it is to
    // overlap. It does not move it over this arrival, whose condition (always true) needs the last exponential.
    release(&s.key_empty[keys.stage], !(fminf(rows.sum[0], rows.sum[1]) < 0.f));
    keys.next();
    ptx::wgmma_wait<0>();
    release(&s.value_empty[values.stage]);
    values.next();
    if (__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 2; ++j) out[j] *= factor[j / 2 % 2];
    }
    pack_probabilities();
  }
  // `low_row`, `high_row`: positions of the warpgroup's first and last row.
  __device__ __forceinline__ void run(int low_row, int high_row, int window) {
    const int steps = steps_of(w), last = first_column(0) + kColumns - 1;
    // Steps [0, top) reach past the first row's position; those from `bottom` on reach below the last row's window or the cache.
    const int top = min(steps, max(1, (last - low_row + kColumns - 1) / kColumns));
    const int reach = window ? max(0, high_row - window + 1) : 0;
    const int bottom = max(top, min(steps, first_column(0) < reach ? 0 : (first_column(0) - reach) / kColumns + 1));
    float factor[2];
    ptx::barrier_wait(&s.key_full[keys.stage], keys.phase);
    ptx::wgmma_fence();
    start_scores();
    ptx::wgmma_wait<0>();
    release(&s.key_empty[keys.stage]);
    keys.next();
    softmax<C, true>(scores, rows, factor, scale, first_column(0));
    pack_probabilities();
    int n = 1;
    for (; n < top; ++n) step<true>(n, steps);
    for (; n < bottom; ++n) step<false>(n, steps);
    for (; n < steps; ++n) step<true>(n, steps);
    wait_values(steps - 1, steps);
    ptx::wgmma_fence();
    start_output(steps == 1);
    ptx::wgmma_wait<0>();
    release(&s.value_empty[values.stage]);
    values.next();
  }
};

template <class C>
__device__ __forceinline__ void consume(const Params& p, const Shared<C>& s) {
  const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int heads = p.group, window = p.d.window;
  const float* scales = at<float>(p.a.kv_scales);
  Ring<C::kStages> keys, values;
  Ring<2> slots;
  if (C::kTurns && group == C::kGroups - 1) ptx::named_arrive(kTurn, 256);
  for (;; slots.next()) {
    ptx::barrier_wait(&s.query_full[slots.stage], slots.phase);
    const Work& w = s.work[slots.stage];  // stays until the slot is released
    if (!w.positions) return;
    uint8_t* own = s.queries + slots.stage * C::kQueryBytes + group * 64 * 128;
    float key_scale = p.d.scale * kLog2e, value_scale = 1.f;
    if (C::kFp8 && scales) key_scale *= scales[w.kv_head], value_scale = scales[p.d.kv_heads + w.kv_head];
    Walk<C> walk = {s, w, keys, values, ptx::wgmma_descriptor(ptx::shared_address(own)), key_scale};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = group * 64 + warp * 16 + g + h * 8;
      walk.rows.position[h] = w.position + row / heads;
      walk.rows.low[h] = window ? max(-1, walk.rows.position[h] - window) : -1;
      walk.rows.maximum[h] = p.d.sinks ? __bfloat162float(at<bf16>(p.a.sinks)[w.kv_head * heads + row % heads]) * kLog2e : kNone;
      walk.rows.sum[h] = p.d.sinks && t == 0 ? 1.f : 0.f;
    }
    walk.run(w.position + group * 64 / heads, w.position + (group * 64 + 63) / heads, window);

    // The four threads of a row add up their columns. The result goes through shared memory to leave in pieces of 16 bytes.
    ptx::named_sync(kOwn + group, 128);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = walk.rows.sum[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = __fdividef(value_scale, sum);
      uint8_t* line = own + (warp * 16 + g + h * 8) * 128;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j)
        *reinterpret_cast<uint32_t*>(line + (j ^ g) * 16 + t * 4) = pack(walk.out[j * 4 + h * 2] * inverse, walk.out[j * 4 + h * 2 + 1] * inverse);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in_group = warp * 16 + i * 4 + lane / 8, piece = lane % 8, row = group * 64 + in_group, query = row / heads;
      const uint4 v = *reinterpret_cast<const uint4*>(own + in_group * 128 + (piece ^ (in_group & 7)) * 16);
      if (query < w.positions)
        *reinterpret_cast<uint4*>(reinterpret_cast<bf16*>(p.a.out) + (static_cast<size_t>(w.first_query + query) * p.d.heads + w.kv_head * heads + row % heads) * kHeadDim +
                                  piece * 8) = v;
    }
    ptx::proxy_fence();
    walk.release(&s.query_empty[slots.stage]);
  }
}

}  // namespace gossamer::prefill
