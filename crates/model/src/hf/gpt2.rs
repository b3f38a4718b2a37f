//! Configuration of GPT-2.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::keys::{Check, Keys, MAX_LAYERS, decimal};
use crate::Error;

/// Hyperparameters of GPT-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Largest number of tokens of a text.
    pub positions: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Number of attention heads of a block.
    pub heads: usize,
    /// Width of the hidden layer of a block's MLP.
    pub inner: usize,
    /// Activation function of the MLP.
    pub activation: Activation,
    /// Term added to the variance in layer normalization.
    pub epsilon: f32,
    /// Whether the head is tied to the token embedding.
    pub tied: bool,
}

impl Gpt2Config {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        keys.require_false("scale_attn_by_inverse_layer_idx")?;
        keys.require_false("add_cross_attention")?;
        if keys.boolean("scale_attn_weights")? == Some(false) {
            return Err(keys.invalid("scale_attn_weights", "true"));
        }
        let width = keys.integer("n_embd")?;
        let config = Self {
            vocab: keys.integer("vocab_size")?,
            positions: keys.integer("n_positions")?,
            width,
            layers: keys.integer("n_layer")?,
            heads: keys.integer("n_head")?,
            inner: keys.integer_or("n_inner", width.saturating_mul(4))?,
            activation: keys.activation("activation_function")?,
            epsilon: keys.number("layer_norm_epsilon")? as f32,
            tied: keys.boolean("tie_word_embeddings")?.unwrap_or(true),
        };
        config.check(keys.path)?;
        Ok(config)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, width, layers, heads, inner, .. } = self;
        let check = Check { path };
        check.dimensions(&[
            ("vocab_size", vocab),
            ("n_positions", positions),
            ("n_embd", width),
            ("n_head", heads),
            ("n_inner", inner),
        ])?;
        check.in_range("n_layer", layers, MAX_LAYERS)?;
        check.divides("n_head", heads, width, "n_embd")?;
        check.epsilon("layer_norm_epsilon", self.epsilon)?;
        let tables = if self.tied { 1 } else { 2 };
        check.parameter_count(&[
            [tables, vocab, width],
            [1, positions, width],
            [4 * layers, width, width],
            [2 * layers, width, inner],
        ])
    }

    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        activation::write(map, "activation_function", self.activation);
        let ours = json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocab,
            "n_positions": self.positions,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.inner,
            "layer_norm_epsilon": decimal(self.epsilon),
            "tie_word_embeddings": self.tied,
            "scale_attn_weights": true,
            "scale_attn_by_inverse_layer_idx": false,
            "add_cross_attention": false,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        });
        if let Value::Object(ours) = ours {
            map.extend(ours);
        }
    }
}
