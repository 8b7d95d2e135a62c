//! A model as a list of typed operations over named tensors and weights.
//!
//! The list is in execution order. Tensors are activations of one step; weights are what the checkpoint must hold, with
//! shape and type, in the same names.
//!
//! Before fusion it is written in the smallest steps that anybody has a kernel for: rotation, scale and cache write apart, the experts as two
//! products with the gated unit between, padding and slicing where kernels want whole tiles of columns, and on a shard of a
//! tensor-parallel group the sums over ranks. That graph runs as it is: the portable backend has every step. What the passes do not find, since
//! no smaller step exists anywhere: the clamp inside the gated unit, biases and the residual inside dense products, and top-k with its
//! softmax inside the router.
//!
//! Invariant: every tensor is written before it is read, and an operation that updates in place names the tensor both
//! as read and as written.

mod buffers;
mod build;
mod op;
mod print;
mod shard;

pub use buffers::BufferPlan;
pub use build::{GraphOptions, PADDING, build};
pub use op::Op;
pub use shard::{Shard, ShardError, shard};

use gossamer_backend_api::DType;

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
