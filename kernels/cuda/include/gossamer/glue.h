// What stands between operations that a backend does as one. Contract as in ops.h.
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// out[i] = x[rows[i]], rows of `row_bytes` bytes, a multiple of 16.
int gossamer_gather_rows(const void* x, const uint32_t* rows, void* out, uint32_t count, uint32_t row_bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
