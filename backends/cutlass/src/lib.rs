//! The backend for many tokens: grouped products of MXFP4 experts on the tensor cores, and attention for many queries.
//!
//! Experts alone; the router as a product and a selection; and the whole mixture of experts, put together from norm, router,
//! experts and sum. Dense products (see `dense`) take gathered rows and a norm before them, so that the fused forms of the graph run at any
//! token count; the qkv product also with rotary embedding and cache write behind it. It refuses float32 activations. Repacking is the `fallback`'s.

mod dense;

use gossamer_backend_api::ops::{
    AttentionDesc, ExpertsArgs, ExpertsDesc, FinalizeArgs, FinalizeDesc, FusedMoeArgs, FusedMoeDesc,
    GemmArgs, GemmDesc, QkvRopeDesc, RmsNormArgs, RmsNormDesc, RouteArgs, RouteDesc, Segment,
};
use gossamer_backend_api::{
    BackendError, DType, Exported, HostServices, KernelBackend, Launch, Layout, OpArgs, OpDesc, RepackSource,
    Support, Tactic,
};
use gossamer_kernel_launch::{self as kernels, TopkArgs, aligned, need};
use std::ffi::c_int;

/// Layout of expert weights, specified in `kernels/LAYOUTS.md`.
const PACKED: &str = "mxfp4-sm90-v2";
/// The first tactic of each operation. Experts: bfloat16 activations; the next one, where allowed, E4M3.
const BF16: u32 = 0;

/// What stands in `kernels/cuda/blackwell` and is no tactic.
const BLACKWELL: &str = "sm_100a: block-scaled products of MXFP4 weights and MXFP8 tokens: compiled, never run, not offered as a tactic";

/// The backend.
pub struct ManyTokens {
    /// Why it can do nothing here.
    unusable: Option<String>,
}

impl Exported for ManyTokens {
    fn open(host: HostServices) -> Result<Self, BackendError> {
        let opened = kernels::check_open(&host)
            .and_then(|()| kernels::prepare_grouped().into_result("open"))
            .and_then(|()| kernels::prepare_dense().into_result("open"))
            .and_then(|()| kernels::prepare_prefill().into_result("open"));
        Ok(Self { unusable: kernels::unusable(opened) })
    }
}

fn bf16_only(activation: DType) -> Result<(), String> {
    need(activation == DType::BF16, || format!("activations are bfloat16, not {activation}"))
}

fn check_experts(desc: &ExpertsDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.weight == DType::MXFP4, || format!("expert weights are MXFP4, not {}", desc.weight))?;
    for (what, size) in [("hidden", desc.hidden), ("intermediate", desc.intermediate)] {
        need(size > 0 && size.is_multiple_of(32), || {
            format!("a {what} size of whole blocks of 32, not {size}")
        })?;
    }
    need((1..=32).contains(&desc.top_k), || format!("1 to 32 experts a token, not {}", desc.top_k))?;
    need(desc.local_experts <= 1024, || format!("at most 1024 experts a rank, not {}", desc.local_experts))
}

fn check_attention(desc: &AttentionDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(matches!(desc.kv, DType::BF16 | DType::F8E4M3), || format!("no cache of type {}", desc.kv))?;
    need(desc.head_dim == 64 && desc.block_size == 64, || {
        format!("heads of 64 and blocks of 64 tokens, not {} and {}", desc.head_dim, desc.block_size)
    })?;
    let whole = desc.kv_heads > 0 && desc.heads.is_multiple_of(desc.kv_heads);
    need(whole && desc.heads / desc.kv_heads <= 128, || {
        format!("at most 128 whole query heads per KV head, not {} for {}", desc.heads, desc.kv_heads)
    })?;
    need(desc.scale > 0.0, || format!("a positive scale, not {}", desc.scale))
}

fn check_route(desc: &RouteDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.top_k == 4, || format!("4 experts a token, not {}", desc.top_k))?;
    need((4..=128).contains(&desc.experts), || format!("4 to 128 experts, not {}", desc.experts))?;
    need(desc.hidden.is_multiple_of(8), || format!("a hidden size of whole eights, not {}", desc.hidden))
}

fn check_gemm(desc: &GemmDesc) -> Result<(), String> {
    bf16_only(desc.activation)?;
    need(desc.weight == DType::BF16, || format!("dense weights are bfloat16, not {}", desc.weight))?;
    need(matches!(desc.out, DType::BF16 | DType::F32), || format!("no outputs of type {}", desc.out))?;
    need(desc.in_features.is_multiple_of(8), || {
        format!("in_features {} is no multiple of 8", desc.in_features)
    })
}

impl ManyTokens {
    fn check(&self, desc: &OpDesc) -> Result<(), String> {
        if let Some(reason) = &self.unusable {
            return Err(reason.clone());
        }
        match desc {
            OpDesc::Experts(desc) => check_experts(desc),
            OpDesc::Route(desc) => check_route(desc),
            OpDesc::FusedMoe(desc) => {
                check_route(&desc.route)?;
                need(desc.experts.local_experts == desc.experts.experts, || {
                    "all experts must be held here".to_owned()
                })?;
                check_experts(&desc.experts)
            }
            OpDesc::Gemm(desc) => check_gemm(desc),
            OpDesc::QkvRope(desc) => {
                check_gemm(&desc.product)?;
                kernels::check_qkv_rope(desc)
            }
            OpDesc::Attention(desc) => check_attention(desc),
            _ => Err("only experts, router, attention and dense products are supported".to_owned()),
        }
    }
}

/// Lays out a workspace: what comes before, and the size of each part.
struct MoeSpace {
    normed: u64,
    logits: u64,
    ids: u64,
    weights: u64,
    out: u64,
    grouped: u64,
    bytes: u64,
}

fn moe_space(desc: &FusedMoeDesc, tactic: u32, tokens: u32) -> MoeSpace {
    let (t, experts) = (u64::from(tokens), &desc.experts);
    let (hidden, k) = (u64::from(experts.hidden), u64::from(experts.top_k));
    let mut at = 0;
    let mut part = |bytes: u64| {
        at += aligned(bytes);
        at - aligned(bytes)
    };
    let grouped_bytes = kernels::grouped_workspace(experts, tokens, tactic);
    let grouped = part(grouped_bytes);
    MoeSpace {
        grouped,
        normed: part(t * hidden * 2),
        logits: part(t * u64::from(experts.experts) * 4),
        ids: part(t * k * 4),
        weights: part(t * k * 4),
        out: part(t * k * hidden * 2),
        bytes: at,
    }
}

/// # Safety
/// As `KernelBackend::launch`; `logits` holds `[tokens, experts]` float32.
unsafe fn route(desc: &RouteDesc, args: &RouteArgs, logits: u64, stream: u64) -> Result<(), BackendError> {
    let product = kernels::logits_desc(desc.hidden, desc.experts);
    let matrix = Segment { weight: args.weight, bias: args.bias };
    let product_args = GemmArgs {
        x: args.x,
        rows: 0,
        norm_weight: 0,
        segments: [matrix, Segment::default(), Segment::default()],
        residual: 0,
        out: logits,
        tokens: args.tokens,
    };
    let choice = TopkArgs {
        logits,
        ids: args.expert_ids,
        weights: args.expert_weights,
        tokens: args.tokens as c_int,
        experts: desc.experts as c_int,
    };
    // SAFETY: handed on.
    unsafe {
        dense::logits(&product, &product_args, stream)?;
        kernels::topk(&choice, stream).into_result("launch")
    }
}

/// # Safety
/// As `KernelBackend::launch`.
unsafe fn launch_moe(desc: &FusedMoeDesc, args: &FusedMoeArgs, launch: &Launch) -> Result<(), BackendError> {
    let space = moe_space(desc, launch.tactic, args.tokens);
    let at = |offset: u64| launch.workspace + offset;
    let (stream, tokens, hidden) = (launch.stream, args.tokens, desc.experts.hidden);
    let norm = RmsNormDesc { hidden, eps: desc.eps, activation: DType::BF16 };
    let norm_args = RmsNormArgs { x: args.residual, weight: args.norm_weight, out: at(space.normed), tokens };
    let route_args = RouteArgs {
        x: at(space.normed),
        weight: args.router_weight,
        bias: args.router_bias,
        expert_ids: at(space.ids),
        expert_weights: at(space.weights),
        tokens,
    };
    let experts_args = ExpertsArgs {
        x: at(space.normed),
        expert_ids: at(space.ids),
        gate_up: args.gate_up,
        down: args.down,
        out: at(space.out),
        tokens,
    };
    let sum = FinalizeDesc { hidden, top_k: desc.experts.top_k, activation: DType::BF16 };
    let sum_args = FinalizeArgs {
        experts_out: at(space.out),
        expert_weights: at(space.weights),
        residual: args.residual,
        tokens,
    };
    let grouped = (at(space.grouped), space.normed - space.grouped);
    // SAFETY: addresses are the caller's, and parts of the workspace, which `launch` checked.
    unsafe {
        kernels::rms_norm(&norm, &norm_args, stream).into_result("launch")?;
        route(&desc.route, &route_args, at(space.logits), stream)?;
        kernels::grouped_experts(&desc.experts, &experts_args, launch.tactic, grouped, stream)
            .into_result("launch")?;
        kernels::finalize(&sum, &sum_args, stream).into_result("launch")
    }
}

impl KernelBackend for ManyTokens {
    fn name(&self) -> &str {
        "cutlass"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn notes(&self) -> String {
        match kernels::BUILT {
            true => BLACKWELL.to_owned(),
            false => String::new(),
        }
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        self.check(desc).map_or_else(Support::No, |()| Support::Yes)
    }

    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic> {
        if self.check(desc).is_err() {
            return Vec::new();
        }
        if let OpDesc::Gemm(desc) | OpDesc::QkvRope(QkvRopeDesc { product: desc, .. }) = desc {
            return dense::tactics(desc, tokens);
        }
        let experts = |allow_fp8: u32| {
            let names =
                if allow_fp8 == 1 { &["grouped-bf16", "grouped-fp8"][..] } else { &["grouped-bf16"][..] };
            (names, PACKED)
        };
        let (names, layout) = match desc {
            OpDesc::Experts(desc) => experts(desc.allow_fp8),
            OpDesc::FusedMoe(desc) => experts(desc.experts.allow_fp8),
            OpDesc::Attention(_) => (&["rows192"][..], Layout::CHECKPOINT),
            _ => (&["tiles"][..], Layout::CHECKPOINT),
        };
        let tactic = |(id, name): (u32, &&str)| Tactic {
            id,
            name: (*name).to_owned(),
            layout: Layout(layout.to_owned()),
            capturable: true,
        };
        (BF16..).zip(names).map(tactic).collect()
    }

    fn workspace(&self, desc: &OpDesc, tactic: u32, tokens: u32) -> u64 {
        match desc {
            OpDesc::Experts(desc) => kernels::grouped_workspace(desc, tokens, tactic),
            OpDesc::Route(desc) => aligned(u64::from(tokens) * u64::from(desc.experts) * 4),
            OpDesc::FusedMoe(desc) => moe_space(desc, tactic, tokens).bytes,
            OpDesc::Attention(_) => kernels::PREFILL_WORKSPACE,
            OpDesc::Gemm(desc) | OpDesc::QkvRope(QkvRopeDesc { product: desc, .. }) => {
                kernels::tiled_gemm_workspace(desc, tokens, tactic)
            }
            _ => 0,
        }
    }

    fn packed_size(&self, _layout: &Layout, _source: &RepackSource) -> Option<u64> {
        None
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        _source: &RepackSource,
        _out: u64,
        _stream: u64,
    ) -> Result<(), BackendError> {
        Err(kernels::made_elsewhere(layout))
    }

    fn prepare(&self, desc: &OpDesc, _tactic: u32) -> Result<(), BackendError> {
        self.check(desc).map_err(|reason| BackendError::failed("prepare", reason))
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        let (stream, space) = (launch.stream, (launch.workspace, launch.workspace_bytes));
        let tokens = match &launch.args {
            OpArgs::Experts(args) => args.tokens,
            OpArgs::Route(args) => args.tokens,
            OpArgs::FusedMoe(args) => args.tokens,
            OpArgs::Gemm(args) => args.tokens,
            OpArgs::QkvRope(args) => args.product.tokens,
            OpArgs::Attention(args) => args.tokens,
            _ => return Err(BackendError::failed("launch", "this operation is not supported here")),
        };
        if tokens == 0 {
            return Ok(());
        }
        let needs = self.workspace(desc, launch.tactic, tokens);
        if space.1 < needs {
            let message = format!("expected a workspace of {needs} bytes, got {}", space.1);
            return Err(BackendError::failed("launch", message));
        }
        // SAFETY: handed on; the workspace is large enough.
        unsafe {
            match (desc, &launch.args) {
                (OpDesc::Experts(desc), OpArgs::Experts(args)) => {
                    kernels::grouped_experts(desc, args, launch.tactic, space, stream).into_result("launch")
                }
                (OpDesc::Route(desc), OpArgs::Route(args)) => route(desc, args, space.0, stream),
                (OpDesc::FusedMoe(desc), OpArgs::FusedMoe(args)) => launch_moe(desc, args, launch),
                (OpDesc::Gemm(desc), OpArgs::Gemm(args)) => dense::launch(desc, args, launch),
                (OpDesc::QkvRope(desc), OpArgs::QkvRope(args)) => {
                    dense::launch(&desc.product, &args.product, launch)?;
                    kernels::rope_kv(&desc.rope, &args.rope, stream).into_result("launch")
                }
                (OpDesc::Attention(desc), OpArgs::Attention(args)) => {
                    kernels::prefill_attention(desc, args, space, stream).into_result("launch")
                }
                _ => Err(BackendError::failed("launch", "description and arguments are of two operations")),
            }
        }
    }
}

gossamer_backend_api::export_backend!(ManyTokens, "cutlass", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::ops::RopeKvWriteDesc;

    #[test]
    fn a_qkv_product_with_rotary_embedding_behind_it_has_the_products_tactics_and_its_refusals() {
        let backend = ManyTokens { unusable: None };
        let product = GemmDesc {
            in_features: 2880,
            out_features: [512, 128, 128],
            activation: DType::BF16,
            out: DType::BF16,
            weight: DType::BF16,
            norm: 1,
            eps: 1e-5,
            residual: 0,
            gather: 0,
        };
        let rope = RopeKvWriteDesc {
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            block_size: 64,
            activation: DType::BF16,
            kv: DType::F8E4M3,
            magnitude: 1.0,
        };
        for tokens in [1, 64, 8192] {
            let fused = backend.tactics(&OpDesc::QkvRope(QkvRopeDesc { product, rope }), tokens);
            let alone = backend.tactics(&OpDesc::Gemm(product), tokens);
            assert!(!fused.is_empty() && fused == alone, "{tokens}");
        }
        let refused = [
            QkvRopeDesc { product: GemmDesc { residual: 1, ..product }, rope },
            QkvRopeDesc { product: GemmDesc { out: DType::F32, ..product }, rope },
            QkvRopeDesc { product, rope: RopeKvWriteDesc { block_size: 16, ..rope } },
            QkvRopeDesc { product, rope: RopeKvWriteDesc { heads: 16, ..rope } },
        ];
        for desc in refused {
            assert_ne!(backend.supports(&OpDesc::QkvRope(desc)), Support::Yes, "{desc:?}");
        }
    }
}
