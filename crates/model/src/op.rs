//! Operations of a graph, as data: inputs, outputs and parameters. Engines compute them.

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

/// Inputs, outputs and parameters of an operation, independent of the engine that computes it.
pub trait Operation: Any + Debug + Send + Sync {
    /// Returns the values that the operation reads.
    fn inputs(&self) -> Vec<Value>;

    /// Returns the values that the operation writes; the first is its result.
    fn outputs(&self) -> Vec<Value>;

    /// Returns the parameters that the operation reads.
    fn params(&self) -> Vec<Param> {
        Vec::new()
    }

    /// Returns the input that the operation overwrites, if any. No other operation may read it.
    fn overwrites(&self) -> Option<Value> {
        None
    }

    /// Returns whether every output row is independent of later input rows.
    ///
    /// Decoding computes the rows of new tokens only; of earlier tokens, only the keys and values
    /// of attention are cached. A custom operation whose output rows depend on any other row of
    /// the example must therefore return `false`.
    fn is_causal(&self) -> bool {
        true
    }
}

/// An operation of the forward pass.
#[derive(Clone, Debug)]
pub enum Op {
    /// Adds two values.
    Add(AddOp),
    /// Multi-head self-attention.
    Attention(AttentionOp),
    /// Looks up rows of an embedding table.
    Embedding(EmbeddingOp),
    /// Selects the first token of each example.
    FirstToken(FirstTokenOp),
    /// Group normalization.
    GroupNorm(GroupNormOp),
    /// Applies linear layers to one input and concatenates the results.
    Linear(LinearOp),
    /// Averages the rows of each example.
    MeanRows(MeanRowsOp),
    /// Layer normalization or RMS normalization.
    Norm(NormOp),
    /// Extracts the patches of an image.
    Patches(PatchesOp),
    /// Pools over windows of an image.
    Pool(PoolOp),
    /// Reinterprets the same elements in another shape.
    Reshape(ReshapeOp),
    /// Rotary position embedding.
    Rope(RopeOp),
    /// SwiGLU activation.
    SwiGlu(SwiGluOp),
    /// Selects the tokens that have a target.
    TargetRows(TargetRowsOp),
    /// A custom operation. An engine that does not support it refuses the graph.
    Custom(Arc<dyn Operation>),
}

impl Op {
    /// Returns the operation as a trait object.
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

    /// Returns the values that the operation reads.
    pub fn inputs(&self) -> Vec<Value> {
        self.operation().inputs()
    }

    /// Returns the values that the operation writes; the first is its result.
    pub fn outputs(&self) -> Vec<Value> {
        self.operation().outputs()
    }

    /// Returns the parameters that the operation reads.
    pub fn params(&self) -> Vec<Param> {
        self.operation().params()
    }
}

/// Storage order of a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Shape [outputs, inputs], as in most models.
    OutIn,
    /// Shape [inputs, outputs], as in GPT-2.
    InOut,
}

/// Which row of an embedding table a token selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The row of the token id.
    Token,
    /// The row of the token's position in its example.
    Position,
    /// The first row, for every token: segment embeddings of inputs with one segment.
    First,
}

/// The sum a + b, as in a residual connection.
#[derive(Clone, Debug)]
pub struct AddOp {
    /// First summand.
    pub a: Value,
    /// Second summand.
    pub b: Value,
    /// Result.
    pub out: Value,
}

/// Multi-head self-attention within each example.
#[derive(Clone, Debug)]
pub struct AttentionOp {
    /// Numbers of heads, their width and the mask.
    pub heads: Heads,
    /// Queries, keys and values, concatenated.
    pub qkv: Value,
    /// Result.
    pub out: Value,
}

/// An embedding lookup: one row of a table for each token.
#[derive(Clone, Debug)]
pub struct EmbeddingOp {
    /// The table.
    pub table: Param,
    /// Which row a token selects.
    pub index: Index,
    /// Result.
    pub out: Value,
}

/// The first token of each example; zeros for an empty example.
#[derive(Clone, Debug)]
pub struct FirstTokenOp {
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// Group normalization over the pixels and channels of each group, example by example.
#[derive(Clone, Debug)]
pub struct GroupNormOp {
    /// Number of groups.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Number of pixels of an example.
    pub pixels: usize,
    /// Input.
    pub x: Value,
    /// Gain of each channel.
    pub gain: Param,
    /// Bias of each channel.
    pub bias: Param,
    /// Result.
    pub out: Value,
}

/// One linear layer of a [`LinearOp`]. It computes some columns of the result.
#[derive(Clone, Debug)]
pub struct LinearPart {
    /// The weight.
    pub weight: Param,
    /// Storage order of the weight.
    pub order: Order,
    /// The bias.
    pub bias: Option<Param>,
    /// A low-rank adapter.
    pub low_rank: Option<LowRank>,
    /// First column in the result.
    pub first: usize,
    /// Number of columns in the result.
    pub width: usize,
}

/// A low-rank adapter (A: out×r, B: in×r), which adds scale · A Bᵀ to the weight.
#[derive(Clone, Copy, Debug)]
pub struct LowRank {
    /// A.
    pub left: Param,
    /// B.
    pub right: Param,
    /// The rank r.
    pub rank: usize,
    /// Factor of the product A Bᵀ.
    pub scale: f32,
    /// The value scale · x B, with r columns.
    pub inner: Value,
}

/// Linear layers of one input, with concatenated results.
///
/// An activation is possible only with a single layer.
#[derive(Clone, Debug)]
pub struct LinearOp {
    /// Input.
    pub x: Value,
    /// The linear layers, in the order of their columns.
    pub parts: Vec<LinearPart>,
    /// Activation function of the result.
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

/// Layer normalization or RMS normalization of each row.
#[derive(Clone, Debug)]
pub struct NormOp {
    /// Which of the two.
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

/// The patches of an image that a convolution reads (im2col).
///
/// A convolution is this operation followed by a linear layer.
#[derive(Clone, Debug)]
pub struct PatchesOp {
    /// Kernel, stride and padding.
    pub window: Window,
    /// Shape of the input image.
    pub image: ImageShape,
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
    /// Shape of the input image.
    pub image: ImageShape,
    /// Input.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// The same elements in another shape: an image as one row, or one row as an image.
#[derive(Clone, Debug)]
pub struct ReshapeOp {
    /// Input; `None` for the features of the example.
    pub x: Option<Value>,
    /// Result.
    pub out: Value,
}

/// Rotary position embedding of queries and keys, in place.
#[derive(Clone, Debug)]
pub struct RopeOp {
    /// Angles by position.
    pub rope: Arc<Rope>,
    /// Columns of the heads that are rotated.
    pub columns: HeadColumns,
    /// Input, which is overwritten.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// The SwiGLU activation silu(gate) · value of the concatenation [gate | value].
#[derive(Clone, Debug)]
pub struct SwiGluOp {
    /// Gate and value, concatenated.
    pub x: Value,
    /// Result.
    pub out: Value,
}

/// The rows of tokens that have a target; later operations skip all other tokens.
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
        let params = |part: &LinearPart| {
            let adapter = part.low_rank.map(|adapter| [adapter.left, adapter.right]);
            std::iter::once(part.weight).chain(part.bias).chain(adapter.into_iter().flatten())
        };
        self.parts.iter().flat_map(params).collect()
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

/// Implements [`Operation`] for operations with one input `x`, one result `out` and no parameters.
macro_rules! one_input_one_output {
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

one_input_one_output!(FirstTokenOp, MeanRowsOp, PatchesOp, PoolOp, SwiGluOp, TargetRowsOp);
