//! GPT-2's configuration.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::key::{Check, Keys, MOST_LAYERS, decimal};
use crate::Error;

/// The shape of a GPT-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Tokens.
    pub vocab: usize,
    /// The longest text.
    pub positions: usize,
    /// Numbers that stand for a token.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Width of the inner layer of a block's perceptron.
    pub inner: usize,
    /// The perceptron's activation.
    pub activation: Activation,
    /// What layer normalisation adds to the variance.
    pub epsilon: f32,
    /// Whether the output layer is the token embedding.
    pub tied: bool,
}

impl Gpt2Config {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        keys.off("scale_attn_by_inverse_layer_idx")?;
        keys.off("add_cross_attention")?;
        if keys.switch("scale_attn_weights")? == Some(false) {
            return Err(keys.wrong("scale_attn_weights", "true"));
        }
        let width = keys.count("n_embd")?;
        let config = Self {
            vocab: keys.count("vocab_size")?,
            positions: keys.count("n_positions")?,
            width,
            layers: keys.count("n_layer")?,
            heads: keys.count("n_head")?,
            inner: keys.count_or("n_inner", width.saturating_mul(4))?,
            activation: keys.activation("activation_function")?,
            epsilon: keys.number("layer_norm_epsilon")? as f32,
            tied: keys.switch("tie_word_embeddings")?.unwrap_or(true),
        };
        config.check(keys.path)?;
        Ok(config)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, width, layers, heads, inner, .. } = self;
        let check = Check { path };
        check.sides(&[
            ("vocab_size", vocab),
            ("n_positions", positions),
            ("n_embd", width),
            ("n_head", heads),
            ("n_inner", inner),
        ])?;
        check.between("n_layer", layers, MOST_LAYERS)?;
        check.divides("n_head", heads, width, "n_embd")?;
        check.epsilon("layer_norm_epsilon", self.epsilon)?;
        let heads_out = if self.tied { 1 } else { 2 };
        check.numbers(&[
            [heads_out, vocab, width],
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
