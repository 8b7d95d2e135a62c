// archs: 80 90a 100a
// Sampling as `backend-api/src/ops/sample.rs` documents it, without a sort: several blocks a row look for the best token, then one
// block a row does what needs the row whole.
//
// Top-k and top-p cut the row at a value (cut.cuh): by count for top-k, by probability mass in 40-bit fixed point for top-p. Of equal
// logits at the cut the lower ids stay, up to the count.
//
// Where nothing is cut off, a token's noise is worked out only if it could win against a score that was reached already (`Bar`): bounds
// of noise tell, which cost a logarithm or two without its care. A warp without such a score takes the best of its own lower bounds.
//
// Invariant: which token is drawn depends on the row alone. A token is passed over only if its score, as it would be computed, is
// below a computed one; how many blocks and threads share a row, and who comes first, decides what is passed over and nothing else.
#include "cut.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::portable {
namespace {

constexpr int kScanThreads = 256;     // of those that share it
constexpr int kFewScanThreads = 512;  // of those that share it where rows are so few that all run at once: time is one thread's latency then
constexpr uint32_t kFewRows = 4;
constexpr float kMassUnit = 1099511627776.f;  // 2^40

__device__ __forceinline__ float value_of(uint32_t order) { return __uint_as_float(order & 0x80000000u ? order & 0x7FFFFFFFu : ~order); }

// Philox4x32-10 (Salmon et al. 2011): the numbers of the four tokens from 4 * group on.
__device__ __forceinline__ uint4 philox(uint64_t seed, uint32_t group, uint32_t position, uint32_t choice) {
  uint32_t c[4] = {group, position, choice, 0}, k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0], h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
    c[0] = h1 ^ c[1] ^ k0;
    c[1] = l1;
    c[2] = h0 ^ c[3] ^ k1;
    c[3] = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c[0], c[1], c[2], c[3]);
}
// What a Gumbel variable adds to a logit: -ln(-ln(u)) with u = (word >> 8 + 0.5) * 2^-24.
// NOTES: next to 1 a float holds no such u, and the winners are there: 1 - u it holds. The outer logarithm need not be good.
__device__ __forceinline__ float gumbel(uint32_t word) {
  constexpr float kStep = 5.9604644775390625e-8f;
  const uint32_t n = word >> 8, rest = 0xFFFFFFu - n;
  const float inner = n < rest ? logf((static_cast<float>(n) + .5f) * kStep) : log1pf((static_cast<float>(rest) + .5f) * -kStep);
  return -__logf(-inner);
}
__device__ __forceinline__ uint32_t word_of(uint4 words, uint32_t i) { return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w; }
__device__ float gumbel(uint64_t seed, uint32_t token, uint32_t position, uint32_t choice) {
  return gumbel(word_of(philox(seed, token / 4, position, choice), token % 4));
}
constexpr float kMostNoise = 17.4f;  // no word gives more

struct alignas(8) Best {
  float value;
  uint32_t id;
};
// Nothing, or a token that may not be drawn.
__device__ __forceinline__ Best none() { return {-INFINITY, ~0u}; }
__device__ __forceinline__ Best better(Best p, Best q) { return q.value > p.value || (q.value == p.value && q.id < p.id) ? q : p; }

// Values in the order of integers, in which zeros must not differ by their sign.
__device__ __forceinline__ Best warp_best(Best b) {
  const uint32_t own = order(b.value + 0.f), most = __reduce_max_sync(~0u, own);
  return {value_of(most), __reduce_min_sync(~0u, own == most ? b.id : ~0u)};
}
template <int kBlock = kThreads>
__device__ Best block_best(Best b, Best* scratch) {
  const uint32_t lane = threadIdx.x & 31;
  b = warp_best(b);
  __syncthreads();
  if (lane == 0) scratch[threadIdx.x / 32] = b;
  __syncthreads();
  return warp_best(lane < kBlock / 32 ? scratch[lane] : none());
}

constexpr uint32_t kMaxSlices = 128;
constexpr uint32_t kBars = 1024;  // the workspace's first 4096 bytes are zero before a launch and after it

struct Row {
  const GossamerLogitEdit* edits;
  const uint32_t* mask;
  uint32_t pending;  // the token that nobody knew when the row was made; ~0: none
  float inverse;     // of the temperature
  bool logprobs;     // asked for: they come from the unedited logits, so the row is one block's from the start
  bool draws_whole;  // random, and nothing is cut off
  bool cuts;         // random among what is left: scan leaves the logits edited, masked and divided by the temperature
};
__device__ __forceinline__ Row row_of(const GossamerSampleDesc& d, const GossamerSampleArgs& a, const GossamerSampleRow& r, uint32_t row) {
  const uint32_t n = d.vocab;
  const bool cuts = (r.top_k && r.top_k < n) || r.top_p < 1.f || r.min_p > 0, random = r.temperature > 0;
  return {at<const GossamerLogitEdit>(a.edits) + r.first_edit, r.masked ? at<const uint32_t>(a.masks) + static_cast<size_t>(row) * ((n + 31) / 32) : nullptr,
          r.pending ? *at<const uint32_t>(r.pending) : ~0u, random ? 1.f / r.temperature : 1.f, r.logprobs != ~0u, random && !cuts, random && cuts};
}

// What some token of the row has reached, as far as this warp knows. The block's own is behind `shared`: its warps' stores may
// overwrite a higher one, and each is a score that was reached. `row` is all blocks', as `order` has it; null: this block does not
// ask the others.
struct Bar {
  volatile float* shared;
  uint32_t* row;
  float least = -INFINITY;  // what is below cannot win, whatever rounding did
  __device__ __forceinline__ void raise(float score) { least = fmaxf(least, score - 1e-3f - fminf(fabsf(score), 1e30f) * 4.77e-7f); }
  __device__ __forceinline__ void look(uint32_t of_row) { raise(fmaxf(*shared, value_of(max(of_row, order(-INFINITY))))); }
  __device__ __forceinline__ void share(float score) {
    const uint32_t best = __reduce_max_sync(~0u, order(score));
    const float reached = value_of(best);
    raise(reached);
    if ((threadIdx.x & 31) == 0 && reached > *shared) {
      *shared = reached;
      if (row) atomicMax(row, best);
    }
  }
};

// Bounds of a token's score, true to 1e-5 and rounding: noise is -ln(E) with E = -ln(1 - s), and s <= E <= s / sqrt(1 - s), the latter
// since t <= sinh(t) for t = E / 2. Of s = 1 - u a word gives 23 bits, rounded down.
constexpr float kLn2 = .693147181f, kLastBit = 1.1920929e-7f;
__device__ __forceinline__ float rest_of(uint32_t word) { return __uint_as_float(0x3F800000u | ~word >> 9) - 1.f; }
__device__ __forceinline__ float most_of(float logit, uint32_t word) { return fmaf(ptx::log2_flushed(rest_of(word)), -kLn2, logit); }
__device__ __forceinline__ float least_of(float logit, uint32_t word) {
  const float s = rest_of(word) + kLastBit;
  return fmaf(fmaf(ptx::log2_flushed(1.f - s), -.5f, ptx::log2_flushed(s)), -kLn2, logit);
}

// A warp's next 4 * 32 tokens of a row from which nothing is cut off; this lane has those from `token` on. `more`: the warp has others
// to come.
__device__ __forceinline__ void draw_four(const GossamerSampleRow& r, float inverse, float4 x, uint32_t column, uint32_t token, bool more, Bar& bar, Best& drawn) {
  const float v[4] = {x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse};
  const float highest = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
  if (!__any_sync(~0u, highest + kMostNoise >= bar.least)) return;
  const uint4 words = philox(r.seed, token / 4, r.position, r.choice);
  // A token of each lane is enough for a first bar: three others of the warp will do better, on average.
  if (__any_sync(~0u, bar.least == -INFINITY)) bar.raise(value_of(__reduce_max_sync(~0u, order(fmaxf(-INFINITY, least_of(v[0], words.x))))));
  if (!__any_sync(~0u, most_of(highest, max(max(words.x, words.y), max(words.z, words.w))) >= bar.least)) return;
  const float bound = fmaxf(bar.least, -3.402823466e38f);  // neither NaN nor minus infinity passes
  uint32_t left = (most_of(v[0], words.x) >= bound) | (most_of(v[1], words.y) >= bound) << 1 | (most_of(v[2], words.z) >= bound) << 2 | (most_of(v[3], words.w) >= bound) << 3;
  // Seldom more than one of a warp, and four times in the loop: small code.
#pragma unroll 1
  for (; left; left &= left - 1) {
    const uint32_t j = __ffs(left) - 1;
    const float logit = j == 0 ? v[0] : j == 1 ? v[1] : j == 2 ? v[2] : v[3];
    drawn = better(drawn, Best{logit + gumbel(word_of(words, j)), column + j});
  }
  if (more || bar.row) bar.share(drawn.value);
}

// Rounded step by step, so that a token's logit is the same whichever place its edit was found in.
__device__ __forceinline__ float edited(float v, float repetition, float add) { return __fadd_rn(v > 0 ? v / repetition : v * repetition, add); }

// The logits of a slice [begin, end) that a thread has in registers: four and four of them, from `first` on.
template <int kBlock>
struct Fours {
  static constexpr uint32_t kAtOnce = kBlock == kFewScanThreads ? 2 : 4, kStride = 4 * kBlock;
  float4 four[kAtOnce];
  static __device__ __forceinline__ bool fit(const GossamerSampleDesc& d, const float* x, uint32_t begin, uint32_t end) {
    return (d.vocab | d.vocab_offset | begin | end) % 4 == 0 && aligned16(reinterpret_cast<uint64_t>(x));
  }
  __device__ __forceinline__ void load(const float* x, uint32_t first, uint32_t end) {
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t i = first + j * kStride;
      four[j] = i < end ? __ldcs(reinterpret_cast<const float4*>(x + i)) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    }
  }
};

// Edits, in place, for the tokens [begin, end) of a row; then its token, or the largest logit where something is cut off: none()
// where no logit is a number above -inf that is allowed. `read` may have the thread's first fours already, unedited (`is_read`).
// `reached` holds -inf; `row`: see Bar.
template <int kBlock>
__device__ Best scan(const GossamerSampleDesc& d, const GossamerSampleRow& r, const Row& of, float* x, uint32_t begin, uint32_t end, Fours<kBlock>& read, bool is_read,
                     Best* scratch, float* reached, uint32_t* row) {
  constexpr uint32_t kStride = Fours<kBlock>::kStride, kAtOnce = Fours<kBlock>::kAtOnce;
  const bool fours = Fours<kBlock>::fit(d, x, begin, end) && !of.mask && !of.cuts;
  if (r.edits || of.pending != ~0u) {
    bool found = false;
    for (uint32_t i = threadIdx.x; i < r.edits; i += kBlock) {
      const GossamerLogitEdit edit = of.edits[i];
      const uint32_t column = edit.token - d.vocab_offset;
      if (column < begin || column >= end) continue;
      const bool pending = edit.token == of.pending;
      x[column] = edited(x[column], pending ? r.pending_repetition : edit.repetition, pending ? edit.pending_add : edit.add);
      found |= pending;
    }
    if (const uint32_t column = of.pending - d.vocab_offset; column >= begin && column < end)
      if (!__syncthreads_or(found) && threadIdx.x == 0) x[column] = edited(x[column], r.pending_repetition, r.pending_add);
    __syncthreads();
    is_read = false;
  }
  Best best = none();
  if (!fours) {
    for (uint32_t i = begin + threadIdx.x; i < end; i += kBlock) {
      float v = x[i] * of.inverse;
      if (v != v || (of.mask && !(of.mask[i / 32] >> (i % 32) & 1))) v = -INFINITY;
      if (of.cuts) x[i] = v;
      if (of.draws_whole && v > -INFINITY) v += gumbel(r.seed, d.vocab_offset + i, r.position, r.choice);
      if (v > -INFINITY) best = better(best, Best{v, i});
    }
    return block_best<kBlock>(best, scratch);
  }
  // Whole warps go on together, beyond the end with nothing.
  const auto for_all = [&](auto use) {
    for (uint32_t first = begin + 4 * threadIdx.x; __any_sync(~0u, first < end); first += kAtOnce * kStride, is_read = false) {
      const uint32_t of_row = row ? *const_cast<const volatile uint32_t*>(row) : 0;
      if (!is_read) read.load(x, first, end);
      use(first, of_row);
    }
  };
  if (of.draws_whole) {
    Bar bar = {reached, row};
    for_all([&](uint32_t first, uint32_t of_row) {
      bar.look(of_row);
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        const uint32_t i = first + j * kStride;
        const bool more = kBlock != kFewScanThreads || __any_sync(~0u, i + kStride < end);
        draw_four(r, of.inverse, read.four[j], i, d.vocab_offset + i, more, bar, best);
      }
    });
  } else {
    float4 of_best = {};
    for_all([&](uint32_t first, uint32_t) {
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        const float4 four = read.four[j];
        const float most = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
        if (most > best.value) best = {most, first + j * kStride}, of_best = four;
      }
    });
    // Of the four, the first.
    best.id += of_best.x == best.value ? 0 : of_best.y == best.value ? 1 : of_best.z == best.value ? 2 : best.id != ~0u ? 3 : 0;
  }
  return block_best<kBlock>(best, scratch);
}

// Where rows are few, latency is what counts: logits are read before it is known what the row wants of them.
template <int kBlock>
__global__ void __launch_bounds__(kBlock, kBlock == kFewScanThreads ? 2 : 6)
    scan_kernel(const __grid_constant__ GossamerSampleDesc d, const __grid_constant__ GossamerSampleArgs a, uint32_t* bars, Best* out) {
  __shared__ Best scratch[32];
  __shared__ float reached;
  // All rows' first slices before the second ones: the later find a bar.
  const uint32_t row = blockIdx.x, slices = gridDim.y, slice = blockIdx.y;
  ptx::launch_dependents();
  const GossamerSampleRow* const at_row = at<const GossamerSampleRow>(a.rows) + row;
  if (threadIdx.x == 0) {
    reached = -INFINITY;
    ptx::prefetch_l2(at_row);  // a hint, which cannot be too early
  }
  const auto bound = [&](uint32_t s) { return s == slices ? d.vocab : static_cast<uint32_t>(static_cast<uint64_t>(d.vocab) * s / slices / 4 * 4); };
  const uint32_t begin = bound(slice), end = bound(slice + 1);
  float* const x = at<float>(a.logits) + static_cast<size_t>(row) * d.vocab;
  __syncthreads();
  ptx::dependency_wait();
  Fours<kBlock> read;
  const bool is_read = kBlock == kFewScanThreads && read.fit(d, x, begin, end);
  if (kBlock == kFewScanThreads) read.load(x, begin + 4 * threadIdx.x, is_read ? end : begin);  // no branch, behind which it would wait for the row
  const GossamerSampleRow r = *at_row;
  const Row of = row_of(d, a, r, row);
  if (of.logprobs) return;
  // Blocks that begin together have nothing to tell each other.
  uint32_t* const shared_bar = kBlock == kScanThreads && row < kBars ? bars + row : nullptr;
  const Best found = scan<kBlock>(d, r, of, x, begin, end, read, is_read, scratch, &reached, shared_bar);
  if (threadIdx.x == 0) out[row * slices + slice] = found;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ GossamerSampleDesc d, const __grid_constant__ GossamerSampleArgs a,
                                                         uint32_t* bars, const Best* scanned, uint32_t slices) {
  __shared__ float scratch[32], reached;
  __shared__ Best best_scratch[32];
  __shared__ unsigned long long bins[kBins];
  __shared__ Crossing crossed;
  const uint32_t row = blockIdx.x, n = d.vocab;
  ptx::launch_dependents();
  ptx::dependency_wait();
  // Read before it is known whether the row wants it, and without a branch: one latency with the row's.
  Best of_slices[kMaxSlices / 32];
#pragma unroll
  for (uint32_t i = 0; i < kMaxSlices / 32; ++i) {
    const uint32_t slice = 32 * i + threadIdx.x % 32;
    of_slices[i] = slice < (scanned ? slices : 0) ? scanned[row * slices + slice] : none();
  }
  const GossamerSampleRow r = at<const GossamerSampleRow>(a.rows)[row];
  float* x = at<float>(a.logits) + static_cast<size_t>(row) * n;
  const auto fmax2 = [](float p, float q) { return fmaxf(p, q); };
  const auto add2 = [](float p, float q) { return p + q; };

  const Row of = row_of(d, a, r, row);

  // Log-probabilities come from the unedited logits; the sum waits for the drawn token.
  const bool logprobs = of.logprobs;
  float raw_max = 0, raw_log_sum = 0;
  if (logprobs) {
    float m = -INFINITY, sum = 0;
    for_each(x, n, [&](float v, uint32_t) { m = fmaxf(m, v); });
    raw_max = block_reduce(m, scratch, -INFINITY, fmax2);
    for_each(x, n, [&](float v, uint32_t) { sum += expf(v - raw_max); });
    raw_log_sum = logf(block_reduce(sum, scratch, 0.f, add2));
    const uint32_t wanted = min(min(r.logprobs, d.max_logprobs), n);
    Best last = {INFINITY, 0};
    for (uint32_t k = 0; k < wanted; ++k) {
      Best b = {-INFINITY, ~0u};
      for_each(x, n, [&](float v, uint32_t i) {
        if (i < n && (k == 0 || v < last.value || (v == last.value && i > last.id))) b = better(b, Best{v, i});
      });
      last = block_best(b, best_scratch);
      if (threadIdx.x == 0) {
        at<uint32_t>(a.top_ids)[static_cast<size_t>(row) * d.max_logprobs + k] = d.vocab_offset + last.id;
        at<float>(a.top_logprobs)[static_cast<size_t>(row) * d.max_logprobs + k] = last.value - raw_max - raw_log_sum;
      }
    }
  }

  Best peak = none();
  if (scanned && !logprobs) {
    for (const Best& best : of_slices) peak = better(peak, best);
    peak = warp_best(peak);
    if (threadIdx.x == 0 && row < kBars) bars[row] = 0;  // as the next launch wants it
  } else {
    if (threadIdx.x == 0) reached = -INFINITY;
    __syncthreads();
    Fours<kThreads> read;
    peak = scan<kThreads>(d, r, of, x, 0, n, read, false, best_scratch, &reached, nullptr);
    __syncthreads();
  }

  Best drawn = peak;
  if (of.cuts && peak.id != ~0u) {
    uint32_t cut = order(-INFINITY) + 1, ties_cut = 0;
    unsigned long long ties_left = ~0ull, above;
    if (r.top_k && r.top_k < n) {
      const auto one = [](float) { return 1ull; };
      cut = max(cut, cut_of(x, n, peak.value, cut, r.top_k, bins, &crossed, above, one));
      ties_cut = cut;
      ties_left = r.top_k - above;
    }
    if (r.top_p < 1.f) {
      const float top = peak.value;
      const auto mass = [top](float v) { return static_cast<unsigned long long>(__expf(v - top) * kMassUnit); };
      unsigned long long total = 0;
      for_each(x, n, [&](float v, uint32_t) {
        if (order(v) >= cut) total += mass(v);
      });
      total = block_reduce(total, bins, 0ull, [](unsigned long long p, unsigned long long q) { return p + q; });
      __syncthreads();
      const unsigned long long wanted = max(1ull, static_cast<unsigned long long>(static_cast<double>(total) * r.top_p));
      cut = max(cut, cut_of(x, n, top, cut, wanted, bins, &crossed, above, mass));
    }
    if (r.min_p > 0) cut = max(cut, order(peak.value + logf(r.min_p)));
    drawn = none();
    // Of equal ones at top-k's cut, those that are not too many. Rare, so a plain count will do.
    const auto stays = [&](uint32_t o, uint32_t i) {
      unsigned long long rank = 0;
      if (o == ties_cut && ties_left != ~0ull)
        for (uint32_t j = 0; j < i && rank < ties_left; ++j) rank += order(x[j]) == o;
      return rank < ties_left;
    };
    for_fours(x, n, [&](float4 four, uint32_t first) {
      if (order(fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w))) < cut) return;
      const uint32_t token = d.vocab_offset + first;
      const uint4 words = philox(r.seed, token / 4, r.position, r.choice);
#pragma unroll 1
      for (uint32_t i = first; i < first + 4; ++i) {
        const uint32_t o = order(four.x);
        if (o >= cut && stays(o, i)) drawn = better(drawn, Best{four.x + (token % 4 ? gumbel(r.seed, d.vocab_offset + i, r.position, r.choice) : gumbel(word_of(words, i - first))), i});
        four = make_float4(four.y, four.z, four.w, 0);
      }
    });
    drawn = block_best(drawn, best_scratch);
    if (drawn.id == ~0u) drawn = peak;
  }
  if (threadIdx.x) return;
  const bool found = drawn.id != ~0u;
  const uint32_t token = found ? d.vocab_offset + drawn.id : GOSSAMER_NO_TOKEN;
  at<uint32_t>(a.tokens)[row] = token;
  if (r.kept) *at<uint32_t>(r.kept) = token;  // its pending token may have been there: `of` has it
  if (!found) at<float>(a.logprobs)[row] = NAN;
  if (!found || !logprobs) return;
  // The drawn token's unedited logit is asked for: what was done in place is undone.
  float v = of.cuts ? x[drawn.id] / of.inverse : x[drawn.id];
  const bool pending = token == of.pending;
  float repetition = pending ? r.pending_repetition : 1.f, add = pending ? r.pending_add : 0.f;
  for (uint32_t i = 0; i < r.edits; ++i) {
    const GossamerLogitEdit edit = of.edits[i];
    if (edit.token != token) continue;
    add = pending ? edit.pending_add : edit.add;
    if (!pending) repetition = edit.repetition;
  }
  v -= add;
  v = v > 0 ? v * repetition : v / repetition;
  at<float>(a.logprobs)[row] = v != v ? -INFINITY : v - raw_max - raw_log_sum;
}

}  // namespace
}  // namespace gossamer::portable

using namespace gossamer::portable;

namespace {
// Several turns of the largest devices, so that the last one's idle blocks weigh little.
constexpr uint32_t kBlocks = 4096;
// A row by itself takes a block on nearly every multiprocessor.
uint32_t slices_of(uint32_t rows) { return rows == 1 ? kMaxSlices : min(kMaxSlices / 2, max(1u, kBlocks / rows)); }
}  // namespace

extern "C" size_t gossamer_portable_sample_workspace(unsigned rows) {
  return kBars * sizeof(uint32_t) + static_cast<size_t>(min(rows * kMaxSlices, kBlocks)) * sizeof(Best);
}

extern "C" int gossamer_portable_sample(const GossamerSampleDesc* d, const GossamerSampleArgs* a, void* workspace, cudaStream_t stream) {
  if (d->logits != GOSSAMER_F32 || !d->vocab) return GOSSAMER_BAD_SHAPE;
  if (!a->row_count) return GOSSAMER_OK;
  const uint32_t slices = slices_of(a->row_count);
  uint32_t* const bars = static_cast<uint32_t*>(workspace);
  Best* const scanned = slices > 1 ? reinterpret_cast<Best*>(bars + kBars) : nullptr;
  if (scanned) {
    const dim3 blocks(a->row_count, slices);
    const int status = a->row_count <= kFewRows ? gossamer::launch_early(scan_kernel<kFewScanThreads>, blocks, kFewScanThreads, stream, *d, *a, bars, scanned)
                                                : gossamer::launch_early(scan_kernel<kScanThreads>, blocks, kScanThreads, stream, *d, *a, bars, scanned);
    if (status) return status;
  }
  return gossamer::launch_early(sample_kernel, a->row_count, kThreads, stream, *d, *a, bars, scanned, slices);
}
