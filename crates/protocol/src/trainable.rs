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
