//! Errors of arrays and decompositions.

/// An error of an array or a decomposition.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The number of elements does not match the shape.
    #[error(
        "shape {shape:?}: expected {} elements, got {got}",
        expected.map_or("more than usize::MAX".into(), |n| n.to_string())
    )]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// The number of elements of the shape; `None` if it overflows.
        expected: Option<usize>,
        /// The number of elements given.
        got: usize,
    },
    /// A decomposition did not converge, or its input is not finite.
    #[error(
        "{operation} of a {rows}×{cols} matrix failed: the input is not finite, or the iteration \
         did not converge"
    )]
    Decomposition {
        /// The decomposition.
        operation: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// The columns of a matrix are linearly dependent, or nearly so.
    #[error(
        "{rows}×{cols} matrix: expected full column rank, but its columns are nearly dependent"
    )]
    Rank {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
}
