// archs: 80 90a 100a
// The experts' two products on MXFP4 weights, checkpoint layout or mxfp4-sm90-v2: weights are decoded into shared memory tile
// by tile and multiplied on bf16 tensor cores. Never more than a tile is expanded.
//
// Three launches: sort (token, choice) pairs by expert; gate_up with SwiGLU into the workspace; down into `out`. A row's sums do not
// depend on its place in the sort, so results repeat although the order inside an expert does not.
#include "experts.cuh"

namespace gossamer::portable {
namespace {

// Rows of experts that are held elsewhere.
__global__ void zero_kernel(GossamerExpertsDesc d, GossamerExpertsArgs a) {
  const uint32_t e = at<const uint32_t>(a.expert_ids)[blockIdx.x] - d.first_expert;
  if (e < d.local_experts) return;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.hidden;
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) out[i] = __float2bfloat16(0.f);
}

// kGateUp: rows come from `x` by pair, results go to `inner`; else rows are those of `inner`, results go to `out` by pair.
template <bool kPacked, bool kGateUp>
__global__ void __launch_bounds__(kThreads) experts_kernel(const __grid_constant__ GossamerExpertsDesc d, const __grid_constant__ GossamerExpertsArgs a,
                                                           const __grid_constant__ Sorted s) {
  __shared__ __align__(16) bf16 xs[kM][kPitch];
  __shared__ __align__(16) bf16 ws[kN][kPitch];
  const uint32_t expert = blockIdx.y, first = s.starts[expert], count = s.starts[expert + 1] - first;
  const uint32_t rows = kGateUp ? 2 * d.intermediate : d.hidden, cols = kGateUp ? d.hidden : d.intermediate, n0 = blockIdx.x * kN;
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const bf16* bias = at<const bf16>(w.bias) + static_cast<size_t>(expert) * rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  for (uint32_t m0 = 0; m0 < count; m0 += kM) {
    float sums[8][4] = {};
    for (uint32_t k0 = 0; k0 < cols; k0 += kK) {
      for (int i = threadIdx.x; i < kM * (kK / 8); i += kThreads) {
        const uint32_t r = i / (kK / 8), c = i % (kK / 8) * 8;
        const bool valid = m0 + r < count && k0 + c < cols;
        const uint32_t place = first + (valid ? m0 + r : 0);
        const size_t row = kGateUp ? s.pairs[place] / d.top_k : place;
        copy16(&xs[r][c], (kGateUp ? at<const bf16>(a.x) : s.inner) + row * cols + (valid ? k0 + c : 0), valid);
      }
      copy_commit();
      load_weights<kPacked, kGateUp>(ws, w, expert, rows, cols, n0, k0);
      copy_wait<0>();
      __syncthreads();
      for (int k = 0; k < kK; k += 16) {
        uint32_t fa[4];
        ldmatrix(fa, &xs[warp * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          uint32_t fb[4];
          ldmatrix(fb, &ws[j * 8 + lane % 8 + lane / 16 * 8][k + (lane / 8 & 1) * 8]);
          mma(sums[j], fa, fb[0], fb[1]);
          mma(sums[j + 1], fa, fb[2], fb[3]);
        }
      }
      __syncthreads();
    }
    // A thread's two neighbouring columns are gate and up of one intermediate column.
    for (int j = 0; j < 8; ++j)
      for (int h = 0; h < 2; ++h) {
        const uint32_t r = m0 + warp * 16 + lane / 4 + h * 8, n = n0 + j * 8 + lane % 4 * 2;
        if (r >= count || n >= rows) continue;
        float v0 = sums[j][h * 2] + __bfloat162float(bias[n]), v1 = sums[j][h * 2 + 1] + __bfloat162float(bias[n + 1]);
        if constexpr (kGateUp) {
          v0 = fminf(v0, d.limit);
          v1 = fminf(fmaxf(v1, -d.limit), d.limit);
          s.inner[static_cast<size_t>(first + r) * d.intermediate + n / 2] = __float2bfloat16((v1 + 1.f) * v0 / (1.f + __expf(-d.alpha * v0)));
        } else {
          bf16* out = at<bf16>(a.out) + static_cast<size_t>(s.pairs[first + r]) * d.hidden + n;
          *reinterpret_cast<uint32_t*>(out) = pack(v0, v1);
        }
      }
  }
}

template <bool kPacked>
void start(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Sorted& s, cudaStream_t stream) {
  experts_kernel<kPacked, true><<<dim3((2 * d.intermediate + kN - 1) / kN, d.local_experts), kThreads, 0, stream>>>(d, a, s);
  experts_kernel<kPacked, false><<<dim3((d.hidden + kN - 1) / kN, d.local_experts), kThreads, 0, stream>>>(d, a, s);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" size_t gossamer_portable_experts_workspace(const GossamerExpertsDesc* d, unsigned tokens) {
  using namespace gossamer::portable;
  const size_t pairs = static_cast<size_t>(tokens) * d->top_k;
  return aligned((d->local_experts + 1) * sizeof(uint32_t)) + aligned(pairs * sizeof(uint32_t)) + aligned(pairs * d->intermediate * sizeof(bf16));
}

extern "C" int gossamer_portable_experts(const GossamerExpertsDesc* d, const GossamerExpertsArgs* a, int packed, void* workspace,
                                         cudaStream_t stream) {
  using namespace gossamer::portable;
  if (d->hidden % 32 || d->intermediate % 32 || d->local_experts > kMaxExperts || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  const Sorted s = carve(*d, a->tokens, workspace);
  sort_kernel<<<1, 1024, 0, stream>>>(*d, *a, s);
  if (d->local_experts < d->experts) zero_kernel<<<a->tokens * d->top_k, 256, 0, stream>>>(*d, *a);
  if (packed) start<true>(*d, *a, s, stream);
  else start<false>(*d, *a, s, stream);
  return launched();
}
