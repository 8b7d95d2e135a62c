//! The launchers of `kernels/cuda/portable`. They take the ABI's own structs: `backend_ops.h` mirrors them.

use gossamer_backend_api::ops;
use std::ffi::{c_int, c_void};

/// Arguments of the repacking launcher (`kernels/cuda/include/gossamer/ops.h`).
#[repr(C)]
pub struct RepackArgs {
    pub blocks: u64,
    pub scales: u64,
    pub packed: u64,
    pub large_scales: u64,
    pub experts: c_int,
    pub rows: c_int,
    pub k: c_int,
    pub interleaved: c_int,
    pub row_stride_bytes: usize,
    pub row_stride_scales: usize,
}

macro_rules! launchers {
    ($($name:ident($desc:ident, $args:ident);)*) => {
        unsafe extern "C" {
            $(pub fn $name(desc: *const ops::$desc, args: *const ops::$args, stream: u64) -> c_int;)*
        }
    };
}

launchers! {
    gossamer_portable_embed(EmbedDesc, EmbedArgs);
    gossamer_portable_rms_norm(RmsNormDesc, RmsNormArgs);
    gossamer_portable_gemm(GemmDesc, GemmArgs);
    gossamer_portable_rope_kv_write(RopeKvWriteDesc, RopeKvWriteArgs);
    gossamer_portable_attention(AttentionDesc, AttentionArgs);
    gossamer_portable_route(RouteDesc, RouteArgs);
    gossamer_portable_finalize(FinalizeDesc, FinalizeArgs);
    gossamer_portable_rope(RopeDesc, RopeArgs);
    gossamer_portable_scale(ScaleDesc, ScaleArgs);
    gossamer_portable_kv_write(KvWriteDesc, KvWriteArgs);
    gossamer_portable_resize(ResizeDesc, ResizeArgs);
    gossamer_portable_quantise(QuantiseDesc, QuantiseArgs);
    gossamer_portable_swiglu(SwigluDesc, SwigluArgs);
    gossamer_portable_combine(CombineDesc, CombineArgs);
    gossamer_portable_add(AddDesc, AddArgs);
    gossamer_all_reduce(AllReduceDesc, AllReduceArgs);
    gossamer_all_reduce_norm(AllReduceNormDesc, AllReduceNormArgs);
}

unsafe extern "C" {
    pub fn gossamer_portable_experts(
        desc: *const ops::ExpertsDesc,
        args: *const ops::ExpertsArgs,
        packed: c_int,
        workspace: *mut c_void,
        stream: u64,
    ) -> c_int;
    pub fn gossamer_portable_experts_workspace(desc: *const ops::ExpertsDesc, tokens: u32) -> usize;
    pub fn gossamer_portable_expert_product(
        desc: *const ops::ExpertProductDesc,
        args: *const ops::ExpertProductArgs,
        packed: c_int,
        workspace: *mut c_void,
        stream: u64,
    ) -> c_int;
    pub fn gossamer_portable_expert_product_workspace(
        desc: *const ops::ExpertProductDesc,
        tokens: u32,
    ) -> usize;
    pub fn gossamer_portable_sample(
        desc: *const ops::SampleDesc,
        args: *const ops::SampleArgs,
        workspace: *mut c_void,
        stream: u64,
    ) -> c_int;
    pub fn gossamer_portable_sample_workspace(rows: u32) -> usize;
    pub fn gossamer_repack_mxfp4(args: *const RepackArgs, stream: u64) -> c_int;
    pub fn gossamer_repack_mxfp4_maxima(args: *const RepackArgs, stream: u64) -> c_int;
    pub fn gossamer_op_sizes(out: *mut u32);
}
