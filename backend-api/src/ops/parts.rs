//! What fused operations are put together from. A graph before fusion consists of these; a backend that has them makes
//! every pass checkable: the graph runs with the pass and without it.
//!
//! Rows of codes, and of outputs of the experts, may be wider than what they hold (`padded`, `out_columns`): kernels like whole tiles of
//! columns. What is behind the last column is zero.

use super::ExpertWeights;
use crate::DType;

/// Rotates query and key heads of `qkv` in place (see [`super::RopeKvWriteDesc`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeDesc {
    /// Query heads of this shard.
    pub heads: u32,
    /// KV heads of this shard.
    pub kv_heads: u32,
    /// `D`.
    pub head_dim: u32,
    /// Type of `qkv`.
    pub activation: DType,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
}

/// Arguments of [`RopeDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs {
    /// `[T, (heads + 2 kv_heads) * D]`, updated.
    pub qkv: u64,
    /// `[T]` u32.
    pub positions: u64,
    /// `[D / 2]` float32: radians per position.
    pub inverse_frequencies: u64,
    /// `T`.
    pub tokens: u32,
}

/// `x[t, ..columns] *= factor`: the scale of queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleDesc {
    /// Columns that are scaled, the first of a row.
    pub columns: u32,
    /// Columns of a row.
    pub stride: u32,
    /// Type of `x`.
    pub activation: DType,
    /// The factor.
    pub factor: f32,
}

/// Arguments of [`ScaleDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleArgs {
    /// `[T, stride]`, updated.
    pub x: u64,
    /// `T`.
    pub tokens: u32,
}

/// Writes keys and values of `qkv` to the paged cache (see [`super::RopeKvWriteDesc`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvWriteDesc {
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
}

/// Arguments of [`KvWriteDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvWriteArgs {
    /// `[T, (heads + 2 kv_heads) * D]`, keys rotated.
    pub qkv: u64,
    /// `[T]` u64: block id * block_size + offset in the block.
    pub slots: u64,
    /// The layer's KV plane.
    pub kv: u64,
    /// FP8 only: `[2, kv_heads]` float32; optional: 1.
    pub kv_scales: u64,
    /// `T`.
    pub tokens: u32,
}

/// Copies rows to another width: pads with zeros, or cuts off.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizeDesc {
    /// Columns of a row of `x`.
    pub from: u32,
    /// Columns of a row of `out`.
    pub to: u32,
    /// Rows per token.
    pub rows: u32,
    /// Type of both.
    pub activation: DType,
}

/// Arguments of [`ResizeDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResizeArgs {
    /// `[T * rows, from]`.
    pub x: u64,
    /// `[T * rows, to]`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

/// Rounds rows to E4M3: `scale = max |x| / 448` (1e-20 / 448 for a row of zeros), `code = e4m3(x / scale)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantiseDesc {
    /// Columns of a row of `x`.
    pub columns: u32,
    /// Columns of a row of codes, at least `columns`. More: padding is part of the operation.
    pub padded: u32,
    /// Rows per token.
    pub rows: u32,
    /// Type of `x`.
    pub activation: DType,
}

/// Arguments of [`QuantiseDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantiseArgs {
    /// `[T * rows, columns]`.
    pub x: u64,
    /// `[T * rows, padded]` E4M3.
    pub codes: u64,
    /// `[T * rows]` float32.
    pub scales: u64,
    /// `T`.
    pub tokens: u32,
}

/// gpt-oss's gated unit of interleaved gate and up (see [`super::ExpertsDesc`]). With `out` E4M3 its result is rounded as by
/// [`QuantiseDesc`], after it was rounded to `activation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwigluDesc {
    /// Columns of a result; rows of `x` have twice as many.
    pub columns: u32,
    /// Columns of a row of `out`; more than `columns` with E4M3 only.
    pub padded: u32,
    /// Rows per token.
    pub rows: u32,
    /// Clamp.
    pub limit: f32,
    /// Slope inside the sigmoid.
    pub alpha: f32,
    /// Type of `x`.
    pub activation: DType,
    /// Type of `out`: `activation` or E4M3.
    pub out: DType,
}

/// Arguments of [`SwigluDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwigluArgs {
    /// `[T * rows, 2 * columns]`.
    pub x: u64,
    /// `[T * rows, padded]`.
    pub out: u64,
    /// E4M3 only: `[T * rows]` float32; else 0.
    pub scales: u64,
    /// `T`.
    pub tokens: u32,
}

/// One product of the experts: `out[t, j] = weights[e] · x + bias[e]` for expert `e = expert_ids[t, j]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertProductDesc {
    /// Columns of the weights: a multiple of 32.
    pub in_features: u32,
    /// Columns of a row of `x`, at least `in_features`.
    pub in_columns: u32,
    /// Rows of an expert's weights.
    pub out_features: u32,
    /// Columns of a row of `out`, at least `out_features`.
    pub out_columns: u32,
    /// `E` of the whole model.
    pub experts: u32,
    /// First expert held here.
    pub first_expert: u32,
    /// Experts held here. Others' rows of `out` are written as zeros.
    pub local_experts: u32,
    /// `k`.
    pub top_k: u32,
    /// 0: `x` has a row per token. 1: one per (token, choice).
    pub per_pair: u32,
    /// 1: rows alternate between gate and up, which a layout may have brought together; `out` alternates in any case.
    pub interleaved: u32,
    /// Type of `x`: that of `out`, or E4M3 with a scale per row.
    pub x: DType,
    /// Type of `out`.
    pub out: DType,
    /// Type of the weights: [`DType::MXFP4`].
    pub weight: DType,
}

/// Arguments of [`ExpertProductDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertProductArgs {
    /// `[T, in_columns]` or `[T, k, in_columns]`.
    pub x: u64,
    /// E4M3 only: float32, one per row of `x`; else 0.
    pub scales: u64,
    /// `[T, k]` u32.
    pub expert_ids: u64,
    /// Rows `out_features`, columns `in_features`.
    pub weights: ExpertWeights,
    /// `[T, k, out_columns]`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

/// `out[t] = sum_j expert_weights[t, j] * experts_out[t, j]`, in the order of j: finalize without the residual.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CombineDesc {
    /// Columns of a row of both.
    pub columns: u32,
    /// `k`.
    pub top_k: u32,
    /// Type of `experts_out` and `out`.
    pub activation: DType,
}

/// Arguments of [`CombineDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CombineArgs {
    /// `[T, k, columns]`.
    pub experts_out: u64,
    /// `[T, k]` float32.
    pub expert_weights: u64,
    /// `[T, columns]`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

/// `residual += x`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddDesc {
    /// Columns of both.
    pub columns: u32,
    /// Type of both.
    pub activation: DType,
}

/// Arguments of [`AddDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AddArgs {
    /// `[T, columns]`.
    pub x: u64,
    /// `[T, columns]`, updated.
    pub residual: u64,
    /// `T`.
    pub tokens: u32,
}
