//! Configuration of Llama, SmolLM2 and, without sliding-window attention, Mistral.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::keys::{Check, Keys, MAX_LAYERS, decimal};
use super::rope::RopeConfig;
use crate::Error;

/// Hyperparameters of Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
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
    /// Number of key and value heads; each is shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the hidden layer of a block's MLP.
    pub inner: usize,
    /// Term added to the mean square in RMS normalization.
    pub epsilon: f32,
    /// Rotary position embeddings.
    pub rope: RopeConfig,
    /// Whether the head is tied to the token embedding.
    pub tied: bool,
    /// Whether the four linear layers of attention have a bias.
    pub attention_bias: bool,
    /// Whether the three linear layers of the MLP have a bias.
    pub mlp_bias: bool,
}

impl LlamaConfig {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        if keys.activation("hidden_act")? != Activation::Silu {
            return Err(keys.invalid("hidden_act", "silu"));
        }
        keys.require_empty("sliding_window")?;
        keys.require_false("use_sliding_window")?;
        let full = |layer: &Value| layer == "full_attention";
        if keys
            .get("layer_types")
            .is_some_and(|types| !types.as_array().is_some_and(|types| types.iter().all(full)))
        {
            return Err(keys.invalid("layer_types", "full_attention for all layers"));
        }
        let (width, heads) = (keys.integer("hidden_size")?, keys.integer("num_attention_heads")?);
        let config = Self {
            vocab: keys.integer("vocab_size")?,
            positions: keys.integer("max_position_embeddings")?,
            width,
            layers: keys.integer("num_hidden_layers")?,
            heads,
            kv_heads: keys.integer_or("num_key_value_heads", heads)?,
            head_dim: keys.integer_or("head_dim", width.checked_div(heads).unwrap_or(0))?,
            inner: keys.integer("intermediate_size")?,
            epsilon: keys.number("rms_norm_eps")? as f32,
            rope: RopeConfig::parse(keys)?,
            tied: keys.boolean("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: keys.boolean("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.boolean("mlp_bias")?.unwrap_or(false),
        };
        config.check(keys.path)?;
        Ok(config)
    }

    /// Parses the configuration of Mistral.
    ///
    /// Its defaults differ from those of Llama: a window of 4096 tokens and 8 key and value heads.
    /// Those keys must therefore be present. It has no biases.
    pub(super) fn parse_mistral(keys: Keys<'_>) -> Result<Self, Error> {
        if !keys.map.contains_key("sliding_window") {
            return Err(keys.invalid("sliding_window", "null"));
        }
        if !keys.map.contains_key("num_key_value_heads") {
            return Err(keys.missing("num_key_value_heads"));
        }
        keys.require_false("attention_bias")?;
        keys.require_false("mlp_bias")?;
        Self::parse(keys)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, width, layers, heads, kv_heads, head_dim, inner, .. } = self;
        let check = Check { path };
        check.dimensions(&[
            ("vocab_size", vocab),
            ("max_position_embeddings", positions),
            ("hidden_size", width),
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
            ("intermediate_size", inner),
            ("head_dim", head_dim),
        ])?;
        check.in_range("num_hidden_layers", layers, MAX_LAYERS)?;
        check.divides("num_attention_heads", heads, width, "hidden_size")?;
        check.divides("num_key_value_heads", kv_heads, heads, "num_attention_heads")?;
        check.require(
            head_dim.is_multiple_of(2),
            "head_dim",
            "even, for rotary position embeddings",
            head_dim,
        )?;
        // The product does not overflow: both factors are at most 2^24.
        check.dimensions(&[("head_dim × num_attention_heads", head_dim * heads)])?;
        check.epsilon("rms_norm_eps", self.epsilon)?;
        self.rope.check(path)?;
        let tables = if self.tied { 1 } else { 2 };
        check.parameter_count(&[
            [tables, vocab, width],
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
