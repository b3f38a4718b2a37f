//! A model as data: parameters, values and operations, in the order of the forward pass.
//!
//! Every value is a matrix with one row for each member of a [`Space`]: each token, each token that
//! has a target, each part of an example, each pixel. The rows of an example are contiguous. No
//! operation mixes rows of different parts, so per-example gradients need no batch dimension.

use crate::lora::Lora;
use crate::lora::LowRankAdapter;
use crate::op::Op;

/// Handle of a parameter of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Param(pub(crate) usize);

/// Handle of a value of a graph: the result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub(crate) usize);

/// What the rows of a value correspond to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// One row for each token.
    Tokens,
    /// One row for each token that has a target.
    Targets,
    /// One row for each part of an example.
    Parts,
    /// One row for each pixel of an image, row-major; all images have the same size.
    Grid {
        /// Height of the image.
        height: usize,
        /// Width of the image.
        width: usize,
    },
}

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Independent normal values with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Orthonormal columns, scaled.
    Orthonormal {
        /// Factor of every element.
        scale: f32,
    },
}

/// Name, shape and initial values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Name, as in a checkpoint.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
}

/// Shape of a value: the space of its rows and its number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueShape {
    /// What the rows correspond to.
    pub space: Space,
    /// Number of columns.
    pub width: usize,
}

/// Input of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// A sequence of token ids below `vocab`, at most `max_length` of them.
    Tokens {
        /// Size of the vocabulary.
        vocab: usize,
        /// Largest number of tokens.
        max_length: usize,
    },
    /// A vector of this many features.
    Features(usize),
}

/// How the losses of an example's targets are reduced to the example's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduction {
    /// The mean; 0 if there are no targets.
    #[default]
    Mean,
    /// The sum.
    Sum,
}

/// The loss of a row of outputs ("logits") against its target.
///
/// It is a function of that row alone, so that a record's gradient depends on no other record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Loss {
    /// Cross-entropy of the softmax of all outputs: one class, or the next token.
    #[default]
    CrossEntropy,
    /// Cross-entropy of the sigmoid of each output, the mean over the outputs: several labels.
    BinaryCrossEntropy,
    /// The squared difference of the only output from a number.
    SquaredError,
}

/// The structure of a model, without the values of its parameters.
#[derive(Debug)]
pub struct Graph {
    pub(crate) params: Vec<ParamSpec>,
    pub(crate) values: Vec<ValueShape>,
    pub(crate) ops: Vec<Op>,
    pub(crate) segments: Vec<usize>,
    pub(crate) input: InputShape,
    pub(crate) logits: Value,
    pub(crate) loss: Loss,
    pub(crate) adapters: Vec<LowRankAdapter>,
    pub(crate) lora: Option<Lora>,
}

impl Graph {
    /// Returns the parameters, in order.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Returns the specification of a parameter.
    pub fn param(&self, param: Param) -> &ParamSpec {
        &self.params[param.0]
    }

    /// Returns the handles of all parameters, in order.
    pub fn param_ids(&self) -> impl Iterator<Item = Param> + use<> {
        (0..self.params.len()).map(Param)
    }

    /// Returns the handles of all values, in order.
    pub fn value_ids(&self) -> impl Iterator<Item = Value> + use<> {
        (0..self.values.len()).map(Value)
    }

    /// Returns the parameter with this name, if there is one.
    pub fn find_param(&self, name: &str) -> Option<Param> {
        self.params.iter().position(|param| param.name == name).map(Param)
    }

    /// Returns the shapes of all values, in order.
    pub fn values(&self) -> &[ValueShape] {
        &self.values
    }

    /// Returns the shape of a value.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.values[value.0]
    }

    /// Returns the operations, in the order of the forward pass.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the index of the first operation of each segment.
    ///
    /// The activations of a segment can be recomputed from its inputs.
    pub fn segments(&self) -> &[usize] {
        &self.segments
    }

    /// Returns the input of the model.
    pub fn input(&self) -> InputShape {
        self.input
    }

    /// Returns the value that holds the logits.
    pub fn logits(&self) -> Value {
        self.logits
    }

    /// Returns the number of columns of the logits: classes, or the size of the vocabulary.
    pub fn classes(&self) -> usize {
        self.shape(self.logits).width
    }

    /// Returns the loss of a row of logits.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Replaces the loss, which is [`Loss::CrossEntropy`] by default.
    #[must_use]
    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }

    /// Returns the low-rank adapters of linear layers.
    pub fn adapters(&self) -> &[LowRankAdapter] {
        &self.adapters
    }

    /// Estimates the bytes of values and gradients for one example of a micro-batch.
    ///
    /// The example has `length` tokens, each with a target.
    pub fn bytes_per_example(&self, length: usize) -> usize {
        self.bytes(|space| match space {
            Space::Tokens | Space::Targets => length,
            Space::Parts => 1,
            Space::Grid { height, width } => height * width,
        })
    }

    /// Estimates the bytes of all values and gradients, given the number of rows of each space.
    pub fn bytes(&self, rows: impl Fn(Space) -> usize) -> usize {
        let elements = |value: &ValueShape| rows(value.space).saturating_mul(value.width);
        self.values
            .iter()
            .map(elements)
            .fold(0usize, usize::saturating_add)
            .saturating_mul(2 * size_of::<f32>())
    }
}

impl Param {
    /// Returns the index in [`Graph::params`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl Value {
    /// Returns the index in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0
    }
}
