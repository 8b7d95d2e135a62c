// Dense bf16 products for more than a few tokens (backend `cutlass`), sm_90a.
// Contract as in ops.h; description and arguments as in backend_ops.h.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "gossamer/backend_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// A tactic is 2 * size + split. Sizes are tokens x features of a tile: 0: 128x256, 1: 128x192, 2: 128x128, 3: 64x256, 4: 64x128,
// 5: 64x64; in pairs of blocks that share weights 6: 128x256, 7: 128x192. Split 1: tiles of a last turn that leaves multiprocessors
// idle are cut along K.
#define GOSSAMER_DENSE_TACTICS 16
// Bytes of workspace, for every shape. The first GOSSAMER_DENSE_FLAGS are zero before a launch and after it.
#define GOSSAMER_DENSE_FLAGS 4096
size_t gossamer_dense_workspace(int tactic);
// Takes up to three segments, bias, residual, bf16 or float out; no norm and no gathered rows (they go before, see compose.rs);
// `x` and weights 16-byte aligned. Else GOSSAMER_BAD_SHAPE.
int gossamer_dense_gemm(const GossamerGemmDesc*, const GossamerGemmArgs*, int tactic, void* workspace, size_t workspace_bytes, cudaStream_t);
// Sets shared-memory limits; not during capture. After gossamer_prepare.
int gossamer_dense_prepare(void);

#ifdef __cplusplus
}
#endif
