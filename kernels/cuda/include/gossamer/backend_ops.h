// The operations of the backend ABI as C structs: a mirror of `backend-api/src/ops/*.rs`, where each field is described.
// The plugins compare `gossamer_op_sizes` with their own sizes when they open, so a drift stops the start.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GOSSAMER_F32 = 0, GOSSAMER_BF16 = 1, GOSSAMER_F8E4M3 = 2, GOSSAMER_MXFP4 = 3 };

typedef struct { uint32_t hidden, vocab, activation; } GossamerEmbedDesc;
typedef struct { uint64_t token_ids, drawn, table, out; uint32_t tokens; } GossamerEmbedArgs;
#define GOSSAMER_DRAWN 0x80000000u  // ids from here on are places in `drawn`

typedef struct { uint32_t hidden; float eps; uint32_t activation; } GossamerRmsNormDesc;
typedef struct { uint64_t x, weight, out; uint32_t tokens; } GossamerRmsNormArgs;

typedef struct { uint64_t weight, bias; } GossamerSegment;
typedef struct {
  uint32_t in_features, out_features[3], activation, out, weight, norm;
  float eps;
  uint32_t residual, gather;
} GossamerGemmDesc;
typedef struct {
  uint64_t x, rows, norm_weight;
  GossamerSegment segments[3];
  uint64_t residual, out;
  uint32_t tokens;
} GossamerGemmArgs;

typedef struct {
  uint32_t heads, kv_heads, head_dim, block_size, activation, kv;
  float magnitude;
} GossamerRopeKvWriteDesc;
typedef struct {
  uint64_t qkv, positions, slots, inverse_frequencies, kv, kv_scales;
  uint32_t tokens;
} GossamerRopeKvWriteArgs;

typedef struct {
  GossamerGemmDesc product;
  GossamerRopeKvWriteDesc rope;
} GossamerQkvRopeDesc;
typedef struct {
  GossamerGemmArgs product;
  GossamerRopeKvWriteArgs rope;
} GossamerQkvRopeArgs;

typedef struct {
  uint32_t heads, kv_heads, head_dim, block_size, window, sinks, activation, kv;
  float scale;
  uint32_t single, allow_fp8;
} GossamerAttentionDesc;
typedef struct {
  uint64_t q;
  uint32_t q_stride, sequences;
  uint64_t query_starts, kv_lens, block_tables;
  uint32_t table_stride, max_query, max_kv, tokens;
  uint64_t first_blocks, sinks, kv, kv_scales, out;
} GossamerAttentionArgs;

typedef struct { uint32_t hidden, experts, top_k, activation; } GossamerRouteDesc;
typedef struct { uint64_t x, weight, bias, expert_ids, expert_weights; uint32_t tokens; } GossamerRouteArgs;

typedef struct {
  uint32_t hidden, intermediate, experts, first_expert, local_experts, top_k;
  float limit, alpha;
  uint32_t activation, weight, allow_fp8;
} GossamerExpertsDesc;
typedef struct { uint64_t data, scales, bias; } GossamerExpertWeights;
typedef struct {
  uint64_t x, expert_ids;
  GossamerExpertWeights gate_up, down;
  uint64_t out;
  uint32_t tokens;
} GossamerExpertsArgs;

typedef struct { uint32_t hidden, top_k, activation; } GossamerFinalizeDesc;
typedef struct { uint64_t experts_out, expert_weights, residual; uint32_t tokens; } GossamerFinalizeArgs;

typedef struct {
  GossamerRouteDesc route;
  GossamerExpertsDesc experts;
  float eps;
} GossamerFusedMoeDesc;
typedef struct {
  uint64_t norm_weight, router_weight, router_bias;
  GossamerExpertWeights gate_up, down;
  uint64_t residual;
  uint32_t tokens;
} GossamerFusedMoeArgs;

typedef struct { uint32_t vocab, vocab_offset, logits, max_logprobs; } GossamerSampleDesc;
typedef struct { uint32_t token; float repetition, add, pending_add; } GossamerLogitEdit;
typedef struct {
  uint64_t seed;
  uint32_t position, choice;
  float temperature, top_p, min_p;
  uint32_t top_k, first_edit, edits, logprobs, masked;
  uint64_t pending, kept;
  float pending_repetition, pending_add;
} GossamerSampleRow;
#define GOSSAMER_NO_TOKEN 0xFFFFFFFEu  // of a row with nothing to draw
typedef struct {
  uint64_t logits, rows, edits, masks, tokens, logprobs, top_ids, top_logprobs;
  uint32_t row_count;
} GossamerSampleArgs;

typedef struct {
  uint32_t heads, kv_heads, head_dim, activation;
  float magnitude;
} GossamerRopeDesc;
typedef struct { uint64_t qkv, positions, inverse_frequencies; uint32_t tokens; } GossamerRopeArgs;

typedef struct {
  uint32_t columns, stride, activation;
  float factor;
} GossamerScaleDesc;
typedef struct { uint64_t x; uint32_t tokens; } GossamerScaleArgs;

typedef struct { uint32_t heads, kv_heads, head_dim, block_size, activation, kv; } GossamerKvWriteDesc;
typedef struct { uint64_t qkv, slots, kv, kv_scales; uint32_t tokens; } GossamerKvWriteArgs;

typedef struct { uint32_t from, to, rows, activation; } GossamerResizeDesc;
typedef struct { uint64_t x, out; uint32_t tokens; } GossamerResizeArgs;

typedef struct { uint32_t columns, padded, rows, activation; } GossamerQuantiseDesc;
typedef struct { uint64_t x, codes, scales; uint32_t tokens; } GossamerQuantiseArgs;

typedef struct {
  uint32_t columns, padded, rows;
  float limit, alpha;
  uint32_t activation, out;
} GossamerSwigluDesc;
typedef struct { uint64_t x, out, scales; uint32_t tokens; } GossamerSwigluArgs;

typedef struct {
  uint32_t in_features, in_columns, out_features, out_columns, experts, first_expert, local_experts, top_k, per_pair, interleaved, x, out, weight;
} GossamerExpertProductDesc;
typedef struct {
  uint64_t x, scales, expert_ids;
  GossamerExpertWeights weights;
  uint64_t out;
  uint32_t tokens;
} GossamerExpertProductArgs;

typedef struct { uint32_t columns, top_k, activation; } GossamerCombineDesc;
typedef struct { uint64_t experts_out, expert_weights, out; uint32_t tokens; } GossamerCombineArgs;

typedef struct { uint32_t columns, activation; } GossamerAddDesc;
typedef struct { uint64_t x, residual; uint32_t tokens; } GossamerAddArgs;

enum { GOSSAMER_MOST_RANKS = 8, GOSSAMER_REGION_HEADER = 16384, GOSSAMER_ONE_SHOT_TOKENS = 64 };
typedef struct { uint32_t ranks, hidden, activation; } GossamerAllReduceDesc;
typedef struct {
  uint64_t x, regions[GOSSAMER_MOST_RANKS], region_bytes;
  uint32_t rank, tokens;
} GossamerAllReduceArgs;
typedef struct {
  GossamerAllReduceDesc reduce;
  float eps;
} GossamerAllReduceNormDesc;
typedef struct {
  GossamerAllReduceArgs reduce;
  uint64_t residual, weight, out;
} GossamerAllReduceNormArgs;

// Sizes of description and arguments, operation by operation in numeric order.
enum { GOSSAMER_OP_SIZES = 44 };
void gossamer_op_sizes(uint32_t* out);

#ifdef __cplusplus
}
#endif
