//! The launchers' declarations, and what stands for them where they are not built in.

use gossamer_backend_api::ops::{
    AttentionArgs, AttentionDesc, ExpertsArgs, ExpertsDesc, FinalizeArgs, FinalizeDesc, GemmArgs, GemmDesc,
    RmsNormArgs, RmsNormDesc, RopeKvWriteArgs, RopeKvWriteDesc,
};
use std::ffi::{c_int, c_void};

/// Status of a launcher that is not there.
pub const NOT_BUILT: c_int = -1;

/// `GossamerRouterArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct RouterArgs {
    pub hidden: u64,
    pub norm_weight: u64,
    pub router_weight: u64,
    pub router_bias: u64,
    pub logits: u64,
    pub normed: u64,
    pub epsilon: f32,
    pub tokens: c_int,
    pub hidden_size: c_int,
    pub experts: c_int,
}

/// `GossamerTopkArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct TopkArgs {
    pub logits: u64,
    pub ids: u64,
    pub weights: u64,
    pub tokens: c_int,
    pub experts: c_int,
}

/// `GossamerMoeArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct MoeArgs {
    pub normed: u64,
    pub logits: u64,
    pub ids: u64,
    pub weights: u64,
    pub gate_up: u64,
    pub gate_up_bias: u64,
    pub down: u64,
    pub down_bias: u64,
    pub residual: u64,
    pub output: u64,
    pub workspace: u64,
    pub workspace_bytes: usize,
    pub tokens: c_int,
    pub hidden_size: c_int,
    pub intermediate: c_int,
    pub experts: c_int,
    pub expert_begin: c_int,
    pub experts_local: c_int,
    pub swiglu_limit: f32,
    pub swiglu_alpha: f32,
    pub tactic: c_int,
}

/// `GossamerTinyGemmArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct TinyGemmArgs {
    pub x: u64,
    pub norm_weight: u64,
    pub weight: u64,
    pub bias: u64,
    pub residual: u64,
    pub out: u64,
    pub epsilon: f32,
    pub tokens: c_int,
    pub rows: c_int,
    pub k: c_int,
    pub float_out: c_int,
    pub tactic: c_int,
}

macro_rules! launchers {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty = $missing:expr;)*) => {
        #[cfg(gossamer_cuda)]
        unsafe extern "C" {
            $(pub fn $name($($arg: $type),*) -> $out;)*
        }
        #[cfg(not(gossamer_cuda))]
        mod missing {
            use super::*;
            $(pub unsafe fn $name($(_: $type),*) -> $out { $missing })*
        }
        #[cfg(not(gossamer_cuda))]
        pub use missing::*;
    };
}

launchers! {
    fn gossamer_prepare() -> c_int = NOT_BUILT;
    fn gossamer_portable_rms_norm(desc: *const RmsNormDesc, args: *const RmsNormArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_portable_gemm(desc: *const GemmDesc, args: *const GemmArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_portable_finalize(desc: *const FinalizeDesc, args: *const FinalizeArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_router(args: *const RouterArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_topk(args: *const TopkArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_moe(args: *const MoeArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_moe_workspace(tokens: c_int, hidden: c_int, intermediate: c_int) -> usize = 0;
    fn gossamer_tiny_gemm(args: *const TinyGemmArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_gather_rows(x: u64, rows: u64, out: u64, count: u32, row_bytes: u32, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_portable_attention(desc: *const AttentionDesc, args: *const AttentionArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_tiny_qkv_op(
        product: *const TinyGemmArgs,
        desc: *const RopeKvWriteDesc,
        args: *const RopeKvWriteArgs,
        stream: u64,
    ) -> c_int = NOT_BUILT;
    fn gossamer_rope_kv_op(desc: *const RopeKvWriteDesc, args: *const RopeKvWriteArgs, stream: u64) -> c_int = NOT_BUILT;
    fn gossamer_decode_attention_workspace(tokens: c_int, kv_heads: c_int, splits: c_int) -> usize = 0;
    fn gossamer_decode_attention_op(
        desc: *const AttentionDesc,
        args: *const AttentionArgs,
        tactic: c_int,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: u64,
    ) -> c_int = NOT_BUILT;
    fn gossamer_dense_workspace(tactic: c_int) -> usize = 0;
    fn gossamer_dense_prepare() -> c_int = NOT_BUILT;
    fn gossamer_dense_gemm(
        desc: *const GemmDesc,
        args: *const GemmArgs,
        tactic: c_int,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: u64,
    ) -> c_int = NOT_BUILT;
    fn gossamer_grouped_workspace(desc: *const ExpertsDesc, tokens: u32, tactic: c_int) -> usize = 0;
    fn gossamer_grouped_prepare() -> c_int = NOT_BUILT;
    fn gossamer_prefill_attention_prepare() -> c_int = NOT_BUILT;
    fn gossamer_prefill_attention(
        desc: *const AttentionDesc,
        args: *const AttentionArgs,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: u64,
    ) -> c_int = NOT_BUILT;
    fn gossamer_grouped_experts(
        desc: *const ExpertsDesc,
        args: *const ExpertsArgs,
        tactic: c_int,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: u64,
    ) -> c_int = NOT_BUILT;
}
