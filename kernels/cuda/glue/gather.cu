// archs: 80 90a 100a
// Gathers rows: one block per row, 16 bytes per thread and turn.
#include "gossamer/glue.h"
#include "gossamer/ops.h"

namespace {

__global__ void gather_kernel(const uint4* x, const uint32_t* rows, uint4* out, uint32_t words) {
  const uint4* from = x + static_cast<size_t>(rows[blockIdx.x]) * words;
  uint4* to = out + static_cast<size_t>(blockIdx.x) * words;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

}  // namespace

extern "C" int gossamer_gather_rows(const void* x, const uint32_t* rows, void* out, uint32_t count, uint32_t row_bytes, cudaStream_t stream) {
  if (row_bytes % 16) return GOSSAMER_BAD_SHAPE;
  if (count) gather_kernel<<<count, 128, 0, stream>>>(static_cast<const uint4*>(x), rows, static_cast<uint4*>(out), row_bytes / 16);
  return cudaGetLastError() == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
