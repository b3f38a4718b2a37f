//! The public description of a trainable tensor.

/// Name, shape and role of a trainable tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trainable {
    /// The name, as in a checkpoint.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// Its role in the model.
    pub role: Role,
    /// Whether a weight is stored as inputs × outputs, as in GPT-2, and not as outputs × inputs.
    pub transposed: bool,
    /// Whether the outputs are predictions of an example's label or number, and not of tokens.
    pub predicts_labels: bool,
}

impl Trainable {
    /// Creates the description of a tensor; a weight is stored as outputs × inputs.
    ///
    /// ```
    /// use protocol::{Role, Trainable};
    ///
    /// let weight = Trainable::new("h.0.mlp.c_fc.weight", [768, 3072], Role::Hidden);
    /// assert!(!weight.transposed && weight.transposed().transposed);
    /// ```
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, role: Role) -> Self {
        Self {
            name: name.into(),
            shape: shape.into(),
            role,
            transposed: false,
            predicts_labels: false,
        }
    }

    /// Declares that the weight is stored as inputs × outputs.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { transposed: true, ..self }
    }

    /// Declares that the outputs are predictions of an example's label or number.
    #[must_use]
    pub fn predicting_labels(self) -> Self {
        Self { predicts_labels: true, ..self }
    }

    /// Returns the number of inputs of a weight; `None` for a tensor of one dimension.
    ///
    /// ```
    /// use protocol::{Role, Trainable};
    ///
    /// let kernel = Trainable::new("conv.weight", [16, 3, 5, 5], Role::Hidden);
    /// assert_eq!(kernel.inputs(), Some(75));
    /// ```
    pub fn inputs(&self) -> Option<usize> {
        match &self.shape[..] {
            [] | [_] => None,
            [first, ..] if self.transposed => Some(*first),
            [_, rest @ ..] => Some(rest.iter().product()),
        }
    }
}

/// The role of a tensor in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight between two hidden layers: a matrix, or the kernel of a convolution.
    Hidden,
    /// An embedding table.
    Table,
    /// The weight of the output layer.
    Head,
    /// A tensor of one dimension, such as a bias.
    Vector,
    /// The left factor A of a low-rank pair; the right one is the tensor with this index.
    Left(usize),
    /// The right factor B of a low-rank pair; the left one is the tensor with this index.
    Right(usize),
}
