//! The operations: for each a description (what is fixed when the model is built) and arguments (what one launch gets).
//!
//! Addresses are `u64`: of host memory on CPUs, of device memory on GPUs. An address of 0 means "absent" and is allowed
//! only where the field says *optional*. Activations are row-major without padding unless a stride is given. A
//! description holds sizes and types only, so it can key a tuning table; the number of tokens is an argument.
//!
//! Symbols in shapes: `T` tokens of the step, `H` hidden size, `I` intermediate size (of this shard), `E` experts,
//! `k` experts per token, `D` head dimension, `S` sequences, `V` vocabulary.

mod attention;
mod dense;
mod exchange;
mod moe;
mod parts;
mod sample;

pub use attention::{
    AttentionArgs, AttentionDesc, QkvRopeArgs, QkvRopeDesc, RopeKvWriteArgs, RopeKvWriteDesc,
};
pub use dense::{EmbedArgs, EmbedDesc, GemmArgs, GemmDesc, RmsNormArgs, RmsNormDesc, Segment};
pub use exchange::{
    AllReduceArgs, AllReduceDesc, AllReduceNormArgs, AllReduceNormDesc, MOST_RANKS, ONE_SHOT_TOKENS,
    REGION_HEADER,
};
pub use moe::{
    ExpertWeights, ExpertsArgs, ExpertsDesc, FinalizeArgs, FinalizeDesc, FusedMoeArgs, FusedMoeDesc,
    RouteArgs, RouteDesc,
};
pub use parts::{
    AddArgs, AddDesc, CombineArgs, CombineDesc, ExpertProductArgs, ExpertProductDesc, KvWriteArgs,
    KvWriteDesc, QuantiseArgs, QuantiseDesc, ResizeArgs, ResizeDesc, RopeArgs, RopeDesc, ScaleArgs,
    ScaleDesc, SwigluArgs, SwigluDesc,
};
pub use sample::{LogitEdit, SampleArgs, SampleDesc, SampleRow};

use crate::abi::RawOp;
use std::mem::size_of;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal ($desc:ident, $args:ident), $label:literal;)*) => {
        /// The operations, by number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum OpKind { $($(#[$doc])* $name = $number,)* }

        /// What an operation is: sizes, types and options that are fixed when the model is built.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum OpDesc { $($(#[$doc])* $name($desc),)* }

        /// What one launch of an operation gets.
        #[derive(Clone, Copy, Debug)]
        pub enum OpArgs { $($(#[$doc])* $name($args),)* }

        impl OpKind {
            /// Every operation, in numeric order.
            pub const ALL: &'static [OpKind] = &[$(OpKind::$name,)*];

            /// The name that command lines and cache files use.
            pub fn label(self) -> &'static str {
                match self { $(OpKind::$name => $label,)* }
            }
        }

        impl OpDesc {
            /// Which operation this describes.
            pub fn kind(&self) -> OpKind {
                match self { $(OpDesc::$name(_) => OpKind::$name,)* }
            }

            pub(crate) fn raw(&self) -> RawOp {
                match self {
                    $(OpDesc::$name(desc) => RawOp {
                        kind: $number,
                        size: size_of::<$desc>() as u32,
                        data: std::ptr::from_ref(desc).cast(),
                    },)*
                }
            }

            /// Reads a description that came over the border; `None` for an operation or size this side does not know.
            ///
            /// # Safety
            /// `raw.data` points to `raw.size` readable bytes.
            pub(crate) unsafe fn from_raw(raw: &RawOp) -> Option<Self> {
                match raw.kind {
                    $($number if raw.size as usize == size_of::<$desc>() => {
                        // SAFETY: the caller vouches for the bytes; the struct is plain data, valid for any bits.
                        Some(OpDesc::$name(unsafe { raw.data.cast::<$desc>().read_unaligned() }))
                    })*
                    _ => None,
                }
            }
        }

        impl OpArgs {
            /// Which operation these belong to.
            pub fn kind(&self) -> OpKind {
                match self { $(OpArgs::$name(_) => OpKind::$name,)* }
            }

            pub(crate) fn raw(&self) -> RawOp {
                match self {
                    $(OpArgs::$name(args) => RawOp {
                        kind: $number,
                        size: size_of::<$args>() as u32,
                        data: std::ptr::from_ref(args).cast(),
                    },)*
                }
            }

            /// As [`OpDesc::from_raw`].
            ///
            /// # Safety
            /// `raw.data` points to `raw.size` readable bytes.
            pub(crate) unsafe fn from_raw(raw: &RawOp) -> Option<Self> {
                match raw.kind {
                    $($number if raw.size as usize == size_of::<$args>() => {
                        // SAFETY: the caller vouches for the bytes; the struct is plain data, valid for any bits.
                        Some(OpArgs::$name(unsafe { raw.data.cast::<$args>().read_unaligned() }))
                    })*
                    _ => None,
                }
            }
        }
    };
}

operations! {
    /// Token ids to rows of the embedding table.
    Embed = 1 (EmbedDesc, EmbedArgs), "embed";
    /// RMSNorm.
    RmsNorm = 2 (RmsNormDesc, RmsNormArgs), "rms-norm";
    /// Dense product with bias, optional norm before and residual after.
    Gemm = 3 (GemmDesc, GemmArgs), "gemm";
    /// Rotates queries and keys in place and writes keys and values to the paged cache.
    RopeKvWrite = 4 (RopeKvWriteDesc, RopeKvWriteArgs), "rope-kv-write";
    /// Attention over the paged cache: prefill, decode and mixed batches.
    Attention = 5 (AttentionDesc, AttentionArgs), "attention";
    /// Router: linear, top-k, softmax over the chosen.
    Route = 6 (RouteDesc, RouteArgs), "moe-route";
    /// The experts' two products with SwiGLU between them.
    Experts = 7 (ExpertsDesc, ExpertsArgs), "moe-experts";
    /// Weighted sum of the experts' outputs onto the residual stream.
    Finalize = 8 (FinalizeDesc, FinalizeArgs), "moe-finalize";
    /// Route, experts and finalize as one.
    FusedMoe = 9 (FusedMoeDesc, FusedMoeArgs), "moe-fused";
    /// Draws tokens from logits.
    Sample = 10 (SampleDesc, SampleArgs), "sample";
    /// Rotates queries and keys in place.
    Rope = 11 (RopeDesc, RopeArgs), "rope";
    /// Scales the first columns of rows in place.
    Scale = 12 (ScaleDesc, ScaleArgs), "scale";
    /// Writes keys and values to the paged cache.
    KvWrite = 13 (KvWriteDesc, KvWriteArgs), "kv-write";
    /// Copies rows to another width: pad or slice.
    Resize = 14 (ResizeDesc, ResizeArgs), "resize";
    /// Rounds rows to E4M3 with a scale each.
    Quantise = 15 (QuantiseDesc, QuantiseArgs), "quantise";
    /// The gated unit, with or without rounding to E4M3.
    Swiglu = 16 (SwigluDesc, SwigluArgs), "swiglu";
    /// One product of the experts.
    ExpertProduct = 17 (ExpertProductDesc, ExpertProductArgs), "moe-product";
    /// Weighted sum of the experts' outputs.
    Combine = 18 (CombineDesc, CombineArgs), "moe-combine";
    /// Adds onto the residual stream.
    Add = 19 (AddDesc, AddArgs), "add";
    /// Sum over the ranks of a tensor-parallel group.
    AllReduce = 20 (AllReduceDesc, AllReduceArgs), "all-reduce";
    /// Sum over ranks, residual and RMSNorm as one.
    AllReduceNorm = 21 (AllReduceNormDesc, AllReduceNormArgs), "all-reduce-norm";
    /// The qkv product, rotation and cache write as one.
    QkvRope = 22 (QkvRopeDesc, QkvRopeArgs), "qkv-rope";
}
