//! The configuration of a run: a `RUN.toml`, parsed into structs with a default for every key.
//!
//! Values are not checked against the data or the model; [`crate::plan`] does that. Unknown keys,
//! and keys that the chosen optimizer does not read, are errors with a suggestion.

mod compare;
mod evaluation;
mod keys;

pub use compare::{CompareSection, Grid};
pub use evaluation::{Evaluation, Select};
pub use optim::{Auto, LearningRate, OptimizerConfig};

use crate::Error;
use accounting::{Accountant, Adjacency, SamplingMethod};
use data::Views;
use engine::Combination;
use noise::GaussianKind;
use optim::Origin;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The model.
    pub model: Model,
    /// Training, validation and test data.
    pub data: Data,
    /// The privacy guarantee.
    pub privacy: Privacy,
    /// The optimizer and its hyperparameters.
    pub optimizer: OptimizerConfig,
    /// Steps, lot size, performance.
    pub training: Training,
    /// Evaluation during and after training.
    pub evaluation: Evaluation,
}

/// The section `[model]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// A preset, a directory in the Hugging Face layout, or a name on the hub.
    ///
    /// Presets (tiny, gpt2-s, cnn, linear, scatter-cnn, preset:gpt2) have new parameters. A name on
    /// the hub is gpt2 or HuggingFaceTB/SmolLM2-135M, for example.
    pub source: String,
    /// A `tokenizer.json`; by default the model's own.
    pub tokenizer: Auto<PathBuf>,
    /// Rank of low-rank adapters; 0 trains all parameters.
    pub lora_rank: usize,
    /// α: adapters are scaled by α/rank.
    pub lora_alpha: f64,
    /// Substrings of the names of the weights that get an adapter; all weights if empty.
    pub lora_on: Vec<String>,
    /// Initialization of adapters.
    pub lora_init: LoraInit,
    /// Substrings of the names of other tensors that are trained with the adapters, such as a head.
    pub also_train: Vec<String>,
    /// Whether a head that is tied to the token embedding becomes a separate parameter.
    pub own_head: bool,
    /// Whether a padding token is added to the vocabulary; its rows are the means of the others.
    pub add_pad: bool,
    /// Whether activations are recomputed, to save memory.
    pub recompute: bool,
    /// Public seed of new parameters.
    pub seed: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            source: "tiny".into(),
            tokenizer: Auto::Auto,
            lora_rank: 0,
            lora_alpha: 16.0,
            lora_on: Vec::new(),
            lora_init: LoraInit::Balanced,
            also_train: Vec::new(),
            own_head: false,
            add_pad: false,
            recompute: false,
            seed: 0,
        }
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
        match crate::load::model::is_pretrained(&self.source) {
            false => Origin::New,
            true if self.lora_rank > 0 => Origin::Adapters,
            true => Origin::Pretrained,
        }
    }
}

/// The section `[data]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// The training data: a file, or "embedded" for a corpus made by a grammar.
    pub train: String,
    /// The format of all files; by default detected for each file.
    pub format: Auto<String>,
    /// Validation data, evaluated during training.
    pub validation: Option<PathBuf>,
    /// Test data, evaluated at the end.
    pub test: Option<PathBuf>,
    /// Whether validation and test data are public, or private and outside the guarantee.
    ///
    /// Files are private unless they are declared public.
    pub evaluation_data: Auto<Publicity>,
    /// The column that names the person of a row. The unit of protection is then the person.
    pub group: Option<String>,
    /// Whether the rows of a person are one record (combined) or one record each (separate).
    pub person_rows: PersonRows,
    /// How the losses of the rows of one record are combined: mean or sum.
    pub combine: Combination,
    /// The maximum number of rows of one person; further rows are not used.
    ///
    /// By default, all rows are used. If rows are separate, a number is required: noise increases
    /// with it.
    pub rows_per_person: Auto<u64>,
    /// An example must have fewer tokens than this; for longer ones, see `dropped_rows`.
    pub max_length: Auto<usize>,
    /// What happens to rows that are too long or empty.
    pub dropped_rows: DroppedRows,
    /// The column of the text, where the format has columns.
    pub text_column: Option<String>,
    /// The column of the label.
    pub label_column: Option<String>,
    /// The names of the classes: public. By default those of public validation data; images have
    /// ten classes.
    pub labels: Vec<String>,
    /// What a model of images takes: pixels, or features computed from each image alone.
    pub features: Features,
    /// Augmented views of each training image: none, flip, shift or flip-shift.
    ///
    /// The mean of the gradients of all views of an image is clipped once.
    pub views: Views,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            train: "embedded".into(),
            format: Auto::Auto,
            validation: None,
            test: None,
            evaluation_data: Auto::Auto,
            group: None,
            person_rows: PersonRows::Combined,
            combine: Combination::Mean,
            rows_per_person: Auto::Auto,
            max_length: Auto::Auto,
            dropped_rows: DroppedRows::Vacant,
            text_column: None,
            label_column: None,
            labels: Vec::new(),
            features: Features::None,
            views: Views::None,
        }
    }
}

impl Data {
    /// Whether the rows of a person are one record.
    pub fn combines_rows(&self) -> bool {
        self.group.is_some() && self.person_rows == PersonRows::Combined
    }

    /// Whether figures on validation and test data are public.
    pub fn publicity(&self) -> Publicity {
        let embedded = self.train == "embedded" && self.validation.is_none() && self.test.is_none();
        self.evaluation_data.or(if embedded { Publicity::Public } else { Publicity::Private })
    }
}

/// How the rows of a person take part in training, if `data.group` names persons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersonRows {
    /// All rows of a person are one record: their gradient is clipped once.
    ///
    /// The number of records N is the number of persons, and accounting is that of single records.
    Combined,
    /// Every row is a record. The guarantee for a person follows from that for k records.
    Separate,
}

/// What a model of images takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Features {
    /// The pixels.
    None,
    /// Wavelet scattering coefficients, normalized within the image ([`data::Scattering`]).
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

/// Whether data are public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Publicity {
    /// Public: figures on the data may be shown.
    Public,
    /// Private and not covered by the guarantee: every figure on the data is marked so.
    Private,
}

/// The section `[privacy]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Privacy {
    /// The promised ε; "auto" if `sigma` is given.
    pub epsilon: Auto<f64>,
    /// The promised δ; 1/(10 N) by default.
    pub delta: Auto<f64>,
    /// The noise multiplier; calibrated to ε by default.
    pub sigma: Auto<f64>,
    /// Which data sets count as neighbours.
    pub adjacency: Adjacency,
    /// The sampling method of lots: poisson, fixed, shuffled or full.
    pub sampling: SamplingMethod,
    /// The accountant: best, pld or rdp. The estimate gdp is refused.
    pub accountant: Accountant,
    /// The noise: "grid" (exact, in integers) or "float".
    pub noise: GaussianKind,
    /// A fixed seed of lots and noise, for tests only. **The noise can be removed with it.**
    pub seed: Option<u64>,
}

impl Default for Privacy {
    fn default() -> Self {
        Self {
            epsilon: Auto::Auto,
            delta: Auto::Auto,
            sigma: Auto::Auto,
            adjacency: Adjacency::AddRemove,
            sampling: SamplingMethod::Poisson,
            accountant: Accountant::Best,
            noise: GaussianKind::Grid,
            seed: None,
        }
    }
}

/// The section `[training]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// The expected number of times that a record is used; steps follow from it.
    pub epochs: Auto<f64>,
    /// Steps, instead of epochs.
    pub steps: Auto<u64>,
    /// The expected number of records in a lot.
    pub lot_size: Auto<u64>,
    /// The micro-batch size; from the available memory by default.
    pub micro_batch: Auto<usize>,
    /// Number of threads; one for each core by default.
    pub threads: Auto<usize>,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            epochs: Auto::Auto,
            steps: Auto::Auto,
            lot_size: Auto::Auto,
            micro_batch: Auto::Auto,
            threads: Auto::Auto,
            checkpoint_every: 50,
        }
    }
}

/// An error of a configuration, on one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not TOML, or not of the expected structure.
    #[error("{}", keys::one_line(&.0.to_string()))]
    Syntax(#[from] toml::de::Error),
    /// A key does not exist.
    #[error("{key}: unknown key; {hint}")]
    UnknownKey {
        /// The key with its section.
        key: String,
        /// A similar key, or all keys.
        hint: String,
    },
    /// The optimizer does not read a key of `[optimizer]`.
    #[error("{key}: {}; {hint}", unread_key_message(optimizer, readers))]
    UnreadKey {
        /// The key with its section.
        key: String,
        /// The name of the optimizer.
        optimizer: &'static str,
        /// The optimizers that read the key.
        readers: Vec<&'static str>,
        /// A similar key, or all keys.
        hint: String,
    },
    /// The value of a key is invalid, or contradicts another.
    #[error("{key}: {message}")]
    Value {
        /// The key with its section.
        key: String,
        /// What was expected, and what was given.
        message: String,
    },
    /// A change is not of the form `KEY=VALUE`.
    #[error("expected KEY=VALUE, got {0:?}")]
    Change(String),
    /// The values of a grid are not of the form `KEY=V1,V2`.
    #[error("expected KEY=V1,V2 (after NAME: for one optimizer), got {0:?}")]
    Grid(String),
    /// A configuration has no TOML form.
    #[error("{}", keys::one_line(&.0.to_string()))]
    Print(#[from] toml::ser::Error),
}

fn unread_key_message(optimizer: &str, readers: &[&str]) -> String {
    match readers {
        [] => format!("not a key of {optimizer}"),
        names => format!("not read by {optimizer}, only by {}", names.join(", ")),
    }
}

impl Config {
    /// Reads a `RUN.toml`. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// If the file cannot be read, a key is unknown, or a value is invalid.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
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

    /// The default of `muffle train`: a small model and a generated corpus at ε = 8.
    ///
    /// Training takes about two minutes.
    pub fn embedded() -> Self {
        let mut config = Self::default();
        config.privacy.epsilon = Auto::Value(8.0);
        config.training.lot_size = Auto::Value(512);
        config.training.steps = Auto::Value(140);
        config.evaluation.examples = 200;
        config.evaluation.beams = 1;
        config
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

    /// The complete configuration: every key that is read, with its value.
    pub fn print(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// SHA-256 of the configuration, without the settings that do not change what is released.
    ///
    /// These are performance settings and, unless evaluations select the released parameters,
    /// `[evaluation]`.
    pub(crate) fn digest(&self) -> String {
        let mut config = self.clone();
        let select = config.evaluation.select;
        if select == Select::Last {
            config.evaluation = Evaluation::default();
        }
        config.evaluation.test_examples = Evaluation::default().test_examples;
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
        if data.train != "embedded" {
            data.train = folder.join(&data.train).to_string_lossy().into_owned();
        }
        if let Auto::Value(tokenizer) = &mut self.model.tokenizer {
            *tokenizer = folder.join(&*tokenizer);
        }
        let source = folder.join(&self.model.source);
        if source.is_dir() {
            self.model.source = source.to_string_lossy().into_owned();
        }
    }
}
