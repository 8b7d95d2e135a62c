// Attention for many query tokens (backend `cutlass`), alone or mixed with single queries: sm_90a.
// Contract as in ops.h; description and arguments as in backend_ops.h.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "gossamer/backend_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of workspace, the same for every shape.
#define GOSSAMER_PREFILL_WORKSPACE 256
// Most sequences of one call.
#define GOSSAMER_PREFILL_MAX_SEQUENCES 2048

// Takes bf16 queries, head_dim 64, blocks of 64 tokens, bf16 or E4M3 cache, at most 128 query heads per KV head, a positive
// scale; `q` and its rows 16-byte aligned. Else GOSSAMER_BAD_SHAPE.
int gossamer_prefill_attention(const GossamerAttentionDesc*, const GossamerAttentionArgs*, void* workspace, size_t workspace_bytes, cudaStream_t);
// Sets shared-memory limits; not during capture. After gossamer_prepare.
int gossamer_prefill_attention_prepare(void);

#ifdef __cplusplus
}
#endif
