//! The public pretrained model that the program contains.
//!
//! A GPT-2 of 4 layers and width 64, which puts rows of tables into words. It was trained without
//! privacy on generated text, which is public, by `peers/pretrain.py`. The text has other names,
//! places and sentences than the embedded corpus ([`corpus`](super::corpus)).

use crate::Error;
use model::hf::{Config, Weights};
use model::{Checkpoint, Lora};
use std::path::Path;
use text::Tokenizer;

/// The value of `model.source` for this model.
pub(crate) const NAME: &str = "embedded";

/// Loads the model, with new low-rank adapters if these are requested.
pub(super) fn checkpoint(lora: Option<Lora>, seed: u64) -> Result<Checkpoint, Error> {
    let config = Config::parse(include_bytes!("embedded/config.json"), NAME)?;
    let bytes = include_bytes!("embedded/model.safetensors").to_vec();
    let weights = Weights::from_bytes(bytes, NAME)?;
    Ok(Checkpoint::from_weights(config, &weights, lora, seed, None)?)
}

/// Loads the tokenizer of the model.
pub(super) fn tokenizer() -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_bytes(include_bytes!("embedded/tokenizer.json"), Path::new(NAME))?)
}
