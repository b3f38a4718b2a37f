//! What a run is, as a user writes it: a `RUN.toml`, parsed into structs that say everything and
//! default to something sensible.
//!
//! Parse, then build: nothing here has been checked against the data or the model; [`crate::plan`]
//! does that. Keys that are unknown are errors with a suggestion.

pub mod optimizers;

mod auto;
mod keys;
mod optimizer;

pub use auto::Auto;
pub use optimizer::{
    ClippingName, Degree, DegreeName, DeviationName, FoundBy, HyFree, MuonGroup, NormaliserName,
    Optimizer, ProbeLotName, Rate, Schedule, ShapeScaleName,
};

use crate::Failed;
use accounting::SamplingMethod;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A whole run.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is trained.
    pub model: Model,
    /// On what.
    pub data: Data,
    /// What is promised to the people in the data.
    pub privacy: Privacy,
    /// How answers become parameters.
    pub optimizer: Optimizer,
    /// How long, and in which portions.
    pub training: Training,
    /// What is looked at on the way.
    pub evaluation: Evaluation,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// A preset that starts anew (tiny, gpt2-s, cnn, preset:gpt2), a directory in the Hugging Face
    /// layout, or a name on the hub (gpt2, HuggingFaceTB/SmolLM2-135M).
    pub source: String,
    /// A `tokenizer.json`; by default the model's own.
    pub tokenizer: Auto<PathBuf>,
    /// Rank of low-rank additions; 0 trains everything.
    pub lora_rank: usize,
    /// Their scale is alpha/rank.
    pub lora_alpha: f64,
    /// Parts of the names of the maps that get one; none means all.
    pub lora_on: Vec<String>,
    /// How they start.
    pub lora_init: LoraInit,
    /// Parts of names of further tensors that are trained beside low-rank additions, such as a
    /// head.
    pub also_train: Vec<String>,
    /// Give a model whose head is its token table a head of its own.
    pub own_head: bool,
    /// Add a token to the vocabulary, whose rows are the means of the others.
    pub add_pad: bool,
    /// Make activations again to save memory.
    pub recompute: bool,
    /// Where new parameters come from. Public.
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

/// How low-rank additions start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoraInit {
    /// Small orthonormal factors, and a frozen weight moved so that the model is unchanged.
    Balanced,
    /// The largest singular values of the weight move into the factors.
    Spectral,
}

/// On what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// People's records. "embedded" is a corpus made by a grammar.
    pub train: String,
    /// The format of all files; by default told from each file.
    pub format: Auto<String>,
    /// What the model is looked at with while it trains; none to look at nothing.
    pub validation: Option<PathBuf>,
    /// What it is judged by at the end.
    pub test: Option<PathBuf>,
    /// Whether validation and test data are public, or people outside the guarantee; files count as
    /// people's unless they are declared public.
    pub evaluation_data: Auto<Publicity>,
    /// The column that says whose a row is. The person is then what is protected.
    pub group: Option<String>,
    /// The most rows of one person; further ones are vacant places.
    pub rows_per_person: u64,
    /// An example must have fewer tokens than this; what becomes of longer ones, `dropped_rows`
    /// says.
    pub max_length: Auto<usize>,
    /// What becomes of rows that are too long or empty.
    pub dropped_rows: DroppedRows,
    /// Columns of text and label, where the format has columns.
    pub text_column: Option<String>,
    /// The column of the label.
    pub label_column: Option<String>,
    /// The names of the classes: public. By default those of public validation data; images have
    /// ten.
    pub labels: Vec<String>,
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
            rows_per_person: 1,
            max_length: Auto::Auto,
            dropped_rows: DroppedRows::Vacant,
            text_column: None,
            label_column: None,
            labels: Vec::new(),
        }
    }
}

impl Data {
    /// Whether figures on validation and test data may be shown as they are.
    pub fn publicity(&self) -> Publicity {
        let embedded = self.train == "embedded" && self.validation.is_none() && self.test.is_none();
        self.evaluation_data.or(if embedded { Publicity::Public } else { Publicity::Private })
    }
}

/// What becomes of rows that are too long or empty. (Rows beyond `rows_per_person` are vacant
/// places whatever is declared here.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DroppedRows {
    /// They keep their places, with no record in them: the number of records N is the number of
    /// rows, whatever they say.
    Vacant,
    /// It is declared that which rows are too long or empty is public. They are removed, and N is
    /// the number of those left.
    Public,
}

/// Whose data it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Publicity {
    /// Nobody's: figures on it may be shown.
    Public,
    /// People's who are not covered by the guarantee: every figure on it is marked so.
    Private,
}

/// What is promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Privacy {
    /// The promised ε; "auto" if `sigma` is given.
    pub epsilon: Auto<f64>,
    /// The promised δ; 1/(10 N) by default.
    pub delta: Auto<f64>,
    /// The noise multiplier; found from ε by default.
    pub sigma: Auto<f64>,
    /// Which data sets count as neighbours.
    pub adjacency: accounting::Adjacency,
    /// How lots are drawn.
    pub sampling: SamplingMethod,
    /// Who does the sums.
    pub accountant: String,
    /// What numbers the noise is made of: "grid" (exact, in integers) or "float".
    pub noise: curator::Noise,
    /// A fixed seed of lots and noise. **Whoever knows it can take the noise off.** For tests only.
    pub seed: Option<u64>,
}

impl Default for Privacy {
    fn default() -> Self {
        Self {
            epsilon: Auto::Auto,
            delta: Auto::Auto,
            sigma: Auto::Auto,
            adjacency: accounting::Adjacency::AddRemove,
            sampling: SamplingMethod::Poisson,
            accountant: "best".into(),
            noise: curator::Noise::Grid,
            seed: None,
        }
    }
}

/// How long, and in which portions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// How often every record is expected to be seen; steps follow from it.
    pub epochs: Auto<f64>,
    /// Steps, instead of epochs.
    pub steps: Auto<u64>,
    /// The expected number of records in a lot.
    pub lot_size: Auto<u64>,
    /// Records that are computed on at a time; from the memory by default.
    pub micro_batch: Auto<usize>,
    /// Threads; one for each core by default.
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

/// What is looked at on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluation {
    /// Steps between looks at the validation data.
    pub every: Auto<u64>,
    /// The most examples that are looked at on the way; the end looks at all.
    pub examples: u64,
    /// Sentences that are generated at the end.
    pub samples: u64,
    /// Whether generation tasks are generated for and scored at the end.
    pub score: bool,
    /// Beams of the generation.
    pub beams: usize,
    /// The most tokens that are generated.
    pub max_new_tokens: usize,
    /// The fewest.
    pub min_new_tokens: usize,
    /// The exponent of the length in a beam's score.
    pub length_penalty: f64,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self {
            every: Auto::Auto,
            examples: 512,
            samples: 3,
            score: false,
            beams: 5,
            max_new_tokens: 100,
            min_new_tokens: 5,
            length_penalty: 1.0,
        }
    }
}

impl Config {
    /// Reads a `RUN.toml`. Paths in it are relative to it.
    ///
    /// # Errors
    /// One line that names the file, the key and what was expected.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut config =
            Self::parse(&text).map_err(|what| format!("{}: {what}", path.display()))?;
        config.relative_to(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// Parses the text of a `RUN.toml`.
    ///
    /// # Errors
    /// One line that names the key and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| keys::one_line(&error.to_string()))?;
        keys::check(&table)?;
        Self::deserialize(table).map_err(|error| keys::one_line(&error.to_string()))
    }

    /// What `muffle train` does by itself: a small model, a corpus made by a grammar, ε = 8, about
    /// two minutes.
    pub fn embedded() -> Self {
        let mut config = Self::default();
        config.privacy.epsilon = Auto::Value(8.0);
        config.optimizer.learning_rate = Auto::Value(Rate::Fixed(0.05));
        config.optimizer.schedule = Schedule::Linear;
        config.training.lot_size = Auto::Value(512);
        config.training.steps = Auto::Value(140);
        config.evaluation.examples = 200;
        config.evaluation.beams = 1;
        config
    }

    /// With another optimizer. Learning rate, clip bound and momentum that were meant for the first
    /// one are not carried over; a rate that is found is.
    #[must_use]
    pub fn with_optimizer(&self, name: &str) -> Self {
        let mut config = self.clone();
        if name != config.optimizer.name {
            let found = matches!(config.optimizer.learning_rate, Auto::Value(Rate::Found(_)));
            (config.optimizer.clip, config.optimizer.momentum) = (Auto::Auto, Auto::Auto);
            if !found {
                config.optimizer.learning_rate = Auto::Auto;
            }
        }
        config.optimizer.name = name.into();
        config
    }

    /// With one key changed: `section.key=value`, the value as in TOML; quotation marks may be left
    /// out.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn with(&self, change: &str) -> Result<Self, String> {
        let Some((key, value)) = change.split_once('=') else {
            return Err(format!("KEY=VALUE expected, got {change:?}"));
        };
        let value = value.trim();
        let parsed = format!("x = {value}")
            .parse::<toml::Table>()
            .or_else(|_| format!("x = {}", toml::Value::from(value)).parse::<toml::Table>());
        let value = parsed
            .ok()
            .and_then(|mut table| table.remove("x"))
            .ok_or_else(|| format!("{key}: {value} is no value"))?;
        let mut table =
            toml::Table::try_from(self).map_err(|error| keys::one_line(&error.to_string()))?;
        let mut within = &mut table;
        let path: Vec<&str> = key.trim().split('.').collect();
        let (last, sections) =
            path.split_last().ok_or_else(|| format!("KEY=VALUE expected, got {change:?}"))?;
        for section in sections {
            let entry =
                within.entry(*section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            within = entry.as_table_mut().ok_or_else(|| format!("{section} is no section"))?;
        }
        within.insert((*last).into(), value);
        keys::check(&table)?;
        Self::deserialize(table).map_err(|error| keys::one_line(&error.to_string()))
    }

    /// The complete configuration: every key there is, with its value.
    pub fn print(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// SHA-256 of all that decides what is trained and charged: everything but performance and
    /// evaluation.
    pub(crate) fn digest(&self) -> String {
        let mut config = self.clone();
        config.evaluation = Evaluation::default();
        let usual = Training::default();
        (config.training.threads, config.training.micro_batch, config.training.checkpoint_every) =
            (usual.threads, usual.micro_batch, usual.checkpoint_every);
        crate::run::snapshot::digest(config.print().as_bytes())
    }

    /// Who is protected: a row, or a person with as many as may take part.
    pub fn unit(&self) -> accounting::Unit {
        let rows = if self.data.group.is_some() { self.data.rows_per_person } else { 1 };
        accounting::Unit { adjacency: self.privacy.adjacency, rows }
    }

    /// With paths that mean the same wherever it is read.
    pub fn absolute(mut self) -> Result<Self, Failed> {
        let here = std::env::current_dir()
            .map_err(|error| Failed::Input(format!("the working directory: {error}")))?;
        self.relative_to(&here);
        Ok(self)
    }

    fn relative_to(&mut self, folder: &Path) {
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
