//! A model as data: parameters, values and the operations between them, in the order of the forward
//! pass.
//!
//! Every value is a matrix with one row for each member of a [`Space`]: each token, each token that
//! carries a target, each example, each pixel. The rows of an example are contiguous. Operations
//! keep examples apart; that makes per-example gradients possible without a batch dimension.

use crate::builder::Lora;
use crate::lora::LowRankPair;
use crate::op::Op;

/// A parameter of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Param(pub(crate) usize);

/// A value of a graph: the result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub(crate) usize);

/// What the rows of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Tokens.
    Tokens,
    /// Tokens that carry a target.
    Targets,
    /// Examples.
    Examples,
    /// Pixels of a grid, row by row; every example has as many.
    Grid {
        /// Rows of the grid.
        height: usize,
        /// Columns of the grid.
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
    /// Independent normal values.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Orthonormal columns times a factor.
    Orthonormal {
        /// The factor.
        scale: f32,
    },
}

/// Name, shape and initial values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Its name, as in a checkpoint.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its initial values.
    pub init: Init,
}

/// Rows and columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueShape {
    /// What the rows are.
    pub space: Space,
    /// Number of columns.
    pub width: usize,
}

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// Tokens below `vocab`, at most `longest` of them.
    Tokens {
        /// Size of the vocabulary.
        vocab: usize,
        /// Longest text.
        longest: usize,
    },
    /// This many features.
    Features(usize),
}

/// How the losses of one example's targets make the example's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Their mean; 0 if there are none.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// A model without the values of its parameters.
#[derive(Debug)]
pub struct Graph {
    pub(crate) params: Vec<ParamSpec>,
    pub(crate) values: Vec<ValueShape>,
    pub(crate) ops: Vec<Op>,
    pub(crate) segments: Vec<usize>,
    pub(crate) input: InputShape,
    pub(crate) logits: Value,
    pub(crate) pairs: Vec<LowRankPair>,
    pub(crate) lora: Option<Lora>,
}

impl Graph {
    /// The parameters, in order.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// A parameter.
    pub fn param(&self, param: Param) -> &ParamSpec {
        &self.params[param.0]
    }

    /// All parameters, in order, as handles.
    pub fn param_ids(&self) -> impl Iterator<Item = Param> + use<> {
        (0..self.params.len()).map(Param)
    }

    /// All values, in order, as handles.
    pub fn value_ids(&self) -> impl Iterator<Item = Value> + use<> {
        (0..self.values.len()).map(Value)
    }

    /// The parameter of this name.
    pub fn param_named(&self, name: &str) -> Option<Param> {
        self.params.iter().position(|param| param.name == name).map(Param)
    }

    /// Shapes of all values, in order.
    pub fn values(&self) -> &[ValueShape] {
        &self.values
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.values[value.0]
    }

    /// The operations, in the order of the forward pass.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Where segments of operations begin whose activations may be recomputed: indices of
    /// operations.
    pub fn segments(&self) -> &[usize] {
        &self.segments
    }

    /// What it takes.
    pub fn input(&self) -> InputShape {
        self.input
    }

    /// The value that holds the logits.
    pub fn logits(&self) -> Value {
        self.logits
    }

    /// Number of classes, or size of the vocabulary.
    pub fn classes(&self) -> usize {
        self.shape(self.logits).width
    }

    /// Low-rank adapters of linear maps.
    pub fn pairs(&self) -> &[LowRankPair] {
        &self.pairs
    }

    /// About how many bytes a micro-batch takes for each example of `length` tokens, all of them
    /// with a target: values and their gradients.
    pub fn bytes_per_example(&self, length: usize) -> usize {
        self.bytes(|space| match space {
            Space::Tokens | Space::Targets => length,
            Space::Examples => 1,
            Space::Grid { height, width } => height * width,
        })
    }

    /// About how many bytes values and their gradients take, given the rows of each space.
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
    /// Index in [`Graph::params`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl Value {
    /// Index in [`Graph::values`].
    pub fn index(self) -> usize {
        self.0
    }
}
