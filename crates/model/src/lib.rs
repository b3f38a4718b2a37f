//! What a model is: a graph of operations, architectures, and checkpoints in the Hugging Face layout.
//!
//! A [`Graph`] is a model as data, made by a [`Builder`] or an [`hf::Architecture`]. It says what is
//! computed; a [`Device`] says how, and makes a [`Network`] of it.
//!
//! | to find | look in |
//! |---|---|
//! | graphs: parameters, values, operations | [`Graph`], [`op`] |
//! | layers by name: linear, embedding, norm, attention, convolution | [`Builder`], [`Linear`] |
//! | GPT-2, Llama, BERT, CNN, MLP | [`hf::Architecture`], [`Cnn`], [`Mlp`], [`Preset`] |
//! | checkpoints on disk | [`Checkpoint`], [`hf`] |
//! | what a model on a device can do | [`Network`], [`Decoder`], [`Device`] |

pub mod hf;
pub mod op;

mod arch;
mod builder;
mod checkpoint;
mod error;
mod graph;
mod init;
mod lora;
mod network;
mod preset;

pub use arch::{Cnn, Mlp};
pub use builder::{Builder, Linear, LinearLayer, Lora};
pub use checkpoint::Checkpoint;
pub use error::Error;
pub use graph::{Graph, Init, InputShape, Param, ParamSpec, Reduction, Space, Value, ValueShape};
pub use lora::LowRankPair;
pub use network::{Activations, Decoder, Device, Network};
pub use op::Order;
pub use preset::Preset;
pub use tensor::pooling::Pool as Pooling;
pub use tensor::{activation, attention, norm, patches, rope};
