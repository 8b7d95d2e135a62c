//! The backend: what it supports, and which kernel a launch runs.

use crate::isa::Isa;
#[cfg(target_arch = "aarch64")]
use crate::isa::neon::Neon;
use crate::isa::{Core, Single, scalar::Scalar};
#[cfg(target_arch = "x86_64")]
use crate::isa::{amx::Amx, amx::AmxSplit, avx2::Avx2, avx512::Avx512, avx512bf16::Dot};
use crate::math::E4m3;
use crate::memory::Arena;
use crate::ops::{
    all_reduce, attention, dense, embed, expert_product, experts, finalize, norm, parts, rope, route, sample,
};
use crate::pool::Pool;
use crate::repack;
use gossamer_backend_api::ops::{
    AllReduceDesc, AttentionDesc, ExpertProductDesc, ExpertsDesc, GemmDesc, KvWriteDesc, MOST_RANKS,
    QuantiseDesc, ResizeDesc, RopeDesc, RopeKvWriteDesc, RouteDesc, SampleDesc, ScaleDesc, SwigluDesc,
};
use gossamer_backend_api::{
    BackendError, DType, Exported, HostServices, KernelBackend, Launch, Layout, OpArgs, OpDesc, RepackSource,
    Support, Tactic,
};

/// The portable backend on one instruction set.
pub struct Fallback {
    pool: Pool,
    isa: Isa,
}

impl Fallback {
    /// The backend on a given instruction set. For tests and benches; the host gets the one that [`Isa::choose`] picks.
    pub fn with_isa(host: HostServices, isa: Isa) -> Result<Self, BackendError> {
        if !isa.is_available() {
            return Err(BackendError::failed("open", format!("this machine has no {isa}")));
        }
        Ok(Self { pool: Pool::new(host), isa })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl Exported for Fallback {
    fn open(host: HostServices) -> Result<Self, BackendError> {
        let isa = Isa::choose()?;
        host.log(4, &format!("fallback uses {isa} on {} threads", host.threads()));
        Self::with_isa(host, isa)
    }
}

/// Runs `$body` with `$C` the core and `$A` the activation type for an instruction set and a [`DType`] that
/// [`activation`] accepted.
macro_rules! with_core {
    ($isa:expr, $activation:expr, |$C:ident, $A:ident| $body:expr) => {{
        macro_rules! arm {
            ($core:ty, $element:ty) => {{
                type $C = $core;
                type $A = $element;
                $body
            }};
        }
        match ($isa, $activation == DType::BF16) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, true) => arm!(Amx, u16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, false) => arm!(AmxSplit, f32),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, true) => arm!(Dot, u16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, true) => arm!(Single<Avx512>, u16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16, false) => arm!(Single<Avx512>, f32),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, true) => arm!(Single<Avx2>, u16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, false) => arm!(Single<Avx2>, f32),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, true) => arm!(Single<Neon>, u16),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, false) => arm!(Single<Neon>, f32),
            (_, true) => arm!(Single<Scalar>, u16),
            (_, false) => arm!(Single<Scalar>, f32),
        }
    }};
}

/// The float32 vectors beside a core.
type Vectors<C> = <C as Core>::Vectors;

fn no(reason: impl Into<String>) -> Result<(), String> {
    Err(reason.into())
}

fn activation(dtype: DType, what: &str) -> Result<(), String> {
    match dtype {
        DType::F32 | DType::BF16 => Ok(()),
        other => no(format!("{what} of type {other} are not supported on CPUs; float32 and bfloat16 are")),
    }
}

fn cache(kv: DType) -> Result<(), String> {
    match kv {
        DType::F32 | DType::BF16 | DType::F8E4M3 => Ok(()),
        other => no(format!("a KV cache of type {other} is not supported on CPUs")),
    }
}

fn check_attention(desc: &AttentionDesc) -> Result<(), String> {
    activation(desc.activation, "queries")?;
    cache(desc.kv)?;
    if desc.kv_heads == 0 || desc.heads == 0 || !desc.heads.is_multiple_of(desc.kv_heads) {
        return no(format!(
            "expected heads to be a multiple of KV heads, got {} and {}",
            desc.heads, desc.kv_heads
        ));
    }
    for (what, size) in [("head size", desc.head_dim), ("KV block size", desc.block_size)] {
        if size == 0 || !size.is_multiple_of(16) || size > 1024 {
            return no(format!("expected a {what} that is a multiple of 16 up to 1024, got {size}"));
        }
    }
    Ok(())
}

fn check_head(head_dim: u32) -> Result<(), String> {
    let most = 2 * rope::MAX_HALF as u32;
    if !head_dim.is_multiple_of(2) || head_dim == 0 || head_dim > most {
        return no(format!("expected an even head size up to {most}, got {head_dim}"));
    }
    Ok(())
}

fn check_rotation(desc: &RopeDesc) -> Result<(), String> {
    activation(desc.activation, "heads")?;
    check_head(desc.head_dim)
}

fn check_kv_write(desc: &KvWriteDesc) -> Result<(), String> {
    activation(desc.activation, "heads")?;
    cache(desc.kv)?;
    if desc.block_size == 0 {
        return no("expected blocks of a token or more, got 0");
    }
    Ok(())
}

fn check_rope(desc: &RopeKvWriteDesc) -> Result<(), String> {
    let &RopeKvWriteDesc { heads, kv_heads, head_dim, block_size, activation, kv, magnitude } = desc;
    check_rotation(&RopeDesc { heads, kv_heads, head_dim, activation, magnitude })?;
    check_kv_write(&KvWriteDesc { heads, kv_heads, head_dim, block_size, activation, kv })
}

fn check_scale(desc: &ScaleDesc) -> Result<(), String> {
    activation(desc.activation, "rows")?;
    if desc.columns > desc.stride {
        return no(format!("expected at most {} columns, got {}", desc.stride, desc.columns));
    }
    Ok(())
}

fn check_resize(desc: &ResizeDesc) -> Result<(), String> {
    activation(desc.activation, "rows")
}

fn check_quantise(desc: &QuantiseDesc) -> Result<(), String> {
    activation(desc.activation, "rows")?;
    if desc.padded < desc.columns {
        return no(format!("expected codes of {} columns at least, got {}", desc.columns, desc.padded));
    }
    Ok(())
}

fn check_swiglu(desc: &SwigluDesc) -> Result<(), String> {
    activation(desc.activation, "rows")?;
    match desc.out == DType::F8E4M3 {
        true if desc.padded >= desc.columns => Ok(()),
        false if desc.out == desc.activation && desc.padded == desc.columns => Ok(()),
        _ => no(format!("expected results of {} or, padded or not, fp8_e4m3; got {desc:?}", desc.activation)),
    }
}

fn check_expert_product(desc: &ExpertProductDesc) -> Result<(), String> {
    activation(desc.out, "outputs")?;
    if desc.x != desc.out && desc.x != DType::F8E4M3 {
        return no(format!("expected rows of {} or fp8_e4m3, got {}", desc.out, desc.x));
    }
    if desc.weight != DType::MXFP4 {
        return no(format!("expert weights of type {} are not supported; mxfp4 is", desc.weight));
    }
    if desc.in_features == 0 || !desc.in_features.is_multiple_of(32) {
        return no(format!(
            "expected a width that is a multiple of the MXFP4 block of 32, got {}",
            desc.in_features
        ));
    }
    if desc.in_columns < desc.in_features || desc.out_columns < desc.out_features {
        return no(format!("expected rows as wide as what they hold, got {desc:?}"));
    }
    Ok(())
}

fn check_all_reduce(desc: &AllReduceDesc) -> Result<(), String> {
    activation(desc.activation, "rows")?;
    if !(2..=MOST_RANKS as u32).contains(&desc.ranks) {
        return no(format!("expected 2 to {MOST_RANKS} ranks, got {}", desc.ranks));
    }
    Ok(())
}

fn check_gemm(desc: &GemmDesc) -> Result<(), String> {
    activation(desc.activation, "activations")?;
    activation(desc.out, "outputs")?;
    if desc.weight != DType::BF16 {
        return no(format!("dense weights of type {} are not supported on CPUs; bfloat16 is", desc.weight));
    }
    if desc.in_features == 0 || desc.out_features[0] == 0 {
        return no("expected at least one input and one output feature");
    }
    Ok(())
}

fn check_route(desc: &RouteDesc) -> Result<(), String> {
    activation(desc.activation, "activations")?;
    if desc.top_k == 0 || desc.top_k > desc.experts {
        return no(format!("expected top_k in 1..={}, got {}", desc.experts, desc.top_k));
    }
    Ok(())
}

fn check_experts(desc: &ExpertsDesc) -> Result<(), String> {
    activation(desc.activation, "activations")?;
    if desc.weight != DType::MXFP4 {
        return no(format!("expert weights of type {} are not supported; mxfp4 is", desc.weight));
    }
    for (what, size) in [("hidden size", desc.hidden), ("intermediate size", desc.intermediate)] {
        if size == 0 || !size.is_multiple_of(32) {
            return no(format!("expected a {what} that is a multiple of the MXFP4 block of 32, got {size}"));
        }
    }
    Ok(())
}

fn check_sample(desc: &SampleDesc) -> Result<(), String> {
    activation(desc.logits, "logits")?;
    if desc.vocab == 0 { no("expected a vocabulary of one token at least") } else { Ok(()) }
}

fn check(desc: &OpDesc) -> Result<(), String> {
    match desc {
        OpDesc::Embed(desc) => activation(desc.activation, "activations"),
        OpDesc::RmsNorm(desc) => activation(desc.activation, "activations"),
        OpDesc::Gemm(desc) => check_gemm(desc),
        OpDesc::RopeKvWrite(desc) => check_rope(desc),
        OpDesc::Attention(desc) => check_attention(desc),
        OpDesc::Route(desc) => check_route(desc),
        OpDesc::Experts(desc) => check_experts(desc),
        OpDesc::Finalize(desc) => activation(desc.activation, "activations"),
        OpDesc::FusedMoe(_) => {
            no("a CPU gains nothing from the fused form; route, experts and finalize are supported")
        }
        OpDesc::Sample(desc) => check_sample(desc),
        OpDesc::Rope(desc) => check_rotation(desc),
        OpDesc::Scale(desc) => check_scale(desc),
        OpDesc::KvWrite(desc) => check_kv_write(desc),
        OpDesc::Resize(desc) => check_resize(desc),
        OpDesc::Quantise(desc) => check_quantise(desc),
        OpDesc::Swiglu(desc) => check_swiglu(desc),
        OpDesc::ExpertProduct(desc) => check_expert_product(desc),
        OpDesc::Combine(desc) => activation(desc.activation, "activations"),
        OpDesc::Add(desc) => activation(desc.activation, "activations"),
        OpDesc::AllReduce(desc) => check_all_reduce(desc),
        OpDesc::AllReduceNorm(desc) => check_all_reduce(&desc.reduce),
        OpDesc::QkvRope(_) => {
            no("a CPU gains nothing from the fused form; the product and rope-kv-write are supported")
        }
    }
}

impl KernelBackend for Fallback {
    fn name(&self) -> &str {
        "fallback"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        match check(desc) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn tactics(&self, desc: &OpDesc, _tokens: u32) -> Vec<Tactic> {
        if check(desc).is_err() {
            return Vec::new();
        }
        vec![Tactic {
            id: 0,
            name: self.isa.label().to_owned(),
            layout: Layout::checkpoint(),
            capturable: false,
        }]
    }

    fn workspace(&self, desc: &OpDesc, _tactic: u32, tokens: u32) -> u64 {
        let (slots, tokens) = (self.pool.slots(), tokens as usize);
        match desc {
            OpDesc::RmsNorm(desc) => {
                let mut arena = Arena::new(0);
                norm::layout(desc, slots, &mut arena);
                arena.used()
            }
            OpDesc::Gemm(desc) => {
                with_core!(self.isa, desc.activation, |C, _A| dense::workspace::<C>(desc, tokens, slots))
            }
            OpDesc::Attention(desc) => attention::workspace(desc, tokens, slots),
            OpDesc::Route(desc) => {
                with_core!(self.isa, desc.activation, |C, _A| route::workspace::<C>(desc, tokens, slots))
            }
            OpDesc::Experts(desc) => {
                with_core!(self.isa, desc.activation, |C, _A| experts::workspace::<C>(desc, tokens, slots))
            }
            OpDesc::Sample(desc) => sample::workspace(desc, slots),
            OpDesc::ExpertProduct(desc) => {
                with_core!(self.isa, desc.out, |C, _A| expert_product::workspace::<C>(desc, tokens, slots))
            }
            OpDesc::Swiglu(desc) => {
                let mut arena = Arena::new(0);
                match desc.activation {
                    DType::BF16 => drop(parts::swiglu_layout::<u16>(desc, slots, &mut arena)),
                    _ => drop(parts::swiglu_layout::<f32>(desc, slots, &mut arena)),
                }
                arena.used()
            }
            OpDesc::AllReduceNorm(desc) => {
                let mut arena = Arena::new(0);
                all_reduce::layout(desc, slots, &mut arena);
                arena.used()
            }
            _ => 0,
        }
    }

    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64> {
        repack::packed_size(layout, source)
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        _stream: u64,
    ) -> Result<(), BackendError> {
        // SAFETY: handed on.
        unsafe { repack::repack(&self.pool, layout, source, out) }
    }

    fn prepare(&self, desc: &OpDesc, _tactic: u32) -> Result<(), BackendError> {
        check(desc).map_err(|reason| BackendError::failed("prepare", reason))
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        check(desc).map_err(|reason| BackendError::failed("launch", reason))?;
        let pool = &self.pool;
        let space = (launch.workspace, launch.workspace_bytes);
        // SAFETY: handed on from this function's contract; `self.isa` is available.
        unsafe {
            match (desc, &launch.args) {
                (OpDesc::Embed(desc), OpArgs::Embed(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| embed::launch::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                    Ok(())
                }
                (OpDesc::RmsNorm(desc), OpArgs::RmsNorm(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| norm::launch::<Vectors<C>, A>(
                        pool, desc, args, space
                    ))
                }
                (OpDesc::Gemm(desc), OpArgs::Gemm(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| match desc.out {
                        DType::BF16 => dense::launch::<C, A, u16>(pool, desc, args, space),
                        _ => dense::launch::<C, A, f32>(pool, desc, args, space),
                    })
                }
                (OpDesc::RopeKvWrite(desc), OpArgs::RopeKvWrite(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| match desc.kv {
                        DType::BF16 => rope::launch::<Vectors<C>, A, u16>(pool, desc, args),
                        DType::F8E4M3 => rope::launch::<Vectors<C>, A, E4m3>(pool, desc, args),
                        _ => rope::launch::<Vectors<C>, A, f32>(pool, desc, args),
                    });
                    Ok(())
                }
                (OpDesc::Attention(desc), OpArgs::Attention(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| match desc.kv {
                        DType::BF16 => attention::launch::<Vectors<C>, A, u16>(pool, desc, args, space),
                        DType::F8E4M3 => attention::launch::<Vectors<C>, A, E4m3>(pool, desc, args, space),
                        _ => attention::launch::<Vectors<C>, A, f32>(pool, desc, args, space),
                    })
                }
                (OpDesc::Route(desc), OpArgs::Route(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| route::launch::<C, A>(
                        pool, desc, args, space
                    ))
                }
                (OpDesc::Experts(desc), OpArgs::Experts(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| experts::launch::<C, A>(
                        pool, desc, args, space
                    ))
                }
                (OpDesc::Finalize(desc), OpArgs::Finalize(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| finalize::launch::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                    Ok(())
                }
                (OpDesc::Sample(desc), OpArgs::Sample(args)) => {
                    with_core!(self.isa, desc.logits, |C, A| sample::launch::<Vectors<C>, A>(
                        pool, desc, args, space
                    ))
                }
                (desc, args) => self.launch_part(desc, args, space),
            }
        }
    }
}

impl Fallback {
    /// Launches one of the operations that a graph before fusion consists of, or one that sums over ranks.
    ///
    /// # Safety
    /// As `KernelBackend::launch`.
    unsafe fn launch_part(
        &self,
        desc: &OpDesc,
        args: &OpArgs,
        space: (u64, u64),
    ) -> Result<(), BackendError> {
        let pool = &self.pool;
        // SAFETY: handed on from this function's contract; `self.isa` is available.
        unsafe {
            match (desc, args) {
                (OpDesc::Rope(desc), OpArgs::Rope(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| rope::launch_rotation::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                }
                (OpDesc::Scale(desc), OpArgs::Scale(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| parts::scale::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                }
                (OpDesc::KvWrite(desc), OpArgs::KvWrite(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| match desc.kv {
                        DType::BF16 => rope::launch_write::<Vectors<C>, A, u16>(pool, desc, args),
                        DType::F8E4M3 => rope::launch_write::<Vectors<C>, A, E4m3>(pool, desc, args),
                        _ => rope::launch_write::<Vectors<C>, A, f32>(pool, desc, args),
                    });
                }
                (OpDesc::Resize(desc), OpArgs::Resize(args)) => match desc.activation {
                    DType::BF16 => parts::resize::<u16>(pool, desc, args),
                    _ => parts::resize::<f32>(pool, desc, args),
                },
                (OpDesc::Quantise(desc), OpArgs::Quantise(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| parts::quantise::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                }
                (OpDesc::Swiglu(desc), OpArgs::Swiglu(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| parts::swiglu_rows::<Vectors<C>, A>(
                        pool, desc, args, space
                    ))?;
                }
                (OpDesc::ExpertProduct(desc), OpArgs::ExpertProduct(args)) => {
                    with_core!(self.isa, desc.out, |C, A| match desc.x {
                        DType::F8E4M3 => expert_product::launch::<C, E4m3, A>(pool, desc, args, space),
                        _ => expert_product::launch::<C, A, A>(pool, desc, args, space),
                    })?;
                }
                (OpDesc::Combine(desc), OpArgs::Combine(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| parts::combine::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                }
                (OpDesc::Add(desc), OpArgs::Add(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| parts::add::<Vectors<C>, A>(
                        pool, desc, args
                    ));
                }
                (OpDesc::AllReduce(desc), OpArgs::AllReduce(args)) => {
                    with_core!(self.isa, desc.activation, |C, A| all_reduce::launch::<Vectors<C>, A>(
                        pool, desc, args
                    ))?;
                }
                (OpDesc::AllReduceNorm(desc), OpArgs::AllReduceNorm(args)) => {
                    with_core!(self.isa, desc.reduce.activation, |C, A| all_reduce::launch_norm::<
                        Vectors<C>,
                        A,
                    >(
                        pool, desc, args, space
                    ))?;
                }
                _ => {
                    let message = "description and arguments are of two operations";
                    return Err(BackendError::failed("launch", message));
                }
            }
        }
        Ok(())
    }
}
