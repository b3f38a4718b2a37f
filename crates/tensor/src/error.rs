//! What can be wrong with an array or a decomposition.

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Numbers and shape do not fit.
    #[error("shape {shape:?} needs {} numbers, got {got}", expected.map_or("more than there can \
        be".into(), |n| n.to_string()))]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// How many numbers it has, if that many can exist.
        expected: Option<usize>,
        /// How many came.
        got: usize,
    },
    /// A decomposition did not converge, or its input is not finite.
    #[error(
        "{what} of a {rows}×{cols} matrix failed: the input is not finite, or the iteration did \
         not converge"
    )]
    Decomposition {
        /// Which.
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// The columns of a matrix are not, or hardly, independent.
    #[error("a {rows}×{cols} matrix has not full column rank, or nearly not")]
    Rank {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
}
