// Grouped expert products for many tokens (backend `cutlass`): plan, gather, gate_up with SwiGLU, down.
// Contract as in ops.h; descriptions and arguments as in backend_ops.h; weights in layout mxfp4-sm90-v2.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "gossamer/backend_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  GOSSAMER_GROUPED_BF16 = 0,  // bf16 activations
  GOSSAMER_GROUPED_FP8 = 1,   // E4M3 activations, quantised per token; only with `allow_fp8`
};
size_t gossamer_grouped_workspace(const GossamerExpertsDesc*, unsigned tokens, int tactic);
int gossamer_grouped_experts(const GossamerExpertsDesc*, const GossamerExpertsArgs*, int tactic, void* workspace, size_t workspace_bytes,
                             cudaStream_t);
// `mxfp4-sm90-v2-maxima` out of matrices in layout mxfp4-sm90-v2. The FP8 tactic reads it from `GossamerExpertWeights.scales`, where
// the loader puts it (gossamer_repack_mxfp4_maxima); where that is 0 it is found anew at each launch (a 17th of the weights is read).
int gossamer_grouped_maxima(const void* packed, void* out, int matrices, int rows, int k, cudaStream_t);
// Sets shared-memory limits; not during capture.
int gossamer_grouped_prepare(void);

#ifdef __cplusplus
}
#endif
