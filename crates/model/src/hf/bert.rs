//! BERT's configuration.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::key::{Check, Keys, MOST_LAYERS, decimal};
use crate::Error;

/// The most classes: each has a name in the file.
const MOST_LABELS: usize = 1 << 16;

/// The shape of a BERT that classifies texts. A checkpoint may lack the classifier itself.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Tokens.
    pub vocab: usize,
    /// The longest text.
    pub positions: usize,
    /// Types of tokens: of the first text, of the second.
    pub types: usize,
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
    /// Classes.
    pub labels: usize,
}

impl BertConfig {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        keys.off("is_decoder")?;
        keys.off("add_cross_attention")?;
        if keys.text("position_embedding_type")?.is_some_and(|kind| kind != "absolute") {
            return Err(keys.wrong("position_embedding_type", "absolute"));
        }
        let names = keys.object("id2label")?.map(Map::len);
        let labels = keys.count_or("num_labels", names.unwrap_or(2))?;
        if let Some(names) = names
            && names != labels
        {
            return Err(
                keys.wrong("num_labels", format!("as many as id2label has names ({names})"))
            );
        }
        let config = Self {
            vocab: keys.count("vocab_size")?,
            positions: keys.count("max_position_embeddings")?,
            types: keys.count("type_vocab_size")?,
            width: keys.count("hidden_size")?,
            layers: keys.count("num_hidden_layers")?,
            heads: keys.count("num_attention_heads")?,
            inner: keys.count("intermediate_size")?,
            activation: keys.activation("hidden_act")?,
            epsilon: keys.number("layer_norm_eps")? as f32,
            labels,
        };
        config.check(keys.path)?;
        Ok(config)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, types, width, layers, heads, inner, labels, .. } = self;
        let check = Check { path };
        check.sides(&[
            ("vocab_size", vocab),
            ("max_position_embeddings", positions),
            ("type_vocab_size", types),
            ("hidden_size", width),
            ("num_attention_heads", heads),
            ("intermediate_size", inner),
        ])?;
        check.between("num_labels", labels, MOST_LABELS)?;
        check.between("num_hidden_layers", layers, MOST_LAYERS)?;
        check.divides("num_attention_heads", heads, width, "hidden_size")?;
        check.epsilon("layer_norm_eps", self.epsilon)?;
        check.numbers(&[
            [1, vocab + positions + types, width],
            [1, width + labels, width],
            [4 * layers, width, width],
            [2 * layers, width, inner],
        ])
    }

    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        activation::write(map, "hidden_act", self.activation);
        // The names of the classes say how many there are.
        map.remove("num_labels");
        map.remove("_num_labels");
        if map.get("id2label").and_then(Value::as_object).map(Map::len) != Some(self.labels) {
            let names = (0..self.labels)
                .map(|label| (label.to_string(), Value::from(format!("LABEL_{label}"))))
                .collect();
            let numbers = (0..self.labels)
                .map(|label| (format!("LABEL_{label}"), Value::from(label)))
                .collect();
            map.insert("id2label".into(), Value::Object(names));
            map.insert("label2id".into(), Value::Object(numbers));
        }
        let ours = json!({
            "architectures": ["BertForSequenceClassification"],
            "model_type": "bert",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "type_vocab_size": self.types,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "layer_norm_eps": decimal(self.epsilon),
            "is_decoder": false,
            "add_cross_attention": false,
            "attention_probs_dropout_prob": 0.0,
            "classifier_dropout": null,
            "hidden_dropout_prob": 0.0,
        });
        if let Value::Object(ours) = ours {
            map.extend(ours);
        }
    }
}
