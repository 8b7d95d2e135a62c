//! Operations put together from kernels: a product, portable or tiled, with gathered rows and a norm before it.

use crate::{Status, aligned, dense_gemm, dense_workspace, gather_rows, portable_gemm, rms_norm};
use gossamer_backend_api::ops::{GemmArgs, GemmDesc, RmsNormArgs, RmsNormDesc};
use gossamer_backend_api::{BackendError, DType, Launch};

/// Bytes of workspace of [`gemm`]: gathered rows and normed rows.
pub fn gemm_workspace(desc: &GemmDesc, tokens: u32) -> u64 {
    let rows = aligned(u64::from(tokens) * u64::from(desc.in_features) * 2);
    u64::from(desc.gather) * rows + u64::from(desc.norm) * rows
}

/// Gathers and norms into the workspace where the description asks for it, and returns the arguments that are left.
///
/// `gathers` is false for a product that gathers itself: rows are then gathered only for the norm's sake.
///
/// # Safety
/// As a launch of the operation; `workspace` holds [`gemm_workspace`].
unsafe fn prologue(
    desc: &GemmDesc,
    args: &GemmArgs,
    gathers: bool,
    workspace: u64,
    stream: u64,
) -> Result<GemmArgs, BackendError> {
    let mut args = *args;
    let mut at = workspace;
    if desc.gather == 1 && (gathers || desc.norm == 1) {
        let bytes = desc.in_features * 2;
        // SAFETY: handed on.
        unsafe { gather_rows(args.x, args.rows, at, args.tokens, bytes, stream) }.into_result("launch")?;
        (args.x, args.rows) = (at, 0);
        at += aligned(u64::from(args.tokens) * u64::from(bytes));
    }
    if desc.norm == 1 {
        let norm = RmsNormDesc { hidden: desc.in_features, eps: desc.eps, activation: DType::BF16 };
        let norm_args = RmsNormArgs { x: args.x, weight: args.norm_weight, out: at, tokens: args.tokens };
        // SAFETY: handed on.
        unsafe { rms_norm(&norm, &norm_args, stream) }.into_result("launch")?;
        (args.x, args.norm_weight) = (at, 0);
    }
    Ok(args)
}

/// A product of any number of rows.
///
/// # Safety
/// As a launch of the operation; `workspace` holds [`gemm_workspace`].
pub unsafe fn gemm(
    desc: &GemmDesc,
    args: &GemmArgs,
    workspace: u64,
    stream: u64,
) -> Result<(), BackendError> {
    // SAFETY: handed on.
    let args = unsafe { prologue(desc, args, false, workspace, stream) }?;
    let gather = u32::from(desc.gather == 1 && args.rows != 0);
    let plain = GemmDesc { norm: 0, gather, ..*desc };
    // SAFETY: handed on.
    let status: Status = unsafe { portable_gemm(&plain, &args, stream) };
    status.into_result("launch")
}

/// Bytes of workspace of [`tiled_gemm`]; the first [`Launch::ZEROED`] are zero between launches.
pub fn tiled_gemm_workspace(desc: &GemmDesc, tokens: u32, tactic: u32) -> u64 {
    aligned(dense_workspace(tactic).max(Launch::ZEROED)) + gemm_workspace(desc, tokens)
}

/// A product of any number of rows by the tiled kernel; by the portable one where operands are not 16-byte aligned.
///
/// # Safety
/// As a launch of the operation; `workspace` holds [`tiled_gemm_workspace`].
pub unsafe fn tiled_gemm(
    desc: &GemmDesc,
    args: &GemmArgs,
    tactic: u32,
    workspace: u64,
    stream: u64,
) -> Result<(), BackendError> {
    let bytes = aligned(dense_workspace(tactic).max(Launch::ZEROED));
    // SAFETY: handed on.
    let args = unsafe { prologue(desc, args, true, workspace + bytes, stream) }?;
    let plain = GemmDesc { norm: 0, gather: 0, ..*desc };
    // SAFETY: handed on.
    let status = match unsafe { dense_gemm(&plain, &args, tactic, (workspace, bytes), stream) } {
        // SAFETY: handed on.
        Status::BadShape => unsafe { portable_gemm(&plain, &args, stream) },
        status => status,
    };
    status.into_result("launch")
}

/// The router's product as a dense one with float32 outputs.
pub fn logits_desc(hidden: u32, experts: u32) -> GemmDesc {
    GemmDesc {
        in_features: hidden,
        out_features: [experts, 0, 0],
        activation: DType::BF16,
        out: DType::F32,
        weight: DType::BF16,
        norm: 0,
        eps: 0.0,
        residual: 0,
        gather: 0,
    }
}
