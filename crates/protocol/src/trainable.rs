//! What is publicly known of a tensor that is trained.

/// Its name, its sides and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trainable {
    /// As in a checkpoint.
    pub name: String,
    /// The sides.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight between two hidden values: a matrix, or the kernel of a convolution.
    Hidden,
    /// A table in which rows are looked up.
    Table,
    /// The weight that makes the logits.
    Head,
    /// Everything of one dimension.
    Vector,
    /// The left factor A of a low-rank pair; the right one is the tensor with this index.
    Left(usize),
    /// The right factor B of a low-rank pair; the left one is the tensor with this index.
    Right(usize),
}
