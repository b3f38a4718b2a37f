//! The Hugging Face layout: a directory with `config.json`, `model.safetensors` (or shards and
//! their index) and the tokenizer's files.
//!
//! What is read may come from anywhere. Everything is checked before it is used, nothing is
//! guessed, and what a model cannot do is refused rather than left out: [`Weights::all_used`]
//! exists because a parameter that is dropped in silence is a model that is wrong in silence.
//!
//! * [`Config`] — the shape of a model, from `config.json` and back
//! * [`Weights`] — the numbers
//! * [`save()`] — writes a directory that `transformers` loads
//! * [`append_mean_row`] — makes room for a `[PAD]` token

mod activation;
mod bert;
mod buffer;
mod cnn;
mod config;
mod embedding;
mod gpt2;
mod header;
mod index;
mod key;
mod llama;
mod mapped;
mod number;
mod rope;
mod save;
mod staging;
mod text;
mod unique;
mod weights;

pub use bert::BertConfig;
pub use config::{Architecture, Config};
pub use embedding::append_mean_row;
pub use gpt2::Gpt2Config;
pub use llama::LlamaConfig;
pub use number::Dtype;
pub use rope::{Rope, RopeScaling};
pub use save::{Existing, SaveOptions, save};
pub use tensor::activation::Activation;
pub use weights::Weights;
