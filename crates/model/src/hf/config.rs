//! `config.json`: the architecture of a model and its hyperparameters.
//!
//! Keys that affect the computation must be present and supported. Keys that were introduced later
//! than the architecture may be absent; they then have the default of `transformers`. Keys that are
//! not read are retained and written back.

use std::path::Path;

use serde_json::{Map, Value};

use super::keys::Keys;
use super::{BertConfig, Dtype, Gpt2Config, LlamaConfig, bert, cnn, json_file};
use crate::graph::{Graph, Loss};
use crate::lora::Lora;
use crate::{Cnn, Error};

/// Name of the file.
pub(super) const FILE: &str = "config.json";

/// A model's configuration.
///
/// ```
/// use model::hf::Config;
///
/// let text = br#"{
///     "model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 128,
///     "vocab_size": 512, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5
/// }"#;
/// let config = Config::parse(text, "config.json")?;
/// assert!(matches!(config.architecture, model::hf::Architecture::Gpt2(_)));
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Architecture and hyperparameters.
    pub architecture: Architecture,
    /// The loss of a model with a classification head, `problem_type` in the file.
    ///
    /// That of a language model is [`Loss::CrossEntropy`].
    pub loss: Loss,
    /// All keys of the file, including those that are not read, such as ids of special tokens.
    ///
    /// They are written back; keys that `architecture` determines take precedence.
    pub other_keys: Map<String, Value>,
}

/// A supported architecture, with its hyperparameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// Llama, SmolLM2 and Mistral.
    Llama(LlamaConfig),
    /// BERT.
    Bert(BertConfig),
    /// A small convolutional network, which `transformers` does not have.
    Cnn(Cnn),
}

/// `model_type`, and the prefix of the class names in `architectures`.
const MODEL_TYPES: [(&str, &str); 5] = [
    ("gpt2", "GPT2"),
    ("llama", "Llama"),
    ("mistral", "Mistral"),
    ("bert", "Bert"),
    (cnn::MODEL_TYPE, "MuffleCnn"),
];

impl Config {
    /// Creates a configuration without special tokens.
    pub fn new(architecture: Architecture) -> Self {
        let no_tokens = ["bos_token_id", "eos_token_id", "pad_token_id"]
            .map(|key| (key.to_string(), Value::Null));
        let other_keys = no_tokens.into_iter().collect();
        Self { architecture, loss: Loss::CrossEntropy, other_keys }
    }

    /// Reads a `config.json`; `path` is the file or the directory of the model.
    ///
    /// # Errors
    /// If the file cannot be read or is not JSON, if a key is missing or invalid, or if the model
    /// is not supported.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let path = if path.is_dir() { path.join(FILE) } else { path.into() };
        let mut config = Self::parse(&json_file::read(&path)?, &path)?;
        if let Architecture::Bert(model) = &mut config.architecture
            && let Some(dir) = path.parent()
            && let Some(pooling) = bert::stated_pooling(dir, &config.other_keys)?
        {
            model.pooling = pooling;
        }
        Ok(config)
    }

    /// Parses the text of a `config.json`; `path` is used in errors.
    ///
    /// # Errors
    /// As for [`Config::read`].
    pub fn parse(text: &[u8], path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let map: Map<String, Value> = serde_json::from_slice(text)
            .map_err(|error| Error::malformed(path, format!("expected a JSON object: {error}")))?;
        let keys = Keys { path, map: &map, prefix: "" };
        let model_type = model_type(keys)?;
        keys.require_false("is_encoder_decoder")?;
        keys.require_empty("pruned_heads")?;
        keys.require_empty("quantization_config")?;
        let architecture = match model_type {
            "gpt2" => Architecture::Gpt2(Gpt2Config::parse(keys)?),
            "mistral" => Architecture::Llama(LlamaConfig::parse_mistral(keys)?),
            "bert" => Architecture::Bert(BertConfig::parse(keys)?),
            cnn::MODEL_TYPE => Architecture::Cnn(cnn::parse(keys)?),
            _ => Architecture::Llama(LlamaConfig::parse(keys)?),
        };
        let loss = parse_loss(keys, &architecture)?;
        Ok(Self { architecture, loss, other_keys: map })
    }

    /// Returns the text of a `config.json` that describes the same model for `transformers`.
    ///
    /// Weights have type `dtype`. Dropout, which is not supported, is 0.
    pub fn to_json(&self, dtype: Dtype) -> String {
        let mut map = self.other_keys.clone();
        match &self.architecture {
            Architecture::Gpt2(config) => config.write(&mut map),
            Architecture::Llama(config) => config.write(&mut map),
            Architecture::Bert(config) => config.write(&mut map),
            Architecture::Cnn(config) => cnn::write(config, &mut map),
        }
        let is_stated = map.get(PROBLEM_TYPE).is_some_and(|stated| !stated.is_null());
        if let Some(outputs) = self.architecture.head_outputs()
            && (is_stated || self.loss != Loss::CrossEntropy || outputs == 1)
        {
            map.insert(PROBLEM_TYPE.into(), problem_type(self.loss).into());
        }
        // The key is `dtype` since transformers 5, and `torch_dtype` before.
        for key in ["dtype", "torch_dtype"] {
            map.insert(key.into(), dtype.name().into());
        }
        format!("{:#}\n", Value::Object(map))
    }
}

impl Config {
    /// Builds the graph, with low-rank adapters if `lora` is given.
    pub fn graph(&self, lora: Option<Lora>) -> Graph {
        self.architecture.graph(lora).with_loss(self.loss)
    }

    /// Checks hyperparameters and loss. Those of a parsed configuration are valid.
    ///
    /// # Errors
    /// Names the key of the first invalid value.
    pub fn check(&self) -> Result<(), Error> {
        self.architecture.check()?;
        match (self.loss, self.architecture.head_outputs()) {
            (Loss::CrossEntropy, _)
            | (Loss::BinaryCrossEntropy, Some(_))
            | (Loss::SquaredError, Some(1)) => Ok(()),
            (loss, outputs) => Err(Error::Key {
                path: FILE.into(),
                key: PROBLEM_TYPE.into(),
                expected: "a problem that the model's outputs fit".into(),
                got: match outputs {
                    Some(outputs) => format!("{} of {outputs} outputs", problem_type(loss)),
                    None => format!("{} of a language model", problem_type(loss)),
                },
            }),
        }
    }
}

/// The key of the loss.
const PROBLEM_TYPE: &str = "problem_type";

/// The values of the key `problem_type`.
const PROBLEM_TYPES: [(&str, Loss); 3] = [
    ("single_label_classification", Loss::CrossEntropy),
    ("multi_label_classification", Loss::BinaryCrossEntropy),
    ("regression", Loss::SquaredError),
];

/// Returns the `problem_type` of a loss.
fn problem_type(loss: Loss) -> &'static str {
    PROBLEM_TYPES.into_iter().find(|(_, known)| *known == loss).map_or("", |(name, _)| name)
}

/// Returns the loss of a model without `problem_type`: a single output is a number.
fn unstated_loss(outputs: usize) -> Loss {
    if outputs == 1 { Loss::SquaredError } else { Loss::CrossEntropy }
}

/// Returns the loss of a model.
fn parse_loss(keys: Keys<'_>, architecture: &Architecture) -> Result<Loss, Error> {
    let stated = keys.string(PROBLEM_TYPE)?;
    let Some(outputs) = architecture.head_outputs() else { return Ok(Loss::CrossEntropy) };
    let loss = match stated {
        None => unstated_loss(outputs),
        Some(stated) => {
            let known = PROBLEM_TYPES.into_iter().find(|(name, _)| *name == stated);
            let names = PROBLEM_TYPES.map(|(name, _)| name).join(", ");
            known.ok_or_else(|| keys.invalid(PROBLEM_TYPE, format!("one of {names}")))?.1
        }
    };
    match (loss, outputs) {
        (Loss::SquaredError, outputs) if outputs != 1 => {
            let expected = format!("another problem, because the model has {outputs} outputs");
            Err(keys.invalid(PROBLEM_TYPE, expected))
        }
        _ => Ok(loss),
    }
}

impl Architecture {
    /// Returns the number of outputs of a classification head; `None` for language models.
    pub fn head_outputs(&self) -> Option<usize> {
        match self {
            Self::Gpt2(_) | Self::Llama(_) => None,
            Self::Bert(config) => Some(config.labels),
            Self::Cnn(config) => Some(config.classes),
        }
    }

    /// Checks the hyperparameters. Those of a parsed configuration are valid.
    ///
    /// # Errors
    /// Names the key of the first invalid hyperparameter.
    pub fn check(&self) -> Result<(), Error> {
        let path = Path::new(FILE);
        match self {
            Self::Gpt2(config) => config.check(path),
            Self::Llama(config) => config.check(path),
            Self::Bert(config) => config.check(path),
            Self::Cnn(config) => cnn::check(config, path),
        }
    }
}

/// Returns the `model_type`; if it is absent, that of the class in `architectures`.
fn model_type(keys: Keys<'_>) -> Result<&'static str, Error> {
    let stated = keys.string("model_type")?;
    let classes = match keys.get("architectures") {
        None => &[][..],
        Some(list) => list.as_array().ok_or_else(|| keys.invalid("architectures", "a list"))?,
    };
    let implied = classes.iter().filter_map(Value::as_str).find_map(model_type_of_class);
    let Some(stated) = stated else {
        return implied.ok_or_else(|| keys.missing("model_type"));
    };
    let Some((model_type, _)) = MODEL_TYPES.into_iter().find(|(known, _)| *known == stated) else {
        return Err(keys.invalid("model_type", "gpt2, llama, mistral, bert or muffle-cnn"));
    };
    if implied.is_some_and(|implied| implied != model_type) {
        let expected = format!("a class of model_type {model_type}");
        return Err(keys.invalid("architectures", expected));
    }
    Ok(model_type)
}

/// Returns the `model_type` of a class name.
///
/// `GPT2LMHeadModel` belongs to `gpt2`; `Llama4ForCausalLM` does not belong to `llama`.
fn model_type_of_class(class: &str) -> Option<&'static str> {
    let heads = ["Model", "For", "LMHead", "DoubleHeads"];
    let matches = |prefix| {
        class
            .strip_prefix(prefix)
            .is_some_and(|rest: &str| heads.iter().any(|head| rest.starts_with(head)))
    };
    MODEL_TYPES.into_iter().find(|(_, prefix)| matches(*prefix)).map(|(model_type, _)| model_type)
}
