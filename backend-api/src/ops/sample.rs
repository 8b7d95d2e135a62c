//! Sampling: from logits to tokens.
//!
//! Gumbel-max: `argmax(logit / temperature + g)` over the tokens that survive the filters, where
//! `g = -ln(-ln(u))` and `u` in (0, 1) comes from Philox4x32-10 (Salmon et al. 2011) with key = the low and high word
//! of `seed` and counter = (token id / 4, position, choice, 0), word `token id % 4`;
//! `u = (word >> 8 + 0.5) * 2^-24`. Order of operations: edits and mask, temperature, top-k, top-p, min-p, draw.
//! Temperature 0 is the argmax of the edited logits (ties: lower id).

use crate::DType;

/// Shape of the logits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleDesc {
    /// Columns of the logits: `V` of this shard.
    pub vocab: u32,
    /// Token id of the first column.
    pub vocab_offset: u32,
    /// Type of the logits.
    pub logits: DType,
    /// Columns of `top_ids` and `top_logprobs`.
    pub max_logprobs: u32,
}

/// A change to one logit of one row: `x = x > 0 ? x / repetition : x * repetition; x += add`, each step rounded to float32. An `add`
/// of -inf forbids the token.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitEdit {
    /// Token id.
    pub token: u32,
    /// 1 leaves the logit.
    pub repetition: f32,
    /// Bias minus presence and frequency penalties.
    pub add: f32,
    /// What takes the place of `add` where the row's pending token is this one; that of `repetition` is then taken by the row's.
    pub pending_add: f32,
}

/// How one row is drawn.
///
/// A sequence's last token may be on the device and nowhere else while the row is made: its pending token. The row then says where it
/// lies, and what its logit is changed by: `pending_add` of its edit, or, where it has none, the row's. What is no token of this shard
/// has no effect.
///
/// Invariant: a row with a pending token draws what the row does that was made when that token was known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// Key of the generator.
    pub seed: u64,
    /// Position that the drawn token takes in its sequence.
    pub position: u32,
    /// Index of the choice.
    pub choice: u32,
    /// 0: greedy.
    pub temperature: f32,
    /// Nucleus mass; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// First of the row's edits.
    pub first_edit: u32,
    /// Number of the row's edits; at most one per token.
    pub edits: u32,
    /// Alternatives wanted; [`SampleRow::NO_LOGPROBS`]: not even the chosen token's.
    pub logprobs: u32,
    /// 1: `SampleArgs::masks` has a row for this one, in which a 0 bit forbids the token.
    pub masked: u32,
    /// Address of the pending token, a u32 that is written when the operation runs; 0: there is none.
    pub pending: u64,
    /// Address of a u32 that takes the drawn token as `SampleArgs::tokens` does, after the row's pending token was read, which may lie
    /// there; 0: none.
    pub kept: u64,
    /// `repetition` of the pending token's edit.
    pub pending_repetition: f32,
    /// `add` of the pending token's edit where `edits` has none of that token.
    pub pending_add: f32,
}

impl SampleRow {
    /// Value of `logprobs` for a row that wants none.
    pub const NO_LOGPROBS: u32 = u32::MAX;
    /// The token of a row with nothing to draw: every logit is NaN, -inf or forbidden. Embeddings read it as row 0.
    pub const NO_TOKEN: u32 = u32::MAX - 1;
}

/// Arguments of [`SampleDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleArgs {
    /// `[rows, V]`; may be overwritten.
    pub logits: u64,
    /// `[rows]` of [`SampleRow`].
    pub rows: u64,
    /// `[sum of edits]` of [`LogitEdit`]; optional when there are none.
    pub edits: u64,
    /// `[rows, ceil(V / 32)]` u32; optional when no row is masked.
    pub masks: u64,
    /// `[rows]` u32; [`SampleRow::NO_TOKEN`] where there is none to draw.
    pub tokens: u64,
    /// `[rows]` float32: log-probability of the drawn token under the unedited logits; NaN where there is none.
    pub logprobs: u64,
    /// `[rows, max_logprobs]` u32, likeliest first under the unedited logits (ties: lower id); optional.
    pub top_ids: u64,
    /// `[rows, max_logprobs]` float32; optional.
    pub top_logprobs: u64,
    /// Rows.
    pub row_count: u32,
}
