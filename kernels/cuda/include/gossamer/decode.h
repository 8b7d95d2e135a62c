// Rotary embedding with KV write, and attention of single queries, as operations of the backend ABI (backend `trtllm-gen`).
// Contract as in ops.h; descriptions and arguments as in backend_ops.h.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "gossamer/backend_ops.h"
#include "gossamer/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Takes descriptions with `single`, bf16 queries, head_dim 64, blocks of 64 tokens, bf16 or E4M3 cache, at most 8 query heads per
// KV head. Workspace: gossamer_decode_attention_workspace(sequences, kv_heads, 0) bytes, the first 4096 zero before the first use.
// GOSSAMER_DECODE_FP8 rounds queries and probabilities to E4M3 as well: E4M3 cache and `allow_fp8` only.
enum { GOSSAMER_DECODE_EXACT = 0, GOSSAMER_DECODE_FP8 = 1 };
int gossamer_decode_attention_op(const GossamerAttentionDesc*, const GossamerAttentionArgs*, int tactic, void* workspace, size_t workspace_bytes, cudaStream_t);

// The same types and sizes; any number of tokens.
int gossamer_rope_kv_op(const GossamerRopeKvWriteDesc*, const GossamerRopeKvWriteArgs*, cudaStream_t);
// The same behind a product, in its kernel: see gossamer_tiny_qkv.
int gossamer_tiny_qkv_op(const GossamerTinyGemmArgs* product, const GossamerRopeKvWriteDesc*, const GossamerRopeKvWriteArgs*, cudaStream_t);

#ifdef __cplusplus
}
#endif
