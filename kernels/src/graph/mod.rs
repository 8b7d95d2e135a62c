//! A model as a list of typed operations over named tensors and weights.
//!
//! The list is in execution order. Tensors are activations of one step; weights are what the checkpoint must hold, with
//! shape and type, in the same names.
//!
//! Invariant: every tensor is written before it is read, and an operation that updates in place names the tensor both
//! as read and as written.

mod buffers;
mod build;
mod print;

pub use buffers::BufferPlan;
pub use build::{GraphOptions, build};

use gossamer_backend_api::DType;
use gossamer_backend_api::ops::{
    AttentionDesc, EmbedDesc, ExpertsDesc, FinalizeDesc, FusedMoeDesc, GemmDesc, OpDesc, RmsNormDesc,
    RopeKvWriteDesc, RouteDesc, SampleDesc,
};

/// Index into [`Graph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Index into [`Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// How many rows a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One per token of the step.
    Tokens,
    /// One per token that is drawn.
    Samples,
}

/// Type of an activation's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A float.
    Float(DType),
    /// An unsigned 32-bit number.
    Index,
}

/// An activation.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name for people.
    pub name: String,
    /// Rows.
    pub rows: Rows,
    /// Elements per row.
    pub columns: u32,
    /// Type of the elements.
    pub element: Element,
}

impl Tensor {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        match self.element {
            Element::Float(dtype) => dtype.bytes(self.columns.into()),
            Element::Index => u64::from(self.columns) * 4,
        }
    }
}

/// Type of a weight as the checkpoint stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// bfloat16.
    Bf16,
    /// Bytes: codes or scales.
    U8,
}

impl WeightType {
    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// How a weight is filled when it is not loaded, so that activations stay near 1 and routing depends on the token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Normal with mean and standard deviation.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        std: f32,
    },
    /// Any byte: two E2M1 codes.
    Codes,
    /// E8M0 exponents, evenly from `middle - 2` to `middle + 1`.
    Scales {
        /// The exponent byte in the middle.
        middle: u8,
    },
}

/// A weight that the checkpoint must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Type.
    pub element: WeightType,
    /// What stands in for it under `--load-format dummy`.
    pub fill: Fill,
}

impl Weight {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element.size()
    }
}

/// The parts of one expert weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertWeightIds {
    /// Codes.
    pub blocks: WeightId,
    /// Scales.
    pub scales: WeightId,
    /// Bias.
    pub bias: WeightId,
}

/// One weight matrix of a product, with its bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentIds {
    /// The matrix.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
}

/// Where a layer keeps keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Index into [`Graph::windows`].
    pub group: u32,
    /// Storage plane; layers of other groups use the same one under other block ids.
    pub plane: u32,
}

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
}

impl Op {
    /// The description that backends are asked about.
    pub fn desc(&self) -> OpDesc {
        match self {
            Self::Embed { desc, .. } => OpDesc::Embed(*desc),
            Self::RmsNorm { desc, .. } => OpDesc::RmsNorm(*desc),
            Self::Gemm { desc, .. } => OpDesc::Gemm(*desc),
            Self::RopeKvWrite { desc, .. } => OpDesc::RopeKvWrite(*desc),
            Self::Attention { desc, .. } => OpDesc::Attention(*desc),
            Self::Route { desc, .. } => OpDesc::Route(*desc),
            Self::Experts { desc, .. } => OpDesc::Experts(*desc),
            Self::Finalize { desc, .. } => OpDesc::Finalize(*desc),
            Self::FusedMoe { desc, .. } => OpDesc::FusedMoe(*desc),
            Self::Sample { desc, .. } => OpDesc::Sample(*desc),
        }
    }

    /// Tensors read.
    pub fn reads(&self) -> Vec<TensorId> {
        match self {
            Self::Embed { .. } => vec![],
            Self::RmsNorm { x, .. } | Self::Route { x, .. } => vec![*x],
            Self::Gemm { x, residual, .. } => std::iter::once(*x).chain(*residual).collect(),
            Self::RopeKvWrite { qkv, .. } | Self::Attention { qkv, .. } => vec![*qkv],
            Self::Experts { x, ids, .. } => vec![*x, *ids],
            Self::Finalize { experts_out, weights, residual, .. } => vec![*experts_out, *weights, *residual],
            Self::FusedMoe { residual, .. } => vec![*residual],
            Self::Sample { logits, .. } => vec![*logits],
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
            Self::RopeKvWrite { qkv, .. } => vec![*qkv],
            Self::Route { ids, weights, .. } => vec![*ids, *weights],
            Self::Finalize { residual, .. } | Self::FusedMoe { residual, .. } => vec![*residual],
            Self::Sample { logits, .. } => vec![*logits],
        }
    }

    /// Whether its rows are those of the drawn tokens.
    pub fn runs_on_samples(&self) -> bool {
        matches!(self, Self::Sample { .. } | Self::Gemm { desc: GemmDesc { gather: 1, .. }, .. })
    }
}

/// An operation and its layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Layer of the model; `None` before the first and after the last.
    pub layer: Option<u32>,
    /// The operation.
    pub op: Op,
}

impl Node {
    /// The operation's name with its layer.
    pub fn label(&self) -> String {
        let name = self.op.desc().kind().label();
        self.layer.map_or_else(|| name.to_owned(), |layer| format!("{name} of layer {layer}"))
    }
}

/// Shape of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Storage planes.
    pub planes: u32,
    /// KV heads of this rank.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Type of the cache.
    pub dtype: DType,
}

impl KvShape {
    /// Bytes of one block in one plane.
    pub fn block_bytes(&self) -> u64 {
        let elements = 2 * u64::from(self.kv_heads) * u64::from(self.block_size) * u64::from(self.head_dim);
        self.dtype.bytes(elements)
    }
}

/// A model's operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Operations in execution order.
    pub nodes: Vec<Node>,
    /// Activations.
    pub tensors: Vec<Tensor>,
    /// Weights.
    pub weights: Vec<Weight>,
    /// Window of each KV group; `None` for full attention.
    pub windows: Vec<Option<u32>>,
    /// Shape of the KV cache.
    pub kv: KvShape,
}

impl Graph {
    /// A tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// A weight.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(Weight::bytes).sum()
    }
}
