//! A model as data: parameters, values and the layers between them, in the order of the forward
//! pass.
//!
//! Every value is a matrix with one row for each member of a [`Space`]: each token, each token that
//! carries a target, each example, each pixel. The rows of an example are contiguous. Layers keep
//! examples apart; that is what makes per-example gradients possible without a batch dimension.

use crate::builder::Lora;
use crate::layer::Layer;
use crate::lora::Pair;

/// A parameter of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Param(pub(crate) usize);

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(pub(crate) usize);

/// What the rows of a value stand for.
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

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Independent normal numbers.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Orthonormal columns times a number.
    Orthonormal {
        /// The number.
        scale: f32,
    },
}

/// What is known of a parameter before it has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name, as in a checkpoint.
    pub name: String,
    /// Its sides.
    pub shape: Vec<usize>,
    /// How it starts.
    pub init: Init,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) space: Space,
    pub(crate) width: usize,
}

/// What goes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Tokens below `vocab`, at most `longest` of them.
    Tokens {
        /// Size of the vocabulary.
        vocab: usize,
        /// Longest text.
        longest: usize,
    },
    /// This many numbers.
    Numbers(usize),
}

/// How the losses of one example's targets make the example's loss. It is the example's own
/// business: no other example enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Their mean; 0 if there are none.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// A model without its numbers.
#[derive(Debug)]
pub struct Graph {
    pub(crate) specs: Vec<Spec>,
    pub(crate) forms: Vec<Form>,
    pub(crate) layers: Vec<Box<dyn Layer>>,
    /// Where activations may be dropped and made again: indices of layers.
    pub(crate) cuts: Vec<usize>,
    pub(crate) intake: Intake,
    pub(crate) logits: Value,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) lora: Option<Lora>,
}

impl Graph {
    /// The parameters, in order.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// What goes in.
    pub fn intake(&self) -> Intake {
        self.intake
    }

    /// How many classes, or tokens, are told apart.
    pub fn classes(&self) -> usize {
        self.forms[self.logits.0].width
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

    /// The same for any number of rows in each space.
    pub(crate) fn bytes(&self, rows: impl Fn(Space) -> usize) -> usize {
        let numbers = |form: &Form| rows(form.space).saturating_mul(form.width);
        self.forms
            .iter()
            .map(numbers)
            .fold(0usize, usize::saturating_add)
            .saturating_mul(2 * size_of::<f32>())
    }

    /// A parameter by its name.
    pub fn param(&self, name: &str) -> Option<Param> {
        self.specs.iter().position(|spec| spec.name == name).map(Param)
    }

    /// The low-rank additions that layers carry.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }
}

impl Param {
    /// Its place in [`Graph::specs`].
    pub fn index(self) -> usize {
        self.0
    }
}
