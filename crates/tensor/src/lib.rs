//! Arrays of f32 in host memory, and the kernels of neural networks with their backward passes.
//!
//! Kernels work on slices, row after row, and write into buffers they are given; [`Workspace`]
//! keeps those between steps. A batch is *packed*: the rows of all examples lie end to end, and
//! `offsets` says where each example begins. No kernel lets one example's numbers reach another's.
//!
//! Sides that do not fit are a programmer's mistake and panic. Numbers never panic: NaN goes in,
//! NaN comes out, in its own example only.

pub mod activation;
pub mod attention;
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
