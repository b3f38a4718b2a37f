//! Training runs on disk: from a configuration to a model with its privacy statement.
//!
//! A run can be interrupted at any moment and resumed. The ledger and the private state of the
//! curator are written before anything is computed from a lot; parameters and optimizer state are
//! written together in snapshots. A run that was killed is resumed from its last snapshot. Steps
//! that were charged after it stay charged and are not repeated with the same noise: the run ends
//! that many steps earlier, within the same budget.

mod builder;
pub mod chain;
pub mod dry;
pub mod engine_run;
pub mod folder;
pub mod history;
pub mod outcome;
pub mod plan_file;
pub mod result;
pub mod selection;
pub mod session;
pub mod snapshot;
pub mod tensorboard;

pub use builder::SessionBuilder;
pub use engine_run::{EngineRun, RunInputs};

mod date;
pub(crate) mod disk;
mod early_stop;
mod evaluation_data;
pub(crate) mod ledger_file;
pub(crate) mod memory;
pub(crate) mod model_files;
mod progress;
pub(crate) mod resume;
pub(crate) mod sampler_file;
mod start;
pub mod together;
mod watched;

use crate::Error;
use crate::Outcome;
use crate::config::{Config, Publicity, Select};
use crate::load::data;
use crate::load::model::LoadedModel;
use crate::run::early_stop::EarlyStop;
use crate::run::evaluation_data::{check_selection, check_test_data, validation_examples};
use crate::run::folder::Folder;
use crate::run::history::HistoryEntry;
use crate::run::ledger_file::LedgerFile;
pub use crate::run::progress::{Progress, RunObserver, RunStart, Silent};
use crate::run::resume::{InterruptedRun, require_same_run};
pub use crate::run::resume::{resume, resume_among};
use crate::run::selection::Selection;
use crate::run::session::{ResumeState, Session};
use crate::run::snapshot::{RunIdentity, Snapshot};
pub(crate) use crate::run::start::{no_outcome, require_same_inputs, train_cached};
pub use crate::run::start::{train, train_among};
use crate::run::together::COMPARE_EVERY;
use curator::Records;
use distributed::Ranks;
use engine::{Engine, Example};
use model::Network;
use protocol::Params;
use std::path::Path;
use std::sync::Arc;

/// A session on a model of any device.
type ModelSession = Session<Box<dyn Network>>;

/// The file with the SHA-256 of the training data. It is sealed: the digest is not private.
pub(crate) const DATA_DIGEST: &str = "sealed/data.sha256";

/// The folder and the ledger of a run. Only the first process has them.
#[derive(Clone)]
pub(crate) struct RunFiles<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) ledger: Arc<LedgerFile>,
}

/// A run that is ready for its next step.
pub(crate) struct Run<'a> {
    ranks: Ranks,
    pub(crate) config: &'a Config,
    /// `None` on all processes but the first.
    files: Option<RunFiles<'a>>,
    pub(crate) labels: &'a [String],
    /// The loaded model. Its parameters are in the session.
    pub(crate) model: LoadedModel,
    /// Low-rank adapters, and what is trained with them, before the first step; if they are saved.
    pub(crate) initial_adapters: Option<Params>,
    pub(crate) session: ModelSession,
    /// A fingerprint of each trained tensor before the first step.
    initial_fingerprints: Vec<u64>,
    /// Examples must have fewer tokens than this.
    pub(crate) length_limit: usize,
    config_digest: String,
    /// A fingerprint of the frozen weights.
    frozen: u64,
    validation: Vec<Example>,
    /// Steps between evaluations.
    evaluate_every: u64,
    /// The step of the last snapshot that this process wrote or resumed from.
    snapshot_step: Option<u64>,
    /// The selected parameters; `None` if the last ones are released, or on other processes.
    selection: Option<Selection>,
    /// Counts evaluations without improvement, on the first process.
    pub(crate) early_stop: EarlyStop,
}

/// Prepares a run, new or interrupted: reads the records and builds the session.
pub(crate) fn prepare<'a>(
    ranks: &Ranks,
    config: &'a Config,
    files: Option<RunFiles<'a>>,
    mut model: LoadedModel,
    labels: &'a [String],
    mut from: Option<InterruptedRun>,
    observer: &mut dyn RunObserver,
) -> Result<Run<'a>, Error> {
    together::set_threads(ranks, config);
    let length_limit = data::length_limit(&config.data, &model)?;
    let preparation = model.preparation(labels, length_limit);
    let validation = validation_examples(config, &preparation, observer)?;
    check_test_data(config, &preparation)?;
    check_selection(config, &model, &validation)?;
    let spill_folder =
        files.as_ref().map_or_else(std::env::temp_dir, |files| files.folder.sealed());
    let data::TrainingData { records, dropped, digest } = data::training_data(
        config,
        &preparation,
        &spill_folder,
        memory::record_bytes(ranks.count()),
    )?;
    for warning in dropped.warnings(&config.data, length_limit) {
        observer.message(&warning);
    }
    let micro_batch = config.training.micro_batch.or_else(|| {
        let parts = memory::micro_batch(&model.network, length_limit, ranks.count());
        (parts / config.data.views.count()).max(1)
    });
    let frozen = frozen_fingerprint(&model);
    together::require_same(
        ranks,
        &[("model", frozen.to_string()), ("set of prepared records (the tokenizer?)", digest)],
    )?;
    // The snapshot from which the run is resumed need not be written again.
    let snapshot_step = from.as_ref().and_then(|from| Some(from.snapshot.as_ref()?.step));
    // Without a snapshot the run starts over, and so does the selection.
    let saved = from.as_mut().and_then(|from| from.snapshot.as_mut()?.selection.take());
    let selection = saved.or_else(|| Selection::new(&config.evaluation));
    let (mut session, initial_fingerprints) =
        build_session(ranks, config, &model, records, from, frozen)?;
    check_charges(&session)?;
    together::require_same_params(ranks, session.params())?;
    session.set_micro_batch(micro_batch);
    if let Some(files) = &files {
        write_on_charge_and_draw(config, files.folder, &files.ledger, &mut session);
    }
    let total: usize =
        model.network.tensors(&model.params).into_iter().map(|(_, tensor)| tensor.len()).sum();
    let mean_tokens =
        validation.iter().map(Example::len).sum::<usize>() as f64 / validation.len() as f64;
    observer.started(&RunStart {
        config,
        plan: session.plan(),
        parameters: (model.params.elements(), total),
        micro_batch,
        processes: ranks.count(),
        step: session.steps(),
        dropped,
        lot_tokens: (model.tokenizer.is_some() && mean_tokens.is_finite())
            .then(|| mean_tokens * session.plan().lot_size()),
    });
    // The session has its own copy of the parameters.
    let initial = std::mem::take(&mut model.params);
    let evaluate_every =
        config.evaluation.every.or_else(|| session.plan().steps.div_ceil(20)).max(1);
    Ok(Run {
        ranks: ranks.clone(),
        config,
        files,
        labels,
        model,
        initial_adapters: model_files::saves_adapter(config).then_some(initial),
        session,
        initial_fingerprints,
        length_limit,
        config_digest: config.digest(),
        frozen,
        validation,
        evaluate_every,
        snapshot_step,
        selection: selection.filter(|_| ranks.is_first()),
        early_stop: EarlyStop::new(&config.evaluation, &[]),
    })
}

/// Builds a new or resumed session. Also returns the tensors' fingerprints before the first step.
fn build_session(
    ranks: &Ranks,
    config: &Config,
    model: &LoadedModel,
    records: Records,
    from: Option<InterruptedRun>,
    frozen: u64,
) -> Result<(ModelSession, Vec<u64>), Error> {
    let network = model.network.new_instance();
    let Some(from) = from else {
        let session = Session::among(ranks, config, network, model.params.clone(), records, None)?;
        return Ok((session, fingerprints(&model.params)));
    };
    let (step, params, optimizer, initial_fingerprints) = match from.snapshot {
        Some(snapshot) => {
            require_same_run(config, &snapshot.identity, from.private_state.as_ref(), frozen)?;
            let Snapshot { step, params, optimizer, initial_fingerprints, .. } = snapshot;
            (step, params, Some(optimizer), initial_fingerprints)
        }
        // Interrupted before the first snapshot: the run starts over, and all charges count.
        None => (0, model.params.clone(), None, fingerprints(&model.params)),
    };
    let state = ResumeState {
        ledger: from.ledger,
        private_state: from.private_state,
        optimizer,
        params: Params::default(),
    };
    let session = Session::among(ranks, config, network, params, records, Some(state))?;
    if session.steps() != step {
        return Err(Error::format(
            Path::new("checkpoints"),
            format!(
                "expected an optimizer state of step {step}, as the checkpoint; got step {}",
                session.steps()
            ),
        ));
    }
    Ok((session, initial_fingerprints))
}

/// Whether a resumed run needs the state of the sampler: lots depend on earlier draws.
pub(crate) fn needs_sampler_state(config: &Config) -> bool {
    config.optimizer.is_private()
        && (config.privacy.seed.is_some()
            || config.privacy.sampling == accounting::SamplingMethod::Shuffled)
}

/// Writes the ledger after each charge and, if a resumed run needs it, the sampler after each
/// draw.
pub(crate) fn write_on_charge_and_draw<E: Engine>(
    config: &Config,
    folder: &Folder,
    ledger: &Arc<LedgerFile>,
    session: &mut Session<E>,
) {
    let journal = ledger.clone();
    session.set_journal(Box::new(move |spent| {
        journal.append_next(spent).map_err(|error| error.to_string())
    }));
    if needs_sampler_state(config) {
        let (path, ledger) = (folder.join(sampler_file::SAMPLER), ledger.clone());
        session.set_state_sink(Box::new(move |state| {
            sampler_file::write(&path, &ledger.mark(), state)
                .and_then(|()| ledger.set_draws(state.draws()))
                .map_err(|error| error.to_string())
        }));
    }
}

/// Refuses a plan with more charges than a ledger on disk can have.
pub(crate) fn check_charges<E: Engine>(session: &Session<E>) -> Result<(), Error> {
    // Without privacy the charges are made at the end, one for each step.
    let charges = session.plan().events.len().max(session.plan().steps);
    if charges <= chain::MAX_CHARGES {
        return Ok(());
    }
    Err(Error::config(
        "training.steps",
        format!(
            "expected at most {} charges, got {charges} (several per step if the learning rate is \
             searched for)",
            chain::MAX_CHARGES
        ),
    ))
}

impl<'a> Run<'a> {
    /// Trains up to the last step and finishes the run. Only the first process has an outcome.
    pub(crate) fn train(
        mut self,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<Outcome>, Error> {
        let mut last = self.restore_history(observer)?;
        let mut stopped_early = self.agree_on_early_stop()?;
        let mut micro_batch = self.session.micro_batch();
        // A closed run makes no further step: only its last files are missing.
        let closed =
            self.files.as_ref().is_some_and(|files| files.ledger.chain().closing().is_some());
        while let Some(step) = if closed || stopped_early { None } else { self.session.step()? } {
            if self.session.micro_batch() < micro_batch {
                micro_batch = self.session.micro_batch();
                observer.message(&format!(
                    "warning: out of memory; continuing with a micro-batch size of {micro_batch} \
                     (NON-PRIVATE, shown here only)"
                ));
            }
            let done = self.session.steps();
            let is_last = done == self.session.plan().steps;
            let fresh = done.is_multiple_of(self.evaluate_every) || is_last;
            if done.is_multiple_of(COMPARE_EVERY) || is_last {
                together::require_same_params(&self.ranks, self.session.params())?;
            }
            if let Some(folder) = self.folder().filter(|_| fresh) {
                let entry = self.evaluate(step.rate)?;
                entry.append(folder)?;
                if self.config.evaluation.tensorboard {
                    tensorboard::append(folder, &entry)?;
                }
                last = Some(entry);
                self.early_stop.add(&entry);
                if let Some(selection) = &mut self.selection {
                    selection.add_evaluation(&entry, self.session.released_params());
                }
            }
            stopped_early = fresh && !is_last && self.agree_on_early_stop()?;
            if done.is_multiple_of(self.config.training.checkpoint_every.max(1)) || is_last {
                self.add_checkpoint();
                self.save_snapshot()?;
            }
            let notes = step.notes.iter().map(ToString::to_string).collect();
            if let Some(latest) = last {
                observer.stepped(&Progress { step: done, latest, fresh, notes });
            }
            if !is_last && !stopped_early && self.should_stop(observer)? {
                self.save_snapshot()?;
                return Err(Error::Stopped);
            }
        }
        let steps = self.session.steps();
        if !closed && steps > 0 && steps < self.session.plan().steps {
            // The last steps of the plan were lost in an interruption or are not made, so that this
            // is the last checkpoint. It is saved again if it may be selected, by all processes.
            self.add_checkpoint();
            if self.config.evaluation.select == Select::NearestBestNll {
                self.snapshot_step = None;
            }
        }
        self.save_snapshot()?;
        self.files.clone().map(|files| outcome::finish(self, &files, observer)).transpose()
    }

    fn folder(&self) -> Option<&'a Folder> {
        self.files.as_ref().map(|files| files.folder)
    }

    /// Removes history entries after the current step and returns the last one that is left.
    ///
    /// Before the first step, writes a snapshot and an entry.
    fn restore_history(
        &mut self,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<HistoryEntry>, Error> {
        if self.session.steps() == 0 {
            self.save_snapshot()?;
        }
        let Some(folder) = self.folder() else { return Ok(None) };
        history::truncate(folder, self.session.steps())?;
        if self.session.steps() == 0 {
            // An earlier process may have written the entry of step 0: it is replaced.
            folder.write(history::FILE, "")?;
            let latest = self.evaluate(0.0)?;
            latest.append(folder)?;
            observer.stepped(&Progress { step: 0, latest, fresh: true, notes: Vec::new() });
        }
        let entries = history::read(folder, self.session.steps())?;
        if self.config.evaluation.tensorboard {
            tensorboard::rewrite(folder, &entries)?;
        }
        self.early_stop = EarlyStop::new(&self.config.evaluation, &entries);
        Ok(entries.last().copied())
    }

    /// Whether to stop after this step. The first process decides.
    fn should_stop(&self, observer: &mut dyn RunObserver) -> Result<bool, Error> {
        let stop = observer.should_stop();
        Ok(if self.ranks.count() == 1 {
            stop
        } else {
            self.ranks.broadcast(vec![stop.into()])? == [1]
        })
    }

    /// Lets the selection consider the current parameters as a checkpoint.
    fn add_checkpoint(&mut self) {
        if let Some(selection) = &mut self.selection {
            selection.add_checkpoint(self.session.steps(), self.session.released_params());
        }
    }

    /// The step and the parameters of the released model: the last ones, or the selected ones.
    pub(crate) fn released(&self) -> (u64, &Params) {
        match self.selection.as_ref().and_then(|selection| selection.chosen.as_ref()) {
            Some(chosen) => (chosen.step, &chosen.params),
            None => (self.session.steps(), self.session.released_params()),
        }
    }

    /// Saves a snapshot of the current step, unless there is one. All processes must call it.
    fn save_snapshot(&mut self) -> Result<(), Error> {
        if self.snapshot_step == Some(self.session.steps()) {
            return Ok(());
        }
        let (step, optimizer) = (self.session.steps(), self.session.optimizer()?);
        self.snapshot_step = Some(step);
        let Some(files) = &self.files else { return Ok(()) };
        let snapshot = Snapshot {
            step,
            params: self.session.params().clone(),
            optimizer,
            initial_fingerprints: self.initial_fingerprints.clone(),
            identity: RunIdentity {
                config: self.config_digest.clone(),
                frozen: self.frozen,
                ledger: files.ledger.mark(),
                draws: self.session.draws(),
            },
            selection: self.selection.clone(),
        };
        snapshot.save(&files.folder.join("checkpoints"))
    }

    /// The names of released tensors with the same values as before the first step.
    pub(crate) fn unchanged_tensors(&self) -> Vec<String> {
        let now = fingerprints(self.released().1);
        let unchanged = self
            .session
            .trainable()
            .iter()
            .zip(now.iter().zip(&self.initial_fingerprints))
            .filter(|(_, (now, first))| now == first);
        unchanged.map(|(tensor, _)| tensor.name.clone()).collect()
    }

    /// Whether figures on validation and test data are public.
    pub(crate) fn publicity(&self) -> Publicity {
        self.config.data.publicity()
    }
}

/// A fingerprint of each tensor.
pub(crate) fn fingerprints(params: &Params) -> Vec<u64> {
    params.iter().map(|tensor| snapshot::fingerprint(std::iter::once(tensor))).collect()
}

/// A fingerprint of the weights that are not trained.
fn frozen_fingerprint(model: &LoadedModel) -> u64 {
    let trained: Vec<String> =
        model.network.trainable().into_iter().map(|tensor| tensor.name).collect();
    let all = model.network.tensors(&model.params);
    snapshot::fingerprint(
        all.iter()
            .filter(|(name, _)| !trained.iter().any(|trained| trained == name))
            .map(|(_, tensor)| &**tensor),
    )
}
