//! What is trained or looked at: a model with its tokenizer, from a preset, a folder or the hub.

use crate::Error;
use crate::config::{Auto, Config, LoraInit};
use crate::device::device;
use crate::hub;
use crate::load::corpus;
use data::{ModelInput, Preparation};
use model::Network;
use model::hf::{self, Architecture};
use model::patches::ImageShape;
use model::{Checkpoint, Cnn, InputShape, Lora, Preset};
use protocol::Params;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use text::Tokenizer;

/// A model, and what makes tokens for it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Its configuration.
    pub config: hf::Config,
    /// Runs it.
    pub network: Box<dyn Network>,
    /// What is trained.
    pub params: Params,
    /// Makes tokens; a model of images has none.
    pub tokenizer: Option<Tokenizer>,
    /// Where the tokenizer's files are; none if it was made here.
    pub tokenizer_folder: Option<PathBuf>,
    kind: Kind,
}

/// What kind of model it is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Causal { begin: u32, end: u32 },
    Classifier,
    Images { numbers: usize },
}

/// Beside what a model says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// The public names of the classes.
    pub labels: &'a [String],
    /// The sides of the images.
    pub image: Option<ImageShape>,
}

impl LoadedModel {
    /// What a configuration asks for.
    ///
    /// # Errors
    /// If there is no such model, its files are no good, or what is to be trained makes no sense.
    pub fn open(
        config: &Config,
        circumstances: Circumstances<'_>,
        said: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        let options = &config.model;
        if config.optimizer.entry().needs_pairs && options.lora_rank == 0 {
            return Err(Error::config(format!(
                "{} trains low-rank additions: set model.lora_rank, for example to 8",
                config.optimizer.name()
            )));
        }
        if options.lora_rank == 0 && !options.also_train.is_empty() {
            return Err(Error::config(
                "model.also_train: everything is trained as long as model.lora_rank is 0",
            ));
        }
        let lora = (options.lora_rank > 0).then(|| Lora {
            rank: options.lora_rank,
            alpha: options.lora_alpha as f32,
            on: options.lora_on.clone(),
        });
        let given = match &options.tokenizer {
            // A file by itself is written anew beside the model; a folder's files are copied.
            Auto::Value(path) => {
                Some((Tokenizer::open(path)?, path.is_dir().then(|| path.clone())))
            }
            Auto::Auto => None,
        };
        let (mut checkpoint, tokenizer, folder) = match locate(&options.source, said)? {
            ModelLocation::Cnn => (images(circumstances, options.seed)?, None, None),
            ModelLocation::Preset(preset) => {
                let (tokenizer, folder) = match given {
                    Some(given) => given,
                    None if config.data.train == "embedded" => (corpus_tokenizer()?, None),
                    None => {
                        return Err(Error::config(format!(
                            "model.tokenizer: the preset {:?} has none of its own, and one that is \
                             made from people's texts would tell of them; name a public \
                             tokenizer.json",
                            options.source
                        )));
                    }
                };
                (fresh(preset, &tokenizer, lora, options.seed)?, Some(tokenizer), folder)
            }
            ModelLocation::Folder(folder) => {
                let checkpoint = Checkpoint::open_with_classes(
                    &folder,
                    lora,
                    options.seed,
                    circumstances.labels.len(),
                )?;
                match given {
                    Some((tokenizer, folder)) => (checkpoint, Some(tokenizer), folder),
                    None if matches!(checkpoint.config.architecture, Architecture::Cnn(_)) => {
                        (checkpoint, None, None)
                    }
                    None => (checkpoint, Some(Tokenizer::open(&folder)?), Some(folder)),
                }
            }
        };
        if options.own_head {
            if options.lora_rank > 0 {
                return Err(Error::config(
                    "model.own_head: with low-rank additions the head stays as it is",
                ));
            }
            checkpoint = checkpoint.with_untied_head();
        }
        if options.add_pad {
            checkpoint = checkpoint.with_pad_token();
        }
        if options.lora_rank > 0 && options.lora_init == LoraInit::Spectral {
            checkpoint = checkpoint.with_spectral_adapters()?;
        }
        name_classes(&mut checkpoint.config, circumstances.labels);
        Self::new(checkpoint, tokenizer, folder, config)
    }

    /// A model as it lies in a folder, or in the folder of a run, to be looked at.
    ///
    /// # Errors
    /// If its files are no good.
    pub fn look_at(source: &str, said: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let path = Path::new(source).join("model");
        let source = if path.join("config.json").is_file() {
            path.to_string_lossy().into_owned()
        } else {
            source.into()
        };
        let mut config = Config::default();
        config.model.source = source;
        Self::open(&config, Circumstances::default(), said)
    }

    fn new(
        checkpoint: Checkpoint,
        tokenizer: Option<Tokenizer>,
        tokenizer_folder: Option<PathBuf>,
        config: &Config,
    ) -> Result<Self, Error> {
        let fresh = checkpoint.initialized.clone();
        let options = &config.model;
        let trained = |name: &str| {
            options.lora_rank == 0
                || name.contains(".lora_")
                || options.also_train.iter().any(|part| name.contains(part.as_str()))
                || name.starts_with("classifier.") && fresh.iter().any(|new| new == name)
        };
        let (hf, mut network, params) = checkpoint.network(device(), trained)?;
        if params.is_empty() {
            return Err(Error::config(
                "model.lora_on: no map of the model has such a name, so that \
                nothing would be trained",
            ));
        }
        if options.recompute {
            network.set_activations(model::Activations::Recompute);
        }
        let kind = kind(&hf, &network, tokenizer.as_ref())?;
        if let (Some(tokenizer), InputShape::Tokens { vocab, .. }) =
            (&tokenizer, network.graph().input())
            && tokenizer.vocab_size() > vocab
        {
            return Err(Error::config(format!(
                "the tokenizer has {} tokens, the model only {vocab}: they do not belong together",
                tokenizer.vocab_size()
            )));
        }
        Ok(Self { config: hf, network, params, tokenizer, tokenizer_folder, kind })
    }

    /// How records become examples of this model. Texts must be shorter than `limit`.
    pub fn preparation<'a>(&'a self, labels: &'a [String], limit: usize) -> Preparation<'a> {
        let input = match (self.kind, &self.tokenizer) {
            (Kind::Causal { begin, end }, Some(tokenizer)) => {
                ModelInput::Causal { tokenizer, begin, end }
            }
            (Kind::Classifier, Some(tokenizer)) => ModelInput::Classifier { tokenizer },
            (Kind::Images { numbers }, _) => ModelInput::Images { elements: numbers },
            // Texts without a tokenizer are refused when a subject is made.
            (_, None) => ModelInput::Images { elements: 0 },
        };
        Preparation { input, labels, limit }
    }

    /// The most tokens of a text.
    pub fn longest(&self) -> usize {
        match self.network.graph().input() {
            InputShape::Tokens { max_length, .. } => max_length,
            InputShape::Features(_) => 1,
        }
    }

    /// Whether it goes on with texts.
    pub fn writes(&self) -> bool {
        matches!(self.kind, Kind::Causal { .. })
    }

    /// The tokens that end a text.
    pub fn ends(&self) -> Vec<u32> {
        match self.kind {
            Kind::Causal { end, .. } => {
                let mut ends = ids(&self.config, "eos_token_id");
                if !ends.contains(&end) {
                    ends.push(end);
                }
                ends
            }
            _ => Vec::new(),
        }
    }

    /// The names of the classes, as far as the model's files have them.
    pub fn labels(&self) -> Vec<String> {
        let names = self.config.other_keys.get("id2label").and_then(Value::as_object);
        let name = |class: usize| {
            names
                .and_then(|names| names.get(&class.to_string()))
                .and_then(Value::as_str)
                .map(String::from)
        };
        (0..).map_while(name).collect()
    }
}

/// Where a model comes from.
enum ModelLocation {
    Preset(Preset),
    Cnn,
    Folder(PathBuf),
}

/// Locates a model: a folder, then a preset, then the hub. `gpt2` is the hub's model; the preset is
/// `preset:gpt2`.
fn locate(source: &str, said: &mut dyn FnMut(&str)) -> Result<ModelLocation, Error> {
    if Path::new(source).is_dir() {
        return Ok(ModelLocation::Folder(source.into()));
    }
    if source == "cnn" {
        return Ok(ModelLocation::Cnn);
    }
    let (name, forced) =
        source.strip_prefix("preset:").map_or((source, false), |name| (name, true));
    match Preset::named(name) {
        Some(preset) if forced || preset != Preset::Gpt2 => Ok(ModelLocation::Preset(preset)),
        None if forced => {
            let names = Preset::ALL.map(Preset::name).join(", ");
            Err(Error::config(format!(
                "model.source: there is no preset {name:?}: there are {names} and cnn"
            )))
        }
        _ => Ok(ModelLocation::Folder(hub::fetch(name, said)?)),
    }
}

/// A new model with as many tokens as the tokenizer has.
fn fresh(
    preset: Preset,
    tokenizer: &Tokenizer,
    lora: Option<Lora>,
    seed: u64,
) -> Result<Checkpoint, Error> {
    let mut architecture = preset.architecture();
    if let Architecture::Gpt2(config) = &mut architecture {
        config.vocab = tokenizer.vocab_size();
    }
    let mut config = hf::Config::new(architecture);
    for (key, names) in [
        ("bos_token_id", ["<bos>", "<s>", "<|endoftext|>"]),
        ("eos_token_id", ["<eos>", "</s>", "<|endoftext|>"]),
    ] {
        if let Some(id) = names.iter().find_map(|name| tokenizer.token_id(name)) {
            config.other_keys.insert(key.into(), id.into());
        }
    }
    Ok(Checkpoint::new(config, lora, seed)?)
}

/// Trained on the public part of the corpus.
fn corpus_tokenizer() -> Result<Tokenizer, Error> {
    let texts: Vec<String> = corpus::pairs(corpus::Part::Validation, 4000)
        .into_iter()
        .flat_map(|pair| [format!(" {} ", pair.source), format!(" {} ", pair.target)])
        .collect();
    Ok(Tokenizer::train(texts.iter().map(String::as_str), 1024, &["<bos>", "<eos>"])?)
}

fn images(circumstances: Circumstances<'_>, seed: u64) -> Result<Checkpoint, Error> {
    let Some(image) = circumstances.image else {
        return Err(Error::config("model.source: \"cnn\" is for images"));
    };
    let cnn =
        Cnn { image, stages: vec![32, 64, 64], groups: 8, classes: circumstances.labels.len() };
    Ok(Checkpoint::new(hf::Config::new(Architecture::Cnn(cnn)), None, seed)?)
}

fn name_classes(config: &mut hf::Config, labels: &[String]) {
    if labels.is_empty() {
        return;
    }
    let names =
        labels.iter().enumerate().map(|(class, label)| (class.to_string(), json!(label))).collect();
    let numbers =
        labels.iter().enumerate().map(|(class, label)| (label.clone(), json!(class))).collect();
    config.other_keys.insert("id2label".into(), Value::Object(names));
    config.other_keys.insert("label2id".into(), Value::Object(numbers));
}

/// Tokens under a key of the configuration: one, several or none.
fn ids(config: &hf::Config, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.other_keys.get(key) {
        Some(Value::Array(several)) => several.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

fn kind(
    config: &hf::Config,
    network: &dyn Network,
    tokenizer: Option<&Tokenizer>,
) -> Result<Kind, Error> {
    let numbers = match network.graph().input() {
        InputShape::Features(numbers) => return Ok(Kind::Images { numbers }),
        InputShape::Tokens { .. } => tokenizer,
    };
    let Some(tokenizer) = numbers else {
        return Err(Error::config("the model has no tokenizer: set model.tokenizer"));
    };
    if matches!(config.architecture, Architecture::Bert(_)) {
        return Ok(Kind::Classifier);
    }
    let first = |key: &str, names: &[&str]| {
        ids(config, key)
            .first()
            .copied()
            .or_else(|| names.iter().find_map(|name| tokenizer.token_id(name)))
    };
    let end = first("eos_token_id", &["</s>", "<eos>", "<|endoftext|>"]);
    let begin = first("bos_token_id", &["<s>", "<bos>", "<|endoftext|>"]).or(end);
    match (begin, end.or(begin)) {
        (Some(begin), Some(end)) => Ok(Kind::Causal { begin, end }),
        _ => Err(Error::config(
            "neither the model's config.json nor its tokenizer names a token \
            that ends a text (eos_token_id)",
        )),
    }
}
