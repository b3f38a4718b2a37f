//! The Hugging Face layout: a directory with `config.json`, `model.safetensors` (or shards and
//! their index) and the tokenizer's files.
//!
//! Files are untrusted: everything is checked before it is used, and nothing is guessed. A setting
//! or a tensor that the model does not support is an error; it is never ignored
//! ([`Weights::check_all_used`]).
//!
//! * [`Config`]: hyperparameters of a model, read from and written to `config.json`
//! * [`Weights`]: tensors of a model, read from safetensors files
//! * [`save()`]: writes a directory that `transformers` can load
//! * [`save_adapter`]: writes low-rank adapters that the Python package PEFT can load
//! * [`append_mean_row`]: adds a row for a `[PAD]` token to a table

mod activation;
mod bert;
mod buffer;
mod cnn;
mod config;
mod dtype;
mod embedding;
mod gpt2;
mod header;
mod index;
mod json_file;
mod keys;
mod llama;
mod mapped;
mod peft;
mod rope;
mod save;
mod staging;
mod tensor_map;
mod weights;

pub use bert::{BertConfig, Pooling};
pub use config::{Architecture, Config};
pub use dtype::Dtype;
pub use embedding::append_mean_row;
pub use gpt2::Gpt2Config;
pub use llama::LlamaConfig;
pub use peft::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, save_adapter};
pub use rope::{RopeConfig, RopeScaling};
pub use save::{ExistingModel, SaveOptions, save};
pub use tensor::activation::Activation;
pub use weights::Weights;
