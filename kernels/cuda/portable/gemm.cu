// archs: 80 90a 100a
// Dense product: out[t, j] = x[t] . weight[j] + bias[j] (+ residual[t, j]), bf16 tensor cores, float sums.
// One block makes a 128 x 128 tile (or 32 x 64 for few tokens) of one segment; K goes through two shared-memory stages.
#include "common.cuh"

namespace gossamer::portable {
namespace {

constexpr int kK = 32;            // columns per stage
constexpr int kPitch = kK + 8;    // elements per shared row: 80 bytes, so that ldmatrix rows fall into different banks

struct Tile {
  GossamerGemmDesc d;
  GossamerGemmArgs a;
  uint32_t first_tile[4];  // first column tile of each segment, and the total
  uint32_t columns;
};

template <int kM, int kN, int kWarpsM, int kWarpsN>
__global__ void __launch_bounds__(kWarpsM* kWarpsN * 32) gemm_kernel(const __grid_constant__ Tile p) {
  constexpr int kThreads = kWarpsM * kWarpsN * 32, kTM = kM / kWarpsM / 16, kTN = kN / kWarpsN / 8;
  static_assert(kTN % 2 == 0, "weights come in pairs of 8 rows");
  __shared__ __align__(16) bf16 xs[2][kM][kPitch];
  __shared__ __align__(16) bf16 ws[2][kN][kPitch];
  int segment = 0;
  while (segment < 2 && blockIdx.x >= p.first_tile[segment + 1]) ++segment;
  const uint32_t rows_of_weight = p.d.out_features[segment];
  const uint32_t n0 = (blockIdx.x - p.first_tile[segment]) * kN, m0 = blockIdx.y * kM;
  uint32_t column0 = n0;
  for (int i = 0; i < segment; ++i) column0 += p.d.out_features[i];
  const uint32_t k_total = p.d.in_features;
  const bf16* x = at<const bf16>(p.a.x);
  const bf16* w = at<const bf16>(p.a.segments[segment].weight);
  const uint32_t* gather = at<const uint32_t>(p.a.rows);

  auto load = [&](int stage, uint32_t k0) {
    for (int i = threadIdx.x; i < kM * (kK / 8); i += kThreads) {
      const uint32_t r = i / (kK / 8), c = k0 + i % (kK / 8) * 8, row = m0 + r;
      const bool valid = row < p.a.tokens && c < k_total;
      const size_t source = valid ? static_cast<size_t>(p.d.gather ? gather[row] : row) * k_total + c : 0;
      ptx::copy_async<16>(&xs[stage][r][c - k0], x + source, valid);
    }
    for (int i = threadIdx.x; i < kN * (kK / 8); i += kThreads) {
      const uint32_t r = i / (kK / 8), c = k0 + i % (kK / 8) * 8, row = n0 + r;
      const bool valid = row < rows_of_weight && c < k_total;
      ptx::copy_async<16>(&ws[stage][r][c - k0], w + (valid ? static_cast<size_t>(row) * k_total + c : 0), valid);
    }
    ptx::copy_async_commit();
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int wm = warp / kWarpsN * (kM / kWarpsM), wn = warp % kWarpsN * (kN / kWarpsN);
  float sums[kTM][kTN][4] = {};
  const uint32_t steps = (k_total + kK - 1) / kK;
  load(0, 0);
  for (uint32_t s = 0; s < steps; ++s) {
    if (s + 1 < steps) load((s + 1) & 1, (s + 1) * kK);
    else ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t fa[kTM][4];
#pragma unroll
      for (int i = 0; i < kTM; ++i) ptx::load_matrix_x4(fa[i], ptx::shared_address(&xs[s & 1][wm + i * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < kTN; j += 2) {
        uint32_t fb[4];
        ptx::load_matrix_x4(fb, ptx::shared_address(&ws[s & 1][wn + j * 8 + lane % 8 + lane / 16 * 8][k + (lane / 8 & 1) * 8]));
#pragma unroll
        for (int i = 0; i < kTM; ++i) {
          ptx::mma_bf16(sums[i][j], fa[i], fb[0], fb[1]);
          ptx::mma_bf16(sums[i][j + 1], fa[i], fb[2], fb[3]);
        }
      }
    }
    __syncthreads();
  }

  const bf16* bias = at<const bf16>(p.a.segments[segment].bias);
#pragma unroll
  for (int i = 0; i < kTM; ++i)
#pragma unroll
    for (int j = 0; j < kTN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t row = m0 + wm + i * 16 + lane / 4 + (e >> 1) * 8, col = wn + j * 8 + lane % 4 * 2 + (e & 1);
        if (row >= p.a.tokens || n0 + col >= rows_of_weight) continue;
        float v = sums[i][j][e];
        if (bias) v += __bfloat162float(bias[n0 + col]);
        const size_t target = static_cast<size_t>(row) * p.columns + column0 + col;
        const bool narrow = p.d.out == GOSSAMER_BF16;
        if (p.d.residual) v += narrow ? __bfloat162float(at<const bf16>(p.a.residual)[target]) : at<const float>(p.a.residual)[target];
        if (narrow) at<bf16>(p.a.out)[target] = __float2bfloat16(v);
        else at<float>(p.a.out)[target] = v;
      }
}

template <int kM, int kN, int kWarpsM, int kWarpsN>
int start(Tile& p, cudaStream_t stream) {
  for (int i = 0; i < 3; ++i) p.first_tile[i + 1] = p.first_tile[i] + (p.d.out_features[i] + kN - 1) / kN;
  const dim3 grid(p.first_tile[3], (p.a.tokens + kM - 1) / kM);
  return launch(gemm_kernel<kM, kN, kWarpsM, kWarpsN>, grid, dim3(kWarpsM * kWarpsN * 32), 0, stream, false, p);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" int gossamer_portable_gemm(const GossamerGemmDesc* d, const GossamerGemmArgs* a, cudaStream_t stream) {
  using namespace gossamer::portable;
  if (d->in_features % 8 || d->norm || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  Tile p = {*d, *a, {}, d->out_features[0] + d->out_features[1] + d->out_features[2]};
  return a->tokens <= 32 ? start<32, 64, 1, 4>(p, stream) : start<128, 128, 2, 4>(p, stream);
}
