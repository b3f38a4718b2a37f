//! The configuration of a run: a `RUN.toml`, parsed into structs with a default for every key.
//!
//! Values are not checked against the data or the model; [`crate::plan`] does that. Unknown keys,
//! and keys that the chosen optimizer does not read, are errors with a suggestion.

mod aliases;
mod check;
mod compare;
mod data;
mod error;
mod evaluation;
mod external;
mod keys;
mod print;
mod wording;

pub use self::data::{PersonRows, Publicity, TaskKind};
pub use compare::{CompareSection, Grid};
pub use error::ConfigError;
pub use evaluation::{Evaluation, Select};
pub use external::ExternalModel;
pub use optim::{Auto, LearningRate, OptimizerConfig};
pub use print::reference;

use crate::Error;
use crate::load::embedded_model;
use ::data::{LongTexts, Missing, Separator, Template, TooLong, Views};
use accounting::{Accountant, Adjacency, SamplingMethod};
use engine::Combination;
use noise::GaussianKind;
use optim::{Origin, keys};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

keys! {
    /// The configuration of a run.
    ///
    /// ```
    /// let config = muffle::Config::parse(
    ///     r#"
    ///     [privacy]
    ///     epsilon = 3.0
    ///     [optimizer]
    ///     name = "dp-adam"
    ///     learning_rate = 0.001
    ///     "#,
    /// )?;
    /// assert_eq!(config.optimizer.name(), "dp-adam");
    /// assert!(muffle::Config::parse("[privacy]\nepsilom = 3.0").is_err());
    /// # Ok::<(), muffle::Error>(())
    /// ```
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// The model.
        pub model: Model = Model::default(),
        /// Training, validation and test data.
        pub data: Data = Data::default(),
        /// The privacy guarantee.
        pub privacy: Privacy = Privacy::default(),
        /// The optimizer and its hyperparameters.
        pub optimizer: OptimizerConfig = OptimizerConfig::default(),
        /// Steps, lot size, performance.
        pub training: Training = Training::default(),
        /// Evaluation during and after training.
        pub evaluation: Evaluation = Evaluation::default(),
        /// What the report says about the run.
        pub about: About = About::default(),
    }
}

keys! {
    /// The section `[about]`: texts for the readers of the report.
    ///
    /// They are public and can be changed after the run; `muffle report` then writes the page again.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct About {
        /// The name of the data; by default that of the file.
        pub data: Option<String> = None => "\"patient letters 2025\"",
        /// Who is responsible for the data and the model.
        pub owner: Option<String> = None => "\"Example Clinic, data office\"",
        /// What the model is for.
        pub purpose: Option<String> = None => "\"drafts of discharge letters\"",
    }
}

keys! {
    /// The section `[model]`.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Model {
        /// "embedded", a directory in the Hugging Face layout, a name on the hub, or a preset.
        ///
        /// "embedded" is a small pretrained model that the program contains. A name on the hub is gpt2
        /// or HuggingFaceTB/SmolLM2-135M, for example. Presets (tiny, gpt2-s, cnn, linear,
        /// scatter-cnn, preset:gpt2) have new parameters.
        pub source: String = "embedded".into(),
        /// A `tokenizer.json`; by default the model's own.
        pub tokenizer: Auto<PathBuf> = Auto::Auto,
        /// Rank of low-rank adapters; 0 trains all parameters.
        pub lora_rank: usize = 0,
        /// α: adapters are scaled by α/rank.
        pub lora_alpha: f64 = 16.0,
        /// Substrings of the names of the weights that get an adapter; all weights if empty.
        pub lora_on: Vec<String> = Vec::new(),
        /// Initialization of adapters: balanced (small) or spectral (the largest singular values).
        pub lora_init: LoraInit = LoraInit::Balanced,
        /// Substrings of the names of other tensors that are trained with the adapters, such as a head.
        pub also_train: Vec<String> = Vec::new(),
        /// Whether a head that is tied to the token embedding becomes a separate parameter.
        pub own_head: bool = false,
        /// Whether a padding token is added to the vocabulary; its rows are the means of the others.
        pub add_pad: bool = false,
        /// Whether activations are recomputed, to save memory.
        pub recompute: bool = false,
        /// Public seed of new parameters.
        pub seed: u64 = 0,
    }
}

/// Initialization of low-rank adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoraInit {
    /// Small orthonormal factors; their product is subtracted from the frozen weight.
    Balanced,
    /// The factors hold the largest singular values of the weight.
    Spectral,
}

impl Model {
    /// The origin of the trained parameters, which default learning rates depend on.
    pub fn origin(&self) -> Origin {
        if let Some(external) = ExternalModel::of(&self.source) {
            return external.origin();
        }
        match crate::load::model::is_pretrained(&self.source) {
            false => Origin::New,
            true if self.lora_rank > 0 => Origin::Adapters,
            true => Origin::Pretrained,
        }
    }
}

keys! {
    /// The section `[data]`.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Data {
        /// The training data: a file, a folder of images, or "embedded" for a generated corpus.
        pub train: String = "embedded".into(),
        /// The format of all files; by default detected for each file.
        pub format: Auto<String> = Auto::Auto,
        /// Validation data, evaluated during training.
        pub validation: Option<PathBuf> = None => "\"FILE\"",
        /// Test data, evaluated at the end.
        pub test: Option<PathBuf> = None => "\"FILE\"",
        /// Whether validation and test data are public, or private and outside the guarantee.
        ///
        /// Files are private unless they are declared public.
        pub evaluation_data: Auto<Publicity> = Auto::Auto,
        /// The column that names the person of a row. The unit of protection is then the person.
        pub group: Option<String> = None => "\"COLUMN\"",
        /// Whether the rows of a person are one record (combined) or one record each (separate).
        pub person_rows: PersonRows = PersonRows::Combined,
        /// How the losses of the rows or chunks of one record are combined: mean or sum.
        pub combine: Combination = Combination::Mean,
        /// The maximum number of rows of one person; further rows are not used.
        ///
        /// By default, all rows are used. If rows are separate, a number is required: noise increases
        /// with it.
        pub rows_per_person: Auto<u64> = Auto::Auto,
        /// How a source and a target become one text: a text with {source} and {target}, or a name.
        ///
        /// Only the target is learned, with the text after it. "chat" is the model's chat template,
        /// "paper" is ` source <bos> target <eos>`. The default is the template that the model was
        /// trained with or, if it has none, "{source}\n{target}".
        pub template: Auto<Template> = Auto::Auto,
        /// An example must have fewer tokens than this; for longer ones, see `too_long`.
        ///
        /// By default 100 for the format e2e, 120 for dart, else 257, and at most what the model
        /// takes.
        pub max_length: Auto<usize> = Auto::Auto,
        /// What happens to texts that are too long: truncate, chunk or drop.
        ///
        /// By default, texts without a source are divided into chunks, and all others are cut: the
        /// end of the source, or of a text that is classified.
        pub too_long: Auto<TooLong> = Auto::Auto,
        /// The maximum number of chunks of a text; the rest of the text is not used.
        ///
        /// The gradient of all chunks of a text is clipped once.
        pub max_chunks: usize = LongTexts::MAX_CHUNKS,
        /// What happens to rows that are too long or empty: their places stay vacant, or they are
        /// removed, which declares public which rows these are.
        pub dropped_rows: DroppedRows = DroppedRows::Vacant,
        /// The column of the text, where the format has columns.
        pub text_column: Option<String> = None => "\"COLUMN\"",
        /// The column of the paths of images, relative to the file that lists them.
        pub image_column: Option<String> = None => "\"COLUMN\"",
        /// The column of the label.
        pub label_column: Option<String> = None => "\"COLUMN\"",
        /// The separator of the cells of CSV: ",", ";", "\t" or "|"; by default that of the header.
        pub separator: Auto<Separator> = Auto::Auto,
        /// What happens to rows without a value in a column that is read: error, or skip, which
        /// leaves their places vacant.
        pub missing: Missing = Missing::Error,
        /// What labels are: classification (one class), multi-label or regression (a number).
        ///
        /// By default classification, if rows have labels.
        pub task: Auto<TaskKind> = Auto::Auto,
        /// A public constant that is subtracted from the numbers of a regression.
        pub target_mean: f64 = 0.0,
        /// A public constant by which the numbers of a regression are divided.
        pub target_scale: f64 = 1.0,
        /// The names of the classes: public. By default those of public validation data, sorted;
        /// images whose labels are numbers in a file of their own have ten classes.
        pub labels: Vec<String> = Vec::new(),
        /// The height, width and channels (1 or 3) to which all images are scaled: `[32, 32, 3]`.
        ///
        /// By default images are not scaled, and must all have the same size.
        pub image_size: Vec<usize> = Vec::new(),
        /// What a model of images takes: pixels, or features computed from each image alone.
        pub features: Features = Features::None,
        /// Augmented views of each training image: none, flip, shift or flip-shift.
        ///
        /// The mean of the gradients of all views of an image is clipped once.
        pub views: Views = Views::None,
    }
}

/// What a model of images takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Features {
    /// The pixels.
    None,
    /// Wavelet scattering coefficients, whitened with public statistics ([`::data::Scattering`]).
    Scattering,
}

/// What happens to rows that are too long or empty.
///
/// Rows beyond `rows_per_person` are vacant places in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DroppedRows {
    /// Their places stay, without a record: the number of records N is the number of rows,
    /// whatever their content.
    Vacant,
    /// They are removed, and N is the number of the other rows. Which rows are too long or empty
    /// is declared public.
    Public,
}

keys! {
    /// The section `[privacy]`.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Privacy {
        /// The promised ε; 8 by default, or the cost of `sigma` if that is given.
        pub epsilon: Auto<f64> = Auto::Auto,
        /// The promised δ; 1/(10 N) by default. It must be less than 1/N.
        pub delta: Auto<f64> = Auto::Auto,
        /// The noise multiplier σ, instead of `epsilon`; calibrated to ε by default.
        pub sigma: Auto<f64> = Auto::Auto,
        /// The unit of protection: record, or person (needs `data.group`).
        ///
        /// By default the person, if `data.group` names one, and the record otherwise.
        pub unit: Auto<ProtectedUnit> = Auto::Auto,
        /// Which data sets count as neighbours.
        pub adjacency: Adjacency = Adjacency::AddRemove,
        /// The sampling method of lots: poisson, fixed, shuffled or full.
        pub sampling: SamplingMethod = SamplingMethod::Poisson,
        /// The accountant: best, pld or rdp. The estimate gdp is refused.
        pub accountant: Accountant = Accountant::Best,
        /// The noise: "grid" (exact, in integers) or "float".
        pub noise: GaussianKind = GaussianKind::Grid,
        /// A fixed seed of lots and noise, for tests only. **The noise can be removed with it.**
        pub seed: Option<u64> = None => "0",
    }
}

/// The unit that a guarantee protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProtectedUnit {
    /// One row of the training data.
    Record,
    /// All rows of a person, who is named by `data.group`.
    Person,
}

keys! {
    /// The section `[training]`.
    #[derive(Clone, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Training {
        /// The expected number of times that a record is used; steps follow from it. 3 by default.
        pub epochs: Auto<f64> = Auto::Auto,
        /// Steps, instead of epochs.
        pub steps: Auto<u64> = Auto::Auto,
        /// The expected number of records in a lot; 2 √N by default, and at most 1024.
        pub lot_size: Auto<u64> = Auto::Auto,
        /// The micro-batch size; from the available memory by default.
        pub micro_batch: Auto<usize> = Auto::Auto,
        /// Number of threads; one for each core by default.
        pub threads: Auto<usize> = Auto::Auto,
        /// Steps between checkpoints.
        pub checkpoint_every: u64 = 50,
    }
}

impl Config {
    /// Reads a `RUN.toml`. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// If the file cannot be read, a key is unknown, or a value is invalid.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = read_text(path)?;
        let mut config = Self::from_text(&text)
            .map_err(|source| Error::Config { path: Some(path.into()), source })?;
        config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// Parses the text of a `RUN.toml`.
    ///
    /// # Errors
    /// If a key is unknown or a value is invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self::from_text(text)?)
    }

    fn from_text(text: &str) -> Result<Self, ConfigError> {
        keys::read(text.parse::<toml::Table>()?)
    }

    /// The default of `muffle train`: a small pretrained model and a generated corpus at ε = 3.
    ///
    /// Training takes about a minute and a half.
    pub fn embedded() -> Self {
        let mut config = Self::default();
        config.privacy.epsilon = Auto::Value(3.0);
        config.training.lot_size = Auto::Value(512);
        config.training.steps = Auto::Value(60);
        config.optimizer.ema_decay = 0.95;
        config.evaluation.every = Auto::Value(6);
        config.evaluation.examples = 100;
        config.evaluation.test_examples = 250;
        config.evaluation.score = true;
        config.evaluation.beams = 1;
        config
    }

    /// A run without privacy beside one on the embedded corpus, to see what privacy costs.
    ///
    /// `None` for other data, which may be private, and for a run that is not private itself. The
    /// run uses a quarter of the records, because without noise fewer are enough.
    pub fn reference(&self) -> Option<Self> {
        const LOT: u64 = 64;
        let is_embedded = self.data.train == "embedded" && self.data.test.is_none();
        let compares = is_embedded && self.evaluation.score;
        if !compares || !self.optimizer.entry().private {
            return None;
        }
        let mut config = self.with_optimizer("adam").ok()?;
        config.optimizer.learning_rate = Auto::Auto;
        // A quarter of the records.
        let (steps, lot) = (self.training.steps.or(60), self.training.lot_size.or(512));
        config.training.steps = Auto::Value((steps.saturating_mul(lot) / 4 / LOT).max(1));
        config.training.lot_size = Auto::Value(LOT);
        config.training.epochs = Auto::Auto;
        config.evaluation.every = config.training.steps;
        config.evaluation.samples = 0;
        Some(config)
    }

    /// Replaces the optimizer.
    ///
    /// Keys that the new one does not read are dropped, and so are learning rate, clip bound and
    /// momentum, which were meant for the old one; "hyfree" is kept.
    ///
    /// # Errors
    /// If no optimizer has this name; the error suggests one.
    pub fn with_optimizer(&self, name: &str) -> Result<Self, ConfigError> {
        if name == self.optimizer.name() {
            return Ok(self.clone());
        }
        let mut config = self.with_optimizer_name(name, &["clip", "momentum"])?;
        if !config.optimizer.finds_rate() {
            config.optimizer.learning_rate = Auto::Auto;
        }
        Ok(config)
    }

    /// Replaces the name of the optimizer.
    ///
    /// Keys of `dropped`, and keys that the new optimizer does not read, are not carried over.
    fn with_optimizer_name(&self, name: &str, dropped: &[&str]) -> Result<Self, ConfigError> {
        let known = keys::optimizer_keys(name)?;
        let mut table = toml::Table::try_from(self)?;
        if let Some(toml::Value::Table(section)) = table.get_mut("optimizer") {
            section.retain(|key, _| known.contains_key(key) && !dropped.contains(&key));
            section.insert("name".into(), name.into());
        }
        keys::read(table)
    }

    /// Changes one key: `section.key=value`, the value as in TOML; quotation marks may be left out.
    ///
    /// With another `optimizer.name`, the keys that the new optimizer reads are carried over.
    ///
    /// # Errors
    /// If the key is unknown or the value is invalid.
    pub fn with(&self, change: &str) -> Result<Self, Error> {
        Ok(self.with_change(change)?)
    }

    fn with_change(&self, change: &str) -> Result<Self, ConfigError> {
        let malformed = || ConfigError::Change(change.into());
        let (key, value) = change.split_once('=').ok_or_else(malformed)?;
        let (key, value) = (key.trim(), value.trim());
        let invalid = |message: String| ConfigError::Value { key: key.into(), message };
        let parsed = format!("x = {value}")
            .parse::<toml::Table>()
            .or_else(|_| format!("x = {}", toml::Value::from(value)).parse::<toml::Table>());
        let value = parsed
            .ok()
            .and_then(|mut table| table.remove("x"))
            .ok_or_else(|| invalid(format!("expected a TOML value, got {value}")))?;
        if let ("optimizer.name", Some(name)) = (key, value.as_str()) {
            return self.with_optimizer_name(name, &[]);
        }
        let mut table = toml::Table::try_from(self)?;
        let mut section_table = &mut table;
        let path: Vec<&str> = key.split('.').collect();
        let (last, sections) = path.split_last().ok_or_else(malformed)?;
        for section in sections {
            let entry = section_table
                .entry(*section)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()));
            section_table = entry
                .as_table_mut()
                .ok_or_else(|| invalid(format!("{section:?} is not a section")))?;
        }
        section_table.insert((*last).into(), value);
        keys::read(table)
    }

    /// The complete configuration without comments: every key that has a value.
    pub fn print(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// SHA-256 of the configuration, without the settings that do not change what is released.
    ///
    /// These are performance settings and, unless evaluations decide which parameters are released
    /// or when training ends, `[evaluation]`.
    pub(crate) fn digest(&self) -> String {
        let mut config = self.clone();
        let select = config.evaluation.select;
        let unused = Evaluation::default();
        if !config.evaluation.decides() {
            config.evaluation = unused.clone();
        }
        (config.evaluation.test_examples, config.evaluation.tensorboard) =
            (unused.test_examples, unused.tensorboard);
        config.about = About::default();
        let defaults = Training::default();
        (config.training.threads, config.training.micro_batch) =
            (defaults.threads, defaults.micro_batch);
        if select != Select::NearestBestNll {
            config.training.checkpoint_every = defaults.checkpoint_every;
        }
        crate::run::snapshot::digest(config.print().as_bytes())
    }

    /// The unit of protection: one record, or up to `rows_per_person` records of one person.
    pub fn unit(&self) -> accounting::Unit {
        let rows = match self.data.person_rows {
            PersonRows::Separate if self.data.group.is_some() => self.data.rows_per_person.or(1),
            _ => 1,
        };
        accounting::Unit { adjacency: self.privacy.adjacency, rows }
    }

    /// Makes paths absolute.
    ///
    /// # Errors
    /// If the working directory is unknown.
    pub fn absolute(mut self) -> Result<Self, Error> {
        let working_directory = std::env::current_dir().map_err(Error::io(Path::new(".")))?;
        self.resolve_paths(&working_directory);
        Ok(self)
    }

    /// Makes relative paths relative to `folder`; absolute paths stay.
    fn resolve_paths(&mut self, folder: &Path) {
        let data = &mut self.data;
        for path in [&mut data.validation, &mut data.test].into_iter().flatten() {
            *path = folder.join(&*path);
        }
        // The records of a program have no path.
        let is_path = ExternalModel::of(&self.model.source).is_none();
        if data.train != "embedded" && is_path {
            data.train = folder.join(&data.train).to_string_lossy().into_owned();
        }
        if let Auto::Value(tokenizer) = &mut self.model.tokenizer {
            *tokenizer = folder.join(&*tokenizer);
        }
        let source = folder.join(&self.model.source);
        if source.is_dir() && self.model.source != embedded_model::NAME {
            self.model.source = source.to_string_lossy().into_owned();
        }
    }
}

/// Reads the text of a configuration.
fn read_text(path: &Path) -> Result<String, Error> {
    let refuse = |message: &str| Err(Error::format(path, message));
    if path.is_dir() {
        return refuse("expected a RUN.toml, got a folder");
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => refuse(
            "there is no such file; muffle train --print-config prints a complete configuration",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            refuse("expected text in UTF-8")
        }
        Err(error) => Err(Error::io(path)(error)),
    }
}
