//! Arrays of f32 in host memory, and neural-network kernels with their backward passes.
//!
//! Kernels work on row-major slices and write into buffers of the caller; [`Workspace`] reuses
//! those between steps. A batch is *packed*: the rows of all examples are contiguous, and `offsets`
//! holds the first row of each example. No kernel mixes elements of different examples.
//!
//! Shapes that do not match are programming errors and panic. Values never panic: NaN propagates,
//! within its own example only.

pub mod activation;
pub mod attention;
pub mod binary_cross_entropy;
pub mod cross_entropy;
pub mod decoding;
pub mod embedding;
pub mod gram;
pub mod group_norm;
pub mod linalg;
pub mod matmul;
pub mod memory;
pub mod norm;
pub mod outer;
pub mod patches;
pub mod pooling;
pub mod rope;
pub mod squared_error;
pub mod symmetric;

mod array;
mod error;
mod parallel;
mod simd;
mod tile;
mod workspace;

pub use array::Array;
pub use error::Error;
pub use workspace::Workspace;
