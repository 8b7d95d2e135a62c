//! The operations of a graph: description, operands, and what each reads and writes.

use super::{ExpertWeightIds, KvPlace, SegmentIds, TensorId, WeightId};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::{
    AddDesc, AllReduceDesc, AllReduceNormDesc, AttentionDesc, CombineDesc, EmbedDesc, ExpertProductDesc,
    ExpertsDesc, FinalizeDesc, FusedMoeDesc, GemmDesc, KvWriteDesc, QkvRopeDesc, QuantiseDesc, ResizeDesc,
    RmsNormDesc, RopeDesc, RopeKvWriteDesc, RouteDesc, SampleDesc, ScaleDesc, SwigluDesc,
};

/// An operation with its description and operands.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    Embed {
        desc: EmbedDesc,
        table: WeightId,
        out: TensorId,
    },
    RmsNorm {
        desc: RmsNormDesc,
        x: TensorId,
        weight: WeightId,
        out: TensorId,
    },
    Gemm {
        desc: GemmDesc,
        x: TensorId,
        norm_weight: Option<WeightId>,
        segments: Vec<SegmentIds>,
        residual: Option<TensorId>,
        out: TensorId,
    },
    RopeKvWrite {
        desc: RopeKvWriteDesc,
        qkv: TensorId,
        kv: KvPlace,
    },
    QkvRope {
        desc: QkvRopeDesc,
        x: TensorId,
        norm_weight: Option<WeightId>,
        segments: Vec<SegmentIds>,
        qkv: TensorId,
        kv: KvPlace,
    },
    Attention {
        desc: AttentionDesc,
        qkv: TensorId,
        sinks: WeightId,
        kv: KvPlace,
        out: TensorId,
    },
    Route {
        desc: RouteDesc,
        x: TensorId,
        weight: WeightId,
        bias: WeightId,
        ids: TensorId,
        weights: TensorId,
    },
    Experts {
        desc: ExpertsDesc,
        x: TensorId,
        ids: TensorId,
        gate_up: ExpertWeightIds,
        down: ExpertWeightIds,
        out: TensorId,
    },
    Finalize {
        desc: FinalizeDesc,
        experts_out: TensorId,
        weights: TensorId,
        residual: TensorId,
    },
    FusedMoe {
        desc: FusedMoeDesc,
        norm_weight: WeightId,
        router_weight: WeightId,
        router_bias: WeightId,
        gate_up: ExpertWeightIds,
        down: ExpertWeightIds,
        residual: TensorId,
    },
    Sample {
        desc: SampleDesc,
        logits: TensorId,
    },
    Rope {
        desc: RopeDesc,
        qkv: TensorId,
    },
    Scale {
        desc: ScaleDesc,
        x: TensorId,
    },
    KvWrite {
        desc: KvWriteDesc,
        qkv: TensorId,
        kv: KvPlace,
    },
    Resize {
        desc: ResizeDesc,
        x: TensorId,
        out: TensorId,
    },
    Quantise {
        desc: QuantiseDesc,
        x: TensorId,
        codes: TensorId,
        scales: TensorId,
    },
    Swiglu {
        desc: SwigluDesc,
        x: TensorId,
        out: TensorId,
        scales: Option<TensorId>,
    },
    ExpertProduct {
        desc: ExpertProductDesc,
        x: TensorId,
        scales: Option<TensorId>,
        ids: TensorId,
        weights: ExpertWeightIds,
        out: TensorId,
    },
    Combine {
        desc: CombineDesc,
        experts_out: TensorId,
        weights: TensorId,
        out: TensorId,
    },
    Add {
        desc: AddDesc,
        x: TensorId,
        residual: TensorId,
    },
    AllReduce {
        desc: AllReduceDesc,
        x: TensorId,
    },
    AllReduceNorm {
        desc: AllReduceNormDesc,
        x: TensorId,
        residual: TensorId,
        weight: WeightId,
        out: TensorId,
    },
}

impl Op {
    /// The description that backends are asked about.
    pub fn desc(&self) -> OpDesc {
        match self {
            Self::Embed { desc, .. } => OpDesc::Embed(*desc),
            Self::RmsNorm { desc, .. } => OpDesc::RmsNorm(*desc),
            Self::Gemm { desc, .. } => OpDesc::Gemm(*desc),
            Self::RopeKvWrite { desc, .. } => OpDesc::RopeKvWrite(*desc),
            Self::QkvRope { desc, .. } => OpDesc::QkvRope(*desc),
            Self::Attention { desc, .. } => OpDesc::Attention(*desc),
            Self::Route { desc, .. } => OpDesc::Route(*desc),
            Self::Experts { desc, .. } => OpDesc::Experts(*desc),
            Self::Finalize { desc, .. } => OpDesc::Finalize(*desc),
            Self::FusedMoe { desc, .. } => OpDesc::FusedMoe(*desc),
            Self::Sample { desc, .. } => OpDesc::Sample(*desc),
            Self::Rope { desc, .. } => OpDesc::Rope(*desc),
            Self::Scale { desc, .. } => OpDesc::Scale(*desc),
            Self::KvWrite { desc, .. } => OpDesc::KvWrite(*desc),
            Self::Resize { desc, .. } => OpDesc::Resize(*desc),
            Self::Quantise { desc, .. } => OpDesc::Quantise(*desc),
            Self::Swiglu { desc, .. } => OpDesc::Swiglu(*desc),
            Self::ExpertProduct { desc, .. } => OpDesc::ExpertProduct(*desc),
            Self::Combine { desc, .. } => OpDesc::Combine(*desc),
            Self::Add { desc, .. } => OpDesc::Add(*desc),
            Self::AllReduce { desc, .. } => OpDesc::AllReduce(*desc),
            Self::AllReduceNorm { desc, .. } => OpDesc::AllReduceNorm(*desc),
        }
    }

    /// Tensors read.
    pub fn reads(&self) -> Vec<TensorId> {
        match self {
            Self::Embed { .. } => vec![],
            Self::RmsNorm { x, .. } | Self::Route { x, .. } | Self::QkvRope { x, .. } => vec![*x],
            Self::Gemm { x, residual, .. } => std::iter::once(*x).chain(*residual).collect(),
            Self::RopeKvWrite { qkv, .. } | Self::Attention { qkv, .. } => vec![*qkv],
            Self::Experts { x, ids, .. } => vec![*x, *ids],
            Self::Finalize { experts_out, weights, residual, .. } => vec![*experts_out, *weights, *residual],
            Self::FusedMoe { residual, .. } => vec![*residual],
            Self::Sample { logits, .. } => vec![*logits],
            Self::Rope { qkv, .. } | Self::KvWrite { qkv, .. } => vec![*qkv],
            Self::Scale { x, .. }
            | Self::Resize { x, .. }
            | Self::Quantise { x, .. }
            | Self::Swiglu { x, .. }
            | Self::AllReduce { x, .. } => vec![*x],
            Self::ExpertProduct { x, scales, ids, .. } => {
                std::iter::once(*x).chain(*scales).chain([*ids]).collect()
            }
            Self::Combine { experts_out, weights, .. } => vec![*experts_out, *weights],
            Self::Add { x, residual, .. } | Self::AllReduceNorm { x, residual, .. } => vec![*x, *residual],
        }
    }

    /// Tensors written.
    pub fn writes(&self) -> Vec<TensorId> {
        match self {
            Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Gemm { out, .. }
            | Self::Attention { out, .. }
            | Self::Experts { out, .. } => vec![*out],
            Self::RopeKvWrite { qkv, .. } | Self::QkvRope { qkv, .. } => vec![*qkv],
            Self::Route { ids, weights, .. } => vec![*ids, *weights],
            Self::Finalize { residual, .. } | Self::FusedMoe { residual, .. } => vec![*residual],
            Self::Sample { logits, .. } => vec![*logits],
            Self::Rope { qkv, .. } => vec![*qkv],
            Self::KvWrite { .. } => vec![],
            Self::Scale { x, .. } | Self::AllReduce { x, .. } => vec![*x],
            Self::Resize { out, .. } | Self::ExpertProduct { out, .. } | Self::Combine { out, .. } => {
                vec![*out]
            }
            Self::Quantise { codes, scales, .. } => vec![*codes, *scales],
            Self::Swiglu { out, scales, .. } => std::iter::once(*out).chain(*scales).collect(),
            Self::Add { residual, .. } => vec![*residual],
            Self::AllReduceNorm { x, residual, out, .. } => vec![*x, *residual, *out],
        }
    }

    /// The matrices of a dense product; they are held side by side.
    pub fn segments(&self) -> &[SegmentIds] {
        match self {
            Self::Gemm { segments, .. } | Self::QkvRope { segments, .. } => segments,
            _ => &[],
        }
    }

    /// Whether its rows are those of the drawn tokens.
    pub fn runs_on_samples(&self) -> bool {
        matches!(self, Self::Sample { .. } | Self::Gemm { desc: GemmDesc { gather: 1, .. }, .. })
    }
}
