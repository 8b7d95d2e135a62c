// Block-scaled expert products on Blackwell. COMPILED, NEVER RUN: there was no such device. No backend offers them as a tactic.
// Contract as in ops.h.
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Tokens of an expert: rows `first` .. `first + count` of `x` and `out`, at most 128.
typedef struct { uint32_t expert, first, count; } GossamerScaledTile;

// out[r] = weights[e] . x[r] + bias[e]: MXFP4 (E2M1, E8M0 per 32, checkpoint layout) times MXFP8 (E4M3, E8M0 per 32), sums in float.
typedef struct {
  const void* codes;           // [experts, rows, k / 2]
  const void* scales;          // [experts, rows, k / 32] E8M0
  const void* bias;            // bf16 [experts, rows]
  const void* x;               // E4M3 [tokens, k]
  const void* x_scales;        // [tokens, k / 32] E8M0
  const GossamerScaledTile* tiles;  // [tile_count]
  void* out;                   // bf16 [tokens, rows]
  uint32_t tile_count, rows, k;  // k a multiple of 32
} GossamerScaledProductArgs;
int gossamer_scaled_product(const GossamerScaledProductArgs*, cudaStream_t);
// Sets the shared-memory limit; not during capture.
int gossamer_scaled_prepare(void);

#ifdef __cplusplus
}
#endif
