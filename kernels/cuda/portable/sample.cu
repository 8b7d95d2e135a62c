// archs: 80 90a 100a
// Sampling as `backend-api/src/ops/sample.rs` documents it, without a sort: several blocks a row look for the best token, then one
// block a row does what needs the row whole.
//
// Top-k and top-p cut the row at a value. Logits are mapped to order-preserving integers, and the cut is found by radix selection
// over their 32 bits: by count for top-k, by probability mass in 40-bit fixed point for top-p, so that sums do not depend on
// the order in which threads add. Of equal logits at the cut the lower ids stay, up to the count.
#include "common.cuh"

namespace gossamer::portable {
namespace {

constexpr int kThreads = 1024;
constexpr float kMassUnit = 1099511627776.f;  // 2^40

__device__ __forceinline__ uint32_t order(float v) {
  const uint32_t b = __float_as_uint(v);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

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
__device__ __forceinline__ float uniform(uint32_t word) { return (static_cast<float>(word >> 8) + .5f) * 5.9604644775390625e-8f; }
__device__ float uniform(uint64_t seed, uint32_t token, uint32_t position, uint32_t choice) {
  const uint4 words = philox(seed, token / 4, position, choice);
  return uniform(token % 4 == 0 ? words.x : token % 4 == 1 ? words.y : token % 4 == 2 ? words.z : words.w);
}
// What a Gumbel variable adds to a logit. The inner logarithm must be good near 1, where the winners are; the outer need not be.
__device__ __forceinline__ float gumbel(float u) { return -__logf(-logf(u)); }

struct Best {
  float value;
  uint32_t id;
};
__device__ __forceinline__ Best better(Best p, Best q) { return q.value > p.value || (q.value == p.value && q.id < p.id) ? q : p; }

__device__ Best block_best(Best b, Best* scratch) {
  for (int o = 16; o; o >>= 1) b = better(b, Best{__shfl_xor_sync(~0u, b.value, o), __shfl_xor_sync(~0u, b.id, o)});
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = b;
  __syncthreads();
  b = scratch[threadIdx.x & 31];
  for (int o = 16; o; o >>= 1) b = better(b, Best{__shfl_xor_sync(~0u, b.value, o), __shfl_xor_sync(~0u, b.id, o)});
  return b;
}

// The largest cut such that the tokens at or above it weigh at least `wanted`. `weight(v)` is what one token weighs.
// On return `above` is the weight of the tokens strictly above the cut.
template <class W>
__device__ uint32_t radix_cut(const float* x, uint32_t n, uint32_t floor, unsigned long long wanted, unsigned long long* histogram,
                              unsigned long long& above, W weight) {
  uint32_t prefix = 0, mask = 0;
  above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t o = order(x[i]);
      if (o >= floor && (o & mask) == prefix) atomicAdd(&histogram[(o >> shift) & 255], weight(x[i]));
    }
    __syncthreads();
    unsigned long long sum = above;
    int digit = 255;
    for (; digit > 0; --digit) {
      if (sum + histogram[digit] >= wanted) break;
      sum += histogram[digit];
    }
    above = sum;
    prefix |= static_cast<uint32_t>(digit) << shift;
    mask |= 255u << shift;
    __syncthreads();
  }
  return prefix;
}

// What one block found in its slice of a row.
struct Slice {
  Best peak;   // the largest value
  Best drawn;  // the token drawn, for rows that cut nothing off
};
constexpr uint32_t kMaxSlices = 32;

struct Row {
  const GossamerLogitEdit* edits;
  const uint32_t* mask;
  float inverse;     // of the temperature
  bool logprobs;     // asked for: they come from the unedited logits, so the row is one block's from the start
  bool draws_whole;  // random, and nothing is cut off
};
__device__ __forceinline__ Row row_of(const GossamerSampleDesc& d, const GossamerSampleArgs& a, const GossamerSampleRow& r, uint32_t row) {
  const uint32_t n = d.vocab;
  return {at<const GossamerLogitEdit>(a.edits) + r.first_edit, r.masked ? at<const uint32_t>(a.masks) + static_cast<size_t>(row) * ((n + 31) / 32) : nullptr,
          r.temperature > 0 ? 1.f / r.temperature : 1.f, r.logprobs != ~0u,
          r.temperature > 0 && !(r.top_k && r.top_k < n) && r.top_p >= 1.f && !(r.min_p > 0)};
}

// Edits and temperature, in place, for the tokens [begin, end); returns what was found there.
__device__ Slice scan(const GossamerSampleDesc& d, const GossamerSampleRow& r, const Row& of, float* x, uint32_t begin, uint32_t end, Best* scratch) {
  for (uint32_t i = threadIdx.x; i < r.edits; i += kThreads) {
    const uint32_t token = of.edits[i].token - d.vocab_offset;
    if (token < begin || token >= end) continue;
    const float v = x[token];
    x[token] = (v > 0 ? v / of.edits[i].repetition : v * of.edits[i].repetition) + of.edits[i].add;
  }
  __syncthreads();
  Best peak = {-INFINITY, ~0u}, drawn = {-INFINITY, ~0u};
  const auto seen = [&](float v, uint32_t i) {
    if (of.mask && !(of.mask[i / 32] >> (i % 32) & 1)) v = -INFINITY;
    return v != v ? -INFINITY : v;
  };
  if (r.temperature <= 0) {
    // Nobody reads the row again, so nothing is written, and loads need not wait for each other.
    constexpr uint32_t kAtOnce = 8;
    uint32_t i = begin + threadIdx.x;
    for (; i + (kAtOnce - 1) * kThreads < end; i += kAtOnce * kThreads) {
      float v[kAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) v[j] = x[i + j * kThreads];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) peak = better(peak, Best{seen(v[j], i + j * kThreads), i + j * kThreads});
    }
    for (; i < end; i += kThreads) peak = better(peak, Best{seen(x[i], i), i});
  } else if (of.draws_whole && d.vocab % 4 == 0 && d.vocab_offset % 4 == 0 && begin % 4 == 0 && end % 4 == 0 && aligned16(reinterpret_cast<uint64_t>(x))) {
    // Four tokens a thread share one call of the generator; nobody reads the row again but for log-probabilities, which undo the temperature.
    for (uint32_t i = begin + 4 * threadIdx.x; i < end; i += 4 * kThreads) {
      float4& four = *reinterpret_cast<float4*>(x + i);
      float v[4] = {four.x, four.y, four.z, four.w};
      const uint4 words = philox(r.seed, (d.vocab_offset + i) / 4, r.position, r.choice);
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[j] = seen(v[j] * of.inverse, i + j);
        peak = better(peak, Best{v[j], i + j});
        if (v[j] > -INFINITY) drawn = better(drawn, Best{v[j] + gumbel(uniform(word[j])), i + j});
      }
      if (of.logprobs) four = make_float4(v[0], v[1], v[2], v[3]);
    }
  } else {
    for (uint32_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const float v = seen(x[i] * of.inverse, i);
      x[i] = v;
      peak = better(peak, Best{v, i});
      if (of.draws_whole && v > -INFINITY) drawn = better(drawn, Best{v + gumbel(uniform(r.seed, d.vocab_offset + i, r.position, r.choice)), i});
    }
  }
  peak = block_best(peak, scratch);
  if (of.draws_whole) drawn = block_best(drawn, scratch);
  return {peak, drawn};
}

__global__ void __launch_bounds__(kThreads) scan_kernel(const __grid_constant__ GossamerSampleDesc d, const __grid_constant__ GossamerSampleArgs a, Slice* out) {
  __shared__ Best scratch[32];
  const uint32_t row = blockIdx.y, slices = gridDim.x, slice = blockIdx.x;
  const GossamerSampleRow r = at<const GossamerSampleRow>(a.rows)[row];
  const Row of = row_of(d, a, r, row);
  if (of.logprobs) return;
  const auto bound = [&](uint32_t s) { return s == slices ? d.vocab : static_cast<uint32_t>(static_cast<uint64_t>(d.vocab) * s / slices / 4 * 4); };
  const Slice found = scan(d, r, of, at<float>(a.logits) + static_cast<size_t>(row) * d.vocab, bound(slice), bound(slice + 1), scratch);
  if (threadIdx.x == 0) out[row * slices + slice] = found;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ GossamerSampleDesc d, const __grid_constant__ GossamerSampleArgs a,
                                                         const Slice* scanned, uint32_t slices) {
  __shared__ float scratch[32];
  __shared__ Best best_scratch[32];
  __shared__ unsigned long long histogram[256];
  const uint32_t row = blockIdx.x, n = d.vocab;
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
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) m = fmaxf(m, x[i]);
    raw_max = block_reduce(m, scratch, -INFINITY, fmax2);
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) sum += expf(x[i] - raw_max);
    raw_log_sum = logf(block_reduce(sum, scratch, 0.f, add2));
    const uint32_t wanted = min(min(r.logprobs, d.max_logprobs), n);
    Best last = {INFINITY, 0};
    for (uint32_t k = 0; k < wanted; ++k) {
      Best b = {-INFINITY, ~0u};
      for (uint32_t i = threadIdx.x; i < n; i += kThreads)
        if (k == 0 || x[i] < last.value || (x[i] == last.value && i > last.id)) b = better(b, Best{x[i], i});
      last = block_best(b, best_scratch);
      if (threadIdx.x == 0) {
        at<uint32_t>(a.top_ids)[static_cast<size_t>(row) * d.max_logprobs + k] = d.vocab_offset + last.id;
        at<float>(a.top_logprobs)[static_cast<size_t>(row) * d.max_logprobs + k] = last.value - raw_max - raw_log_sum;
      }
    }
  }

  // Edits and temperature go in place. Both are undone for the one drawn token, whose unedited logit is asked for.
  __syncthreads();
  Slice found = {{-INFINITY, ~0u}, {-INFINITY, ~0u}};
  if (scanned && !logprobs) {
    for (uint32_t s = 0; s < slices; ++s) {
      const Slice& slice = scanned[row * slices + s];
      found.peak = better(found.peak, slice.peak);
      found.drawn = better(found.drawn, slice.drawn);
    }
  } else {
    found = scan(d, r, of, x, 0, n, best_scratch);
    __syncthreads();
  }
  Best peak = found.peak;
  if (peak.id == ~0u) peak.id = 0;

  Best drawn = peak;
  if (of.draws_whole) {
    if (found.drawn.id != ~0u) drawn = found.drawn;
  } else if (r.temperature > 0 && peak.value > -INFINITY) {
    uint32_t cut = order(-INFINITY) + 1, ties_cut = 0;
    unsigned long long ties_left = ~0ull, above;
    if (r.top_k && r.top_k < n) {
      const auto one = [](float) { return 1ull; };
      cut = max(cut, radix_cut(x, n, cut, r.top_k, histogram, above, one));
      ties_cut = cut;
      ties_left = r.top_k - above;
    }
    if (r.top_p < 1.f) {
      const float top = peak.value;
      const auto mass = [top](float v) { return static_cast<unsigned long long>(__expf(v - top) * kMassUnit); };
      unsigned long long total = 0;
      for (uint32_t i = threadIdx.x; i < n; i += kThreads)
        if (order(x[i]) >= cut) total += mass(x[i]);
      total = block_reduce(total, histogram, 0ull, [](unsigned long long p, unsigned long long q) { return p + q; });
      __syncthreads();
      const unsigned long long wanted = max(1ull, static_cast<unsigned long long>(static_cast<double>(total) * r.top_p));
      cut = max(cut, radix_cut(x, n, cut, wanted, histogram, above, mass));
    }
    if (r.min_p > 0) cut = max(cut, order(peak.value + logf(r.min_p)));
    drawn = {-INFINITY, ~0u};
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t o = order(x[i]);
      if (o < cut) continue;
      if (o == ties_cut && ties_left != ~0ull) {
        // Rank among the equal ones; rare, so a plain count will do.
        unsigned long long rank = 0;
        for (uint32_t j = 0; j < i && rank < ties_left; ++j) rank += order(x[j]) == o;
        if (rank >= ties_left) continue;
      }
      const float u = uniform(r.seed, d.vocab_offset + i, r.position, r.choice);
      drawn = better(drawn, Best{x[i] + gumbel(u), i});
    }
    drawn = block_best(drawn, best_scratch);
    if (drawn.id == ~0u) drawn = peak;
  }
  if (threadIdx.x) return;
  at<uint32_t>(a.tokens)[row] = d.vocab_offset + drawn.id;
  if (!logprobs) return;
  float v = x[drawn.id] / of.inverse;
  for (uint32_t i = 0; i < r.edits; ++i) {
    if (of.edits[i].token - d.vocab_offset != drawn.id) continue;
    const float u = v - of.edits[i].add;
    v = u > 0 ? u * of.edits[i].repetition : u / of.edits[i].repetition;
  }
  at<float>(a.logprobs)[row] = v != v ? -INFINITY : v - raw_max - raw_log_sum;
}

}  // namespace
}  // namespace gossamer::portable

using namespace gossamer::portable;

namespace {
// A few blocks a multiprocessor of the largest devices.
constexpr uint32_t kBlocks = 2048;
uint32_t slices_of(uint32_t rows) { return min(kMaxSlices, max(1u, kBlocks / rows)); }
}  // namespace

extern "C" size_t gossamer_portable_sample_workspace(unsigned rows) { return static_cast<size_t>(min(rows * kMaxSlices, kBlocks)) * sizeof(Slice); }

extern "C" int gossamer_portable_sample(const GossamerSampleDesc* d, const GossamerSampleArgs* a, void* workspace, cudaStream_t stream) {
  if (d->logits != GOSSAMER_F32 || !d->vocab) return GOSSAMER_BAD_SHAPE;
  if (!a->row_count) return GOSSAMER_OK;
  const uint32_t slices = slices_of(a->row_count);
  Slice* const scanned = slices > 1 ? static_cast<Slice*>(workspace) : nullptr;
  if (scanned) scan_kernel<<<dim3(slices, a->row_count), kThreads, 0, stream>>>(*d, *a, scanned);
  sample_kernel<<<a->row_count, kThreads, 0, stream>>>(*d, *a, scanned, slices);
  return launched();
}
