// The consumer warpgroups of the attention kernel: scores, softmax, output.
#pragma once
#include "prefill_types.cuh"

namespace gossamer::prefill {

// What a warpgroup knows of its tile; the same in all its threads.
// NOTES: whatever steers the steps goes through ptx::uniform: else the assembler takes each product's descriptor from vector registers
// (two more instructions a product, and spills).
struct Tile {
  int blocks, last_block, kv_len;
  int top, bottom;  // steps below `top` reach past a row's position, those from `bottom` on below a row's window
};
// Two rows of a thread: g and g + 8 of its warp's 16.
struct Rows {
  int position[2];             // the last token that a row sees
  float reference[2], sum[2];  // probabilities are 2^(score - reference), not normalised
};

// The steps of all tiles follow one another without a gap: while a step's softmax is computed, the product of the step before with
// its values runs and that of the step after with its keys, whichever tiles they belong to.
template <class C>
struct Consumer {
  const Params& p;
  const Shared<C>& s;
  const int group, warp, g, t;
  const uint64_t first_block;  // descriptor
  uint32_t number = 0;  // of the step, in all tiles: the ring's count of blocks
  uint32_t slot = 0;    // number of the tile
  int step = 0;         // in the tile
  Tile tile;
  Rows rows;
  float scale, ended[2];  // `ended`: sums of the tile before
  float scores[2][kBlockTokens / 2], out[kHeadDim / 2];
  uint32_t query[kHeadDim / 16][4];  // the tile's queries, or
  uint64_t query_rows;               // where they are: a descriptor
  uint32_t probabilities[C::kQueryRegisters ? 1 : 2][kBlockTokens / 16][4];
  bool accumulate = false;  // whether the output product that is due adds to `out`

  __device__ Consumer(const Params& params, const Shared<C>& shared)
      : p(params), s(shared), group(threadIdx.x / 128 - 1), warp(threadIdx.x / 32 % 4), g(threadIdx.x % 32 / 4), t(threadIdx.x % 4), first_block(ptx::wgmma_descriptor(ptx::shared_address(shared.blocks))) {}

  // Of the thread's row g + 8 h.
  __device__ __forceinline__ Row row(int h) const { return s.rows[group * 64 + warp * 16 + g + h * 8]; }
  // Descriptor of the keys of block `n`.
  __device__ __forceinline__ uint64_t descriptor_at(uint32_t n) const { return ptx::descriptor_plus(first_block, n % C::kStages * C::kStageBytes); }
  __device__ __forceinline__ uint8_t* block_at(uint32_t n) const { return s.blocks + n % C::kStages * C::kStageBytes; }
  // The warpgroup's rows of a tile's queries.
  __device__ __forceinline__ uint8_t* rows_at(uint32_t n) const { return s.queries + n % 2 * C::kQueryBytes + group * 64 * 128; }
  __device__ __forceinline__ void release(uint64_t* empty) const {
    __syncwarp();
    ptx::barrier_arrive_if(empty, threadIdx.x % 32 == 0);
  }

  __device__ __forceinline__ void load_query(uint32_t (&q)[4], uint32_t of, int k) const {
    const uint8_t* own = rows_at(of) + (warp * 16 + g) * 128 + t * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r) q[r] = ptx::load_shared_word(own + r % 2 * 1024 + ((2 * k + r / 2) ^ g) * 16);
  }
  // Waits for a tile; false: there is none. `query` or `query_rows` become its.
  __device__ __forceinline__ bool open(uint32_t of) {
    ptx::barrier_wait(&s.query_full[of % 2], parity<2>(of));
    if (ptx::uniform(s.work[of % 4].positions) == 0) return false;
    if constexpr (C::kQueryRegisters) {
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) load_query(query[k], of, k);
    } else {
      query_rows = ptx::wgmma_descriptor(ptx::uniform(ptx::shared_address(rows_at(of))));
    }
    return true;
  }
  __device__ __forceinline__ float key_scale() const { return __uint_as_float(ptx::load_shared_word(&s.work[slot % 4].key_scale)); }
  __device__ __forceinline__ void describe() {
    const Work& w = s.work[slot % 4];
    const int window = p.d.window, end = w.last_block * kBlockTokens + kBlockTokens, reach = window ? max(0, w.position + s.rows[group * 64 + 63].position - window + 1) : 0;
    tile.blocks = ptx::uniform(blocks_of(w)), tile.last_block = ptx::uniform(w.last_block), tile.kv_len = ptx::uniform(w.kv_len);
    tile.top = ptx::uniform((end - w.position - s.rows[group * 64].position + kBlockTokens - 2) / kBlockTokens);
    tile.bottom = ptx::uniform(reach >= end ? 0 : (end - reach) / kBlockTokens);
    scale = key_scale();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.position[h] = w.position + min(row(h).position, w.positions - 1);  // rows past the end repeat the last
      rows.reference[h] = p.d.sinks ? __bfloat162float(at<bf16>(p.a.sinks)[w.kv_head * p.group + row(h).head]) * kLog2e : kNone;
      rows.sum[h] = p.d.sinks && t == 0 ? 1.f : 0.f;
    }
  }

  // Products; in flight until the next wgmma_wait.
  __device__ __forceinline__ void start_scores(float (&d)[kBlockTokens / 2], uint32_t n) {
    const uint64_t b = descriptor_at(n);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      if constexpr (C::kQueryRegisters) ptx::Wgmma<kBlockTokens>::bf16(d, query[k], ptx::descriptor_plus(b, 32 * k), k != 0);
      else ptx::Wgmma<kBlockTokens>::bf16_shared(d, ptx::descriptor_plus(query_rows, 32 * k), ptx::descriptor_plus(b, 32 * k), k != 0);
    }
  }
  __device__ __forceinline__ void start_output(const uint32_t (&a)[kBlockTokens / 16][4], uint32_t n, bool accumulate) {
    const uint64_t b = ptx::descriptor_plus(descriptor_at(n), kTileBytes);
#pragma unroll
    for (int k = 0; k < kBlockTokens / 16; ++k) ptx::Wgmma<kHeadDim>::bf16_transposed(out, a[k], ptx::descriptor_plus(b, 2048 * k), k != 0 || accumulate);
  }

  __device__ __forceinline__ void mask(float (&d)[kBlockTokens / 2]) const {
    const int column = (tile.last_block - step) * kBlockTokens + t * 2, window = p.d.window ? p.d.window : 0x7FFFFFFF;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int high = rows.position[h] - column, low = high - window;
#pragma unroll
      for (int i = 0; i < kBlockTokens / 4; ++i) {
        const int c = i / 2 * 8 + i % 2;
        float& v = d[i / 2 * 4 + h * 2 + i % 2];
        if (c > high || c <= low) v = -INFINITY;
      }
    }
  }
  // Scores -> probabilities under the rows' references. Returns sums.
  __device__ __forceinline__ float2 exponentials(float (&d)[kBlockTokens / 2]) const {
    float sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < kBlockTokens / 4; ++i) {
        float& v = d[i / 2 * 4 + h * 2 + i % 2];
        v = ptx::exp2_flushed(fmaf(v, scale, -rows.reference[h]));
        sum[h] += v;
      }
    return make_float2(sum[0], sum[1]);
  }
  // The scores of the step once more, by the warp alone and from shared memory: the registers belong to products under way.
  __device__ __forceinline__ void scores_again(float (&d)[kBlockTokens / 2]) const {
    const uint8_t* keys = block_at(number) + g * 128 + t * 4;
    float c[kBlockTokens / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t q[4];
      load_query(q, slot, k);
#pragma unroll
      for (int j = 0; j < kBlockTokens / 8; ++j)
        ptx::mma_bf16(c[j], q, ptx::load_shared_word(keys + j * 1024 + ((2 * k) ^ g) * 16), ptx::load_shared_word(keys + j * 1024 + ((2 * k + 1) ^ g) * 16));
    }
#pragma unroll
    for (int i = 0; i < kBlockTokens / 2; ++i) d[i] = c[i / 4][i % 4];
  }
  // Moves the references to the scores' maxima where these are far above, and with them sums and, of later steps than a tile's
  // first, outputs.
  __device__ __forceinline__ void move_references(const float (&d)[kBlockTokens / 2], bool scale_out) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = d[h * 2];
#pragma unroll
      for (int i = 1; i < kBlockTokens / 4; ++i) top = fmaxf(top, d[i / 2 * 4 + h * 2 + i % 2]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale;
      const float before = rows.reference[h];
      if (top > before + kSlack) rows.reference[h] = top;
      const float factor = ptx::exp2_flushed(before - rows.reference[h]);
      rows.sum[h] *= factor;
      if (scale_out) {
#pragma unroll
        for (int j = 0; j < kHeadDim / 8; ++j) out[j * 4 + h * 2] *= factor, out[j * 4 + h * 2 + 1] *= factor;
      }
    }
  }
  template <int kSide>
  __device__ __forceinline__ auto& probabilities_of() {
    return probabilities[C::kQueryRegisters ? 0 : kSide];
  }
  template <int kSide>
  __device__ __forceinline__ void pack_probabilities() {
    const auto& d = scores[kSide];
#pragma unroll
    for (int k = 0; k < kBlockTokens / 16; ++k)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        probabilities_of<kSide>()[k][r] = ptx::pack_bf16(d[(2 * k + r / 2) * 4 + r % 2 * 2], d[(2 * k + r / 2) * 4 + r % 2 * 2 + 1]);
  }
  // Zeroes the values past the sequence's end, which may be anything. The other warpgroups write the same zeros.
  __device__ __forceinline__ void zero_values() const {
    const int used = tile.kv_len - tile.last_block * kBlockTokens;
    if (C::kFp8 || used >= kBlockTokens) return;
    uint8_t* values = block_at(number) + kTileBytes;
    for (int i = used * 8 + threadIdx.x % 128; i < kBlockTokens * 8; i += 128) *reinterpret_cast<uint4*>(values + i * 16) = make_uint4(0, 0, 0, 0);
    ptx::proxy_fence();
    ptx::named_sync(kOwn + group, 128);
  }
  // The four threads of a row add up their sums, and exchange columns so that each has two pieces of 16 bytes.
  __device__ __forceinline__ void store(uint32_t of) {
    const Work& w = s.work[of % 4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = ended[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = __fdividef(w.value_scale, sum);
      const Row r = row(h);
      bf16* line = reinterpret_cast<bf16*>(p.a.out) + (static_cast<size_t>(w.first_query + r.position) * p.d.heads + w.kv_head * p.group + r.head) * kHeadDim;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = ptx::pack_bf16(out[half * 16 + j * 4 + h * 2] * inverse, out[half * 16 + j * 4 + h * 2 + 1] * inverse);
        exchange<1>(words[0], words[1]), exchange<1>(words[2], words[3]);
        exchange<2>(words[0], words[2]), exchange<2>(words[1], words[3]);
        if (r.position < w.positions) *reinterpret_cast<uint4*>(line + half * 32 + t * 8) = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  // Lanes `kLanes` apart: the lower gets both their `a`, the upper both their `b`.
  template <int kLanes>
  __device__ __forceinline__ void exchange(uint32_t& a, uint32_t& b) const {
    const bool upper = t & kLanes;
    const uint32_t got = __shfl_xor_sync(~0u, upper ? a : b, kLanes);
    (upper ? a : b) = got;
  }

  // Scores -> probabilities of the step, while products run; then these have ended.
  // NOTES: no maximum is sought while the sums stay small: a reference that is too low costs no precision, since float and bf16
  // have exponents to spare. Where a sum passes kLimit (or is infinite), the step is done again under a new reference.
  // NOTES: the assembler moves a wait up over any arithmetic, and the softmax would wait for the products that it is to overlap.
  // It does not move it over the branch, which needs the last exponential.
  template <bool kPlain, int kSide>
  __device__ __forceinline__ void softmax() {
    constexpr bool kEarly = !C::kQueryRegisters;  // probabilities of the step before have registers of their own
    auto& d = scores[kSide];
    const bool masked = !kPlain && (step < tile.top || step >= tile.bottom), unset = !kPlain && step == 0 && !p.d.sinks;
    if (masked) mask(d);
    float2 sums = make_float2(INFINITY, INFINITY);
    if (!unset) sums = exponentials(d);
    if (kEarly) pack_probabilities<kSide>();
    const bool move = __any_sync(~0u, fmaxf(sums.x, sums.y) > kLimit);
    if (__builtin_expect(!move, 1)) {
      ptx::wgmma_wait<0>();
    } else {
      ptx::wgmma_wait<0>();
      if (!unset) {
        scores_again(d);
        if (masked) mask(d);
      }
      move_references(d, kPlain || step != 0);
      sums = exponentials(d);
      if (kEarly) pack_probabilities<kSide>();
    }
    if (!kEarly) pack_probabilities<kSide>();
    rows.sum[0] += sums.x, rows.sum[1] += sums.y;
  }
  // Invariant: the step's scores are in scores[kSide], and probabilities of the step before wait for their product.
  // Returns whether this was the last step of all.
  template <int kSide>
  __device__ __forceinline__ bool do_step() {
    const bool last = step + 1 == tile.blocks;
    const bool end = last && !open(slot + 1);
    const uint32_t n = end ? number : number + 1;  // at the end: any keys, for nothing
    ptx::barrier_wait(&s.full[n % C::kStages], parity<C::kStages>(n));
    ptx::wgmma_fence();
    start_output(probabilities_of<1 - kSide>(), number - 1, accumulate);
    start_scores(scores[1 - kSide], n);
    ptx::wgmma_commit();
    softmax<false, kSide>();
    if (step == 0) {
      if (slot) store(slot - 1);
      zero_values();
    }
    if (number) release(&s.empty[(number - 1) % C::kStages]);
    accumulate = step != 0;
    ++number, ++step;
    if (last) {
      ended[0] = rows.sum[0], ended[1] = rows.sum[1];
      release(&s.query_empty[slot % 2]);
      ++slot, step = 0;
      if (!end) describe();
    }
    return end;
  }
  // The same for a step in the middle of a tile that no mask touches: nearly all. Its next block is there; it waits for the one after.
  // NOTES: this wait stands between the start of the products and the softmax, because the assembler would mix the two, and start
  // the last product when the softmax is done. That it has to stay there the assembler learns from the scale, which is read again.
  // The question is asked before, so that the answer costs no time.
  template <int kSide>
  __device__ __forceinline__ void do_plain_step() {
    uint64_t* after = &s.full[(number + 2) % C::kStages];
    const bool there = ptx::barrier_poll(after, parity<C::kStages>(number + 2));
    ptx::wgmma_fence();
    start_output(probabilities_of<1 - kSide>(), number - 1, true);
    start_scores(scores[1 - kSide], number + 1);
    ptx::wgmma_commit();
    if (!there) {
      ptx::barrier_wait(after, parity<C::kStages>(number + 2));
      scale = key_scale();
    }
    softmax<true, kSide>();
    release(&s.empty[(number - 1) % C::kStages]);
    ++number;
  }
  __device__ __forceinline__ void do_plain_steps() {
    if (step < max(tile.top, 2)) return;
    const int pairs = (min(tile.bottom, tile.blocks - 2) - step) / 2;
    if (pairs > 0) ptx::barrier_wait(&s.full[(number + 1) % C::kStages], parity<C::kStages>(number + 1));
#pragma unroll 1
    for (int i = 0; i < pairs; ++i) {
      do_plain_step<0>();
      do_plain_step<1>();
      step += 2;
    }
  }
  __device__ __forceinline__ void run() {
    if (!open(0)) return;
    describe();
    ptx::barrier_wait(&s.full[0], 0);
    ptx::wgmma_fence();
    start_scores(scores[0], 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (;;) {
      do_plain_steps();
      if (do_step<0>()) return finish<0>();
      if (do_step<1>()) return finish<1>();
    }
  }
  template <int kSide>
  __device__ __forceinline__ void finish() {
    ptx::wgmma_fence();
    start_output(probabilities_of<kSide>(), number - 1, accumulate);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    store(slot - 1);
  }
};

}  // namespace gossamer::prefill
