//! Embedding, norm and dense products.

use crate::DType;

/// `out[t] = table[token_ids[t]]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedDesc {
    /// `H`.
    pub hidden: u32,
    /// Rows of the table.
    pub vocab: u32,
    /// Type of `out`; the table is bfloat16.
    pub activation: DType,
}

/// Arguments of [`EmbedDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedArgs {
    /// `[T]` u32: rows of the table, or [`Self::DRAWN`] plus a place in `drawn`. Ids that are neither, here or there, read as row 0.
    pub token_ids: u64,
    /// `[]` u32: ids that were drawn where the host has not seen them; 0 where no id names a place.
    pub drawn: u64,
    /// `[vocab, H]` bfloat16.
    pub table: u64,
    /// `[T, H]`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

impl EmbedArgs {
    /// Ids from here on are places in `drawn`.
    pub const DRAWN: u32 = 1 << 31;
}

/// `out = x / sqrt(mean(x²) + eps) * weight`, computed in float32 (Zhang and Sennrich 2019).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormDesc {
    /// `H`.
    pub hidden: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Type of `x` and `out`.
    pub activation: DType,
}

/// Arguments of [`RmsNormDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArgs {
    /// `[T, H]`.
    pub x: u64,
    /// `[H]` bfloat16.
    pub weight: u64,
    /// `[T, H]`; may equal `x`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

/// One weight matrix of a dense product. A product of several segments writes their outputs side by side
/// (q, k and v are stored apart and computed as one).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// `[out_features, in_features]` bfloat16.
    pub weight: u64,
    /// `[out_features]` bfloat16; optional.
    pub bias: u64,
}

/// `out[t, j] = sum_i norm(x)[row(t), i] * weight[j, i] + bias[j] (+ residual[t, j])`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmDesc {
    /// Columns of `x`.
    pub in_features: u32,
    /// Rows of each segment; unused segments are 0 and come last.
    pub out_features: [u32; 3],
    /// Type of `x`.
    pub activation: DType,
    /// Type of `out` and `residual`.
    pub out: DType,
    /// Type of the weights.
    pub weight: DType,
    /// 1: `x` goes through an RMSNorm with `norm_weight` first.
    pub norm: u32,
    /// Epsilon of that norm.
    pub eps: f32,
    /// 1: `residual` is added.
    pub residual: u32,
    /// 1: rows of `x` are picked by `rows`.
    pub gather: u32,
}

impl GemmDesc {
    /// Columns of `out`: the segments together.
    pub fn columns(&self) -> u32 {
        self.out_features.iter().sum()
    }
}

/// Arguments of [`GemmDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    /// `[T, in_features]`, or with `gather` any number of rows.
    pub x: u64,
    /// With `gather`: `[T]` u32, the row of `x` for each output row; else 0.
    pub rows: u64,
    /// With `norm`: `[in_features]` bfloat16; else 0.
    pub norm_weight: u64,
    /// The weights.
    pub segments: [Segment; 3],
    /// With `residual`: `[T, columns]`; may equal `out`; else 0.
    pub residual: u64,
    /// `[T, columns]`.
    pub out: u64,
    /// `T`: output rows.
    pub tokens: u32,
}
