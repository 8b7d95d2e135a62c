// archs: 80 90a 100a
// One product of the experts: rows of bf16, or of E4M3 codes with a scale each, times MXFP4 weights. Codes are exact in bf16; a row's
// scale comes after its sums. For graphs whose experts are not one operation; plain, not fast.
#include "experts.cuh"

namespace gossamer::portable {
namespace {

template <bool kPacked, bool kInterleaved, bool kCodes>
__global__ void __launch_bounds__(kThreads) product_kernel(const __grid_constant__ GossamerExpertProductDesc d,
                                                           const __grid_constant__ GossamerExpertProductArgs a, const __grid_constant__ Sorted s) {
  __shared__ __align__(16) bf16 xs[kM][kPitch];
  __shared__ __align__(16) bf16 ws[kN][kPitch];
  const uint32_t expert = blockIdx.y, first = s.starts[expert], count = s.starts[expert + 1] - first;
  const uint32_t rows = d.out_features, cols = d.in_features, n0 = blockIdx.x * kN;
  const bf16* bias = at<const bf16>(a.weights.bias) + static_cast<size_t>(expert) * rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const auto row_of = [&](uint32_t place) { return static_cast<size_t>(d.per_pair ? s.pairs[place] : s.pairs[place] / d.top_k); };
  for (uint32_t m0 = 0; m0 < count; m0 += kM) {
    float sums[8][4] = {};
    for (uint32_t k0 = 0; k0 < cols; k0 += kK) {
      for (int i = threadIdx.x; i < kM * (kK / 8); i += kThreads) {
        const uint32_t r = i / (kK / 8), c = i % (kK / 8) * 8;
        const bool valid = m0 + r < count && k0 + c < cols;
        const size_t from = row_of(first + (valid ? m0 + r : 0)) * d.in_columns + (valid ? k0 + c : 0);
        if constexpr (kCodes) {
          for (int j = 0; j < 8; ++j)
            xs[r][c + j] = __float2bfloat16(valid ? static_cast<float>(at<const __nv_fp8_e4m3>(a.x)[from + j]) : 0.f);
        } else {
          for (int j = 0; j < 8; ++j) xs[r][c + j] = valid ? at<const bf16>(a.x)[from + j] : __float2bfloat16(0.f);
        }
      }
      load_weights<kPacked, kInterleaved>(ws, a.weights, expert, rows, cols, n0, k0);
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
    for (int j = 0; j < 8; ++j)
      for (int h = 0; h < 2; ++h) {
        const uint32_t r = m0 + warp * 16 + lane / 4 + h * 8, n = n0 + j * 8 + lane % 4 * 2;
        if (r >= count || n >= rows) continue;
        const float scale = kCodes ? at<const float>(a.scales)[row_of(first + r)] : 1.f;
        bf16* out = at<bf16>(a.out) + static_cast<size_t>(s.pairs[first + r]) * d.out_columns + n;
        out[0] = __float2bfloat16(sums[j][h * 2] * scale + __bfloat162float(bias[n]));
        if (n + 1 < rows) out[1] = __float2bfloat16(sums[j][h * 2 + 1] * scale + __bfloat162float(bias[n + 1]));
      }
  }
}

// Padding, and whole rows of experts that are held elsewhere.
__global__ void clear_kernel(GossamerExpertProductDesc d, GossamerExpertProductArgs a) {
  const bool elsewhere = at<const uint32_t>(a.expert_ids)[blockIdx.x] - d.first_expert >= d.local_experts;
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.out_columns;
  for (uint32_t i = (elsewhere ? 0 : d.out_features) + threadIdx.x; i < d.out_columns; i += blockDim.x) out[i] = __float2bfloat16(0.f);
}

template <bool kPacked, bool kInterleaved>
void start(const GossamerExpertProductDesc& d, const GossamerExpertProductArgs& a, const Sorted& s, cudaStream_t stream) {
  const dim3 grid((d.out_features + kN - 1) / kN, d.local_experts);
  if (d.x == GOSSAMER_F8E4M3) product_kernel<kPacked, kInterleaved, true><<<grid, kThreads, 0, stream>>>(d, a, s);
  else product_kernel<kPacked, kInterleaved, false><<<grid, kThreads, 0, stream>>>(d, a, s);
}

}  // namespace
}  // namespace gossamer::portable

extern "C" size_t gossamer_portable_expert_product_workspace(const GossamerExpertProductDesc* d, unsigned tokens) {
  using namespace gossamer::portable;
  return aligned((d->local_experts + 1) * sizeof(uint32_t)) + aligned(static_cast<size_t>(tokens) * d->top_k * sizeof(uint32_t));
}

extern "C" int gossamer_portable_expert_product(const GossamerExpertProductDesc* d, const GossamerExpertProductArgs* a, int packed, void* workspace,
                                                cudaStream_t stream) {
  using namespace gossamer::portable;
  const bool rows = d->x == GOSSAMER_BF16 || d->x == GOSSAMER_F8E4M3;
  if (d->in_features % 32 || d->in_columns < d->in_features || d->out_columns < d->out_features || d->local_experts > kMaxExperts || !rows ||
      d->out != GOSSAMER_BF16 || (packed && d->out_features % 16))
    return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  const Sorted s = carve(*d, a->tokens, workspace);
  sort_kernel<<<1, 1024, 0, stream>>>(*d, *a, s);
  clear_kernel<<<a->tokens * d->top_k, 256, 0, stream>>>(*d, *a);
  if (packed && d->interleaved) start<true, true>(*d, *a, s, stream);
  else if (packed) start<true, false>(*d, *a, s, stream);
  else start<false, false>(*d, *a, s, stream);  // the checkpoint keeps its rows' order
  return launched();
}
