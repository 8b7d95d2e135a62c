// One tile of weights by up to eight tokens on mma.m16n8k16, for the few-token experts kernels.
//
// Tokens are columns of B, kept in shared memory in B-fragment order and times 2^100, so that block scales can be applied to the sums
// of 32 columns (layout note (b) in LAYOUTS.md).
#pragma once
#include <cuda_bf16.h>

#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::moe {

constexpr float kUnscale = 0x1p26f;  // 2^126 of the codes over 2^100 of the tokens

// What one tile needs in registers: codes, scales, token columns. Loaded one tile ahead of its use.
struct Operands {
  uint4 codes, b0, b1;
  uint32_t scales;
  // Shared addresses: this lane's codes, its scales, its part of the token column.
  __device__ __forceinline__ void load(uint32_t code, uint32_t scale, uint32_t column) {
    codes = ptx::shared_load4(code);
    b0 = ptx::shared_load4(column);
    scales = ptx::shared_load(scale);
    b1 = ptx::shared_load4(column + 64);
  }
};
__device__ __forceinline__ void multiply(const Operands& o, float (&acc)[4]) {
  uint32_t a[4][4];
  float c[4], d[4];
  mxfp4::codes_to_bf16(o.codes.x, o.codes.y, a[0], a[1]);
  mxfp4::codes_to_bf16(o.codes.z, o.codes.w, a[2], a[3]);
  ptx::mma_bf16_zero(c, a[0], o.b0.x, o.b0.y);
  ptx::mma_bf16_zero(d, a[2], o.b1.x, o.b1.y);
  ptx::mma_bf16(c, a[1], o.b0.z, o.b0.w);
  ptx::mma_bf16(d, a[3], o.b1.z, o.b1.w);
  const float s0 = mxfp4::scale_float<0>(o.scales), s1 = mxfp4::scale_float<1>(o.scales);
  const float s2 = mxfp4::scale_float<2>(o.scales), s3 = mxfp4::scale_float<3>(o.scales);
  acc[0] = fmaf(c[0], s0, acc[0]);
  acc[1] = fmaf(c[1], s0, acc[1]);
  acc[2] = fmaf(c[2], s2, acc[2]);
  acc[3] = fmaf(c[3], s2, acc[3]);
  acc[0] = fmaf(d[0], s1, acc[0]);
  acc[1] = fmaf(d[1], s1, acc[1]);
  acc[2] = fmaf(d[2], s3, acc[2]);
  acc[3] = fmaf(d[3], s3, acc[3]);
}

// Eight values of a token, times 2^100.
__device__ __forceinline__ uint4 times_2_100(uint4 x) {
  const __nv_bfloat162 factor = __float2bfloat162_rn(0x1p100f);
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
  for (int q = 0; q < 4; ++q) pairs[q] = __hmul2(pairs[q], factor);
  return x;
}
// Into the token's column as its eight number `v`: (tile, k16 step, upper or lower 8 columns); its word q belongs to fragment column t = q.
__device__ __forceinline__ void store_eight(uint8_t* column, int v, uint4 x) {
  const int step = (v >> 1) & 3;
  uint32_t* to = reinterpret_cast<uint32_t*>(column + (v >> 3) * 128 + (step >> 1) * 64) + (step & 1) * 2 + (v & 1);
  to[0] = x.x;
  to[4] = x.y;
  to[8] = x.z;
  to[12] = x.w;
}

}  // namespace gossamer::moe
