// Plain C interface of the CUDA kernels: one argument block and one launcher per operation.
//
// Contract of every launcher: pointers are device addresses (unless said otherwise) owned by the caller; the launch goes to
// `stream`, allocates nothing, never synchronises, and may be captured in a graph. It returns GOSSAMER_OK or what is wrong;
// on an error nothing was launched. `gossamer_prepare` must have run once per device before any capture.
// bf16 tensors are `void*` here so that the header reads in plain C.
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum GossamerStatus {
  GOSSAMER_OK = 0,
  GOSSAMER_BAD_SHAPE = 1,      // a dimension that the kernel does not take
  GOSSAMER_BAD_TACTIC = 2,     // unknown tactic number
  GOSSAMER_LAUNCH_FAILED = 3,  // CUDA refused the launch; cudaGetLastError says why
  GOSSAMER_NOT_PREPARED = 4,
};

// Sets shared-memory limits and reads device properties. Not during capture.
int gossamer_prepare(void);

// checkpoint MXFP4 -> `mxfp4-sm90-v1`. blocks [experts, rows, k / 2] u8, scales [experts, rows, k / 32] u8.
typedef struct {
  const void* blocks;
  const void* scales;
  void* packed;            // experts * matrix_bytes(rows, k)
  unsigned* large_scales;  // optional: incremented per block scale above 2 (E8M0 > 128)
  int experts, rows, k;
  int interleaved;         // 1 for gate_up (even row gate, odd row up)
  size_t row_stride_bytes;   // bytes between rows of `blocks`; 0: k / 2 (differs for a column shard)
  size_t row_stride_scales;  // the same of `scales`; 0: k / 32
} GossamerRepackArgs;
int gossamer_repack_mxfp4(const GossamerRepackArgs* args, cudaStream_t stream);

// One expert of `mxfp4-sm90-v1` -> float [rows, k] in checkpoint row order.
typedef struct {
  const void* packed;
  float* out;
  int expert, rows, k;
  int interleaved;
} GossamerUnpackArgs;
int gossamer_unpack_mxfp4(const GossamerUnpackArgs* args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
