// Where top-k and top-p cut a row, found by one block without a sort.
//
// Invariant: weights are whole numbers, so that their sums do not depend on the order in which threads add.
#pragma once
#include "common.cuh"

namespace gossamer::portable {

constexpr int kThreads = 1024;     // of the block that has a row
constexpr uint32_t kBins = 2048;
constexpr float kBinsOfOne = 32.f;  // bins of a difference of one: 64 from the largest logit on down, and one for the rest

// Logits as integers of the same order.
__device__ __forceinline__ uint32_t order(float v) {
  const uint32_t b = __float_as_uint(v);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

// `f(four, i)` for the row's values i to i + 3; those beyond the end are minus infinity.
template <class F>
__device__ __forceinline__ void for_fours(const float* x, uint32_t n, F f) {
  constexpr uint32_t kAtOnce = 4;
  const bool whole = n % 4 == 0 && aligned16(reinterpret_cast<uint64_t>(x));
  const auto value = [&](uint32_t i) { return i < n ? x[i] : -INFINITY; };
  for (uint32_t first = 4 * threadIdx.x; first < n; first += kAtOnce * 4 * kThreads) {
    float4 four[kAtOnce];
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t i = first + j * 4 * kThreads;
      if (i < n) four[j] = whole ? *reinterpret_cast<const float4*>(x + i) : make_float4(value(i), value(i + 1), value(i + 2), value(i + 3));
    }
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j)
      if (first + j * 4 * kThreads < n) f(four[j], first + j * 4 * kThreads);
  }
}
// `f(value, i)` for each.
template <class F>
__device__ __forceinline__ void for_each(const float* x, uint32_t n, F f) {
  for_fours(x, n, [&](float4 four, uint32_t i) {
    f(four.x, i);
    f(four.y, i + 1);
    f(four.z, i + 2);
    f(four.w, i + 3);
  });
}

struct Crossing {
  uint32_t bin;
  unsigned long long above;  // the weight of what comes before it
};
// The first bin with which the weights reach `wanted`, else the last one. All threads take part.
__device__ inline Crossing crossing(const unsigned long long* bins, uint32_t count, unsigned long long above, unsigned long long wanted, Crossing* shared) {
  __syncthreads();
  if (threadIdx.x < 32)
    for (uint32_t first = 0;; first += 32) {
      const unsigned long long own = bins[first + threadIdx.x];
      unsigned long long upto = own;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const unsigned long long before = __shfl_up_sync(~0u, upto, o);
        if (threadIdx.x >= o) upto += before;
      }
      const uint32_t reached = __ballot_sync(~0u, above + upto >= wanted);
      if (reached || first + 32 >= count) {
        if (threadIdx.x == (reached ? __ffs(reached) - 1 : 31)) *shared = {first + threadIdx.x, above + upto - own};
        break;
      }
      above += __shfl_sync(~0u, upto, 31);
    }
  __syncthreads();
  return *shared;
}

// The largest cut (as `order` has it) such that the values at or above it weigh at least `wanted`, `weight(v)` each; `floor` or less
// where they do not. Values below `floor` count for nothing; none is larger than `top`. `above` becomes the weight of those above the cut.
//
// The distance from `top` finds a bin, since the leading bits of floats would put nearly all values into a few and threads would queue
// to add; then come the bits of that bin's values.
template <class W>
__device__ uint32_t cut_of(const float* x, uint32_t n, float top, uint32_t floor, unsigned long long wanted, unsigned long long* bins, Crossing* shared,
                           unsigned long long& above, W weight) {
  const auto bin_of = [top](float v) { return min(kBins - 1, __float2uint_rz((top - v) * kBinsOfOne)); };
  const auto add = [&](uint32_t bin, float v) {
    if (const unsigned long long w = weight(v)) atomicAdd(&bins[bin], w);
  };
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  __syncthreads();
  for_each(x, n, [&](float v, uint32_t) {
    if (order(v) >= floor) add(bin_of(v), v);
  });
  Crossing at = crossing(bins, kBins, 0, wanted, shared);
  const uint32_t bin = at.bin;
  uint32_t prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 256; i += kThreads) bins[i] = 0;
    __syncthreads();
    for_each(x, n, [&](float v, uint32_t) {
      const uint32_t o = order(v);
      if (o >= floor && (o & mask) == prefix && bin_of(v) == bin) add(255 - (o >> shift & 255), v);
    });
    at = crossing(bins, 256, at.above, wanted, shared);
    prefix |= (255 - at.bin) << shift;
    mask |= 255u << shift;
  }
  above = at.above;
  return prefix;
}

}  // namespace gossamer::portable
