//! `config.json`: what kind of model it is, and its sides.
//!
//! What decides the computation must be there and must be something we compute; the one exception
//! are keys that came after the first models, whose absence means what `transformers` takes it to
//! mean. What we do not read is kept and written back.

use std::path::Path;

use serde_json::{Map, Value};

use super::key::Keys;
use super::{BertConfig, Dtype, Gpt2Config, LlamaConfig, cnn, text};
use crate::{Cnn, Error};

/// The name of the file.
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
    /// The model.
    pub architecture: Architecture,
    /// What the file said beyond that: ids of special tokens, names of classes and whatever else.
    /// It is written back, but what follows from `architecture` takes precedence.
    pub others: Map<String, Value>,
}

/// The models there are.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// Llama and its kin.
    Llama(LlamaConfig),
    /// BERT.
    Bert(BertConfig),
    /// Our own small network for images.
    Cnn(Cnn),
}

/// `model_type`, and how the names of its classes in `architectures` begin.
const KINDS: [(&str, &str); 5] = [
    ("gpt2", "GPT2"),
    ("llama", "Llama"),
    ("mistral", "Mistral"),
    ("bert", "Bert"),
    (cnn::KIND, "MuffleCnn"),
];

impl Config {
    /// A configuration made here rather than read. It has no special tokens.
    pub fn new(architecture: Architecture) -> Self {
        let absent = ["bos_token_id", "eos_token_id", "pad_token_id"]
            .map(|key| (key.to_string(), Value::Null));
        Self { architecture, others: absent.into_iter().collect() }
    }

    /// Reads `config.json` of a model's directory, or a file by itself.
    ///
    /// # Errors
    /// If it cannot be read, is not JSON, lacks a key, or describes a model that is none or that we
    /// do not compute.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let path = if path.is_dir() { path.join(FILE) } else { path.into() };
        Self::parse(&text::read(&path)?, &path)
    }

    /// Parses the text of a `config.json`; `path` is what errors call it.
    ///
    /// # Errors
    /// As for [`Config::read`].
    pub fn parse(text: &[u8], path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let map: Map<String, Value> = serde_json::from_slice(text)
            .map_err(|error| Error::malformed(path, format!("expected a JSON object: {error}")))?;
        let keys = Keys { path, map: &map, within: "" };
        let kind = kind(keys)?;
        keys.off("is_encoder_decoder")?;
        keys.absent("pruned_heads")?;
        keys.absent("quantization_config")?;
        let architecture = match kind {
            "gpt2" => Architecture::Gpt2(Gpt2Config::parse(keys)?),
            "mistral" => Architecture::Llama(LlamaConfig::parse_mistral(keys)?),
            "bert" => Architecture::Bert(BertConfig::parse(keys)?),
            cnn::KIND => Architecture::Cnn(cnn::parse(keys)?),
            _ => Architecture::Llama(LlamaConfig::parse(keys)?),
        };
        Ok(Self { architecture, others: map })
    }

    /// The text of a `config.json` from which `transformers` builds the same model, with weights of
    /// this type. Dropout, which we do not have, is 0.
    pub fn to_json(&self, dtype: Dtype) -> String {
        let mut map = self.others.clone();
        match &self.architecture {
            Architecture::Gpt2(config) => config.write(&mut map),
            Architecture::Llama(config) => config.write(&mut map),
            Architecture::Bert(config) => config.write(&mut map),
            Architecture::Cnn(config) => cnn::write(config, &mut map),
        }
        // The first is the name of today, the second that of transformers 4.
        for key in ["dtype", "torch_dtype"] {
            map.insert(key.into(), dtype.torch().into());
        }
        format!("{:#}\n", Value::Object(map))
    }
}

impl Architecture {
    /// Refuses sides that make no sense. What was read has passed this already.
    ///
    /// # Errors
    /// With the key of `config.json` that the first bad side would have.
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

/// The kind of model: `model_type`, or what the class in `architectures` says.
fn kind(keys: Keys<'_>) -> Result<&'static str, Error> {
    let stated = keys.text("model_type")?;
    let classes = match keys.get("architectures") {
        None => &[][..],
        Some(list) => list.as_array().ok_or_else(|| keys.wrong("architectures", "a list"))?,
    };
    let implied = classes.iter().filter_map(Value::as_str).find_map(kind_of_class);
    let Some(stated) = stated else {
        return implied.ok_or_else(|| keys.missing("model_type"));
    };
    let Some((kind, _)) = KINDS.into_iter().find(|(kind, _)| *kind == stated) else {
        return Err(keys.wrong("model_type", "gpt2, llama, mistral, bert or muffle-cnn"));
    };
    if implied.is_some_and(|implied| implied != kind) {
        return Err(keys.wrong("architectures", format!("a class of {kind}, as model_type says")));
    }
    Ok(kind)
}

/// `GPT2LMHeadModel` is a GPT-2, `Llama4ForCausalLM` is no Llama.
fn kind_of_class(class: &str) -> Option<&'static str> {
    let heads = ["Model", "For", "LMHead", "DoubleHeads"];
    let fits = |prefix| {
        class
            .strip_prefix(prefix)
            .is_some_and(|rest: &str| heads.iter().any(|head| rest.starts_with(head)))
    };
    KINDS.into_iter().find(|(_, prefix)| fits(*prefix)).map(|(kind, _)| kind)
}
