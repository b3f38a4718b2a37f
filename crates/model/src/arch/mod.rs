//! Models, layer by layer, with the names that Hugging Face checkpoints give their tensors.

mod bert;
mod cnn;
mod gpt2;
mod llama;
mod mlp;

pub use cnn::Cnn;
pub use mlp::Mlp;

use crate::builder::Lora;
use crate::graph::Graph;
use crate::hf::Architecture;

impl Architecture {
    /// The model, with low-rank adapters if wanted.
    pub fn graph(&self, lora: Option<Lora>) -> Graph {
        match self {
            Self::Gpt2(config) => gpt2::graph(config, lora),
            Self::Llama(config) => llama::graph(config, lora),
            Self::Bert(config) => bert::graph(config, lora),
            // It has no maps wide enough to be worth a low-rank addition.
            Self::Cnn(config) => config.graph(),
        }
    }
}
