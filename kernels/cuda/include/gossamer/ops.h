// Plain C interface of the CUDA kernels: one argument block and one launcher per operation.
//
// Contract of every launcher: pointers are device addresses (unless said otherwise) owned by the caller; the launch goes to
// `stream`, allocates nothing, never synchronises, and may be captured in a graph. It returns GOSSAMER_OK or what is wrong;
// on an error nothing was launched. `gossamer_prepare` must have run once per device before any capture.
//
// Programmatic dependent launch: a kernel may start while its predecessors in the stream still run, several deep. Before it
// waits for them it reads only weights and what is marked "step input": such data must be complete before the first kernel
// of the chain starts (a copy, or a kernel launched without the programmatic attribute, in front of it).
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

// checkpoint MXFP4 -> `mxfp4-sm90-v2`. blocks [experts, rows, k / 2] u8, scales [experts, rows, k / 32] u8.
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
// `scales` alone -> `mxfp4-sm90-v2-maxima`, u8 [experts, rows] in the strips' row order, to `packed`.
int gossamer_repack_mxfp4_maxima(const GossamerRepackArgs* args, cudaStream_t stream);

// One expert of `mxfp4-sm90-v2` -> float [rows, k] in checkpoint row order.
typedef struct {
  const void* packed;
  float* out;
  int expert, rows, k;
  int interleaved;
} GossamerUnpackArgs;
int gossamer_unpack_mxfp4(const GossamerUnpackArgs* args, cudaStream_t stream);

// ---- mixture of experts, 1..64 tokens ----------------------------------------------------------------------------------

// RMSNorm + router product + bias. Logits stay float; the normed hidden state goes out once for the experts.
typedef struct {
  const void* hidden;         // bf16 [tokens, hidden_size]
  const void* norm_weight;    // bf16 [hidden_size]; null: `hidden` is normed already (then `normed` may be null)
  const void* router_weight;  // bf16 [experts, hidden_size]
  const void* router_bias;    // bf16 [experts]
  float* logits;              // [tokens, experts]
  void* normed;               // bf16 [tokens, hidden_size]
  float epsilon;
  int tokens, hidden_size, experts;
} GossamerRouterArgs;
int gossamer_router(const GossamerRouterArgs* args, cudaStream_t stream);

// Top-4 and softmax over the four, in order of falling logit (ties: lower expert first).
typedef struct {
  const float* logits;  // [tokens, experts]
  int* ids;             // [tokens, 4]
  float* weights;       // [tokens, 4]
  int tokens, experts;
} GossamerTopkArgs;
int gossamer_topk(const GossamerTopkArgs* args, cudaStream_t stream);

// Fused experts: top-4 from `logits` inside, gate_up + bias + clamped SwiGLU, down + bias, weighted sum + residual.
// Bitwise repeatable. One persistent grid and a small one: nothing else may hold multiprocessors for good meanwhile.
// A rank that holds experts [expert_begin, expert_begin + experts_local) skips the others; a rank that holds a slice of the
// intermediate size passes its width. In both cases `residual` may be null, and the outputs of ranks add up
// (pass `down_bias` on one rank of a sliced intermediate size alone).
typedef struct {
  const void* normed;        // bf16 [tokens, hidden_size]
  const float* logits;       // [tokens, experts]; null: `ids` and `weights` are given
  const int* ids;            // [tokens, 4], -1 for an empty slot; read when `logits` is null
  const float* weights;      // [tokens, 4]
  const void* gate_up;       // mxfp4-sm90-v2 [experts_local][2 * intermediate, hidden_size], interleaved
  const void* gate_up_bias;  // bf16 [experts_local, 2 * intermediate], checkpoint order
  const void* down;          // mxfp4-sm90-v2 [experts_local][hidden_size, intermediate]
  const void* down_bias;     // bf16 [experts_local, hidden_size]; may be null
  const void* residual;      // bf16 [tokens, hidden_size]; may be null; may be `output`
  void* output;              // bf16 [tokens, hidden_size]
  void* workspace;           // gossamer_moe_workspace bytes; zeroed once before the first use
  size_t workspace_bytes;
  int tokens, hidden_size, intermediate, experts, expert_begin, experts_local;
  float swiglu_limit, swiglu_alpha;  // 7 and 1.702
  int tactic;                        // 0..GOSSAMER_MOE_TACTICS-1; -1: the launcher's own choice
} GossamerMoeArgs;
// Tactics: consumer warps, stages of their rings, tiles of a copy: 0: 12, 3, 5; 1: 12, 4, 5; 2: 16, 2, 5; 3: 16, 3, 5; 4: 12, 2, 9;
// those that do not fit in shared memory for the token count give GOSSAMER_BAD_TACTIC. 5 is `few.cu`, up to 8 tokens in one grid.
// -1 takes 0 or 2.
#define GOSSAMER_MOE_TACTICS 6
#define GOSSAMER_MOE_MAX_TOKENS 64
size_t gossamer_moe_workspace(int tokens, int hidden_size, int intermediate);
int gossamer_moe(const GossamerMoeArgs* args, cudaStream_t stream);

// ---- dense products, 1..64 tokens ---------------------------------------------------------------------------------------

// out = rmsnorm(x) W^T + bias + residual. W is the checkpoint's row-major matrix. Used for qkv, o and the output head.
typedef struct {
  const void* x;            // bf16 [tokens, k]
  const void* norm_weight;  // bf16 [k]; null: no norm
  const void* weight;       // bf16 [rows, k]
  const void* bias;         // bf16 [rows]; may be null
  const void* residual;     // bf16 [tokens, rows]; may be null; may be `out`
  void* out;                // bf16, or float if `float_out`: [tokens, rows]
  float epsilon;
  int tokens, rows, k;      // rows a multiple of 16, k a multiple of 32, at most 4096
  int float_out;
  int tactic;               // 0..GOSSAMER_GEMM_TACTICS-1; -1: the launcher's own choice
} GossamerTinyGemmArgs;
#define GOSSAMER_GEMM_TACTICS 2  // 0: all tokens at once; 1: halves of up to 32 tokens one after the other
int gossamer_tiny_gemm(const GossamerTinyGemmArgs* args, cudaStream_t stream);

// ---- decode attention, one query token a sequence -------------------------------------------------------------------------

// Rotates q and k (halves 0..31 and 32..63 of a head are the pairs) and writes k and v into the paged cache.
typedef struct {
  void* qkv;               // bf16 [tokens, (group * kv_heads + 2 * kv_heads) * 64]: q heads, k heads, v heads; q is rotated in place
  const int* positions;    // [tokens], step input
  const uint64_t* slots;   // [tokens], step input: block * 64 + place in the block
  const float* inv_freq;   // [32], YaRN already in it
  void* kv;                // layout kv-paged-v1 of this layer, bf16 or E4M3
  const float* kv_scales;  // [2, kv_heads], E4M3 only: value = code * scale; null: 1. Values beyond 448 scales become that
  float attention_scaling; // YaRN's factor on cos and sin
  int tokens, kv_heads, fp8;
  int group;               // query heads a KV head, at most 8; 0: 8
} GossamerRopeKvArgs;
int gossamer_rope_kv(const GossamerRopeKvArgs* args, cudaStream_t stream);
// The same behind the qkv product, in one kernel, for up to 16 tokens: bit for bit what the two leave, but for the product's keys and
// values, which are not written to `out`. K at most 3072, no residual, no float output; `rope`'s qkv is not read.
int gossamer_tiny_qkv(const GossamerTinyGemmArgs* product, const GossamerRopeKvArgs* rope, cudaStream_t stream);

// Split-KV attention over the paged cache. Head size 64.
typedef struct {
  const void* q;            // bf16, query head j of row r at (r * q_stride + j * 64); rotated
  const void* kv;           // layout kv-paged-v1 of this layer, bf16 or E4M3
  const int* block_tables;  // [tokens, max_blocks], step input
  const int* lengths;       // [tokens], step input: keys to see, the token's own included; 0: the row is skipped, its output zero
  const unsigned* query_starts;  // [tokens], step input: rows of q and out; null: row i is token i's
  const int* first_blocks;  // [tokens], step input: logical block of a table's first entry; null: 0
  const void* sinks;        // bf16 [group * kv_heads]; null: none
  const float* kv_scales;   // [2, kv_heads], E4M3 only; null: 1
  void* out;                // bf16 [rows, group * kv_heads * 64]
  void* workspace;          // gossamer_decode_attention_workspace bytes; its first 4096 zeroed once before the first use
  size_t workspace_bytes;
  float scale;              // on q k, 0.125
  int q_stride;             // elements
  int tokens, kv_heads, max_blocks;
  int max_kv;               // no length is larger; 0: not known
  int window;               // keys in sight, 0: all
  int fp8;
  int group;                // query heads a KV head, at most 8; 0: 8
  int splits;               // blocks or warps a (token, KV head), see `form`; 0: the launcher's own choice
  int fp8_products;         // E4M3 only: queries and probabilities are rounded to E4M3 too
  int form;                 // one of the following; 0: the launcher's own choice
} GossamerDecodeAttentionArgs;
enum {
  GOSSAMER_DECODE_SPLIT = 1,    // up to `splits` blocks a row, through global memory
  GOSSAMER_DECODE_CLUSTER = 2,  // `splits` blocks a row, through a cluster's shared memory: 1, 2, 4 or 8
  GOSSAMER_DECODE_ROWS = 3,     // `splits` warps of a block a row: 1, 2, 4 or 8
};
size_t gossamer_decode_attention_workspace(int tokens, int kv_heads, int splits);
int gossamer_decode_attention(const GossamerDecodeAttentionArgs* args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
