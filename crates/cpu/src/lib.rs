//! The CPU engine: how a model is computed on host memory.
//!
//! A [`Network`] runs a [`Graph`](model::Graph). One forward and one backward pass over a packed
//! micro-batch leave activations and output gradients behind, from which [`rule`](GradientForm)
//! computes every example's norms and, once the weights are known, the weighted sum. No per-example
//! gradient of a matrix is ever materialized (book-keeping: Bu et al. 2023).
//!
//! | to find | look in |
//! |---|---|
//! | the engine | [`Network`], [`Cpu`] |
//! | layers, and how to add one from outside | [`Layer`], [`custom`] |
//! | what a layer reads and writes | [`Pass`] |
//! | how norms and sums follow from a layer's form | [`GradientForm`] |

#![forbid(unsafe_code)]

mod batch;
mod decoder;
mod engine;
mod gradients;
mod layer;
mod network;
mod pass;
mod plan;
mod probe_examples;
mod recompute;
mod rule;

pub use decoder::Decoder;
pub use layer::{BatchShape, Layer, custom};
pub use network::{Cpu, Network};
pub use pass::Pass;
pub use rule::{GradientForm, NormMethod};
pub use tensor::matmul::OutputMode;
