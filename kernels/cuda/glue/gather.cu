// archs: 80 90a 100a
// Gathers rows: one block per row, 16 bytes per thread and turn.
#include "gossamer/glue.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace {

constexpr int kThreads = 384;  // a row of 2880 at once

__global__ void __launch_bounds__(kThreads) gather_kernel(const uint4* x, const uint32_t* rows, uint4* out, uint32_t words) {
  gossamer::ptx::launch_dependents();  // the output head's weights need no rows
  gossamer::ptx::dependency_wait();
  const uint4* from = x + static_cast<size_t>(rows[blockIdx.x]) * words;
  uint4* to = out + static_cast<size_t>(blockIdx.x) * words;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

}  // namespace

extern "C" int gossamer_gather_rows(const void* x, const uint32_t* rows, void* out, uint32_t count, uint32_t row_bytes, cudaStream_t stream) {
  if (row_bytes % 16) return GOSSAMER_BAD_SHAPE;
  if (!count) return GOSSAMER_OK;
  return gossamer::launch_early(gather_kernel, count, kThreads, stream, static_cast<const uint4*>(x), rows, static_cast<uint4*>(out), row_bytes / 16);
}
