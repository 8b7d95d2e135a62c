//! The mixture of experts, as three operations, so that an expert-parallel exchange fits between them, and as one.

use crate::DType;

/// `logits = x · weightᵀ + bias`; the k largest (ties: lower expert first); softmax over those k.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteDesc {
    /// `H`.
    pub hidden: u32,
    /// `E`.
    pub experts: u32,
    /// `k`.
    pub top_k: u32,
    /// Type of `x`; weight and bias are bfloat16.
    pub activation: DType,
}

/// Arguments of [`RouteDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouteArgs {
    /// `[T, H]`, normed.
    pub x: u64,
    /// `[E, H]` bfloat16.
    pub weight: u64,
    /// `[E]` bfloat16.
    pub bias: u64,
    /// `[T, k]` u32, likeliest first.
    pub expert_ids: u64,
    /// `[T, k]` float32.
    pub expert_weights: u64,
    /// `T`.
    pub tokens: u32,
}

/// `out[t, j] = down(swiglu(gate_up(x[t])))` for expert `expert_ids[t, j]`, with gate and up rows interleaved (even
/// gate, odd up), gate clamped above at `limit`, up to `±limit`, `swiglu = (up + 1) * gate * sigmoid(alpha * gate)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsDesc {
    /// `H`.
    pub hidden: u32,
    /// `I` of this shard: a multiple of 32.
    pub intermediate: u32,
    /// `E` of the whole model.
    pub experts: u32,
    /// First expert held here.
    pub first_expert: u32,
    /// Experts held here. Others' rows of `out` are written as zeros.
    pub local_experts: u32,
    /// `k`.
    pub top_k: u32,
    /// Clamp of SwiGLU.
    pub limit: f32,
    /// Slope inside the sigmoid.
    pub alpha: f32,
    /// Type of `x` and `out`.
    pub activation: DType,
    /// Type of the weights: [`DType::MXFP4`].
    pub weight: DType,
    /// 1: the host allows FP8 arithmetic for activations.
    pub allow_fp8: u32,
}

/// One of the two weight tensors of the experts. What `data` and `scales` hold is named by the layout that the tactic
/// reads (`KernelBackend::layout`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertWeights {
    /// Layout `checkpoint`: `[E, rows, cols / 32, 16]` u8, two E2M1 codes a byte, low nibble first.
    pub data: u64,
    /// Layout `checkpoint`: `[E, rows, cols / 32]` u8 E8M0. 0 where the layout holds scales inside `data`.
    pub scales: u64,
    /// `[E, rows]` bfloat16.
    pub bias: u64,
}

/// Arguments of [`ExpertsDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertsArgs {
    /// `[T, H]`, normed.
    pub x: u64,
    /// `[T, k]` u32.
    pub expert_ids: u64,
    /// Rows `2 I`, columns `H`.
    pub gate_up: ExpertWeights,
    /// Rows `H`, columns `I`.
    pub down: ExpertWeights,
    /// `[T, k, H]`.
    pub out: u64,
    /// `T`.
    pub tokens: u32,
}

/// `residual[t] += sum_j expert_weights[t, j] * experts_out[t, j]`, in the order of j.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinalizeDesc {
    /// `H`.
    pub hidden: u32,
    /// `k`.
    pub top_k: u32,
    /// Type of `experts_out` and `residual`.
    pub activation: DType,
}

/// Arguments of [`FinalizeDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FinalizeArgs {
    /// `[T, k, H]`.
    pub experts_out: u64,
    /// `[T, k]` float32.
    pub expert_weights: u64,
    /// `[T, H]`, updated.
    pub residual: u64,
    /// `T`.
    pub tokens: u32,
}

/// Norm, route, experts and finalize in one: `residual += moe(rms_norm(residual))`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedMoeDesc {
    /// The router.
    pub route: RouteDesc,
    /// The experts.
    pub experts: ExpertsDesc,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// Arguments of [`FusedMoeDesc`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FusedMoeArgs {
    /// `[H]` bfloat16.
    pub norm_weight: u64,
    /// `[E, H]` bfloat16.
    pub router_weight: u64,
    /// `[E]` bfloat16.
    pub router_bias: u64,
    /// Rows `2 I`, columns `H`.
    pub gate_up: ExpertWeights,
    /// Rows `H`, columns `I`.
    pub down: ExpertWeights,
    /// `[T, H]`, updated.
    pub residual: u64,
    /// `T`.
    pub tokens: u32,
}
