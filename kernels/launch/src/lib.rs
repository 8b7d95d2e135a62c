//! The CUDA kernels as functions, and the operations that several device backends put together from them.
//!
//! Where the kernels were not built in, every function answers [`Status::NotBuilt`], so that the backends build everywhere
//! and can say why they cannot run. Argument structs mirror `kernels/cuda/include/gossamer/*.h`, where each field is described.

mod compose;
mod ffi;

pub use compose::{gemm, gemm_workspace, logits_desc, tiled_gemm, tiled_gemm_workspace};
pub use ffi::{MoeArgs, RouterArgs, TinyGemmArgs, TopkArgs};

use gossamer_backend_api::ops::{
    AttentionArgs, AttentionDesc, ExpertsArgs, ExpertsDesc, FinalizeArgs, FinalizeDesc, GemmArgs, GemmDesc,
    QkvRopeDesc, RmsNormArgs, RmsNormDesc, RopeKvWriteArgs, RopeKvWriteDesc,
};
use gossamer_backend_api::{BackendError, DType, HostServices, Layout};
use std::ffi::{c_int, c_void};

/// Whether the kernels are in this build.
pub const BUILT: bool = cfg!(gossamer_cuda);

/// Alignment of a part of a workspace.
pub const ALIGN: u64 = 256;

/// Why a launcher refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Ok,
    /// A dimension that the kernel does not take.
    BadShape,
    /// Unknown tactic.
    BadTactic,
    /// CUDA refused.
    LaunchFailed,
    /// `prepare` has not run.
    NotPrepared,
    /// The kernels are not in this build.
    NotBuilt,
    /// A number that this side does not know.
    Unknown,
}

impl Status {
    fn of(code: c_int) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::BadShape,
            2 => Self::BadTactic,
            3 => Self::LaunchFailed,
            4 => Self::NotPrepared,
            ffi::NOT_BUILT => Self::NotBuilt,
            _ => Self::Unknown,
        }
    }

    /// As a result.
    pub fn into_result(self, call: &'static str) -> Result<(), BackendError> {
        let message = match self {
            Self::Ok => return Ok(()),
            Self::BadShape => "the kernel does not take this shape",
            Self::BadTactic => "the kernel has no such tactic for this shape",
            Self::LaunchFailed => "CUDA refused the launch",
            Self::NotPrepared => "the kernels were not prepared",
            Self::NotBuilt => NOT_BUILT,
            Self::Unknown => "the launcher gave an unknown status",
        };
        Err(BackendError::failed(call, message))
    }
}

/// What a backend without kernels says.
pub const NOT_BUILT: &str =
    "built without CUDA kernels; rebuild where nvcc or GOSSAMER_KERNELS_DIR is, or use --device cpu";

/// Whether a device backend can open: the kernels are there, and the host computes on a CUDA device.
pub fn check_open(host: &HostServices) -> Result<(), BackendError> {
    if host.cuda_device().is_none() {
        return Err(BackendError::failed(
            "open",
            "this backend computes on CUDA devices; the host uses none",
        ));
    }
    if !BUILT {
        return Err(BackendError::failed("open", NOT_BUILT));
    }
    // SAFETY: the context of the device is current by the border's contract.
    Status::of(unsafe { ffi::gossamer_prepare() }).into_result("open")
}

/// Why a backend can do nothing here, from what opening it said.
pub fn unusable(opened: Result<(), BackendError>) -> Option<String> {
    match opened {
        Ok(()) => None,
        Err(BackendError::Failed { message, .. }) => Some(message),
        Err(error) => Some(error.to_string()),
    }
}

/// Refuses with the reason where a condition does not hold.
pub fn need(condition: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(reason()) }
}

/// What the kernels of rotary embedding and single queries take of heads and cache.
pub fn check_heads(
    activation: DType,
    kv: DType,
    (heads, kv_heads): (u32, u32),
    (head_dim, block_size): (u32, u32),
) -> Result<(), String> {
    need(activation == DType::BF16, || format!("activations are bfloat16, not {activation}"))?;
    need(matches!(kv, DType::BF16 | DType::F8E4M3), || format!("no cache of type {kv}"))?;
    need(head_dim == 64 && block_size == 64, || {
        format!("heads of 64 and blocks of 64 tokens, not {head_dim} and {block_size}")
    })?;
    let whole = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
    need(whole && heads / kv_heads <= 8, || {
        format!("at most 8 whole query heads per KV head, not {heads} for {kv_heads}")
    })
}

/// What [`rope_kv`] takes.
pub fn check_rope(desc: &RopeKvWriteDesc) -> Result<(), String> {
    check_heads(desc.activation, desc.kv, (desc.heads, desc.kv_heads), (desc.head_dim, desc.block_size))
}

/// What [`rope_kv`] takes behind a product.
pub fn check_qkv_rope(desc: &QkvRopeDesc) -> Result<(), String> {
    check_rope(&desc.rope)?;
    let (columns, product) = ((desc.rope.heads + 2 * desc.rope.kv_heads) * desc.rope.head_dim, &desc.product);
    need(product.columns() == columns && product.out == desc.rope.activation, || {
        format!(
            "a product of {columns} columns of {}, not {} of {}",
            desc.rope.activation,
            product.columns(),
            product.out
        )
    })?;
    need(product.residual == 0 && product.gather == 0, || "no residual and no gathered rows".to_owned())
}

/// What a backend says to a layout that it reads and does not make.
pub fn made_elsewhere(layout: &Layout) -> BackendError {
    BackendError::failed("repack", format!("'{}' is made by the fallback backend", layout.0))
}

macro_rules! safe_names {
    ($($(#[$doc:meta])* $name:ident = $raw:ident($($arg:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        ///
        /// # Safety
        /// Addresses in the arguments are valid on the device for what the header documents, until the work is done.
        pub unsafe fn $name($($arg: $type,)* stream: u64) -> Status {
            // SAFETY: handed on; launchers copy the structs.
            Status::of(unsafe { ffi::$raw($($arg,)* stream) })
        })*
    };
}

safe_names! {
    /// RMSNorm, portable.
    rms_norm = gossamer_portable_rms_norm(desc: &RmsNormDesc, args: &RmsNormArgs);
    /// Dense product, portable: no norm.
    portable_gemm = gossamer_portable_gemm(desc: &GemmDesc, args: &GemmArgs);
    /// Weighted sum of expert outputs.
    finalize = gossamer_portable_finalize(desc: &FinalizeDesc, args: &FinalizeArgs);
    /// Attention, portable: any number of queries.
    portable_attention = gossamer_portable_attention(desc: &AttentionDesc, args: &AttentionArgs);
    /// Rotary embedding and KV write.
    rope_kv = gossamer_rope_kv_op(desc: &RopeKvWriteDesc, args: &RopeKvWriteArgs);
    /// Norm and router product for few tokens.
    router = gossamer_router(args: &RouterArgs);
    /// Top-4 of logits.
    topk = gossamer_topk(args: &TopkArgs);
    /// Experts with routing and sum, for up to 64 tokens.
    moe = gossamer_moe(args: &MoeArgs);
    /// Dense product for up to 64 tokens.
    tiny_gemm = gossamer_tiny_gemm(args: &TinyGemmArgs);
    /// The same with rotary embedding and KV write inside, for up to 16 tokens.
    tiny_qkv = gossamer_tiny_qkv_op(product: &TinyGemmArgs, desc: &RopeKvWriteDesc, args: &RopeKvWriteArgs);
}

/// Gathers rows of `row_bytes` bytes.
///
/// # Safety
/// `x` holds every row named in `rows`; `rows` and `out` hold `count`.
pub unsafe fn gather_rows(x: u64, rows: u64, out: u64, count: u32, row_bytes: u32, stream: u64) -> Status {
    // SAFETY: handed on.
    Status::of(unsafe { ffi::gossamer_gather_rows(x, rows, out, count, row_bytes, stream) })
}

/// Bytes of workspace of [`moe`].
pub fn moe_workspace(tokens: u32, hidden: u32, intermediate: u32) -> u64 {
    // SAFETY: plain arithmetic.
    unsafe { ffi::gossamer_moe_workspace(tokens as c_int, hidden as c_int, intermediate as c_int) as u64 }
}

/// Bytes of workspace of [`dense_gemm`], for every shape.
pub fn dense_workspace(tactic: u32) -> u64 {
    // SAFETY: plain arithmetic.
    unsafe { ffi::gossamer_dense_workspace(tactic as c_int) as u64 }
}

/// Sets up [`dense_gemm`].
pub fn prepare_dense() -> Status {
    // SAFETY: the context of the device is current by the border's contract.
    Status::of(unsafe { ffi::gossamer_dense_prepare() })
}

/// Tiled dense product: no norm, no gathered rows.
///
/// # Safety
/// As the other launchers; `workspace` holds `bytes`, its first [`gossamer_backend_api::Launch::ZEROED`] zero.
pub unsafe fn dense_gemm(
    desc: &GemmDesc,
    args: &GemmArgs,
    tactic: u32,
    (workspace, bytes): (u64, u64),
    stream: u64,
) -> Status {
    // SAFETY: handed on.
    Status::of(unsafe {
        let workspace = workspace as *mut c_void;
        ffi::gossamer_dense_gemm(desc, args, tactic as c_int, workspace, bytes as usize, stream)
    })
}

/// Bytes of workspace of [`grouped_experts`].
pub fn grouped_workspace(desc: &ExpertsDesc, tokens: u32, tactic: u32) -> u64 {
    // SAFETY: the description lives for the call.
    unsafe { ffi::gossamer_grouped_workspace(desc, tokens, tactic as c_int) as u64 }
}

/// Sets up [`grouped_experts`].
pub fn prepare_grouped() -> Status {
    // SAFETY: the context of the device is current by the border's contract.
    Status::of(unsafe { ffi::gossamer_grouped_prepare() })
}

/// Experts for many tokens.
///
/// # Safety
/// As the other launchers; `workspace` holds `bytes`.
pub unsafe fn grouped_experts(
    desc: &ExpertsDesc,
    args: &ExpertsArgs,
    tactic: u32,
    (workspace, bytes): (u64, u64),
    stream: u64,
) -> Status {
    // SAFETY: handed on.
    Status::of(unsafe {
        let workspace = workspace as *mut c_void;
        ffi::gossamer_grouped_experts(desc, args, tactic as c_int, workspace, bytes as usize, stream)
    })
}

/// Bytes of workspace of [`decode_attention`].
pub fn decode_workspace(desc: &AttentionDesc, sequences: u32) -> u64 {
    // SAFETY: plain arithmetic.
    unsafe { ffi::gossamer_decode_attention_workspace(sequences as c_int, desc.kv_heads as c_int, 0) as u64 }
}

/// Attention of single queries, split along the keys. Tactic 1 rounds queries and probabilities to E4M3, where that is allowed.
///
/// # Safety
/// As the other launchers; `workspace` holds `bytes`.
pub unsafe fn decode_attention(
    desc: &AttentionDesc,
    args: &AttentionArgs,
    tactic: u32,
    (workspace, bytes): (u64, u64),
    stream: u64,
) -> Status {
    // SAFETY: handed on.
    Status::of(unsafe {
        let workspace = workspace as *mut c_void;
        ffi::gossamer_decode_attention_op(desc, args, tactic as c_int, workspace, bytes as usize, stream)
    })
}

/// Bytes of workspace of [`prefill_attention`], for every shape.
pub const PREFILL_WORKSPACE: u64 = 256;

/// Sets up [`prefill_attention`].
pub fn prepare_prefill() -> Status {
    // SAFETY: the context of the device is current by the border's contract.
    Status::of(unsafe { ffi::gossamer_prefill_attention_prepare() })
}

/// Attention for many queries.
///
/// # Safety
/// As the other launchers; `workspace` holds `bytes`.
pub unsafe fn prefill_attention(
    desc: &AttentionDesc,
    args: &AttentionArgs,
    (workspace, bytes): (u64, u64),
    stream: u64,
) -> Status {
    // SAFETY: handed on.
    Status::of(unsafe {
        ffi::gossamer_prefill_attention(desc, args, workspace as *mut c_void, bytes as usize, stream)
    })
}

/// Rounds a part of a workspace up.
pub fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}
