//! `privacy.json`: the privacy statement of a model as typed fields.
//!
//! It has all that is needed to recompute its figures. Sentences are rendered from the fields
//! (`report::summary`) into `summary` and never parsed. Unknown fields are refused.

use crate::Error;
use crate::Plan;
use crate::config::{Config, DroppedRows, ExternalModel, PersonRows, Select};
use crate::report::Marking;
use crate::run::chain::{Chain, ChainError, Closing, SessionEntry};
use crate::run::snapshot;
use accounting::{Accountant, Ledger, Sampling, SamplingMethod, SamplingRate, Unit};
use engine::Isolation;
use noise::GaussianKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The privacy statement of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The version of the document.
    pub version: u32,
    /// The program that wrote it, with its version.
    pub software: String,
    /// The id of the run, which is also in its other files.
    pub run_id: String,
    /// Whether there is a guarantee.
    pub private: bool,
    /// ε spent, an upper bound; none without noise.
    pub epsilon: Option<f64>,
    /// δ of that ε.
    pub delta: Option<f64>,
    /// ε promised before the run started.
    pub promised_epsilon: Option<f64>,
    /// Adjacency, and the number of rows that are protected together.
    pub unit: Option<Unit>,
    /// The column that names the person of a row; none if rows are protected one by one.
    pub person_column: Option<String>,
    /// Whether the rows of a person are one record or several; none without `person_column`.
    pub person_rows: Option<PersonRows>,
    /// The accountant that computed ε.
    pub accountant: Option<Accountant>,
    /// How lots were drawn.
    pub sampling: SamplingMethod,
    /// Number of places of the data set, with or without a record. Public by assumption.
    ///
    /// These are the rows of the file, without dropped rows if `dropped_rows` is public, or the
    /// persons if `person_rows` is combined.
    pub records: usize,
    /// The public lot size.
    pub lot_size: f64,
    /// The noise multiplier of a lot's gradient, all blocks together.
    pub noise_multiplier: Option<f64>,
    /// Steps that were completed, of which the charges are in the ledger.
    pub steps: u64,
    /// The step after which the model has its parameters: the last one, unless it was selected.
    pub model_step: u64,
    /// How that step was selected.
    pub selection: Select,
    /// The decay of the moving average of the parameters up to that step; `None` without average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// The source of randomness for noise and lots.
    pub randomness: RandomnessSource,
    /// Facts that decide what the guarantee covers.
    pub coverage: Coverage,
    /// The processes that worked on the run: one, and one more each time it was resumed.
    pub sessions: Vec<SessionEntry>,
    /// All charges.
    pub ledger: Ledger,
    /// The head of the hash chain over sessions and charges.
    pub ledger_head: String,
    /// SHA-256 of the configuration, without settings that do not change what is released.
    pub config_sha256: String,
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// The statement in sentences, rendered from the other fields. Readers ignore it.
    pub summary: Vec<String>,
}

/// The source of randomness for noise and lots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RandomnessSource {
    /// The operating system, secret.
    OperatingSystem,
    /// A seed that is known: there is no guarantee.
    FixedSeed(u64),
}

/// Facts that decide what the guarantee covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// How far the engine isolates records from each other.
    pub isolation: Isolation,
    /// The arithmetic of the noise; none without noise.
    pub noise: Option<GaussianKind>,
    /// Whether figures on validation and test data are public.
    pub figures: Marking,
    /// Whether unusable rows are vacant places, or were declared public and removed.
    pub dropped_rows: DroppedRows,
    /// Whether some weights were not trained.
    pub frozen_weights: bool,
}

/// The name of the file.
pub const FILE: &str = "privacy.json";

/// The version of the document.
const VERSION: u32 = 4;

/// This program.
const SOFTWARE: &str = concat!("muffle ", env!("CARGO_PKG_VERSION"));

impl Statement {
    /// Builds the statement of a run from its configuration, plan and charges.
    ///
    /// # Errors
    /// If the cost cannot be computed.
    pub fn new(
        config: &Config,
        plan: &Plan,
        chain: &Chain,
        steps: u64,
        model_step: u64,
        isolation: Isolation,
        weights_sha256: Vec<(String, String)>,
    ) -> Result<Self, Error> {
        let ledger = chain.ledger();
        let open_chain = Chain::rebuild(chain.run_id(), ledger.events(), chain.sessions())?;
        let spent = plan.budget.map(|_| plan.spent(ledger)).transpose()?;
        let randomness = match config.privacy.seed {
            None => RandomnessSource::OperatingSystem,
            Some(seed) => RandomnessSource::FixedSeed(seed),
        };
        let mut statement = Self {
            version: VERSION,
            software: SOFTWARE.into(),
            run_id: chain.run_id().into(),
            // A reader of the statement knows a fixed seed, and can remove the noise.
            private: spent.is_some() && randomness == RandomnessSource::OperatingSystem,
            epsilon: spent.map(|spent| spent.epsilon),
            delta: spent.map(|spent| spent.delta),
            promised_epsilon: plan.budget.map(|budget| budget.epsilon.get()),
            unit: spent.map(|spent| spent.unit),
            person_column: config.data.group.clone(),
            person_rows: config.data.group.as_ref().map(|_| config.data.person_rows),
            accountant: spent.map(|spent| spent.accountant),
            sampling: config.privacy.sampling,
            records: plan.records,
            lot_size: plan.lot_size(),
            noise_multiplier: plan.budget.map(|_| plan.sigma.gradient),
            steps,
            model_step,
            selection: config.evaluation.select,
            ema_decay: Some(config.optimizer.ema_decay).filter(|&decay| decay > 0.0),
            randomness,
            coverage: Coverage {
                isolation,
                noise: config.optimizer.is_private().then_some(config.privacy.noise),
                figures: config.data.publicity().into(),
                dropped_rows: config.data.dropped_rows,
                frozen_weights: config.optimizer.entry().needs_pairs
                    || config.model.lora_rank > 0
                    || ExternalModel::of(&config.model.source)
                        .is_some_and(ExternalModel::has_frozen_weights),
            },
            sessions: chain.sessions().to_vec(),
            ledger: ledger.clone(),
            // Without the closing, which has the hash of this statement.
            ledger_head: open_chain.head(),
            config_sha256: config.digest(),
            weights_sha256,
            summary: Vec::new(),
        };
        statement.summary = statement.rendered();
        Ok(statement)
    }

    /// Reads the statement of a finished run.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn of_run(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("model").join(FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        Self::parse(&text).map_err(Error::json(&path))
    }

    /// Parses a statement strictly: every field exactly once, and no other.
    ///
    /// # Errors
    /// If it is not valid JSON, or a field is missing, unknown or of another type.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let statement: Self = serde_json::from_str(text).map_err(|error| {
            #[derive(Deserialize)]
            struct Versioned {
                version: u32,
            }
            match serde_json::from_str(text) {
                Ok(Versioned { version }) if version != VERSION => serde::de::Error::custom(
                    format!("version: expected {VERSION}, got {version}; use the program of that version"),
                ),
                _ => error,
            }
        })?;
        // serde accepts a missing option and unknown fields of some nested values.
        let (given, expected): (Value, Value) =
            (serde_json::from_str(text)?, serde_json::to_value(&statement)?);
        match first_difference(&given, &expected, "") {
            Some(path) => Err(serde::de::Error::custom(format!(
                "{path}: the field is missing, unknown or out of place"
            ))),
            None => Ok(statement),
        }
    }

    /// The bytes that are hashed and signed: compact JSON with the fields in their order.
    ///
    /// # Errors
    /// If it has no JSON form, which does not happen.
    pub fn canonical(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(Error::Encoding)
    }

    /// The closing entry of the run's ledger.
    pub(crate) fn closing(&self) -> Result<Closing, Error> {
        Ok(Closing {
            weights_sha256: self.weights_sha256.clone(),
            config_sha256: self.config_sha256.clone(),
            statement_sha256: snapshot::digest(self.canonical()?.as_bytes()),
        })
    }

    /// Rebuilds the ledger's chain, without the closing.
    ///
    /// # Errors
    /// If the sessions do not fit the charges, or the head is not the stated one.
    pub(crate) fn chain(&self) -> Result<Chain, ChainError> {
        let chain = Chain::rebuild(&self.run_id, self.ledger.events(), &self.sessions)?;
        chain.check_head("ledger_head", &self.ledger_head)?;
        Ok(chain)
    }

    /// Whether the statement has the version and the name of this program.
    pub(crate) fn is_of_this_version(&self) -> bool {
        self.version == VERSION && self.software == SOFTWARE
    }

    /// The unit of privacy and δ of the guarantee; `None` without one.
    pub fn promise(&self) -> Option<(Unit, f64)> {
        self.unit.zip(self.delta).filter(|_| self.private)
    }

    /// The sampling of lots, from the stated method, lot size and number of records.
    ///
    /// # Errors
    /// If the lot size is impossible for the number of records.
    pub(crate) fn sampling_of_lots(&self) -> Result<Sampling, accounting::Error> {
        let (dataset, lot) = (self.records as u64, self.lot_size.round());
        match self.sampling {
            SamplingMethod::Poisson => {
                let rate = SamplingRate::new(lot / self.records as f64)?;
                Ok(Sampling::Poisson { rate })
            }
            SamplingMethod::FixedSize => Sampling::fixed_size(dataset, lot as u64),
            SamplingMethod::Shuffled => Sampling::shuffled(dataset, lot as u64),
            SamplingMethod::Full => Ok(Sampling::Full),
        }
    }
}

/// The path of the first difference between two values. The notation of numbers is ignored.
fn first_difference(a: &Value, b: &Value, within: &str) -> Option<String> {
    let path =
        |key: &str| if within.is_empty() { key.to_string() } else { format!("{within}.{key}") };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let only_in_one = a
                .keys()
                .find(|key| !b.contains_key(*key))
                .or_else(|| b.keys().find(|key| !a.contains_key(*key)));
            only_in_one.map(|key| path(key)).or_else(|| {
                a.iter().find_map(|(key, value)| first_difference(value, b.get(key)?, &path(key)))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(index, (a, b))| first_difference(a, b, &path(&index.to_string()))),
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (a != b).then(|| within.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement() -> Statement {
        let mut config = Config::embedded();
        config.optimizer = crate::config::OptimizerConfig::named("sgd").unwrap();
        let plan = Plan::new(&config, 1000, &[]).unwrap();
        let mut chain = Chain::new().unwrap();
        chain.charge(&accounting::Event::NonPrivate).unwrap();
        Statement::new(&config, &plan, &chain, 1, 1, Isolation::Exact, Vec::new()).unwrap()
    }

    #[test]
    fn statements_round_trip() {
        let statement = statement();
        assert_eq!(Statement::parse(&statement.canonical().unwrap()).unwrap(), statement);
    }

    #[test]
    fn fields_that_serde_overlooks_are_refused() {
        let whole = serde_json::to_value(statement()).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut other = whole.clone();
            change(&mut other);
            Statement::parse(&other.to_string()).unwrap_err().to_string()
        };
        let left_out = |value: &mut Value| {
            value.as_object_mut().unwrap().remove("person_column");
        };
        assert!(refused(&left_out).starts_with("person_column: "));
        let unknown = |value: &mut Value| value["sessions"][0]["note"] = Value::Null;
        assert!(refused(&unknown).contains("note"));
        assert!(refused(&|value| value["note"] = Value::Null).contains("note"));
        assert!(refused(&|value| value["coverage"]["note"] = Value::Null).contains("note"));
    }
}
