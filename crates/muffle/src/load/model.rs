//! Loads a model with its tokenizer, from a preset, a folder or the hub.

use crate::Error;
use crate::config::{Auto, Config, LoraInit};
use crate::device::device;
use crate::hub;
use crate::load::corpus;
use crate::load::image_preset::{ImagePreset, new_image_model};
use crate::load::{embedded_model, features, lora, task, template};
use crate::run::folder;
use data::{
    CausalInput, FeatureCache, LongTexts, ModelInput, Preparation, Prompt, Scattering, Task,
    Template, Views,
};
use engine::Combination;
use model::Network;
use model::hf::{self, Architecture};
use model::patches::ImageShape;
use model::{Checkpoint, InputShape, Lora, NewHead, Preset};
use protocol::Params;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    /// The template of texts with a source.
    prompt: Prompt,
    /// How texts that are too long are prepared.
    long_texts: LongTexts,
    kind: ModelKind,
    task: Task,
}

/// The kind of a model.
#[derive(Clone, Copy, Debug)]
enum ModelKind {
    /// Generates text; `begin` and `end` are tokens.
    Causal { begin: u32, end: u32 },
    /// Classifies texts, or predicts a number for each.
    TextClassifier,
    /// The same for images or their features, of this many elements.
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
        let model = Self::load(config, data, features.as_ref(), Some(config.data.task()?), report)?;
        if features.is_none() && model.features.is_some() {
            return Err(features::missing());
        }
        Ok(model)
    }

    /// Keeps the features of images in a cache, for further runs on the same images.
    pub(crate) fn cache_features(&mut self, cache: &Arc<FeatureCache>) {
        let cached = |features: Scattering| features.with_cache(cache.clone());
        self.features = self.features.take().map(cached);
    }

    /// Loads or creates a model. New models, and models without their own, take `features`.
    ///
    /// Without a task, that of the model's files is taken.
    fn load(
        config: &Config,
        data: DataProperties<'_>,
        features: Option<&Scattering>,
        task: Option<Task>,
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
                let task = task.unwrap_or_default();
                (new_image_model(preset, data, features, task, options.seed)?, None, None)
            }
            ModelLocation::Preset(_) | ModelLocation::Embedded if features.is_some() => {
                return Err(features::text_model());
            }
            ModelLocation::Embedded if given_tokenizer.is_some() => {
                return Err(Error::config(
                    "model.tokenizer",
                    "expected \"auto\", because the embedded model has its own tokenizer; set \
                     model.source to a preset, such as \"tiny\", to train a new model with this one",
                ));
            }
            ModelLocation::Embedded => {
                let checkpoint = embedded_model::checkpoint(lora, options.seed)?;
                (checkpoint, Some(embedded_model::tokenizer()?), None)
            }
            ModelLocation::Preset(preset) => {
                let (tokenizer, folder) = match given_tokenizer {
                    Some(pair) => pair,
                    None if config.data.train == "embedded" => (corpus::tokenizer()?, None),
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
                let new_head = |task: Task| NewHead {
                    outputs: task.outputs(data.labels.len()),
                    loss: task::loss(task),
                };
                let new_head = task.map(new_head).filter(|head| head.outputs > 0);
                let checkpoint = Checkpoint::open_with_head(&folder, lora, options.seed, new_head)?;
                match given_tokenizer {
                    Some((tokenizer, folder)) => (checkpoint, Some(tokenizer), folder),
                    None if matches!(checkpoint.config.architecture, Architecture::Cnn(_)) => {
                        (checkpoint, None, None)
                    }
                    None => (checkpoint, Some(Tokenizer::open(&folder)?), Some(folder)),
                }
            }
        };
        lora::check_names(&checkpoint, options)?;
        lora::check_rank(&checkpoint, options.lora_rank)?;
        let new: Vec<&str> = checkpoint
            .initialized
            .iter()
            .filter(|name| model::is_head(name) && is_pretrained(&options.source))
            .map(String::as_str)
            .collect();
        if !new.is_empty() && task.is_none() {
            return Err(Error::config(
                "model.source",
                format!(
                    "the model's files lack {}, so the model predicts nothing yet; train it first",
                    new.join(", ")
                ),
            ));
        }
        if !new.is_empty() {
            report(&format!("the model's files lack {}, which are new", new.join(", ")));
        }
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
        if let Some(task) = task {
            task::store(&mut checkpoint.config, task)?;
            task::check_labels(&checkpoint.config, data.labels)?;
        }
        task::name_classes(&mut checkpoint.config, data.labels);
        Self::new(checkpoint, tokenizer, folder, config)
    }

    /// Opens a model for inference. `source` may also be the folder of a run.
    ///
    /// # Errors
    /// If its files are invalid.
    pub fn open_for_inference(source: &str, report: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let mut config = Config::default();
        config.model.source = folder::model_source(source)?;
        // All of a text is evaluated.
        config.data.max_chunks = usize::MAX;
        Self::load(&config, DataProperties::default(), None, None, report)
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
                || model::is_head(name) && new_tensors.iter().any(|new| new == name)
        };
        let (mut model_config, mut network, params) = checkpoint.network(device(), trained)?;
        if options.recompute {
            network.set_activations(model::Activations::Recompute);
        }
        let features = features::stored(&model_config)?;
        if let Some(features) = &features {
            features::check_input(features, network.graph().input())?;
        }
        let kind = find_kind(&model_config, &network, tokenizer.as_ref())?;
        let task = task::stored(&model_config)?;
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
        let given = config.data.template.given();
        let prompt = match kind {
            ModelKind::Causal { .. } => {
                let template = match given {
                    Some(template) => template.clone(),
                    None => template::stored(&model_config)?.unwrap_or_default(),
                };
                template::store(&mut model_config, &template);
                template::prompt(&template, tokenizer_folder.as_deref())?
            }
            _ if given.is_some() => return Err(template::not_causal()),
            _ => Prompt::default(),
        };
        Ok(Self {
            config: model_config,
            network,
            params,
            tokenizer,
            tokenizer_folder,
            features,
            prompt,
            long_texts: config.data.long_texts(),
            kind,
            task,
        })
    }

    /// The preparation of records for this model. Texts must have fewer than `limit` tokens.
    pub fn preparation<'a>(&'a self, labels: &'a [String], limit: usize) -> Preparation<'a> {
        let input = match (self.kind, &self.tokenizer) {
            (ModelKind::Causal { begin, end }, Some(tokenizer)) => {
                ModelInput::Causal(CausalInput { tokenizer, prompt: &self.prompt, begin, end })
            }
            (ModelKind::TextClassifier, Some(tokenizer)) => ModelInput::Classifier { tokenizer },
            (ModelKind::ImageClassifier { elements }, _) => {
                ModelInput::Images { elements, features: self.features.as_ref() }
            }
            // A model of texts without a tokenizer is refused when it is loaded.
            (_, None) => ModelInput::Images { elements: 0, features: None },
        };
        Preparation { input, task: self.task, labels, limit, long_texts: self.long_texts }
    }

    /// The preparation of prompts, which leaves room for a text of up to `new_tokens` tokens.
    ///
    /// Half of the tokens that the model takes are left to a prompt in any case.
    pub fn prompt_preparation(&self, new_tokens: usize) -> Preparation<'_> {
        let max_tokens = self.max_tokens();
        self.preparation(&[], max_tokens + 1 - new_tokens.min(max_tokens / 2))
    }

    /// Replaces the template of texts with a source, for evaluation and generation.
    ///
    /// # Errors
    /// If the model does not generate text, or has no usable chat template.
    pub fn set_template(&mut self, template: &Template) -> Result<(), Error> {
        if !self.generates_text() {
            return Err(template::not_causal());
        }
        self.prompt = template::prompt(template, self.tokenizer_folder.as_deref())?;
        Ok(())
    }

    /// Returns the target in a generated text: without the text of the template around it.
    pub fn generated_target<'a>(&self, text: &'a str) -> &'a str {
        self.prompt.target(text)
    }

    /// The maximum number of tokens of a text.
    pub fn max_tokens(&self) -> usize {
        match self.network.graph().input() {
            InputShape::Tokens { max_length, .. } => max_length,
            InputShape::Features(_) => 1,
        }
    }

    /// What the model predicts of a row with a label.
    pub fn task(&self) -> Task {
        self.task
    }

    /// Height, width and channels of the images that the model takes; empty for texts.
    ///
    /// Images are scaled to it (`data.image_size`).
    pub fn image_size(&self) -> Vec<usize> {
        let size = match (&self.features, &self.config.architecture) {
            (Some(features), _) => features.image_shape().to_vec(),
            (None, Architecture::Cnn(cnn)) => {
                vec![cnn.image.height, cnn.image.width, cnn.image.channels]
            }
            _ => Vec::new(),
        };
        // Images of other numbers of channels are not scaled.
        if matches!(size[..], [.., 1 | 3]) { size } else { Vec::new() }
    }

    /// Whether the model generates text.
    pub fn generates_text(&self) -> bool {
        matches!(self.kind, ModelKind::Causal { .. })
    }

    /// The tokens that end a generated text.
    pub fn stop_tokens(&self) -> Vec<u32> {
        match self.kind {
            ModelKind::Causal { end, .. } => {
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
    Embedded,
    Preset(Preset),
    Images(ImagePreset),
    Folder(PathBuf),
}

/// Locates a model: the embedded one, else a folder, else a preset, else a model of the hub.
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

/// Locates a model that is not on the hub: the embedded one, a folder or a preset.
fn locate_here(source: &str) -> Option<ModelLocation> {
    if source == embedded_model::NAME {
        return Some(ModelLocation::Embedded);
    }
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

/// Whether a source has trained parameters: the embedded model, a folder, or a model of the hub.
pub(crate) fn is_pretrained(source: &str) -> bool {
    matches!(locate_here(source), None | Some(ModelLocation::Embedded | ModelLocation::Folder(_)))
}

/// Whether a source is the name of a model of the hub.
pub(crate) fn is_hub_model(source: &str) -> bool {
    locate_here(source).is_none()
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

/// The token ids under a key of the model's configuration: one, several or none.
fn token_ids(config: &hf::Config, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.other_keys.get(key) {
        Some(Value::Array(several)) => several.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Determines the kind of a model from its input and its architecture.
fn find_kind(
    config: &hf::Config,
    network: &dyn Network,
    tokenizer: Option<&Tokenizer>,
) -> Result<ModelKind, Error> {
    if let InputShape::Features(elements) = network.graph().input() {
        return Ok(ModelKind::ImageClassifier { elements });
    }
    let Some(tokenizer) = tokenizer else {
        return Err(Error::config(
            "model.tokenizer",
            "expected a file: the model has no tokenizer",
        ));
    };
    if matches!(config.architecture, Architecture::Bert(_)) {
        return Ok(ModelKind::TextClassifier);
    }
    let first = |key: &str, names: &[&str]| {
        token_ids(config, key)
            .first()
            .copied()
            .or_else(|| names.iter().find_map(|name| tokenizer.token_id(name)))
    };
    let end = first("eos_token_id", &["</s>", "<eos>", "<|endoftext|>"]);
    let begin = first("bos_token_id", &["<s>", "<bos>", "<|endoftext|>"]).or(end);
    if let InputShape::Tokens { vocab, .. } = network.graph().input() {
        for (key, token) in [("bos_token_id", begin), ("eos_token_id", end)] {
            if let Some(token) = token.filter(|&token| token as usize >= vocab) {
                return Err(Error::config(
                    "model.source",
                    format!("config.json: {key}: expected a token below {vocab}, got {token}"),
                ));
            }
        }
    }
    match (begin, end.or(begin)) {
        (Some(begin), Some(end)) => Ok(ModelKind::Causal { begin, end }),
        _ => Err(Error::config(
            "model.source",
            "neither config.json (eos_token_id) nor the tokenizer has a token that ends a text",
        )),
    }
}
