// archs: 80 90a 100a
// Repacking of MXFP4 expert matrices from the checkpoint's layout to `mxfp4-sm90-v2` (and `-maxima`), and back.
// One thread makes the 16 code bytes of one lane of one tile. Slice-aware: `experts` matrices from `blocks` on, rows and
// K as held by this rank (the caller points into the checkpoint slice; strides are those of a dense slice).
#include <cuda_runtime.h>

#include "gossamer/mxfp4.cuh"
#include "gossamer/ops.h"

namespace {
using namespace gossamer;

__device__ __forceinline__ uint32_t read_code(const uint8_t* row, int col, int k) {
  if (col >= k) return 0;
  const uint8_t b = row[col >> 1];
  return (col & 1) ? b >> 4 : b & 15;
}

__global__ void repack_kernel(GossamerRepackArgs p) {
  const int strips = p.rows / 16, kt = mxfp4::tiles_of(p.k);
  const size_t tile = static_cast<size_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (tile >= static_cast<size_t>(p.experts) * strips * kt) return;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int kc = static_cast<int>(tile % kt);
  const int s = static_cast<int>(tile / kt % strips);
  const size_t e = tile / kt / strips;
  const size_t row_bytes = p.row_stride_bytes ? p.row_stride_bytes : p.k / 2, row_scales = p.row_stride_scales ? p.row_stride_scales : p.k / 32;
  const uint8_t* blocks = static_cast<const uint8_t*>(p.blocks) + e * p.rows * row_bytes;
  const uint8_t* scales = static_cast<const uint8_t*>(p.scales) + e * p.rows * row_scales;
  const int rows[2] = {mxfp4::source_row(s, g, p.interleaved), mxfp4::source_row(s, g + 8, p.interleaved)};
  uint32_t w[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int reg = 0; reg < 4; ++reg)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = kc * 64 + i * 16 + (reg >> 1) * 8 + 2 * t + half;
        mxfp4::place(w, i, reg, half, read_code(blocks + rows[reg & 1] * row_bytes, col, p.k));
      }
  uint8_t* out = static_cast<uint8_t*>(p.packed) + tile * mxfp4::kTileBytes;
  reinterpret_cast<uint4*>(out)[lane] = make_uint4(w[0], w[1], w[2], w[3]);
  const int block = kc * 2 + (t & 1);
  const uint8_t sc = block * 32 < p.k ? scales[rows[t >> 1] * row_scales + block] : 0;
  out[mxfp4::kCodeBytes + 4 * g + t] = sc;
  if (sc > 128 && p.large_scales) atomicAdd(p.large_scales, 1u);
}

// `mxfp4-sm90-v2-maxima`: a warp per row.
__global__ void maxima_kernel(GossamerRepackArgs p) {
  const size_t row = static_cast<size_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= static_cast<size_t>(p.experts) * p.rows) return;
  const size_t e = row / p.rows, row_scales = p.row_stride_scales ? p.row_stride_scales : p.k / 32;
  const int r = static_cast<int>(row % p.rows);
  const uint8_t* scales = static_cast<const uint8_t*>(p.scales) + (e * p.rows + mxfp4::source_row(r / 16, r % 16, p.interleaved)) * row_scales;
  unsigned top = 0;
  for (int i = threadIdx.x % 32; i < p.k / 32; i += 32) top = max(top, static_cast<unsigned>(scales[i]));
  top = __reduce_max_sync(~0u, top);
  if (threadIdx.x % 32 == 0) static_cast<uint8_t*>(p.packed)[row] = static_cast<uint8_t>(top);
}

__global__ void unpack_kernel(GossamerUnpackArgs p) {
  const int strips = p.rows / 16, kt = mxfp4::tiles_of(p.k);
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<size_t>(p.rows) * p.k) return;
  const int row = static_cast<int>(i / p.k), col = static_cast<int>(i % p.k), s = row / 16, q = row % 16;
  const int r = !p.interleaved ? q : (q & 1 ? q / 2 + 8 : q / 2);
  const uint8_t* tile = static_cast<const uint8_t*>(p.packed) + ((static_cast<size_t>(p.expert) * strips + s) * kt + col / 64) * mxfp4::kTileBytes;
  const int c = col % 64, step = c / 16, cc = c % 16, reg = (cc >= 8 ? 2 : 0) + (r >= 8 ? 1 : 0), lane = (r % 8) * 4 + (cc % 8) / 2;
  const uint32_t code = mxfp4::pick(reinterpret_cast<const uint32_t*>(tile) + lane * 4, step, reg, cc & 1);
  const int sc = tile[mxfp4::kCodeBytes + 4 * (r % 8) + (r >= 8 ? 2 : 0) + c / 32];
  const float mags[8] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
  const float v = mags[code & 7] * exp2f(static_cast<float>(sc - 127));
  p.out[i] = (code & 8) ? -v : v;
}
}  // namespace

extern "C" int gossamer_repack_mxfp4(const GossamerRepackArgs* p, cudaStream_t stream) {
  if (p->rows <= 0 || p->rows % 16 || p->k <= 0 || p->k % 32 || p->experts <= 0) return GOSSAMER_BAD_SHAPE;
  const size_t tiles = static_cast<size_t>(p->experts) * (p->rows / 16) * gossamer::mxfp4::tiles_of(p->k);
  repack_kernel<<<static_cast<unsigned>((tiles + 7) / 8), 256, 0, stream>>>(*p);
  return cudaGetLastError() == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}

extern "C" int gossamer_repack_mxfp4_maxima(const GossamerRepackArgs* p, cudaStream_t stream) {
  if (p->rows <= 0 || p->rows % 16 || p->k <= 0 || p->k % 32 || p->experts <= 0) return GOSSAMER_BAD_SHAPE;
  const size_t rows = static_cast<size_t>(p->experts) * p->rows;
  maxima_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(*p);
  return cudaGetLastError() == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}

extern "C" int gossamer_unpack_mxfp4(const GossamerUnpackArgs* p, cudaStream_t stream) {
  if (p->rows <= 0 || p->rows % 16 || p->k <= 0 || p->k % 32) return GOSSAMER_BAD_SHAPE;
  const size_t n = static_cast<size_t>(p->rows) * p->k;
  unpack_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(*p);
  return cudaGetLastError() == cudaSuccess ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
