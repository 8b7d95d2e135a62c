//! The portable kernels on CUDA devices since sm_80: plain, and the oracle of the other plugins there.
//!
//! Activations are bf16. Expert weights are read in two layouts: `checkpoint`, and `mxfp4-sm90-v2`, so that the tuner can mix
//! this backend with those that need the packed form. It refuses float32 activations: the CPU is their place.

mod ffi;

use gossamer_backend_api::ops::{
    self, AllReduceDesc, AttentionDesc, ExpertProductDesc, ExpertsDesc, GemmDesc, MOST_RANKS, RouteDesc,
};
use gossamer_backend_api::{
    BackendError, DType, HostServices, KernelBackend, Launch, Layout, OpArgs, OpDesc, OpKind, RepackSource,
    Support, Tactic,
};
use std::ffi::{c_int, c_void};

/// The packed layout, specified in `kernels/LAYOUTS.md`.
pub const PACKED: &str = "mxfp4-sm90-v2";
/// The largest scale of each row of such a matrix, likewise.
pub const MAXIMA: &str = "mxfp4-sm90-v2-maxima";
/// Tactics of the experts: weights as in the checkpoint, and packed.
const CHECKPOINT_TACTIC: u32 = 0;
const PACKED_TACTIC: u32 = 1;
/// Bytes of a packed tile of 16 x 64 weights with its scales.
const TILE_BYTES: u64 = 544;

/// The backend on one device.
pub struct CudaFallback;

fn failed(call: &'static str, status: c_int) -> Result<(), BackendError> {
    let message = match status {
        0 => return Ok(()),
        1 => "the kernel does not take this shape",
        2 => "unknown tactic",
        3 => "CUDA refused the launch",
        _ => "unknown status",
    };
    Err(BackendError::failed(call, message))
}

fn need(condition: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(reason()) }
}

fn bf16_only(activation: DType) -> Result<(), String> {
    need(activation == DType::BF16, || format!("activations are bfloat16 on CUDA devices, not {activation}"))
}

fn check_gemm(desc: &GemmDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.norm == 0, || "a norm before the product is not fused".to_owned())?;
    need(desc.weight == DType::BF16, || format!("dense weights are bfloat16, not {}", desc.weight))?;
    need(desc.in_features.is_multiple_of(8), || {
        format!("in_features {} is not a multiple of 8", desc.in_features)
    })
}

fn check_attention(desc: &AttentionDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.head_dim == 64, || format!("head_dim must be 64, not {}", desc.head_dim))?;
    need(desc.block_size == 64, || format!("KV blocks must hold 64 tokens, not {}", desc.block_size))?;
    need(desc.kv == DType::BF16 || desc.kv == DType::F8E4M3, || {
        format!("a KV cache of {} is not supported", desc.kv)
    })
}

fn check_route(desc: &RouteDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.experts <= 1024 && desc.top_k <= 32, || {
        "at most 1024 experts and 32 of them per token".to_owned()
    })
}

fn check_experts(desc: &ExpertsDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.weight == DType::MXFP4, || format!("expert weights are MXFP4, not {}", desc.weight))?;
    need(desc.hidden.is_multiple_of(32) && desc.intermediate.is_multiple_of(32), || {
        "sizes must be multiples of 32".to_owned()
    })
}

fn check_expert_product(desc: &ExpertProductDesc) -> Result<(), String> {
    bf16_only(desc.out)?;
    need(matches!(desc.x, DType::BF16 | DType::F8E4M3), || format!("no rows of {}", desc.x))?;
    need(desc.weight == DType::MXFP4, || format!("expert weights are MXFP4, not {}", desc.weight))?;
    need(desc.in_features.is_multiple_of(32) && desc.out_features.is_multiple_of(16), || {
        "sizes must be multiples of 32 and 16".to_owned()
    })
}

fn check_all_reduce(desc: &AllReduceDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need((2..=MOST_RANKS as u32).contains(&desc.ranks), || {
        format!("2 to {MOST_RANKS} ranks, not {}", desc.ranks)
    })?;
    need(desc.hidden.is_multiple_of(8) && desc.hidden <= 8192, || {
        format!("a hidden size of whole eights up to 8192, not {}", desc.hidden)
    })
}

impl CudaFallback {
    /// Opens the backend on the device whose context is current.
    pub fn open(_host: HostServices) -> Result<Self, BackendError> {
        macro_rules! sizes {
            ($($desc:ident $args:ident,)*) => { [$(size_of::<ops::$desc>(), size_of::<ops::$args>(),)*] };
        }
        let expected = sizes![
            EmbedDesc EmbedArgs,
            RmsNormDesc RmsNormArgs,
            GemmDesc GemmArgs,
            RopeKvWriteDesc RopeKvWriteArgs,
            AttentionDesc AttentionArgs,
            RouteDesc RouteArgs,
            ExpertsDesc ExpertsArgs,
            FinalizeDesc FinalizeArgs,
            FusedMoeDesc FusedMoeArgs,
            SampleDesc SampleArgs,
            RopeDesc RopeArgs,
            ScaleDesc ScaleArgs,
            KvWriteDesc KvWriteArgs,
            ResizeDesc ResizeArgs,
            QuantiseDesc QuantiseArgs,
            SwigluDesc SwigluArgs,
            ExpertProductDesc ExpertProductArgs,
            CombineDesc CombineArgs,
            AddDesc AddArgs,
            AllReduceDesc AllReduceArgs,
            AllReduceNormDesc AllReduceNormArgs,
            QkvRopeDesc QkvRopeArgs,
        ];
        let mut sizes = [0u32; 2 * OpKind::ALL.len()];
        // SAFETY: the launcher writes two numbers for every operation.
        unsafe { ffi::gossamer_op_sizes(sizes.as_mut_ptr()) };
        if sizes.map(|size| size as usize) != expected {
            let message =
                format!("expected operation structs of {expected:?} bytes, the kernels have {sizes:?}");
            return Err(BackendError::failed("open", message));
        }
        Ok(Self)
    }

    fn check(desc: &OpDesc) -> Result<(), String> {
        match desc {
            OpDesc::Embed(desc) => bf16_only(desc.activation),
            OpDesc::RmsNorm(desc) => bf16_only(desc.activation),
            OpDesc::Gemm(desc) => check_gemm(desc),
            OpDesc::RopeKvWrite(desc) => bf16_only(desc.activation),
            OpDesc::Attention(desc) => check_attention(desc),
            OpDesc::Route(desc) => check_route(desc),
            OpDesc::Experts(desc) => check_experts(desc),
            OpDesc::Finalize(desc) => bf16_only(desc.activation),
            OpDesc::FusedMoe(_) => Err("a fused mixture of experts is not supported".to_owned()),
            OpDesc::Sample(desc) => {
                need(desc.logits == DType::F32, || format!("logits must be float32, not {}", desc.logits))
            }
            OpDesc::Rope(desc) => bf16_only(desc.activation),
            OpDesc::Scale(desc) => bf16_only(desc.activation),
            OpDesc::KvWrite(desc) => bf16_only(desc.activation),
            OpDesc::Resize(desc) => bf16_only(desc.activation),
            OpDesc::Quantise(desc) => bf16_only(desc.activation),
            OpDesc::Swiglu(desc) => bf16_only(desc.activation),
            OpDesc::ExpertProduct(desc) => check_expert_product(desc),
            OpDesc::Combine(desc) => bf16_only(desc.activation),
            OpDesc::Add(desc) => bf16_only(desc.activation),
            OpDesc::AllReduce(desc) => check_all_reduce(desc),
            OpDesc::AllReduceNorm(desc) => check_all_reduce(&desc.reduce),
            OpDesc::QkvRope(_) => Err("a product with rotary embedding inside is not supported".to_owned()),
        }
    }
}

impl KernelBackend for CudaFallback {
    fn name(&self) -> &str {
        "fallback"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        Self::check(desc).map_or_else(Support::No, |()| Support::Yes)
    }

    fn tactics(&self, desc: &OpDesc, _tokens: u32) -> Vec<Tactic> {
        if Self::check(desc).is_err() {
            return Vec::new();
        }
        let tactic = |id, name: &str, layout: &str| Tactic {
            id,
            name: name.to_owned(),
            layout: Layout(layout.to_owned()),
            capturable: true,
        };
        match desc {
            OpDesc::Experts(_) | OpDesc::ExpertProduct(_) => vec![
                tactic(PACKED_TACTIC, "tile64-packed", PACKED),
                tactic(CHECKPOINT_TACTIC, "tile64-checkpoint", Layout::CHECKPOINT),
            ],
            _ => vec![tactic(0, "plain", Layout::CHECKPOINT)],
        }
    }

    fn workspace(&self, desc: &OpDesc, _tactic: u32, tokens: u32) -> u64 {
        match desc {
            // SAFETY: the description lives for the call.
            OpDesc::Experts(desc) => unsafe { ffi::gossamer_portable_experts_workspace(desc, tokens) as u64 },
            // SAFETY: the description lives for the call.
            OpDesc::ExpertProduct(desc) => unsafe {
                ffi::gossamer_portable_expert_product_workspace(desc, tokens) as u64
            },
            // SAFETY: it only computes.
            OpDesc::Sample(_) => unsafe { ffi::gossamer_portable_sample_workspace(tokens) as u64 },
            _ => 0,
        }
    }

    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64> {
        let ((_, rows), (_, columns)) = (source.row_range, source.column_range);
        if source.dtype != DType::MXFP4 || !rows.is_multiple_of(16) || !columns.is_multiple_of(32) {
            return None;
        }
        let experts = u64::from(source.experts);
        match layout.0.as_str() {
            PACKED => Some(experts * u64::from(rows / 16) * u64::from(columns.div_ceil(64)) * TILE_BYTES),
            MAXIMA => Some(experts * u64::from(rows)),
            _ => None,
        }
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        stream: u64,
    ) -> Result<(), BackendError> {
        if self.packed_size(layout, source).is_none() {
            return Err(BackendError::failed(
                "repack",
                format!("unknown layout or shape for '{}'", layout.0),
            ));
        }
        let ((first_row, rows), (first_column, columns)) = (source.row_range, source.column_range);
        if rows != source.rows && source.experts > 1 {
            return Err(BackendError::failed("repack", "a slice of rows must come expert by expert"));
        }
        let (codes, scales) = (u64::from(source.columns / 2), u64::from(source.columns / 32));
        let args = ffi::RepackArgs {
            blocks: source.data + u64::from(first_row) * codes + u64::from(first_column / 2),
            scales: source.scales + u64::from(first_row) * scales + u64::from(first_column / 32),
            packed: out,
            large_scales: 0,
            experts: source.experts as c_int,
            rows: rows as c_int,
            k: columns as c_int,
            interleaved: c_int::from(source.interleaved),
            row_stride_bytes: codes as usize,
            row_stride_scales: scales as usize,
        };
        // SAFETY: addresses are valid by this function's contract; the kernel checks the shape.
        failed("repack", unsafe {
            match layout.0 == MAXIMA {
                true => ffi::gossamer_repack_mxfp4_maxima(&args, stream),
                false => ffi::gossamer_repack_mxfp4(&args, stream),
            }
        })
    }

    fn prepare(&self, _desc: &OpDesc, _tactic: u32) -> Result<(), BackendError> {
        Ok(())
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        let stream = launch.stream;
        let enough = |tokens: u32| {
            let needs = self.workspace(desc, launch.tactic, tokens);
            if launch.workspace_bytes >= needs {
                return Ok(());
            }
            let got = launch.workspace_bytes;
            Err(BackendError::failed("launch", format!("expected a workspace of {needs} bytes, got {got}")))
        };
        // SAFETY: addresses are valid by this function's contract; the structs live for the call, and the launchers copy them.
        let status = unsafe {
            match (desc, &launch.args) {
                (OpDesc::Embed(d), OpArgs::Embed(a)) => ffi::gossamer_portable_embed(d, a, stream),
                (OpDesc::RmsNorm(d), OpArgs::RmsNorm(a)) => ffi::gossamer_portable_rms_norm(d, a, stream),
                (OpDesc::Gemm(d), OpArgs::Gemm(a)) => ffi::gossamer_portable_gemm(d, a, stream),
                (OpDesc::RopeKvWrite(d), OpArgs::RopeKvWrite(a)) => {
                    ffi::gossamer_portable_rope_kv_write(d, a, stream)
                }
                (OpDesc::Attention(d), OpArgs::Attention(a)) => {
                    ffi::gossamer_portable_attention(d, a, stream)
                }
                (OpDesc::Route(d), OpArgs::Route(a)) => ffi::gossamer_portable_route(d, a, stream),
                (OpDesc::Experts(d), OpArgs::Experts(a)) => {
                    enough(a.tokens)?;
                    let packed = c_int::from(launch.tactic == PACKED_TACTIC);
                    ffi::gossamer_portable_experts(d, a, packed, launch.workspace as *mut c_void, stream)
                }
                (OpDesc::Finalize(d), OpArgs::Finalize(a)) => ffi::gossamer_portable_finalize(d, a, stream),
                (OpDesc::Sample(d), OpArgs::Sample(a)) => {
                    enough(a.row_count)?;
                    ffi::gossamer_portable_sample(d, a, launch.workspace as *mut c_void, stream)
                }
                (OpDesc::Rope(d), OpArgs::Rope(a)) => ffi::gossamer_portable_rope(d, a, stream),
                (OpDesc::Scale(d), OpArgs::Scale(a)) => ffi::gossamer_portable_scale(d, a, stream),
                (OpDesc::KvWrite(d), OpArgs::KvWrite(a)) => ffi::gossamer_portable_kv_write(d, a, stream),
                (OpDesc::Resize(d), OpArgs::Resize(a)) => ffi::gossamer_portable_resize(d, a, stream),
                (OpDesc::Quantise(d), OpArgs::Quantise(a)) => ffi::gossamer_portable_quantise(d, a, stream),
                (OpDesc::Swiglu(d), OpArgs::Swiglu(a)) => ffi::gossamer_portable_swiglu(d, a, stream),
                (OpDesc::ExpertProduct(d), OpArgs::ExpertProduct(a)) => {
                    enough(a.tokens)?;
                    let packed = c_int::from(launch.tactic == PACKED_TACTIC);
                    let workspace = launch.workspace as *mut c_void;
                    ffi::gossamer_portable_expert_product(d, a, packed, workspace, stream)
                }
                (OpDesc::Combine(d), OpArgs::Combine(a)) => ffi::gossamer_portable_combine(d, a, stream),
                (OpDesc::Add(d), OpArgs::Add(a)) => ffi::gossamer_portable_add(d, a, stream),
                (OpDesc::AllReduce(d), OpArgs::AllReduce(a)) => ffi::gossamer_all_reduce(d, a, stream),
                (OpDesc::AllReduceNorm(d), OpArgs::AllReduceNorm(a)) => {
                    ffi::gossamer_all_reduce_norm(d, a, stream)
                }
                _ => return Err(BackendError::failed("launch", "this operation is not supported here")),
            }
        };
        failed("launch", status)
    }
}
