//! The backend for few tokens: kernels that stream weights at memory speed.
//!
//! The whole mixture of experts as one (norm, router, top-4, experts, sum), and dense products: kernels for up to 64 tokens. More
//! tokens are done all the same, experts in pieces of 64 and products by the portable kernel, so that a forced
//! `--moe-backend trtllm-gen` runs any step; the tuner will rather take another backend there.
//!
//! Attention of single queries, split over blocks along the keys, for any number of sequences; other attention by the portable
//! kernel, so that `--attention-backend trtllm-gen` runs any step. Rotary embedding with the KV write, for any number of tokens; for a
//! handful inside the product before it.
//! Both take caches in bfloat16 and E4M3; with E4M3, and where the description allows it, one more tactic of single queries
//! multiplies in E4M3 as well.
//!
//! It refuses experts without their router and sum: its kernel has all of it inside. Repacking is the `fallback`'s.
//!
//! Invariant: the first 4096 bytes of the experts' and of attention's workspace are zero between launches (see
//! `Launch::workspace`).

use gossamer_backend_api::ops::{
    AttentionArgs, AttentionDesc, ExpertsDesc, FusedMoeArgs, FusedMoeDesc, GemmArgs, GemmDesc, QkvRopeArgs,
    QkvRopeDesc,
};
use gossamer_backend_api::{
    BackendError, DType, Exported, HostServices, KernelBackend, Launch, Layout, OpArgs, OpDesc, RepackSource,
    Support, Tactic,
};
use gossamer_kernel_launch::{self as kernels, MoeArgs, RouterArgs, TinyGemmArgs, aligned, need};
use std::ffi::c_int;

/// Layout of expert weights, specified in `kernels/LAYOUTS.md`.
const PACKED: &str = "mxfp4-sm90-v2";
/// Tokens that the kernels take at once.
const MOST_TOKENS: u32 = 64;
/// Variants of the experts' kernel, by number; `ops.h` says what each does.
const MOE_TACTICS: u32 = 5;
/// The one for a handful of tokens, and their most.
const FEW: u32 = 5;
const MOST_FEW: u32 = 8;
/// Tactics of a product: streamed weights, or the portable kernel; streamed weights with rotary embedding inside.
const STREAM: u32 = 0;
const PORTABLE: u32 = 1;
const STREAM_ROPE: u32 = 2;
/// Most tokens of the latter.
const MOST_ROPE_INSIDE: u32 = 16;

/// The backend.
pub struct FewTokens {
    /// Why it can do nothing here.
    unusable: Option<String>,
}

impl Exported for FewTokens {
    fn open(host: HostServices) -> Result<Self, BackendError> {
        Ok(Self { unusable: kernels::unusable(kernels::check_open(&host)) })
    }
}

fn check_experts(desc: &ExpertsDesc) -> Result<(), String> {
    need(desc.activation == DType::BF16, || format!("activations are bfloat16, not {}", desc.activation))?;
    need(desc.weight == DType::MXFP4, || format!("expert weights are MXFP4, not {}", desc.weight))?;
    need(desc.top_k == 4, || format!("4 experts a token, not {}", desc.top_k))?;
    need((4..=128).contains(&desc.experts), || format!("4 to 128 experts, not {}", desc.experts))?;
    need(desc.local_experts == desc.experts, || "all experts must be held here".to_owned())?;
    for (what, size) in [("hidden", desc.hidden), ("intermediate", desc.intermediate)] {
        need(size > 0 && size <= 2880 && size.is_multiple_of(32), || {
            format!("a {what} size up to 2880 that is a multiple of 32, not {size}")
        })?;
    }
    Ok(())
}

fn check_gemm(desc: &GemmDesc) -> Result<(), String> {
    need(desc.activation == DType::BF16, || format!("activations are bfloat16, not {}", desc.activation))?;
    need(desc.weight == DType::BF16, || format!("weights are bfloat16, not {}", desc.weight))?;
    need(matches!(desc.out, DType::BF16 | DType::F32), || format!("no outputs of type {}", desc.out))?;
    need(desc.in_features.is_multiple_of(8), || {
        format!("in_features {} is no multiple of 8", desc.in_features)
    })
}

fn check_attention(desc: &AttentionDesc) -> Result<(), String> {
    kernels::check_heads(
        desc.activation,
        desc.kv,
        (desc.heads, desc.kv_heads),
        (desc.head_dim, desc.block_size),
    )?;
    need(desc.scale > 0.0, || format!("a positive scale, not {}", desc.scale))
}

/// Whether queries and probabilities may be rounded to E4M3, as keys and values are: a tactic of its own.
fn rounds(desc: &AttentionDesc) -> bool {
    desc.allow_fp8 == 1 && desc.kv == DType::F8E4M3
}

/// Whether the streaming kernel takes the shape.
fn streams(desc: &GemmDesc) -> bool {
    let whole_strips = desc.out_features.iter().all(|rows| rows.is_multiple_of(16));
    let residual_fits = desc.residual == 0 || desc.out == DType::BF16;
    whole_strips && residual_fits && desc.in_features.is_multiple_of(32) && desc.in_features <= 4096
}

impl FewTokens {
    fn check(&self, desc: &OpDesc) -> Result<(), String> {
        if let Some(reason) = &self.unusable {
            return Err(reason.clone());
        }
        match desc {
            OpDesc::FusedMoe(desc) => check_experts(&desc.experts),
            OpDesc::Gemm(desc) => check_gemm(desc),
            OpDesc::Attention(desc) => check_attention(desc),
            OpDesc::RopeKvWrite(desc) => kernels::check_rope(desc),
            OpDesc::QkvRope(desc) => {
                check_gemm(&desc.product)?;
                kernels::check_qkv_rope(desc)
            }
            OpDesc::Experts(_) | OpDesc::Route(_) | OpDesc::Finalize(_) => {
                Err("the experts' kernel has router and sum inside; only the fused form is supported"
                    .to_owned())
            }
            _ => Err("no kernel for few tokens yet".to_owned()),
        }
    }
}

fn tactic(id: u32, name: String, layout: &str) -> Tactic {
    Tactic { id, name, layout: Layout(layout.to_owned()), capturable: true }
}

/// The tactics of a product; of one that rotary embedding follows.
fn products(desc: &GemmDesc, tokens: u32, rope: bool) -> Vec<Tactic> {
    let streamed = streams(desc) && tokens <= MOST_TOKENS;
    // The kernel takes narrower rows of weights than the product alone.
    let inside = rope && streamed && tokens <= MOST_ROPE_INSIDE && desc.in_features <= 3072;
    [(STREAM_ROPE, "stream-rope", inside), (STREAM, "stream", streamed), (PORTABLE, "portable", true)]
        .into_iter()
        .filter(|(.., offered)| *offered)
        .map(|(id, name, _)| tactic(id, name.to_owned(), Layout::CHECKPOINT))
        .collect()
}

/// Parts of the fused experts' workspace.
struct MoeSpace {
    logits: u64,
    normed: u64,
    bytes: u64,
}

fn moe_space(desc: &FusedMoeDesc, tokens: u32) -> MoeSpace {
    let ExpertsDesc { hidden, intermediate, experts, .. } = desc.experts;
    let tokens = tokens.clamp(1, MOST_TOKENS);
    let logits = aligned(kernels::moe_workspace(tokens, hidden, intermediate));
    let normed = logits + aligned(u64::from(tokens) * u64::from(experts) * 4);
    MoeSpace { logits, normed, bytes: normed + aligned(u64::from(tokens) * u64::from(hidden) * 2) }
}

/// # Safety
/// As `KernelBackend::launch`.
unsafe fn launch_moe(desc: &FusedMoeDesc, args: &FusedMoeArgs, launch: &Launch) -> Result<(), BackendError> {
    let experts = &desc.experts;
    for first in (0..args.tokens).step_by(MOST_TOKENS as usize) {
        let tokens = MOST_TOKENS.min(args.tokens - first);
        let space = moe_space(desc, tokens);
        if launch.workspace_bytes < space.bytes {
            return Err(BackendError::failed("launch", "the workspace is too small"));
        }
        let residual = args.residual + u64::from(first) * u64::from(experts.hidden) * 2;
        let (logits, normed) = (launch.workspace + space.logits, launch.workspace + space.normed);
        let router = RouterArgs {
            hidden: residual,
            norm_weight: args.norm_weight,
            router_weight: args.router_weight,
            router_bias: args.router_bias,
            logits,
            normed,
            epsilon: desc.eps,
            tokens: tokens as c_int,
            hidden_size: experts.hidden as c_int,
            experts: experts.experts as c_int,
        };
        let moe = MoeArgs {
            normed,
            logits,
            ids: 0,
            weights: 0,
            gate_up: args.gate_up.data,
            gate_up_bias: args.gate_up.bias,
            down: args.down.data,
            down_bias: args.down.bias,
            residual,
            output: residual,
            workspace: launch.workspace,
            workspace_bytes: space.logits as usize,
            tokens: tokens as c_int,
            hidden_size: experts.hidden as c_int,
            intermediate: experts.intermediate as c_int,
            experts: experts.experts as c_int,
            expert_begin: 0,
            experts_local: experts.experts as c_int,
            swiglu_limit: experts.limit,
            swiglu_alpha: experts.alpha,
            tactic: launch.tactic as c_int,
        };
        // SAFETY: addresses are the caller's, and parts of the workspace that was checked above.
        unsafe {
            kernels::router(&router, launch.stream).into_result("launch")?;
            kernels::moe(&moe, launch.stream).into_result("launch")?;
        }
    }
    Ok(())
}

/// A product's matrices as those that the kernel is run on: all as one where they lie side by side.
fn matrices(desc: &GemmDesc, args: &GemmArgs) -> Option<Vec<(u64, u64, u32, u32)>> {
    let used: Vec<_> = args.segments.iter().zip(desc.out_features).filter(|(_, rows)| *rows > 0).collect();
    let row_bytes = u64::from(desc.in_features) * 2;
    let adjacent = used.windows(2).all(|pair| {
        let ((first, rows), (second, _)) = (&pair[0], &pair[1]);
        let bias_follows = match (first.bias, second.bias) {
            (0, 0) => true,
            (0, _) | (_, 0) => false,
            (first, second) => second == first + u64::from(*rows) * 2,
        };
        second.weight == first.weight + u64::from(*rows) * row_bytes && bias_follows
    });
    if adjacent {
        let (first, _) = used.first()?;
        return Some(vec![(first.weight, first.bias, desc.columns(), 0)]);
    }
    // The kernel writes dense rows: parts can only stand side by side when there is one row.
    (args.tokens == 1).then(|| {
        let mut column = 0;
        let part = |(segment, rows): &(&gossamer_backend_api::ops::Segment, u32)| {
            column += rows;
            (segment.weight, segment.bias, *rows, column - rows)
        };
        used.iter().map(part).collect()
    })
}

/// # Safety
/// As `KernelBackend::launch`.
unsafe fn launch_gemm(desc: &GemmDesc, args: &GemmArgs, launch: &Launch) -> Result<(), BackendError> {
    if launch.workspace_bytes < kernels::gemm_workspace(desc, args.tokens) {
        return Err(BackendError::failed("launch", "the workspace is too small"));
    }
    let streamed = launch.tactic == STREAM && streams(desc) && args.tokens <= MOST_TOKENS;
    let Some(matrices) = matrices(desc, args).filter(|_| streamed) else {
        // SAFETY: handed on.
        return unsafe { kernels::gemm(desc, args, launch.workspace, launch.stream) };
    };
    let mut x = args.x;
    if desc.gather == 1 {
        x = launch.workspace;
        let row_bytes = desc.in_features * 2;
        // SAFETY: the workspace holds the rows.
        unsafe { kernels::gather_rows(args.x, args.rows, x, args.tokens, row_bytes, launch.stream) }
            .into_result("launch")?;
    }
    for matrix in matrices {
        let tiny = tiny_args(desc, &GemmArgs { x, ..*args }, matrix);
        // SAFETY: addresses are the caller's.
        unsafe { kernels::tiny_gemm(&tiny, launch.stream) }.into_result("launch")?;
    }
    Ok(())
}

fn tiny_args(
    desc: &GemmDesc,
    args: &GemmArgs,
    (weight, bias, rows, column): (u64, u64, u32, u32),
) -> TinyGemmArgs {
    let offset = u64::from(column) * desc.out.bytes(1);
    TinyGemmArgs {
        x: args.x,
        norm_weight: if desc.norm == 1 { args.norm_weight } else { 0 },
        weight,
        bias,
        residual: if desc.residual == 1 { args.residual + offset } else { 0 },
        out: args.out + offset,
        epsilon: desc.eps,
        tokens: args.tokens as c_int,
        rows: rows as c_int,
        k: desc.in_features as c_int,
        float_out: c_int::from(desc.out == DType::F32),
        tactic: -1,
    }
}

/// # Safety
/// As `KernelBackend::launch`.
unsafe fn launch_qkv_rope(
    desc: &QkvRopeDesc,
    args: &QkvRopeArgs,
    launch: &Launch,
) -> Result<(), BackendError> {
    let (product, inside) = (&args.product, launch.tactic == STREAM_ROPE);
    let whole = matrices(&desc.product, product).filter(|matrices| inside && matrices.len() == 1);
    if let Some(whole) = whole {
        let tiny = tiny_args(&desc.product, product, whole[0]);
        // SAFETY: addresses are the caller's.
        return unsafe { kernels::tiny_qkv(&tiny, &desc.rope, &args.rope, launch.stream) }
            .into_result("launch");
    }
    // Matrices that lie apart keep the tactic's weights streamed, and rotary embedding to itself.
    let apart = Launch { tactic: if inside { STREAM } else { launch.tactic }, ..*launch };
    // SAFETY: handed on.
    unsafe {
        launch_gemm(&desc.product, product, &apart)?;
        kernels::rope_kv(&desc.rope, &args.rope, launch.stream).into_result("launch")
    }
}

/// # Safety
/// As `KernelBackend::launch`.
unsafe fn launch_attention(
    desc: &AttentionDesc,
    args: &AttentionArgs,
    launch: &Launch,
) -> Result<(), BackendError> {
    let space = (launch.workspace, launch.workspace_bytes);
    // SAFETY: handed on; the launcher compares the workspace with what it needs.
    let status = unsafe {
        match desc.single {
            1 => kernels::decode_attention(desc, args, launch.tactic, space, launch.stream),
            _ => kernels::portable_attention(desc, args, launch.stream),
        }
    };
    status.into_result("launch")
}

impl KernelBackend for FewTokens {
    fn name(&self) -> &str {
        "trtllm-gen"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        self.check(desc).map_or_else(Support::No, |()| Support::Yes)
    }

    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic> {
        if self.check(desc).is_err() {
            return Vec::new();
        }
        match desc {
            OpDesc::FusedMoe(_) => {
                let variants = if tokens <= MOST_TOKENS { MOE_TACTICS } else { 1 };
                let persistent = (0..variants).map(|id| (id, format!("persistent{id}")));
                // First, since it wins where measured alone they are level: it leaves less to wait for to the kernels around it.
                let few = (tokens <= MOST_FEW).then(|| (FEW, "few".to_owned()));
                few.into_iter().chain(persistent).map(|(id, name)| tactic(id, name, PACKED)).collect()
            }
            OpDesc::Gemm(desc) => products(desc, tokens, false),
            OpDesc::QkvRope(desc) => products(&desc.product, tokens, true),
            OpDesc::Attention(desc) => {
                let names = match (desc.single, rounds(desc)) {
                    (1, true) => &["split-kv", "split-kv-fp8"][..],
                    (1, false) => &["split-kv"],
                    _ => &["portable"],
                };
                (0..)
                    .zip(names)
                    .map(|(id, name)| tactic(id, (*name).to_owned(), Layout::CHECKPOINT))
                    .collect()
            }
            OpDesc::RopeKvWrite(_) => vec![tactic(0, "warps".to_owned(), Layout::CHECKPOINT)],
            _ => Vec::new(),
        }
    }

    fn workspace(&self, desc: &OpDesc, _tactic: u32, tokens: u32) -> u64 {
        match desc {
            OpDesc::FusedMoe(desc) => moe_space(desc, tokens).bytes,
            OpDesc::Gemm(desc) | OpDesc::QkvRope(QkvRopeDesc { product: desc, .. }) => {
                kernels::gemm_workspace(desc, tokens)
            }
            OpDesc::Attention(desc) if desc.single == 1 => kernels::decode_workspace(desc, tokens),
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
        // SAFETY: handed on.
        unsafe {
            match (desc, &launch.args) {
                (OpDesc::FusedMoe(desc), OpArgs::FusedMoe(args)) => launch_moe(desc, args, launch),
                (OpDesc::Gemm(desc), OpArgs::Gemm(args)) => launch_gemm(desc, args, launch),
                (OpDesc::Attention(desc), OpArgs::Attention(args)) => launch_attention(desc, args, launch),
                (OpDesc::QkvRope(desc), OpArgs::QkvRope(args)) => launch_qkv_rope(desc, args, launch),
                (OpDesc::RopeKvWrite(desc), OpArgs::RopeKvWrite(args)) => {
                    kernels::rope_kv(desc, args, launch.stream).into_result("launch")
                }
                _ => Err(BackendError::failed("launch", "this operation is not supported here")),
            }
        }
    }
}

gossamer_backend_api::export_backend!(FewTokens, "trtllm-gen", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::ops::{RopeKvWriteDesc, RouteDesc, Segment};

    fn product(out_features: [u32; 3]) -> GemmDesc {
        GemmDesc {
            in_features: 64,
            out_features,
            activation: DType::BF16,
            out: DType::BF16,
            weight: DType::BF16,
            norm: 0,
            eps: 0.0,
            residual: 0,
            gather: 0,
        }
    }

    fn args(segments: [Segment; 3], tokens: u32) -> GemmArgs {
        GemmArgs { x: 1, rows: 0, norm_weight: 0, segments, residual: 0, out: 2, tokens }
    }

    #[test]
    fn matrices_side_by_side_are_one_and_others_are_told_apart() {
        let desc = product([32, 16, 16]);
        let segment = |weight, bias| Segment { weight, bias };
        let adjacent = [segment(1000, 500), segment(1000 + 32 * 128, 564), segment(1000 + 48 * 128, 596)];
        assert_eq!(matrices(&desc, &args(adjacent, 7)), Some(vec![(1000, 500, 64, 0)]));
        // One bias elsewhere is enough: a row then goes in parts, and several rows do not go at all.
        let apart = [adjacent[0], adjacent[1], segment(adjacent[2].weight, 9000)];
        assert_eq!(matrices(&desc, &args(apart, 7)), None);
        let parts = matrices(&desc, &args(apart, 1)).unwrap();
        assert_eq!(
            parts.iter().map(|part| (part.2, part.3)).collect::<Vec<_>>(),
            [(32, 0), (16, 32), (16, 48)]
        );
        let single = product([48, 0, 0]);
        let alone = [segment(8, 0), Segment::default(), Segment::default()];
        assert_eq!(matrices(&single, &args(alone, 64)), Some(vec![(8, 0, 48, 0)]));
    }

    #[test]
    fn rotary_embedding_goes_into_the_product_of_few_tokens_and_apart_from_it_beyond() {
        let backend = FewTokens { unusable: None };
        let rope = RopeKvWriteDesc {
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            block_size: 64,
            activation: DType::BF16,
            kv: DType::BF16,
            magnitude: 1.0,
        };
        let desc = |product| OpDesc::QkvRope(QkvRopeDesc { product, rope });
        let names = |desc: &OpDesc, tokens| {
            let tactics = backend.tactics(desc, tokens);
            tactics.into_iter().map(|tactic| tactic.name).collect::<Vec<_>>()
        };
        let qkv = GemmDesc { in_features: 2880, ..product([512, 128, 128]) };
        assert_eq!(names(&desc(qkv), 16), ["stream-rope", "stream", "portable"]);
        assert_eq!(names(&desc(qkv), 17), ["stream", "portable"]);
        assert_eq!(names(&desc(qkv), 65), ["portable"]);
        // Its kernel keeps fewer columns in registers than the product's alone.
        assert_eq!(names(&desc(GemmDesc { in_features: 4096, ..qkv }), 1), ["stream", "portable"]);
        let refused = [
            GemmDesc { residual: 1, ..qkv },
            GemmDesc { gather: 1, ..qkv },
            GemmDesc { out: DType::F32, ..qkv },
            product([512, 128, 64]),
        ];
        for product in refused {
            assert_ne!(backend.supports(&desc(product)), Support::Yes, "{product:?}");
        }
    }

    #[test]
    fn without_kernels_every_operation_is_refused_with_the_reason() {
        let backend = FewTokens::open(HostServices::inline()).unwrap();
        let desc = OpDesc::Gemm(product([32, 0, 0]));
        let Support::No(reason) = backend.supports(&desc) else { panic!("expected a refusal") };
        assert!(reason.contains("CUDA"), "{reason}");
        assert!(backend.tactics(&desc, 1).is_empty());
    }

    #[test]
    fn attention_is_taken_at_any_count_and_refused_by_heads_and_types() {
        let backend = FewTokens { unusable: None };
        let desc = AttentionDesc {
            heads: 64,
            kv_heads: 8,
            head_dim: 64,
            block_size: 64,
            window: 128,
            sinks: 1,
            activation: DType::BF16,
            kv: DType::F8E4M3,
            scale: 0.125,
            single: 1,
            allow_fp8: 0,
        };
        let names = |desc, tokens| {
            let tactics = backend.tactics(&OpDesc::Attention(desc), tokens);
            tactics.into_iter().map(|tactic| tactic.name).collect::<Vec<_>>()
        };
        for tokens in [1, 64, 8192] {
            assert_eq!(names(desc, tokens), ["split-kv"], "{tokens}");
            assert_eq!(names(AttentionDesc { single: 0, ..desc }, tokens), ["portable"], "{tokens}");
            // Rounding is a tactic where it is allowed and keys are codes already.
            let allowed = AttentionDesc { allow_fp8: 1, ..desc };
            assert_eq!(names(allowed, tokens), ["split-kv", "split-kv-fp8"], "{tokens}");
            assert_eq!(names(AttentionDesc { kv: DType::BF16, ..allowed }, tokens), ["split-kv"], "{tokens}");
        }
        let refused = [
            AttentionDesc { heads: 72, ..desc },
            AttentionDesc { heads: 60, ..desc },
            AttentionDesc { head_dim: 128, ..desc },
            AttentionDesc { block_size: 16, ..desc },
            AttentionDesc { kv: DType::F32, ..desc },
            AttentionDesc { activation: DType::F32, ..desc },
        ];
        for desc in refused {
            assert_ne!(backend.supports(&OpDesc::Attention(desc)), Support::Yes, "{desc:?}");
        }
    }

    #[test]
    fn experts_are_refused_by_shape_and_taken_at_any_token_count() {
        let backend = FewTokens { unusable: None };
        let experts = ExpertsDesc {
            hidden: 2880,
            intermediate: 2880,
            experts: 128,
            first_expert: 0,
            local_experts: 128,
            top_k: 4,
            limit: 7.0,
            alpha: 1.702,
            activation: DType::BF16,
            weight: DType::MXFP4,
            allow_fp8: 0,
        };
        let route = RouteDesc { hidden: 2880, experts: 128, top_k: 4, activation: DType::BF16 };
        let fused = |experts| OpDesc::FusedMoe(FusedMoeDesc { route, experts, eps: 1e-5 });
        for tokens in [1, 64, 65, 8192] {
            assert!(!backend.tactics(&fused(experts), tokens).is_empty(), "{tokens}");
        }
        let refused = [
            ExpertsDesc { hidden: 2896, ..experts },
            ExpertsDesc { intermediate: 4096, ..experts },
            ExpertsDesc { top_k: 2, ..experts },
            ExpertsDesc { activation: DType::F32, ..experts },
            ExpertsDesc { local_experts: 64, ..experts },
        ];
        for experts in refused {
            assert_ne!(backend.supports(&fused(experts)), Support::Yes, "{experts:?}");
        }
    }
}
