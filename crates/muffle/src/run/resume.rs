//! Resuming an interrupted run from its folder, with any number of processes.

use crate::Error;
use crate::Outcome;
use crate::config::Config;
use crate::load::data;
use crate::load::digest;
use crate::load::model::{DataProperties, LoadedModel};
use crate::run::folder::Folder;
use crate::run::ledger_file::LedgerFile;
use crate::run::progress::RunObserver;
use crate::run::result;
use crate::run::sampler_file;
use crate::run::snapshot::{self, RunIdentity, Snapshot};
use crate::run::together;
use crate::run::{
    DATA_DIGEST, RunFiles, needs_sampler_state, no_outcome, prepare, require_same_inputs,
};
use accounting::{Event, Ledger};
use curator::PrivateState;
use distributed::Ranks;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// Resumes a run from its last checkpoint.
///
/// # Errors
/// As [`train`](crate::run::train), or if the folder is damaged or the training data are not those
/// that the run started with.
pub fn resume(out: &Path, observer: &mut dyn RunObserver) -> Result<Outcome, Error> {
    resume_among(&Ranks::alone(), out, observer)?.ok_or_else(no_outcome)
}

/// Resumes a run as one of several processes, whose number may have changed.
///
/// The first process reads the folder and sends its content to the others.
///
/// # Errors
/// As [`resume`], or if a process is lost.
pub fn resume_among(
    ranks: &Ranks,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    if !ranks.is_first() {
        return resume_from_message(ranks, observer);
    }
    let folder = Folder::open(out)?;
    let config = Config::read(&folder.join("config.toml"))?;
    let data_digest = digest::of_training_data(&config)?;
    match folder.read(DATA_DIGEST)? {
        Some(known) if known == data_digest => {}
        Some(_) => {
            return Err(Error::folder(
                out,
                format!(
                    "data.train: {} is not the data that the run started with; the budget was \
                     spent on the original data",
                    config.data.train
                ),
            ));
        }
        None if is_complete(out) => {
            return Err(Error::folder(out, "the run is complete"));
        }
        None => {
            return Err(Error::folder(
                out,
                "the folder sealed/ is missing; without it the run cannot be resumed safely",
            ));
        }
    }
    let (from, sampler, files, ledger_file) =
        read_with_files(&folder, &config, &mut |line| observer.message(line))?;
    ResumeMessage {
        config: config.print(),
        ledger: from.ledger.clone(),
        sampler,
        has_snapshot: from.snapshot.is_some(),
    }
    .send(ranks, files)?;
    resume_interrupted(
        ranks,
        &config,
        data_digest,
        Some(RunFiles { folder: &folder, ledger: Arc::new(ledger_file) }),
        from,
        observer,
    )
}

/// Reads the state of an interrupted run from its folder, and opens its ledger.
///
/// # Errors
/// If a file is damaged, or older than another one.
pub(crate) fn read_interrupted(
    folder: &Folder,
    config: &Config,
    warn: &mut dyn FnMut(&str),
) -> Result<(InterruptedRun, LedgerFile), Error> {
    let (from, _, _, ledger_file) = read_with_files(folder, config, warn)?;
    Ok((from, ledger_file))
}

/// The state of an interrupted run, the text of its sampler, the files of its snapshot, and its
/// ledger.
type StateWithFiles = (InterruptedRun, Option<String>, Option<snapshot::SnapshotFiles>, LedgerFile);

fn read_with_files(
    folder: &Folder,
    config: &Config,
    warn: &mut dyn FnMut(&str),
) -> Result<StateWithFiles, Error> {
    let (snapshot, files) = Snapshot::newest_with_files(&folder.join("checkpoints"), warn)?.unzip();
    let ledger_file = LedgerFile::open(folder)?;
    let chain = ledger_file.chain();
    if let Some(snapshot) = &snapshot {
        chain
            .check(&snapshot.identity.ledger, "the checkpoint")
            .map_err(Error::ledger(folder.path()))?;
    }
    let sampler = sampler_file::read(folder, &chain)?;
    let drawn = sampler
        .as_deref()
        .map_or(Ok(0), |text| PrivateState::from_text(text).map(|state| state.draws()))?;
    if drawn < ledger_file.draws() {
        return Err(older_sampler(
            &folder.join(sampler_file::SAMPLER),
            drawn,
            "the sealed mark",
            ledger_file.draws(),
        ));
    }
    let from = InterruptedRun {
        ledger: resumed_ledger(config, chain.ledger().clone(), snapshot.as_ref())?,
        snapshot,
        private_state: sampler.as_deref().map(PrivateState::from_text).transpose()?,
    };
    Ok((from, sampler, files, ledger_file))
}

/// Makes an error about a sampler with fewer draws than `holder` records.
fn older_sampler(path: &Path, drawn: u64, holder: &str, expected: u64) -> Error {
    Error::format(
        path,
        format!(
            "the sampler has drawn {drawn} lots, but {holder} was written after {expected}: the \
             file was replaced by an older one"
        ),
    )
}

/// The state of an interrupted run, as the first process sends it to the others.
#[derive(Serialize, Deserialize)]
struct ResumeMessage {
    config: String,
    ledger: Ledger,
    sampler: Option<String>,
    /// Whether the three files of a snapshot follow.
    has_snapshot: bool,
}

impl ResumeMessage {
    fn send(&self, ranks: &Ranks, files: Option<snapshot::SnapshotFiles>) -> Result<(), Error> {
        if ranks.count() > 1 {
            ranks.broadcast(serde_json::to_vec(self).map_err(Error::Encoding)?)?;
            files.into_iter().flatten().try_for_each(|file| ranks.broadcast(file).map(drop))?;
        }
        Ok(())
    }
}

/// Resumes a run from the message of the first process.
fn resume_from_message(
    ranks: &Ranks,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    let message: ResumeMessage =
        serde_json::from_slice(&ranks.broadcast(Vec::new())?).map_err(Error::Encoding)?;
    let config = Config::parse(&message.config)?;
    let receive_file = || ranks.broadcast(Vec::new());
    let snapshot = if message.has_snapshot {
        let files = [receive_file()?, receive_file()?, receive_file()?];
        let damaged = |_| Error::Internal("the snapshot sent by rank 0 is damaged");
        Some(Snapshot::from_files(&files).map_err(damaged)?)
    } else {
        None
    };
    let from = InterruptedRun {
        snapshot,
        ledger: message.ledger,
        private_state: message.sampler.map(|text| PrivateState::from_text(&text)).transpose()?,
    };
    resume_interrupted(ranks, &config, digest::of_training_data(&config)?, None, from, observer)
}

fn resume_interrupted(
    ranks: &Ranks,
    config: &Config,
    data_digest: String,
    files: Option<RunFiles<'_>>,
    from: InterruptedRun,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    let (labels, image) = data::labels_and_shape(&config.data)?;
    let open = || {
        LoadedModel::open(config, DataProperties { labels: &labels, image }, &mut |line| {
            observer.message(line)
        })
    };
    let model = together::in_turn(ranks, open)?;
    require_same_inputs(ranks, config, data_digest)?;
    let run = prepare(ranks, config, files.clone(), model, &labels, Some(from), observer)?;
    // All checks have passed: from here on this process works on the run.
    if let Some(files) = files.filter(|files| files.ledger.chain().closing().is_none()) {
        files.ledger.begin_session()?;
    }
    run.train(observer)
}

/// Whether a run is finished: its result is written and its private state is removed.
pub(crate) fn is_complete(out: &Path) -> bool {
    out.join(result::RESULT).is_file() && !out.join(DATA_DIGEST).exists()
}

/// Returns the ledger to resume with.
///
/// Without privacy, steps are charged only at the end of the run: the ledger gets one non-private
/// event for each step of the snapshot.
fn resumed_ledger(
    config: &Config,
    ledger: Ledger,
    snapshot: Option<&Snapshot>,
) -> Result<Ledger, Error> {
    if config.optimizer.is_private() {
        return Ok(ledger);
    }
    let mut ledger = Ledger::new();
    ledger.charge(Event::NonPrivate, snapshot.map_or(0, |snapshot| snapshot.step))?;
    Ok(ledger)
}

/// The state of an interrupted run, read from its folder.
pub(crate) struct InterruptedRun {
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) ledger: Ledger,
    pub(crate) private_state: Option<PrivateState>,
}

/// Refuses a sampler older than the snapshot, another configuration, or another model.
pub(crate) fn require_same_run(
    config: &Config,
    identity: &RunIdentity,
    private_state: Option<&PrivateState>,
    frozen: u64,
) -> Result<(), Error> {
    let drawn = private_state.map_or(0, PrivateState::draws);
    if needs_sampler_state(config) && drawn < identity.draws {
        return Err(older_sampler(
            Path::new(sampler_file::SAMPLER),
            drawn,
            "the checkpoint",
            identity.draws,
        ));
    }
    if config.digest() != identity.config {
        return Err(Error::config(
            "config.toml",
            "not the configuration that the run started with; only training.threads, \
             training.micro_batch and, unless evaluation.select depends on them, \
             training.checkpoint_every and [evaluation] may change",
        ));
    }
    if frozen != identity.frozen {
        return Err(Error::config(
            "model.source",
            format!("{} is not the model that the run started with", config.model.source),
        ));
    }
    Ok(())
}
