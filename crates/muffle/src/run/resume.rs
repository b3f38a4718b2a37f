//! How a run goes on after an interruption: from what its folder holds, with any number of
//! processes.

use crate::Error;
use crate::Outcome;
use crate::config::Config;
use crate::load::data;
use crate::load::model::{Circumstances, LoadedModel};
use crate::run::folder::Folder;
use crate::run::ledger_file::LedgerFile;
use crate::run::progress::RunObserver;
use crate::run::result;
use crate::run::sampler_file;
use crate::run::snapshot::{self, RunIdentity, Snapshot};
use crate::run::together;
use crate::run::{FINGERPRINT, Files, begin, fingerprint, keeps, no_outcome, same_beginning};
use accounting::{Event, Ledger};
use curator::PrivateState;
use distributed::Ranks;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// Goes on with a run from its last snapshot.
///
/// # Errors
/// As [`train`](crate::run::train), or if the folder is damaged or the data are no longer those it
/// began with.
pub fn resume(out: &Path, observer: &mut dyn RunObserver) -> Result<Outcome, Error> {
    resume_among(&Ranks::alone(), out, observer)?.ok_or_else(no_outcome)
}

/// The same as one of several processes, as many as it may be now. The first reads the folder and
/// tells the others.
///
/// # Errors
/// As [`resume`], or if a process is gone.
pub fn resume_among(
    ranks: &Ranks,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    if !ranks.is_first() {
        return follow(ranks, observer);
    }
    let folder = Folder::open(out)?;
    let config = Config::read(&folder.join("config.toml"))?;
    let people = fingerprint(&config)?;
    match folder.read(FINGERPRINT)? {
        Some(known) if known == people => {}
        Some(_) => {
            return Err(Error::folder(
                out,
                format!(
                    "data.train ({}) is not the data that the run began with, on which its \
                     budget was spent",
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
    let (snapshot, files) =
        Snapshot::newest_with_files(&folder.join("checkpoints"), &mut |line| {
            observer.message(line)
        })?
        .unzip();
    let ledger_file = LedgerFile::open(&folder)?;
    let chain = ledger_file.chain();
    if let Some(snapshot) = &snapshot {
        chain
            .check(&snapshot.belongs.ledger, "the checkpoint")
            .map_err(|what| Error::format(out, what))?;
    }
    let sealed = sampler_file::read(&folder, &chain)?;
    let drawn = sealed
        .as_deref()
        .map_or(Ok(0), |text| PrivateState::from_text(text).map(|sealed| sealed.draws()))?;
    if drawn < ledger_file.draws() {
        return Err(Error::format(
            &folder.join(sampler_file::SAMPLER),
            format!(
                "it knows of {drawn} lots, the sealed mark of {}: an old one was put in its place",
                ledger_file.draws()
            ),
        ));
    }
    let ledger = without_privacy(&config, chain.ledger().clone(), snapshot.as_ref())?;
    ResumeMessage {
        config: config.print(),
        ledger: ledger.clone(),
        sealed: sealed.clone(),
        begun: snapshot.is_some(),
    }
    .send(ranks, files)?;
    let from = InterruptedRun {
        snapshot,
        ledger,
        sealed: sealed.map(|text| PrivateState::from_text(&text)).transpose()?,
    };
    go_on(
        ranks,
        &config,
        people,
        Some(Files { folder: &folder, ledger: Arc::new(ledger_file) }),
        from,
        observer,
    )
}

/// What the first process reads in the folder of an interrupted run and the others must know.
#[derive(Serialize, Deserialize)]
struct ResumeMessage {
    config: String,
    ledger: Ledger,
    sealed: Option<String>,
    begun: bool,
}

impl ResumeMessage {
    fn send(&self, ranks: &Ranks, files: Option<snapshot::Files>) -> Result<(), Error> {
        if ranks.count() > 1 {
            ranks.broadcast(serde_json::to_vec(self).map_err(Error::Encoding)?)?;
            files.into_iter().flatten().try_for_each(|file| ranks.broadcast(file).map(drop))?;
        }
        Ok(())
    }
}

/// What the other processes do with an interrupted run.
fn follow(ranks: &Ranks, observer: &mut dyn RunObserver) -> Result<Option<Outcome>, Error> {
    let told: ResumeMessage =
        serde_json::from_slice(&ranks.broadcast(Vec::new())?).map_err(Error::Encoding)?;
    let config = Config::parse(&told.config)?;
    let file = || ranks.broadcast(Vec::new());
    let snapshot = if told.begun {
        let files = [file()?, file()?, file()?];
        let damaged = |_| Error::Internal("the snapshot sent by rank 0 is damaged");
        Some(Snapshot::from_files(&files).map_err(damaged)?)
    } else {
        None
    };
    let from = InterruptedRun {
        snapshot,
        ledger: told.ledger,
        sealed: told.sealed.map(|text| PrivateState::from_text(&text)).transpose()?,
    };
    go_on(ranks, &config, fingerprint(&config)?, None, from, observer)
}

fn go_on(
    ranks: &Ranks,
    config: &Config,
    people: String,
    files: Option<Files<'_>>,
    from: InterruptedRun,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    let (labels, image) = data::survey(&config.data)?;
    let open = || {
        LoadedModel::open(config, Circumstances { labels: &labels, image }, &mut |line| {
            observer.message(line)
        })
    };
    let subject = together::in_turn(ranks, open)?;
    same_beginning(ranks, config, people)?;
    let run = begin(ranks, config, files.clone(), subject, &labels, Some(from), observer)?;
    // Nothing was found that speaks against it: from here on this process works on the run.
    if let Some(files) = files.filter(|files| files.ledger.chain().closing().is_none()) {
        files.ledger.begin_session()?;
    }
    run.drive(observer)
}

/// Whether a run is over: its result is there and nothing is sealed any more.
pub(crate) fn is_complete(out: &Path) -> bool {
    out.join(result::RESULT).is_file() && !out.join(FINGERPRINT).exists()
}

/// Without privacy nothing is charged on the way: every step that was made counts as one without a
/// guarantee.
fn without_privacy(
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

/// What an interrupted run left.
pub(crate) struct InterruptedRun {
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) ledger: Ledger,
    pub(crate) sealed: Option<PrivateState>,
}

/// Refuses a sampler older than the snapshot, another configuration, or another model.
pub(crate) fn belongs(
    config: &Config,
    known: &RunIdentity,
    sealed: Option<&PrivateState>,
    frozen: u64,
) -> Result<(), Error> {
    if keeps(config) && known.draws > 0 && sealed.is_none_or(|sealed| sealed.draws() < known.draws)
    {
        return Err(Error::format(
            Path::new(sampler_file::SAMPLER),
            format!(
                "the checkpoint knows of {} lots, the sealed part of fewer: an old one was put in \
                 its place",
                known.draws
            ),
        ));
    }
    if config.digest() != known.config {
        return Err(Error::config(
            "config.toml: not the configuration that the run began with (only \
            threads, micro_batch, checkpoint_every and [evaluation] may change)",
        ));
    }
    if frozen != known.frozen {
        return Err(Error::config(format!(
            "model.source: {} is not the model that the run began with",
            config.model.source
        )));
    }
    Ok(())
}
