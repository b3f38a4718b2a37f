//! Layers and models, and for each layer its per-example norm and clipped sum.
//!
//! A [`Graph`] is a model as data, made by a [`Builder`]. A [`Network`] runs it: one forward and
//! one backward pass over a packed micro-batch leave activations and output gradients behind, from
//! which `rule` finds every example's norms and, once the weights are known, the weighted sum. No
//! per-example gradient is ever made. [`Engine`] is all that a curator sees of it.

pub mod hf;

mod arch;
mod batch;
mod builder;
mod checkpoint;
mod decoder;
mod engine;
mod error;
mod example;
mod gradients;
mod graph;
mod init;
mod layer;
mod lora;
mod network;
mod plan;
mod preset;
mod probe;
mod recompute;
mod rule;
mod run;
mod sum;

pub use arch::{Cnn, Mlp};
pub use builder::{Builder, Lora, Map};
pub use checkpoint::Checkpoint;
pub use decoder::Decoder;
pub use engine::{Engine, Isolation, Observed, Weights};
pub use error::Error;
pub use example::{Example, Input, Target};
pub use graph::{Graph, Init, Intake, Param, Reduction, Space, Spec, Value};
pub use layer::Order;
pub use lora::Pair;
pub use network::{Memory, Network};
pub use preset::Preset;
pub use probe::{isolated, probe};
pub use rule::NormMethod;
pub use sum::{Accumulator, StepScale, Sum};
pub use tensor::pooling::Pool as Pooling;
pub use tensor::{activation, attention, norm, patches, rope};
