// A clock of the kernels of a decode layer, for harness/layer_clock.cu, which defines GOSSAMER_CLOCK: every block writes down when it
// started, came to each of its marks, and ended. Elsewhere nothing of it is compiled.
#pragma once
#include <cstdint>

namespace gossamer::clocks {

enum Kernel { kTiny, kRope, kAttention, kRouter, kFew, kKernels };
constexpr int kWaited = 1;  // the mark behind the wait for the grid before; others are each kernel's own, in rising order
constexpr int kMarks = 12;

#ifdef GOSSAMER_CLOCK
struct Record {
  int kernel, rows;                         // rows of a dense product, which tells qkv from o
  uint32_t started, marks[kMarks], ended;  // nanoseconds, of which 2^32 come round; 0: not passed
};
constexpr unsigned kMost = 1 << 18;
__device__ Record records[kMost];
__device__ unsigned record_count;

// Of thread 0, which marks and writes.
class Clock {
 public:
  __device__ __forceinline__ explicit Clock(Kernel kernel, int rows = 0) : record{kernel, rows, now(), {}, 0} {}
  __device__ __forceinline__ void mark(int i) { record.marks[i] = now(); }
  __device__ __forceinline__ ~Clock() {
    if (threadIdx.x != 0) return;
    record.ended = now();
    const unsigned at = atomicAdd(&record_count, 1);
    if (at < kMost) records[at] = record;
  }

 private:
  __device__ __forceinline__ static uint32_t now() {
    uint32_t t;
    asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(t)::"memory");
    return t;
  }
  Record record;
};
#else
struct Clock {
  __device__ __forceinline__ explicit Clock(Kernel, int = 0) {}
  __device__ __forceinline__ void mark(int) {}
};
#endif

}  // namespace gossamer::clocks
