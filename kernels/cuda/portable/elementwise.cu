// archs: 80 90a 100a
// Embedding, RMSNorm, RoPE with KV write, and finalize: a block per token, eight values a thread where rows allow it.
#include "common.cuh"
#include "gossamer/ptx/sm90.cuh"

namespace gossamer::portable {
namespace {

__global__ void embed_kernel(GossamerEmbedDesc d, GossamerEmbedArgs a) {
  ptx::launch_dependents();  // the first layer's weights need no tokens
  ptx::dependency_wait();
  uint32_t id = at<const uint32_t>(a.token_ids)[blockIdx.x];
  if (id >= GOSSAMER_DRAWN && a.drawn) id = at<const uint32_t>(a.drawn)[id - GOSSAMER_DRAWN];
  const size_t from = static_cast<size_t>(id < d.vocab ? id : 0) * d.hidden, to = static_cast<size_t>(blockIdx.x) * d.hidden;
  if (d.hidden % 8 == 0 && aligned16(a.table) && aligned16(a.out)) {
    const uint4* row = at<const uint4>(a.table) + from / 8;
    for (uint32_t i = threadIdx.x; i < d.hidden / 8; i += blockDim.x) at<uint4>(a.out)[to / 8 + i] = row[i];
    return;
  }
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) at<bf16>(a.out)[to + i] = at<const bf16>(a.table)[from + i];
}

// Eight values a thread, held between the sum and the product. `hidden` is a multiple of 8 and at most 8 * 1024.
__global__ void __launch_bounds__(1024) rms_norm_kernel(GossamerRmsNormDesc d, GossamerRmsNormArgs a) {
  __shared__ float scratch[32];
  const uint32_t i = threadIdx.x, chunks = d.hidden / 8;
  const size_t first = static_cast<size_t>(blockIdx.x) * chunks;
  const bool live = i < chunks;
  float v[8] = {}, w[8] = {};
  if (live) unpack(at<const uint4>(a.weight)[i], w);
  ptx::launch_dependents();
  ptx::dependency_wait();
  if (live) unpack(at<const uint4>(a.x)[first + i], v);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += v[j] * v[j];
  sum = block_reduce(sum, scratch, 0.f, [](float p, float q) { return p + q; });
  const float scale = rsqrtf(sum / d.hidden + d.eps);
  if (!live) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * w[j];
  at<uint4>(a.out)[first + i] = pack8(v);
}

__global__ void rms_norm_any_kernel(GossamerRmsNormDesc d, GossamerRmsNormArgs a) {
  __shared__ float scratch[32];
  const bf16* x = at<const bf16>(a.x) + static_cast<size_t>(blockIdx.x) * d.hidden;
  const bf16* weight = at<const bf16>(a.weight);
  bf16* out = at<bf16>(a.out) + static_cast<size_t>(blockIdx.x) * d.hidden;
  float sum = 0;
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) {
    const float v = __bfloat162float(x[i]);
    sum += v * v;
  }
  sum = block_reduce(sum, scratch, 0.f, [](float p, float q) { return p + q; });
  const float scale = rsqrtf(sum / d.hidden + d.eps);
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x)
    out[i] = __float2bfloat16(__bfloat162float(x[i]) * scale * __bfloat162float(weight[i]));
}

// One block per token; threads walk over (head, pair). Heads: queries, keys, values.
__global__ void rope_kv_write_kernel(GossamerRopeKvWriteDesc d, GossamerRopeKvWriteArgs a) {
  const uint32_t half = d.head_dim / 2, heads = d.heads + 2 * d.kv_heads;
  bf16* qkv = at<bf16>(a.qkv) + static_cast<size_t>(blockIdx.x) * heads * d.head_dim;
  const float position = static_cast<float>(at<const uint32_t>(a.positions)[blockIdx.x]);
  const uint64_t slot = at<const uint64_t>(a.slots)[blockIdx.x];
  const uint64_t block = slot / d.block_size, offset = slot % d.block_size;
  const float* frequencies = at<const float>(a.inverse_frequencies);
  const float* scales = at<const float>(a.kv_scales);
  for (uint32_t i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const uint32_t head = i / half, pair = i % half;
    float low = __bfloat162float(qkv[head * d.head_dim + pair]);
    float high = __bfloat162float(qkv[head * d.head_dim + pair + half]);
    if (head < d.heads + d.kv_heads) {
      float sine, cosine;
      sincosf(position * frequencies[pair], &sine, &cosine);
      sine *= d.magnitude;
      cosine *= d.magnitude;
      const float rotated = low * cosine - high * sine;
      high = high * cosine + low * sine;
      low = rotated;
    }
    if (head < d.heads) {
      qkv[head * d.head_dim + pair] = __float2bfloat16(low);
      qkv[head * d.head_dim + pair + half] = __float2bfloat16(high);
      continue;
    }
    const uint32_t which = head - d.heads, value = which >= d.kv_heads, kv_head = which - value * d.kv_heads;
    const size_t target = (((block * 2 + value) * d.kv_heads + kv_head) * d.block_size + offset) * d.head_dim + pair;
    if (d.kv == GOSSAMER_F8E4M3) {
      const float inverse = scales ? 1.f / scales[value * d.kv_heads + kv_head] : 1.f;
      at<__nv_fp8_e4m3>(a.kv)[target] = __nv_fp8_e4m3(low * inverse);
      at<__nv_fp8_e4m3>(a.kv)[target + half] = __nv_fp8_e4m3(high * inverse);
    } else {
      at<bf16>(a.kv)[target] = __float2bfloat16(low);
      at<bf16>(a.kv)[target + half] = __float2bfloat16(high);
    }
  }
}

// residual += sum over the token's experts, eight values a thread. `hidden` is a multiple of 8.
__global__ void __launch_bounds__(128) finalize_kernel(GossamerFinalizeDesc d, GossamerFinalizeArgs a) {
  const uint32_t chunks = d.hidden / 8, i = blockIdx.y * blockDim.x + threadIdx.x;
  const size_t token = blockIdx.x;
  ptx::launch_dependents();
  if (i >= chunks) return;
  const uint4* experts = at<const uint4>(a.experts_out) + token * d.top_k * chunks + i;
  const float* weights = at<const float>(a.expert_weights) + token * d.top_k;
  uint4* residual = at<uint4>(a.residual) + token * chunks + i;
  float sum[8] = {}, v[8];
#pragma unroll 4
  for (uint32_t k = 0; k < d.top_k; ++k) {
    unpack(__ldcs(experts + k * chunks), v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += weights[k] * v[j];
  }
  unpack(*residual, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] += sum[j];
  *residual = pack8(v);
}

__global__ void finalize_any_kernel(GossamerFinalizeDesc d, GossamerFinalizeArgs a) {
  const size_t token = blockIdx.x;
  const bf16* experts = at<const bf16>(a.experts_out) + token * d.top_k * d.hidden;
  const float* weights = at<const float>(a.expert_weights) + token * d.top_k;
  bf16* residual = at<bf16>(a.residual) + token * d.hidden;
  for (uint32_t i = threadIdx.x; i < d.hidden; i += blockDim.x) {
    float sum = 0;
    for (uint32_t j = 0; j < d.top_k; ++j) sum += weights[j] * __bfloat162float(experts[j * d.hidden + i]);
    residual[i] = __float2bfloat16(__bfloat162float(residual[i]) + sum);
  }
}

}  // namespace
}  // namespace gossamer::portable

using namespace gossamer::portable;

extern "C" int gossamer_portable_embed(const GossamerEmbedDesc* d, const GossamerEmbedArgs* a, cudaStream_t stream) {
  return a->tokens ? gossamer::launch_early(embed_kernel, a->tokens, 256, stream, *d, *a) : GOSSAMER_OK;
}

extern "C" int gossamer_portable_rms_norm(const GossamerRmsNormDesc* d, const GossamerRmsNormArgs* a, cudaStream_t stream) {
  if (!a->tokens) return GOSSAMER_OK;
  const bool eights = d->hidden % 8 == 0 && d->hidden <= 8 * 1024 && aligned16(a->x) && aligned16(a->weight) && aligned16(a->out);
  if (eights) return gossamer::launch_early(rms_norm_kernel, a->tokens, (d->hidden / 8 + 31) / 32 * 32, stream, *d, *a);
  rms_norm_any_kernel<<<a->tokens, 256, 0, stream>>>(*d, *a);
  return launched();
}

extern "C" int gossamer_portable_rope_kv_write(const GossamerRopeKvWriteDesc* d, const GossamerRopeKvWriteArgs* a,
                                               cudaStream_t stream) {
  if (a->tokens) rope_kv_write_kernel<<<a->tokens, 256, 0, stream>>>(*d, *a);
  return launched();
}

extern "C" int gossamer_portable_finalize(const GossamerFinalizeDesc* d, const GossamerFinalizeArgs* a, cudaStream_t stream) {
  if (!a->tokens) return GOSSAMER_OK;
  const bool eights = d->hidden % 8 == 0 && aligned16(a->experts_out) && aligned16(a->residual);
  // Invariant: an ordinary launch, so that whoever waits for it waits for all before it: not every grouped product waits for the last.
  if (eights) finalize_kernel<<<dim3(a->tokens, (d->hidden / 8 + 127) / 128), 128, 0, stream>>>(*d, *a);
  else finalize_any_kernel<<<a->tokens, 256, 0, stream>>>(*d, *a);
  return launched();
}

extern "C" void gossamer_op_sizes(uint32_t* out) {
#define GOSSAMER_BOTH(name) sizeof(Gossamer##name##Desc), sizeof(Gossamer##name##Args)
  const uint32_t sizes[GOSSAMER_OP_SIZES] = {
      GOSSAMER_BOTH(Embed),   GOSSAMER_BOTH(RmsNorm), GOSSAMER_BOTH(Gemm),          GOSSAMER_BOTH(RopeKvWrite), GOSSAMER_BOTH(Attention),
      GOSSAMER_BOTH(Route),   GOSSAMER_BOTH(Experts), GOSSAMER_BOTH(Finalize),      GOSSAMER_BOTH(FusedMoe),    GOSSAMER_BOTH(Sample),
      GOSSAMER_BOTH(Rope),    GOSSAMER_BOTH(Scale),   GOSSAMER_BOTH(KvWrite),       GOSSAMER_BOTH(Resize),      GOSSAMER_BOTH(Quantise),
      GOSSAMER_BOTH(Swiglu),  GOSSAMER_BOTH(ExpertProduct), GOSSAMER_BOTH(Combine), GOSSAMER_BOTH(Add),         GOSSAMER_BOTH(AllReduce),
      GOSSAMER_BOTH(AllReduceNorm), GOSSAMER_BOTH(QkvRope),
  };
#undef GOSSAMER_BOTH
  for (int i = 0; i < GOSSAMER_OP_SIZES; ++i) out[i] = sizes[i];
}
