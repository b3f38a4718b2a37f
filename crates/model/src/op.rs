//! Operations of a graph, as data: what each reads, writes and owns. Engines say how they are
//! computed.

use crate::graph::{Param, Value};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tensor::activation::Activation;
use tensor::attention::{AttentionMask, Heads};
use tensor::norm::Norm;
use tensor::patches::{ImageShape, Window};
use tensor::pooling::Pool;
use tensor::rope::{HeadColumns, Rope};

/// What is known of every operation, whatever computes it.
pub trait Operation: Any + Debug + Send + Sync {
    /// Values it reads.
    fn inputs(&self) -> Vec<Value>;

    /// Values it writes; the first is its result.
    fn outputs(&self) -> Vec<Value>;

    /// Parameters it reads.
    fn params(&self) -> Vec<Param> {
        Vec::new()
    }

    /// An input that it overwrites, so that no other operation may read it.
    fn overwrites(&self) -> Option<Value> {
        None
    }

    /// Whether no row of its outputs depends on a later row of its inputs.
    ///
    /// Decoding computes new tokens only and caches what attention needs of earlier ones. So an
    /// operation from outside that reads any other row of its example must return `false`.
    fn is_causal(&self) -> bool {
        true
    }
}

/// One step of the forward pass.
#[derive(Clone, Debug)]
pub enum Op {
    /// Sum of two values.
    Add(AddOp),
    /// Attention.
    Attention(AttentionOp),
    /// Rows of a table.
    Embedding(EmbeddingOp),
    /// First token of each example.
    FirstToken(FirstTokenOp),
    /// Group norm.
    GroupNorm(GroupNormOp),
    /// Linear maps side by side.
    Linear(LinearOp),
    /// Mean of each example's rows.
    MeanRows(MeanRowsOp),
    /// Layer norm or root-mean-square norm.
    Norm(NormOp),
    /// Patches of an image.
    Patches(PatchesOp),
    /// Pooling over windows.
    Pool(PoolOp),
    /// The same elements in another shape.
    Reshape(ReshapeOp),
    /// Rotary position embedding.
    Rope(RopeOp),
    /// SwiGLU.
    SwiGlu(SwiGluOp),
    /// Tokens that carry a target.
    TargetRows(TargetRowsOp),
    /// An operation from outside this crate. An engine that does not know it refuses the graph.
    Custom(Arc<dyn Operation>),
}

impl Op {
    /// What is known of it, whatever computes it.
    pub fn operation(&self) -> &dyn Operation {
        match self {
            Self::Add(op) => op,
            Self::Attention(op) => op,
            Self::Embedding(op) => op,
            Self::FirstToken(op) => op,
            Self::GroupNorm(op) => op,
            Self::Linear(op) => op,
            Self::MeanRows(op) => op,
            Self::Norm(op) => op,
            Self::Patches(op) => op,
            Self::Pool(op) => op,
            Self::Reshape(op) => op,
            Self::Rope(op) => op,
            Self::SwiGlu(op) => op,
            Self::TargetRows(op) => op,
            Self::Custom(op) => op.as_ref(),
        }
    }

    /// Values it reads.
    pub fn inputs(&self) -> Vec<Value> {
        self.operation().inputs()
    }

    /// Values it writes; the first is its result.
    pub fn outputs(&self) -> Vec<Value> {
        self.operation().outputs()
    }

    /// Parameters it reads.
    pub fn params(&self) -> Vec<Param> {
        self.operation().params()
    }
}

/// How a weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rows are outputs: most models.
    OutIn,
    /// Rows are inputs: GPT-2.
    InOut,
}

/// Which row of a table a token selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The row of its token id.
    Token,
    /// The row of its position in its example.
    Position,
    /// The first row: texts of one segment.
    First,
}

/// a + b: a residual connection.
#[derive(Clone, Debug)]
pub struct AddOp {
    /// First summand.
    pub a: Value,
    /// Second summand.
    pub b: Value,
    /// Result.
    pub out: Value,
}

/// Attention of each example's rows to each other.
#[derive(Clone, Debug)]
pub struct AttentionOp {
    /// Numbers of heads, and what a row may attend to.
    pub heads: Heads,
    /// Queries, keys and values side by side.
    pub qkv: Value,
    /// Result.
    pub out: Value,
}

/// One row of a table for each token.
#[derive(Clone, Debug)]
pub struct EmbeddingOp {
    /// The table.
    pub table: Param,
    /// Which row.
    pub index: Index,
    /// Result.
    pub out: Value,
}

/// The first token of each example; zeros for an empty one.
#[derive(Clone, Debug)]
pub struct FirstTokenOp {
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// Group norm: each example's channels in groups, over all its pixels.
#[derive(Clone, Debug)]
pub struct GroupNormOp {
    /// Number of groups.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Pixels of an example.
    pub pixels: usize,
    /// Input.
    pub x: Value,
    /// Gain, by channel.
    pub gain: Param,
    /// Bias, by channel.
    pub bias: Param,
    /// Result.
    pub out: Value,
}

/// One linear map of a [`LinearOp`]: some columns of its result.
#[derive(Clone, Debug)]
pub struct LinearPart {
    /// The weight.
    pub weight: Param,
    /// How the weight is stored.
    pub order: Order,
    /// The bias.
    pub bias: Option<Param>,
    /// A low-rank adapter.
    pub low_rank: Option<LowRank>,
    /// First column of the result.
    pub first: usize,
    /// Number of columns.
    pub width: usize,
}

/// A low-rank adapter (A: out×r, B: in×r): the map gains scale · A Bᵀ.
#[derive(Clone, Copy, Debug)]
pub struct LowRank {
    /// A
    pub left: Param,
    /// B
    pub right: Param,
    /// r
    pub rank: usize,
    /// scale
    pub scale: f32,
    /// scale · x B, rows × r.
    pub inner: Value,
}

/// Linear maps of one input, side by side; an activation only after a single map.
#[derive(Clone, Debug)]
pub struct LinearOp {
    /// Input.
    pub x: Value,
    /// The maps.
    pub parts: Vec<LinearPart>,
    /// Activation of the result.
    pub activation: Option<Activation>,
    /// Result.
    pub out: Value,
}

/// The mean of each example's rows; zeros for an empty example.
#[derive(Clone, Debug)]
pub struct MeanRowsOp {
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// Layer norm or root-mean-square norm.
#[derive(Clone, Debug)]
pub struct NormOp {
    /// Which.
    pub norm: Norm,
    /// Added to the variance.
    pub epsilon: f32,
    /// Input.
    pub x: Value,
    /// Gain.
    pub gain: Param,
    /// Bias.
    pub bias: Option<Param>,
    /// Result.
    pub out: Value,
}

/// The patches of an image that a convolution reads. A convolution is this and a linear map.
#[derive(Clone, Debug)]
pub struct PatchesOp {
    /// Kernel, stride and padding.
    pub window: Window,
    /// The image.
    pub grid: ImageShape,
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// Pooling over windows of an image.
#[derive(Clone, Debug)]
pub struct PoolOp {
    /// Maximum or mean.
    pub pooling: Pool,
    /// Kernel, stride and padding.
    pub window: Window,
    /// The image.
    pub grid: ImageShape,
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// The same elements in another shape: a grid as one row, or one row as a grid.
#[derive(Clone, Debug)]
pub struct ReshapeOp {
    /// Input; `None` for the features of the example.
    pub x: Option<Value>,
    /// Result.
    pub out: Value,
}

/// Rotary position embedding, in place on queries and keys.
#[derive(Clone, Debug)]
pub struct RopeOp {
    /// Angles.
    pub rope: Arc<Rope>,
    /// The heads that are rotated.
    pub place: HeadColumns,
    /// Input, which is overwritten.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// silu(gate) · value of [gate | value].
#[derive(Clone, Debug)]
pub struct SwiGluOp {
    /// Gate and value side by side.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// The tokens that carry a target, so that what follows costs nothing for the others.
#[derive(Clone, Debug)]
pub struct TargetRowsOp {
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

impl Operation for AddOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.a, self.b]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }
}

impl Operation for AttentionOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.qkv]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn is_causal(&self) -> bool {
        self.heads.mask == AttentionMask::Causal
    }
}

impl Operation for EmbeddingOp {
    fn inputs(&self) -> Vec<Value> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.table]
    }
}

impl Operation for GroupNormOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        vec![self.gain, self.bias]
    }
}

impl Operation for LinearOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        let inner = |part: &LinearPart| part.low_rank.map(|adapter| adapter.inner);
        std::iter::once(self.out).chain(self.parts.iter().filter_map(inner)).collect()
    }

    fn params(&self) -> Vec<Param> {
        let of = |part: &LinearPart| {
            let adapter = part.low_rank.map(|adapter| [adapter.left, adapter.right]);
            std::iter::once(part.weight).chain(part.bias).chain(adapter.into_iter().flatten())
        };
        self.parts.iter().flat_map(of).collect()
    }
}

impl Operation for NormOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn params(&self) -> Vec<Param> {
        std::iter::once(self.gain).chain(self.bias).collect()
    }
}

impl Operation for ReshapeOp {
    fn inputs(&self) -> Vec<Value> {
        self.x.into_iter().collect()
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }
}

impl Operation for RopeOp {
    fn inputs(&self) -> Vec<Value> {
        vec![self.x]
    }

    fn outputs(&self) -> Vec<Value> {
        vec![self.out]
    }

    fn overwrites(&self) -> Option<Value> {
        Some(self.x)
    }
}

/// Operations with one input, one result and nothing else to tell.
macro_rules! one_to_one {
    ($($op:ident),*) => {$(
        impl Operation for $op {
            fn inputs(&self) -> Vec<Value> {
                vec![self.x]
            }

            fn outputs(&self) -> Vec<Value> {
                vec![self.out]
            }
        }
    )*};
}

one_to_one!(FirstTokenOp, MeanRowsOp, PatchesOp, PoolOp, SwiGluOp, TargetRowsOp);
