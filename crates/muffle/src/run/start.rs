//! Starts a run in a new folder, in one process or among several.

use crate::Error;
use crate::Outcome;
use crate::Plan;
use crate::config::Config;
use crate::load::data;
use crate::load::digest;
use crate::load::model::{DataProperties, LoadedModel};
use crate::run::evaluation_data::refuse_evaluation_on_training_data;
use crate::run::folder::Folder;
use crate::run::ledger_file::LedgerFile;
use crate::run::plan_file::RunPlan;
use crate::run::{DATA_DIGEST, RunFiles, RunObserver, prepare, together};
use ::data::FeatureCache;
use distributed::Ranks;
use std::path::Path;
use std::sync::Arc;

/// Trains a model in a new folder.
///
/// # Errors
/// If the configuration, the data or the model is invalid, the promise cannot be kept, or the
/// observer asks to stop.
pub fn train(
    config: &Config,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Outcome, Error> {
    train_among(&Ranks::alone(), config, out, observer)?.ok_or_else(no_outcome)
}

/// Trains a model as one of several processes.
///
/// Only the first process has the folder and the outcome.
///
/// # Errors
/// As [`train`], or if a process is lost.
pub fn train_among(
    ranks: &Ranks,
    config: &Config,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    train_with(ranks, config, out, None, observer)
}

/// Trains a model, as [`train`], and keeps the features of images for further runs.
pub(crate) fn train_cached(
    config: &Config,
    out: &Path,
    features: &Arc<FeatureCache>,
    observer: &mut dyn RunObserver,
) -> Result<Outcome, Error> {
    train_with(&Ranks::alone(), config, out, Some(features), observer)?.ok_or_else(no_outcome)
}

fn train_with(
    ranks: &Ranks,
    config: &Config,
    out: &Path,
    features: Option<&Arc<FeatureCache>>,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    let config = config.clone().absolute()?;
    // All inputs are checked before a folder is created.
    Plan::check(&config)?;
    observer
        .message(&format!("loading    model {}, data {}", config.model.source, config.data.train));
    let (labels, image) = data::labels_and_shape(&config.data)?;
    let open = || {
        LoadedModel::open(&config, DataProperties { labels: &labels, image }, &mut |line| {
            observer.message(line)
        })
    };
    let mut model = together::in_turn(ranks, open)?;
    if let Some(cache) = features {
        model.cache_features(cache);
    }
    let data_digest = digest::of_training_data(&config)?;
    refuse_evaluation_on_training_data(&config, &data_digest)?;
    require_same_inputs(ranks, &config, data_digest.clone())?;
    if !ranks.is_first() {
        return prepare(ranks, &config, None, model, &labels, None, observer)?.train(observer);
    }
    let folder = Folder::create(out)?;
    let prepared = LedgerFile::new(&folder).and_then(|ledger| {
        let files = RunFiles { folder: &folder, ledger: Arc::new(ledger) };
        let run = prepare(ranks, &config, Some(files.clone()), model, &labels, None, observer)?;
        folder.write(DATA_DIGEST, &data_digest)?;
        files.ledger.write()?;
        RunPlan::from(run.session.plan()).write(&folder)?;
        // From here on there is a run in the folder.
        folder.write("config.toml", &config.print())?;
        Ok(run)
    });
    match prepared {
        Ok(run) => run.train(observer),
        Err(failed) => {
            folder.discard();
            Err(failed)
        }
    }
}

/// Refuses processes with different versions, configurations or training data.
pub(crate) fn require_same_inputs(
    ranks: &Ranks,
    config: &Config,
    data_digest: String,
) -> Result<(), Error> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    let every = config.training.checkpoint_every.to_string();
    together::require_same(
        ranks,
        &[
            ("version of muffle", version),
            ("configuration", config.digest()),
            ("checkpoint_every", every),
            ("training data", data_digest),
        ],
    )
}

pub(crate) fn no_outcome() -> Error {
    Error::Internal("only the first process has the outcome of a run")
}
