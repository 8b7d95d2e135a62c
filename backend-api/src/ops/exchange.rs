//! Sums over the ranks of a tensor-parallel group.
//!
//! Ranks exchange through *regions*: each owns one, and has those of the others mapped (peer access between devices of one process,
//! shared memory between processes on CPUs). A region is [`AllReduceDesc::region_bytes`] long, 256-byte aligned, and its first
//! [`REGION_HEADER`] bytes are zero before the first launch; nobody but these two operations touches it. Every rank makes the same launches
//! in the same order.
//!
//! Invariants:
//! - The sum is taken in the order of ranks, in float32, and rounded to the activation's type once: every rank gets the same bits.
//! - The fused form gives the bits of the unfused one: sum rounded, residual added and rounded, norm.
//! - What synchronises ranks are counters that only rise and live in the regions, so that a captured launch can be replayed.

use crate::DType;

/// Most ranks of a group.
pub const MOST_RANKS: usize = 8;
/// Bytes at the beginning of a region that hold counters.
pub const REGION_HEADER: u64 = 16_384;
/// Up to so many tokens a rank sends everything to all others at once; more tokens go in two steps.
pub const ONE_SHOT_TOKENS: u32 = 64;

/// `x = sum over ranks of x`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduceDesc {
    /// Ranks of the group, 2 to [`MOST_RANKS`].
    pub ranks: u32,
    /// `H`.
    pub hidden: u32,
    /// Type of `x`.
    pub activation: DType,
}

impl AllReduceDesc {
    /// Bytes of a region for launches of up to `tokens` tokens: the header, and twice (one launch's data while slower ranks still read
    /// the last one's) what all ranks may send for it.
    pub fn region_bytes(&self, tokens: u32) -> u64 {
        let (tokens, ranks) = (u64::from(tokens), u64::from(self.ranks));
        let once = ranks * tokens.min(u64::from(ONE_SHOT_TOKENS));
        let rows = once.max(2 * (tokens + ranks));
        let row = self.activation.bytes(u64::from(self.hidden)).next_multiple_of(16);
        REGION_HEADER + 2 * (rows * row).next_multiple_of(256)
    }
}

/// Arguments of [`AllReduceDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllReduceArgs {
    /// `[T, H]`, updated.
    pub x: u64,
    /// The ranks' regions as this rank has them mapped, its own at `rank`.
    pub regions: [u64; MOST_RANKS],
    /// Bytes of each region. The same on every rank and in every launch.
    pub region_bytes: u64,
    /// This rank.
    pub rank: u32,
    /// `T`.
    pub tokens: u32,
}

/// `residual += sum over ranks of x; out = rms_norm(residual)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduceNormDesc {
    /// The sum.
    pub reduce: AllReduceDesc,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// Arguments of [`AllReduceNormDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllReduceNormArgs {
    /// What is summed; `x` holds anything afterwards.
    pub reduce: AllReduceArgs,
    /// `[T, H]`, updated.
    pub residual: u64,
    /// `[H]` bfloat16.
    pub weight: u64,
    /// `[T, H]`.
    pub out: u64,
}
