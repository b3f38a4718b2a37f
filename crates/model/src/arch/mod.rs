//! Graphs of the supported architectures, with the tensor names of Hugging Face checkpoints.

mod bert;
mod cnn;
mod gpt2;
mod llama;
mod mlp;

pub use cnn::Cnn;
pub use mlp::Mlp;

use crate::graph::Graph;
use crate::hf::Architecture;
use crate::lora::Lora;

impl Architecture {
    /// Builds the graph, with low-rank adapters if `lora` is given.
    pub fn graph(&self, lora: Option<Lora>) -> Graph {
        match self {
            Self::Gpt2(config) => gpt2::graph(config, lora),
            Self::Llama(config) => llama::graph(config, lora),
            Self::Bert(config) => bert::graph(config, lora),
            // Its layers are too narrow to benefit from low-rank adapters.
            Self::Cnn(config) => config.graph(),
        }
    }
}
