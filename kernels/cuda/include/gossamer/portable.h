// Portable CUDA kernels: plain, for any GPU since sm_80. The oracle of the other plugins on the device.
//
// Contract as in ops.h: device addresses owned by the caller, work goes to `stream`, nothing is allocated, nothing waits.
// Activations are bf16; sums are float. Shapes are checked by `supports` in the plugin before anything is launched.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "gossamer/backend_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

int gossamer_portable_embed(const GossamerEmbedDesc*, const GossamerEmbedArgs*, cudaStream_t);
int gossamer_portable_rms_norm(const GossamerRmsNormDesc*, const GossamerRmsNormArgs*, cudaStream_t);
int gossamer_portable_gemm(const GossamerGemmDesc*, const GossamerGemmArgs*, cudaStream_t);
int gossamer_portable_rope_kv_write(const GossamerRopeKvWriteDesc*, const GossamerRopeKvWriteArgs*, cudaStream_t);
int gossamer_portable_attention(const GossamerAttentionDesc*, const GossamerAttentionArgs*, cudaStream_t);
int gossamer_portable_route(const GossamerRouteDesc*, const GossamerRouteArgs*, cudaStream_t);
// `packed` 1: weights are in layout mxfp4-sm90-v2, else as in the checkpoint.
int gossamer_portable_experts(const GossamerExpertsDesc*, const GossamerExpertsArgs*, int packed, void* workspace, cudaStream_t);
size_t gossamer_portable_experts_workspace(const GossamerExpertsDesc*, unsigned tokens);
int gossamer_portable_finalize(const GossamerFinalizeDesc*, const GossamerFinalizeArgs*, cudaStream_t);
int gossamer_portable_sample(const GossamerSampleDesc*, const GossamerSampleArgs*, void* workspace, cudaStream_t);
size_t gossamer_portable_sample_workspace(unsigned rows);

// What the fused operations are put together from.
int gossamer_portable_rope(const GossamerRopeDesc*, const GossamerRopeArgs*, cudaStream_t);
int gossamer_portable_scale(const GossamerScaleDesc*, const GossamerScaleArgs*, cudaStream_t);
int gossamer_portable_kv_write(const GossamerKvWriteDesc*, const GossamerKvWriteArgs*, cudaStream_t);
int gossamer_portable_resize(const GossamerResizeDesc*, const GossamerResizeArgs*, cudaStream_t);
int gossamer_portable_quantise(const GossamerQuantiseDesc*, const GossamerQuantiseArgs*, cudaStream_t);
int gossamer_portable_swiglu(const GossamerSwigluDesc*, const GossamerSwigluArgs*, cudaStream_t);
int gossamer_portable_expert_product(const GossamerExpertProductDesc*, const GossamerExpertProductArgs*, int packed, void* workspace, cudaStream_t);
size_t gossamer_portable_expert_product_workspace(const GossamerExpertProductDesc*, unsigned tokens);
int gossamer_portable_combine(const GossamerCombineDesc*, const GossamerCombineArgs*, cudaStream_t);
int gossamer_portable_add(const GossamerAddDesc*, const GossamerAddArgs*, cudaStream_t);

// Sums over the ranks of a tensor-parallel group: `hidden` a multiple of 8, at most 8192. A block waits for the block
// of its number on the other ranks: launches of ranks that share a device must all find room there (at most 128 blocks of at most 1024
// threads each).
int gossamer_all_reduce(const GossamerAllReduceDesc*, const GossamerAllReduceArgs*, cudaStream_t);
int gossamer_all_reduce_norm(const GossamerAllReduceNormDesc*, const GossamerAllReduceNormArgs*, cudaStream_t);

#ifdef __cplusplus
}
#endif
