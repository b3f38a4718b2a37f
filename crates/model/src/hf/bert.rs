//! Configuration of BERT.

use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::activation::Activation;

use super::activation;
use super::json_file;
use super::keys::{Check, Keys, MAX_LAYERS, decimal};
use crate::Error;

/// The key of [`Pooling`], with the values of ModernBERT.
const POOLING: &str = "classifier_pooling";

/// Where the package `sentence-transformers` states how a base model is pooled.
const POOLING_FILE: &str = "1_Pooling/config.json";

/// Largest number of classes. Each has a name in the file.
const MAX_LABELS: usize = 1 << 16;

/// How the tokens of a text become the input of the classification head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The first token, through the pooler: a dense layer with tanh.
    #[default]
    FirstToken,
    /// The mean of all tokens: for models that are trained to give embeddings of sentences.
    Mean,
}

/// Hyperparameters of BERT with a classification head.
///
/// A checkpoint may lack the classification head.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Largest number of tokens of a text.
    pub positions: usize,
    /// Number of token types, such as first and second segment.
    pub types: usize,
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
    /// Number of classes.
    pub labels: usize,
    /// The input of the classification head.
    pub pooling: Pooling,
}

impl BertConfig {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Self, Error> {
        keys.require_false("is_decoder")?;
        keys.require_false("add_cross_attention")?;
        if keys.string("position_embedding_type")?.is_some_and(|kind| kind != "absolute") {
            return Err(keys.invalid("position_embedding_type", "absolute"));
        }
        let names = keys.object("id2label")?.map(Map::len);
        let labels = keys.integer_or("num_labels", names.unwrap_or(2))?;
        if let Some(names) = names
            && names != labels
        {
            return Err(
                keys.invalid("num_labels", format!("equal to the size of id2label ({names})"))
            );
        }
        let config = Self {
            vocab: keys.integer("vocab_size")?,
            positions: keys.integer("max_position_embeddings")?,
            types: keys.integer("type_vocab_size")?,
            width: keys.integer("hidden_size")?,
            layers: keys.integer("num_hidden_layers")?,
            heads: keys.integer("num_attention_heads")?,
            inner: keys.integer("intermediate_size")?,
            activation: keys.activation("hidden_act")?,
            epsilon: keys.number("layer_norm_eps")? as f32,
            labels,
            pooling: parse_pooling(keys)?,
        };
        config.check(keys.path)?;
        Ok(config)
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), Error> {
        let &Self { vocab, positions, types, width, layers, heads, inner, labels, .. } = self;
        let check = Check { path };
        check.dimensions(&[
            ("vocab_size", vocab),
            ("max_position_embeddings", positions),
            ("type_vocab_size", types),
            ("hidden_size", width),
            ("num_attention_heads", heads),
            ("intermediate_size", inner),
        ])?;
        check.in_range("num_labels", labels, MAX_LABELS)?;
        check.in_range("num_hidden_layers", layers, MAX_LAYERS)?;
        check.divides("num_attention_heads", heads, width, "hidden_size")?;
        check.epsilon("layer_norm_eps", self.epsilon)?;
        check.parameter_count(&[
            [1, vocab + positions + types, width],
            [1, width + labels, width],
            [4 * layers, width, width],
            [2 * layers, width, inner],
        ])
    }

    pub(super) fn write(&self, map: &mut Map<String, Value>) {
        activation::write(map, "hidden_act", self.activation);
        // The number of classes is the size of `id2label`.
        map.remove("num_labels");
        map.remove("_num_labels");
        if map.get("id2label").and_then(Value::as_object).map(Map::len) != Some(self.labels) {
            let names = (0..self.labels)
                .map(|label| (label.to_string(), Value::from(format!("LABEL_{label}"))))
                .collect();
            let ids = (0..self.labels)
                .map(|label| (format!("LABEL_{label}"), Value::from(label)))
                .collect();
            map.insert("id2label".into(), Value::Object(names));
            map.insert("label2id".into(), Value::Object(ids));
        }
        // `transformers` has no class for a classifier of the mean of all tokens.
        let (class, pooling) = match self.pooling {
            Pooling::FirstToken => ("BertForSequenceClassification", None),
            Pooling::Mean => ("BertModel", Some("mean")),
        };
        map.remove(POOLING);
        map.extend(pooling.map(|pooling| (POOLING.into(), pooling.into())));
        let ours = json!({
            "architectures": [class],
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

fn parse_pooling(keys: Keys<'_>) -> Result<Pooling, Error> {
    match keys.string(POOLING)? {
        None | Some("cls") => Ok(Pooling::FirstToken),
        Some("mean") => Ok(Pooling::Mean),
        Some(_) => Err(keys.invalid(POOLING, "cls or mean")),
    }
}

/// Returns the pooling that a folder of `sentence-transformers` states for a base model.
///
/// `None` if `config.json` states it, is that of a classifier, or if there is no such file.
///
/// # Errors
/// If the file cannot be read or states another pooling.
pub(super) fn stated_pooling(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<Option<Pooling>, Error> {
    let path = dir.join(POOLING_FILE);
    let classes = config.get("architectures").and_then(Value::as_array);
    let is_base = classes.is_none_or(|all| all.iter().all(|class| class == "BertModel"));
    if config.contains_key(POOLING) || !is_base || !path.exists() {
        return Ok(None);
    }
    let modes: Map<String, Value> = serde_json::from_slice(&json_file::read(&path)?)
        .map_err(|error| Error::malformed(&path, format!("expected a JSON object: {error}")))?;
    let chosen: Vec<&str> = modes
        .iter()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(key, _)| key.as_str())
        .collect();
    match chosen[..] {
        ["pooling_mode_mean_tokens"] => Ok(Some(Pooling::Mean)),
        ["pooling_mode_cls_token"] => Ok(Some(Pooling::FirstToken)),
        _ => Err(Error::malformed(
            &path,
            format!(
                "expected pooling_mode_mean_tokens or pooling_mode_cls_token alone, got \
                 {chosen:?}; remove the file to classify by the first token"
            ),
        )),
    }
}
