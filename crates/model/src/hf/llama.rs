//! The configuration of Llama, of SmolLM2, which is one, and of Mistral, which is one when its
//! window is open.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::key::{Check, Keys, MOST_LAYERS, decimal};
use super::rope::Rope;
use crate::Error;

/// The shape of a Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
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
    /// Heads of keys and values; each serves `heads / kv_heads` heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the inner layer of a block's perceptron.
    pub inner: usize,
    /// What RMS normalisation adds to the mean square.
    pub epsilon: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// Whether the output layer is the token embedding.
    pub tied: bool,
    /// Whether the four layers of attention have a bias.
    pub attention_bias: bool,
    /// Whether the three layers of the perceptron have a bias.
    pub mlp_bias: bool,
}

impl LlamaConfig {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        if keys.activation("hidden_act")? != Activation::Silu {
            return Err(keys.wrong("hidden_act", "silu"));
        }
        keys.absent("sliding_window")?;
        keys.off("use_sliding_window")?;
        let plain = |layer: &Value| layer == "full_attention";
        if keys
            .get("layer_types")
            .is_some_and(|types| !types.as_array().is_some_and(|types| types.iter().all(plain)))
        {
            return Err(keys.wrong("layer_types", "full_attention throughout"));
        }
        let (width, heads) = (keys.count("hidden_size")?, keys.count("num_attention_heads")?);
        let config = Self {
            vocab: keys.count("vocab_size")?,
            positions: keys.count("max_position_embeddings")?,
            width,
            layers: keys.count("num_hidden_layers")?,
            heads,
            kv_heads: keys.count_or("num_key_value_heads", heads)?,
            head_dim: keys.count_or("head_dim", width.checked_div(heads).unwrap_or(0))?,
            inner: keys.count("intermediate_size")?,
            epsilon: keys.number("rms_norm_eps")? as f32,
            rope: Rope::parse(keys)?,
            tied: keys.switch("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: keys.switch("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.switch("mlp_bias")?.unwrap_or(false),
        };
        config.check(keys.path)?;
        Ok(config)
    }

    /// Mistral, whose defaults are others: a window of 4096 tokens, eight heads of keys and values.
    /// It has no biases.
    pub(super) fn parse_mistral(keys: Keys<'_>) -> Result<Self, Error> {
        if !keys.map.contains_key("sliding_window") {
            return Err(keys.wrong("sliding_window", "null"));
        }
        if !keys.map.contains_key("num_key_value_heads") {
            return Err(keys.missing("num_key_value_heads"));
        }
        keys.off("attention_bias")?;
        keys.off("mlp_bias")?;
        Self::parse(keys)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, width, layers, heads, kv_heads, head_dim, inner, .. } = self;
        let check = Check { path };
        check.sides(&[
            ("vocab_size", vocab),
            ("max_position_embeddings", positions),
            ("hidden_size", width),
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
            ("intermediate_size", inner),
            ("head_dim", head_dim),
        ])?;
        check.between("num_hidden_layers", layers, MOST_LAYERS)?;
        check.divides("num_attention_heads", heads, width, "hidden_size")?;
        check.divides("num_key_value_heads", kv_heads, heads, "num_attention_heads")?;
        check.holds(
            head_dim.is_multiple_of(2),
            "head_dim",
            "even, for rotary positions",
            head_dim,
        )?;
        // Both are at most 2^24.
        check.sides(&[("head_dim × num_attention_heads", head_dim * heads)])?;
        check.epsilon("rms_norm_eps", self.epsilon)?;
        self.rope.check(path)?;
        let heads_out = if self.tied { 1 } else { 2 };
        check.numbers(&[
            [heads_out, vocab, width],
            [2 * layers, width, (heads + kv_heads) * head_dim],
            [3 * layers, width, inner],
        ])
    }

    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        let mistral = map.get("model_type").is_some_and(|kind| kind == "mistral")
            && !self.attention_bias
            && !self.mlp_bias;
        if mistral {
            map.insert("architectures".into(), json!(["MistralForCausalLM"]));
            map.insert("sliding_window".into(), Value::Null);
        } else {
            map.insert("architectures".into(), json!(["LlamaForCausalLM"]));
            map.insert("model_type".into(), "llama".into());
            map.insert("attention_bias".into(), self.attention_bias.into());
            map.insert("mlp_bias".into(), self.mlp_bias.into());
        }
        activation::write(map, "hidden_act", Activation::Silu);
        self.rope.write(map);
        let ours = json!({
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.inner,
            "rms_norm_eps": decimal(self.epsilon),
            "tie_word_embeddings": self.tied,
            "attention_dropout": 0.0,
        });
        if let Value::Object(ours) = ours {
            map.extend(ours);
        }
    }
}
