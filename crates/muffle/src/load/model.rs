//! Loads a model with its tokenizer, from a preset, a folder or the hub.

use crate::Error;
use crate::config::{Auto, Config, LoraInit};
use crate::device::device;
use crate::hub;
use crate::load::corpus;
use crate::load::data::Split;
use crate::load::features;
use data::{ModelInput, Preparation, Scattering, Views};
use engine::Combination;
use model::Network;
use model::activation::Activation;
use model::hf::{self, Architecture};
use model::patches::ImageShape;
use model::{Checkpoint, Cnn, InputShape, Lora, Preset};
use protocol::Params;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use text::Tokenizer;

/// A model on a device, with its tokenizer.
#[derive(Debug)]
pub struct LoadedModel {
    /// The configuration of the model.
    pub config: hf::Config,
    /// The model on its device.
    pub network: Box<dyn Network>,
    /// The trained parameters.
    pub params: Params,
    /// The tokenizer; `None` for a model of images.
    pub tokenizer: Option<Tokenizer>,
    /// The folder of the tokenizer's files; `None` if the tokenizer was trained or is one file.
    pub tokenizer_folder: Option<PathBuf>,
    /// The features of images that the model takes; `None` for pixels or texts.
    features: Option<Scattering>,
    task: ModelTask,
}

/// The task of a model.
#[derive(Clone, Copy, Debug)]
enum ModelTask {
    /// Generates text; `begin` and `end` are tokens.
    Causal { begin: u32, end: u32 },
    /// Classifies texts.
    TextClassifier,
    /// Classifies images or their features, of this many elements.
    ImageClassifier { elements: usize },
}

/// Public properties of the data that a new model or a new head is built for.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataProperties<'a> {
    /// The public names of the classes.
    pub labels: &'a [String],
    /// The shape of the images.
    pub image: Option<ImageShape>,
}

impl LoadedModel {
    /// Opens or creates the model of a configuration. `report` receives lines about downloads.
    ///
    /// # Errors
    /// If the model does not exist, its files are invalid, or its configuration contradicts itself.
    pub fn open(
        config: &Config,
        data: DataProperties<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        let features = features::configured(&config.data, data.image)?;
        if config.data.views != Views::None {
            let refuse = |reason: &str| {
                let message = format!("expected \"none\", because {reason}; got another value");
                Err(Error::config("data.views", message))
            };
            if data.image.is_none() {
                return refuse("data.train has no images");
            }
            if config.data.combine == Combination::Sum {
                return refuse("data.combine is \"sum\", and the mean of all views is trained on");
            }
        }
        let model = Self::load(config, data, features.as_ref(), report)?;
        if features.is_none() && model.features.is_some() {
            return Err(features::missing());
        }
        Ok(model)
    }

    /// Loads or creates a model. New models, and models without their own, take `features`.
    fn load(
        config: &Config,
        data: DataProperties<'_>,
        features: Option<&Scattering>,
        report: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        let options = &config.model;
        if config.optimizer.entry().needs_pairs && options.lora_rank == 0 {
            return Err(Error::config(
                "model.lora_rank",
                format!(
                    "expected at least 1, such as 8, because {} trains low-rank adapters; got 0",
                    config.optimizer.name()
                ),
            ));
        }
        if options.lora_rank == 0 && !options.also_train.is_empty() {
            return Err(Error::config(
                "model.also_train",
                "expected an empty list, because all parameters are trained if model.lora_rank is \
                 0; set model.lora_rank or remove the key",
            ));
        }
        let lora = (options.lora_rank > 0).then(|| Lora {
            rank: options.lora_rank,
            alpha: options.lora_alpha as f32,
            on: options.lora_on.clone(),
        });
        let given_tokenizer = match &options.tokenizer {
            // A single file is saved again with the model; the files of a folder are copied.
            Auto::Value(path) => {
                Some((Tokenizer::open(path)?, path.is_dir().then(|| path.clone())))
            }
            Auto::Auto => None,
        };
        let (mut checkpoint, tokenizer, folder) = match locate(&options.source, report)? {
            ModelLocation::Images(preset) => {
                (new_image_model(preset, data, features, options.seed)?, None, None)
            }
            ModelLocation::Preset(_) if features.is_some() => return Err(features::text_model()),
            ModelLocation::Preset(preset) => {
                let (tokenizer, folder) = match given_tokenizer {
                    Some(pair) => pair,
                    None if config.data.train == "embedded" => (corpus_tokenizer()?, None),
                    None => {
                        return Err(Error::config(
                            "model.tokenizer",
                            format!(
                                "expected a public tokenizer.json, because the preset {:?} has no \
                                 tokenizer; one trained on private texts would reveal them",
                                options.source
                            ),
                        ));
                    }
                };
                (new_model(preset, &tokenizer, lora, options.seed)?, Some(tokenizer), folder)
            }
            ModelLocation::Folder(folder) => {
                let checkpoint =
                    Checkpoint::open_with_classes(&folder, lora, options.seed, data.labels.len())?;
                match given_tokenizer {
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
                    "model.own_head",
                    "expected false, because low-rank adapters leave the head unchanged; got true",
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
        if let Some(features) = features {
            features::store(&mut checkpoint.config, features)?;
        }
        name_classes(&mut checkpoint.config, data.labels);
        Self::new(checkpoint, tokenizer, folder, config)
    }

    /// Opens a model for inference. `source` may also be the folder of a run.
    ///
    /// # Errors
    /// If its files are invalid.
    pub fn open_for_inference(source: &str, report: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let path = Path::new(source).join("model");
        let source = if path.join("config.json").is_file() {
            path.to_string_lossy().into_owned()
        } else {
            source.into()
        };
        let mut config = Config::default();
        config.model.source = source;
        Self::load(&config, DataProperties::default(), None, report)
    }

    fn new(
        checkpoint: Checkpoint,
        tokenizer: Option<Tokenizer>,
        tokenizer_folder: Option<PathBuf>,
        config: &Config,
    ) -> Result<Self, Error> {
        let new_tensors = checkpoint.initialized.clone();
        let options = &config.model;
        let trained = |name: &str| {
            options.lora_rank == 0
                || name.contains(".lora_")
                || options.also_train.iter().any(|part| name.contains(part.as_str()))
                || name.starts_with("classifier.") && new_tensors.iter().any(|new| new == name)
        };
        let (model_config, mut network, params) = checkpoint.network(device(), trained)?;
        if params.is_empty() {
            return Err(Error::config(
                "model.lora_on",
                "no weight of the model has such a name; nothing would be trained",
            ));
        }
        if options.recompute {
            network.set_activations(model::Activations::Recompute);
        }
        let features = features::stored(&model_config)?;
        if let Some(features) = &features {
            features::check_input(features, network.graph().input())?;
        }
        let task = find_task(&model_config, &network, tokenizer.as_ref())?;
        if let (Some(tokenizer), InputShape::Tokens { vocab, .. }) =
            (&tokenizer, network.graph().input())
            && tokenizer.vocab_size() > vocab
        {
            return Err(Error::config(
                "model.tokenizer",
                format!(
                    "expected at most {vocab} tokens, as the model has; got {}",
                    tokenizer.vocab_size()
                ),
            ));
        }
        Ok(Self {
            config: model_config,
            network,
            params,
            tokenizer,
            tokenizer_folder,
            features,
            task,
        })
    }

    /// The preparation of records for this model. Texts must have fewer than `limit` tokens.
    pub fn preparation<'a>(&'a self, labels: &'a [String], limit: usize) -> Preparation<'a> {
        let input = match (self.task, &self.tokenizer) {
            (ModelTask::Causal { begin, end }, Some(tokenizer)) => {
                ModelInput::Causal { tokenizer, begin, end }
            }
            (ModelTask::TextClassifier, Some(tokenizer)) => ModelInput::Classifier { tokenizer },
            (ModelTask::ImageClassifier { elements }, _) => {
                ModelInput::Images { elements, features: self.features.as_ref() }
            }
            // A model of texts without a tokenizer is refused when it is loaded.
            (_, None) => ModelInput::Images { elements: 0, features: None },
        };
        Preparation { input, labels, limit }
    }

    /// The maximum number of tokens of a text.
    pub fn max_tokens(&self) -> usize {
        match self.network.graph().input() {
            InputShape::Tokens { max_length, .. } => max_length,
            InputShape::Features(_) => 1,
        }
    }

    /// Whether the model generates text.
    pub fn generates_text(&self) -> bool {
        matches!(self.task, ModelTask::Causal { .. })
    }

    /// The tokens that end a generated text.
    pub fn stop_tokens(&self) -> Vec<u32> {
        match self.task {
            ModelTask::Causal { end, .. } => {
                let mut tokens = token_ids(&self.config, "eos_token_id");
                if !tokens.contains(&end) {
                    tokens.push(end);
                }
                tokens
            }
            _ => Vec::new(),
        }
    }

    /// The names of the classes in the model's configuration, up to the first that is missing.
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

/// The source of a model.
enum ModelLocation {
    Preset(Preset),
    Images(ImagePreset),
    Folder(PathBuf),
}

/// A new classifier of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImagePreset {
    /// Three convolutions with group normalization.
    Cnn,
    /// A linear classifier.
    Linear,
    /// Two convolutions on features.
    ///
    /// The network that Tramèr and Boneh (2021) use on scattering features of CIFAR-10.
    ScatterCnn,
}

impl ImagePreset {
    const ALL: [Self; 3] = [Self::Cnn, Self::Linear, Self::ScatterCnn];

    fn name(self) -> &'static str {
        match self {
            Self::Cnn => "cnn",
            Self::Linear => "linear",
            Self::ScatterCnn => "scatter-cnn",
        }
    }

    fn architecture(self, image: ImageShape, classes: usize) -> Cnn {
        let (stages, activation, groups) = match self {
            Self::Cnn => (vec![32, 64, 64], Activation::Relu, 8),
            Self::Linear => (vec![], Activation::Relu, 0),
            Self::ScatterCnn => (vec![64, 64], Activation::Tanh, 0),
        };
        Cnn { image, stages, activation, groups, global_pooling: self == Self::Cnn, classes }
    }
}

/// Locates a model: a folder, else a preset, else a model of the hub.
///
/// `gpt2` is the hub's model; the preset is `preset:gpt2`.
fn locate(source: &str, report: &mut dyn FnMut(&str)) -> Result<ModelLocation, Error> {
    if let Some(location) = locate_here(source) {
        return Ok(location);
    }
    match source.strip_prefix("preset:") {
        Some(name) => {
            let texts = Preset::ALL.map(Preset::name).join(", ");
            let images = ImagePreset::ALL.map(ImagePreset::name).join(", ");
            Err(Error::config(
                "model.source",
                format!("expected a preset ({texts}, {images}), got {name:?}"),
            ))
        }
        None => Ok(ModelLocation::Folder(hub::fetch(source, report)?)),
    }
}

/// Locates a model that is not on the hub: a folder or a preset.
fn locate_here(source: &str) -> Option<ModelLocation> {
    if Path::new(source).is_dir() {
        return Some(ModelLocation::Folder(source.into()));
    }
    let (name, is_preset) =
        source.strip_prefix("preset:").map_or((source, false), |name| (name, true));
    if let Some(preset) = ImagePreset::ALL.into_iter().find(|preset| preset.name() == name) {
        return Some(ModelLocation::Images(preset));
    }
    Preset::named(name)
        .filter(|&preset| is_preset || preset != Preset::Gpt2)
        .map(ModelLocation::Preset)
}

/// Whether a source has trained parameters: a folder, or a model of the hub.
pub(crate) fn is_pretrained(source: &str) -> bool {
    matches!(locate_here(source), None | Some(ModelLocation::Folder(_)))
}

/// Creates a new model of a preset, with as many tokens as the tokenizer has.
fn new_model(
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

/// Trains a tokenizer on the public part of the embedded corpus.
fn corpus_tokenizer() -> Result<Tokenizer, Error> {
    let texts: Vec<String> = corpus::pairs(Split::Validation, 4000)
        .into_iter()
        .flat_map(|pair| [format!(" {} ", pair.source), format!(" {} ", pair.target)])
        .collect();
    Ok(Tokenizer::train(texts.iter().map(String::as_str), 1024, &["<bos>", "<eos>"])?)
}

/// Creates a new classifier for the images of the data, or for their features.
fn new_image_model(
    preset: ImagePreset,
    data: DataProperties<'_>,
    features: Option<&Scattering>,
    seed: u64,
) -> Result<Checkpoint, Error> {
    let Some(image) = data.image else {
        return Err(Error::config(
            "model.source",
            format!(
                "expected a model of texts, because data.train has no images; got {:?}",
                preset.name()
            ),
        ));
    };
    if preset == ImagePreset::ScatterCnn && features.is_none() {
        return Err(Error::config(
            "data.features",
            "expected \"scattering\", because model.source is \"scatter-cnn\"; got \"none\"",
        ));
    }
    let image = features.map_or(image, |features| {
        let [height, width, channels] = features.shape();
        ImageShape { height, width, channels }
    });
    let cnn = preset.architecture(image, data.labels.len());
    Ok(Checkpoint::new(hf::Config::new(Architecture::Cnn(cnn)), None, seed)?)
}

/// Writes the names of the classes into the model's configuration.
fn name_classes(config: &mut hf::Config, labels: &[String]) {
    if labels.is_empty() {
        return;
    }
    let names =
        labels.iter().enumerate().map(|(class, label)| (class.to_string(), json!(label))).collect();
    let ids =
        labels.iter().enumerate().map(|(class, label)| (label.clone(), json!(class))).collect();
    config.other_keys.insert("id2label".into(), Value::Object(names));
    config.other_keys.insert("label2id".into(), Value::Object(ids));
}

/// The token ids under a key of the model's configuration: one, several or none.
fn token_ids(config: &hf::Config, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.other_keys.get(key) {
        Some(Value::Array(several)) => several.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Determines the task of a model from its input and its architecture.
fn find_task(
    config: &hf::Config,
    network: &dyn Network,
    tokenizer: Option<&Tokenizer>,
) -> Result<ModelTask, Error> {
    if let InputShape::Features(elements) = network.graph().input() {
        return Ok(ModelTask::ImageClassifier { elements });
    }
    let Some(tokenizer) = tokenizer else {
        return Err(Error::config(
            "model.tokenizer",
            "expected a file: the model has no tokenizer",
        ));
    };
    if matches!(config.architecture, Architecture::Bert(_)) {
        return Ok(ModelTask::TextClassifier);
    }
    let first = |key: &str, names: &[&str]| {
        token_ids(config, key)
            .first()
            .copied()
            .or_else(|| names.iter().find_map(|name| tokenizer.token_id(name)))
    };
    let end = first("eos_token_id", &["</s>", "<eos>", "<|endoftext|>"]);
    let begin = first("bos_token_id", &["<s>", "<bos>", "<|endoftext|>"]).or(end);
    match (begin, end.or(begin)) {
        (Some(begin), Some(end)) => Ok(ModelTask::Causal { begin, end }),
        _ => Err(Error::config(
            "model.source",
            "neither config.json (eos_token_id) nor the tokenizer has a token that ends a text",
        )),
    }
}
