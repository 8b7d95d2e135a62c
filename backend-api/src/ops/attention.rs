//! Rotary embedding, the paged KV cache, and attention.
//!
//! A KV plane is `[block][K|V][kv_head][token in block][D]`. Window and full layers share planes: block ids are unique
//! over both.
//!
//! An FP8 plane holds E4M3 codes (no infinities, largest 448): value = code * scale of its head, 1 where no scales are given.
//! What does not fit becomes the largest code of its sign.

use super::{GemmArgs, GemmDesc};
use crate::DType;

/// Rotates the query heads of `qkv` in place and writes rotated keys, and values, to the cache (rotate-half form: pairs
/// `(i, i + D/2)`, Su et al. 2021, with the YaRN frequencies and magnitude of Peng et al. 2023 prepared by the host).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeKvWriteDesc {
    /// Query heads of this shard.
    pub heads: u32,
    /// KV heads of this shard.
    pub kv_heads: u32,
    /// `D`.
    pub head_dim: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Type of `qkv`.
    pub activation: DType,
    /// Type of the cache.
    pub kv: DType,
    /// Multiplies cosine and sine: YaRN's attention factor `0.1 ln(factor) + 1`.
    pub magnitude: f32,
}

/// Arguments of [`RopeKvWriteDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeKvWriteArgs {
    /// `[T, (heads + 2 kv_heads) * D]`: q, then k, then v. What k and v hold afterwards is not said.
    pub qkv: u64,
    /// `[T]` u32.
    pub positions: u64,
    /// `[T]` u64: block id * block_size + offset in the block.
    pub slots: u64,
    /// `[D / 2]` float32: radians per position.
    pub inverse_frequencies: u64,
    /// The layer's KV plane.
    pub kv: u64,
    /// FP8 only: `[2, kv_heads]` float32, scale of K and V; optional: 1.
    pub kv_scales: u64,
    /// `T`.
    pub tokens: u32,
}

/// The product that makes `qkv`, and [`RopeKvWriteDesc`] on what it gives. The product adds no residual.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkvRopeDesc {
    /// The product; its columns are those of `qkv`, its outputs of the activation's type.
    pub product: GemmDesc,
    /// What is done with them.
    pub rope: RopeKvWriteDesc,
}

/// Arguments of [`QkvRopeDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QkvRopeArgs {
    /// The product's; `out` is `qkv`. What its keys and values hold afterwards is not said.
    pub product: GemmArgs,
    /// The others, with the same `qkv` and tokens.
    pub rope: RopeKvWriteArgs,
}

/// `softmax([q·k / sqrt(D), sink]) · [v, 0]` per head, causal, grouped-query.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDesc {
    /// Query heads of this shard.
    pub heads: u32,
    /// KV heads of this shard; `heads` is a multiple.
    pub kv_heads: u32,
    /// `D`.
    pub head_dim: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// 0: full. Else a token sees itself and the `window - 1` before it.
    pub window: u32,
    /// 1: each head has a learned sink logit that joins the softmax denominator.
    pub sinks: u32,
    /// Type of queries and output.
    pub activation: DType,
    /// Type of the cache.
    pub kv: DType,
    /// Multiplies `q·k`.
    pub scale: f32,
    /// 1: every sequence of a launch has exactly one query row. 0: any number, also a mix. A step that only decodes, or the
    /// decoding part of a mixed one, is launched under the first description, everything else under the second.
    pub single: u32,
    /// 1: with an E4M3 cache, tactics that round queries and probabilities to E4M3 too are allowed; their names end in `-fp8`.
    pub allow_fp8: u32,
}

/// Arguments of [`AttentionDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs {
    /// First query of row 0; heads of a row are contiguous.
    pub q: u64,
    /// Elements between rows of `q` (the qkv row length).
    pub q_stride: u32,
    /// `S`.
    pub sequences: u32,
    /// `[S + 1]` u32, ascending, the last at most `tokens`: rows of sequence s are `query_starts[s]..query_starts[s + 1]`.
    /// The first need not be 0: a launch may do a part of a step's sequences, and leaves the rows of the others alone.
    pub query_starts: u64,
    /// `[S]` u32: tokens in the cache, the queries' own included. Query j of n sits at position `kv_len - n + j`.
    pub kv_lens: u64,
    /// `[S, table_stride]` u32: block ids; entry i is logical block `first_blocks[s] + i`. Tokens from there on up to `kv_len`
    /// have been written, those behind it not: they may hold NaNs and must have no influence.
    pub block_tables: u64,
    /// Entries per row of `block_tables`.
    pub table_stride: u32,
    /// Most query rows of one sequence.
    pub max_query: u32,
    /// No `kv_lens` is larger. Under a captured launch lengths may change up to it.
    pub max_kv: u32,
    /// `T`: rows of `q` and `out`, those of sequences that are not in this launch included.
    pub tokens: u32,
    /// `[S]` u32: logical index of the first block in the table (0 for full layers).
    pub first_blocks: u64,
    /// With `sinks`: `[heads]` bfloat16; else 0.
    pub sinks: u64,
    /// The layer's KV plane.
    pub kv: u64,
    /// FP8 only: `[2, kv_heads]` float32; optional: 1.
    pub kv_scales: u64,
    /// `[T, heads * D]`.
    pub out: u64,
}
