//! The CPU engine: computes models and per-example gradient norms in host memory.
//!
//! A [`Network`] computes a [`Graph`](model::Graph). One forward and one backward pass over a
//! packed micro-batch produce activations and output gradients. From these, the module `rule`
//! computes the norms of every example's gradient and, when the weights are known, the weighted
//! sum. No per-example gradient of a matrix is materialized as a whole (book-keeping: Bu et al.
//! 2023).
//!
//! | to find | look in |
//! |---|---|
//! | the engine | [`Network`], [`Cpu`] |
//! | layers, and custom layers | [`Layer`], [`custom`] |
//! | the buffers that a layer reads and writes | [`Pass`] |
//! | the form of per-example gradients | [`GradientForm`] |
//! | methods to compute norms | [`NormMethod`] |

#![forbid(unsafe_code)]

mod batch;
mod decoder;
mod engine;
mod gradients;
mod layer;
mod loss;
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
