//! Model definitions: graphs of operations, architectures, and Hugging Face checkpoints.
//!
//! A [`Graph`] describes a model as data. A [`Builder`] or an [`hf::Architecture`] makes it. The
//! graph states which operations are computed; a [`Device`] turns it into a [`Network`], which
//! computes them.
//!
//! | to find | look in |
//! |---|---|
//! | graphs: parameters, values, operations | [`Graph`], [`op`] |
//! | layers by name: linear, embedding, norm, attention, convolution | [`Builder`], [`Linear`] |
//! | GPT-2, Llama, BERT, CNN, MLP | [`hf::Architecture`], [`Cnn`], [`Mlp`], [`Preset`] |
//! | checkpoints on disk | [`Checkpoint`], [`hf`] |
//! | models on a device | [`Network`], [`Decoder`], [`Device`] |

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
pub use builder::{Builder, Linear, LinearLayer};
pub use checkpoint::{Checkpoint, NewHead, is_head};
pub use error::Error;
pub use graph::{
    Graph, Init, InputShape, Loss, Param, ParamSpec, Reduction, Space, Value, ValueShape,
};
pub use lora::Lora;
pub use lora::LowRankAdapter;
pub use network::{Activations, Decoder, Device, Network};
pub use op::Order;
pub use preset::Preset;
pub use tensor::pooling::Pool as Pooling;
pub use tensor::{activation, attention, norm, patches, rope};
