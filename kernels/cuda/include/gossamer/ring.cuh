// A position in a ring of stages, and the parity of its barriers' phase. Producer and consumers each walk with their own.
#pragma once
#include <cstdint>

namespace gossamer {

template <int kStages>
struct Ring {
  uint32_t stage = 0, phase = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
  __device__ uint32_t previous() const { return stage ? stage - 1 : kStages - 1; }
};

}  // namespace gossamer
