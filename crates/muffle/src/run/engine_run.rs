//! A run in a folder with an engine and records of the caller.
//!
//! [`train`](crate::run::train) opens model and data by their names in the configuration. Here a
//! program has both, evaluates the model and saves it; ledger, snapshots, statement and report are
//! the same. It is how the Python module trains models of PyTorch.

use crate::config::{Config, ExternalModel};
use crate::evaluate::GeneratedText;
use crate::report::{self, Statement, statement};
use crate::run::folder::Folder;
use crate::run::history::{self, BestFigures, HistoryEntry};
use crate::run::ledger_file::LedgerFile;
use crate::run::plan_file::RunPlan;
use crate::run::result::{self, Metrics, RESULT, RunResult, SAMPLES};
use crate::run::resume::{is_complete, read_interrupted, require_same_run};
use crate::run::session::{ResumeState, Session, Step};
use crate::run::snapshot::{RunIdentity, Snapshot};
use crate::run::{
    DATA_DIGEST, check_charges, fingerprints, folder, snapshot, write_on_charge_and_draw,
};
use crate::verify::weight_files;
use crate::{Error, Plan};
use curator::Records;
use engine::Engine;
use protocol::Params;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a resumed run must have in common with its start, besides the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInputs {
    /// A digest of the records. It is private and stays in the sealed folder.
    pub records: String,
    /// A fingerprint of the weights that are not trained.
    pub frozen: u64,
}

/// A run in a folder with an engine and records of the caller.
///
/// The caller steps it, records figures of its evaluations, saves the model into
/// [`model_folder`](Self::model_folder), and finishes it.
pub struct EngineRun<E> {
    config: Config,
    session: Session<E>,
    folder: Folder,
    ledger: Arc<LedgerFile>,
    initial_fingerprints: Vec<u64>,
    frozen: u64,
    /// The step of the last snapshot that was written or resumed from.
    snapshot_step: Option<u64>,
    /// Whether the ledger is closed: only the last files are missing.
    closed: bool,
    rate: f64,
}

impl<E> std::fmt::Debug for EngineRun<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineRun").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl<E: Engine> EngineRun<E> {
    /// Starts a run in a new folder.
    ///
    /// `inputs` is called after the engine has been probed and has validated all records, with the
    /// configuration of the run.
    ///
    /// # Errors
    /// If the folder is not empty, the configuration is invalid, the promise cannot be kept, the
    /// probe refuses the engine, or a record does not fit the model.
    pub fn create(
        config: &Config,
        engine: E,
        params: Params,
        records: Records,
        out: &Path,
        inputs: &dyn Fn(&Config) -> Result<RunInputs, Error>,
    ) -> Result<Self, Error> {
        require_external(config)?;
        let config = config.clone().absolute()?;
        Plan::check(&config)?;
        let folder = Folder::create(out)?;
        let started = || {
            let initial_fingerprints = fingerprints(&params);
            let session = Session::new(&config, engine, params, records)?;
            check_charges(&session)?;
            let RunInputs { records, frozen } = inputs(&config)?;
            let ledger = Arc::new(LedgerFile::new(&folder)?);
            folder.write(DATA_DIGEST, &records)?;
            ledger.write()?;
            RunPlan::from(session.plan()).write(&folder)?;
            // From here on there is a run in the folder.
            folder.write("config.toml", &config.print())?;
            Ok((session, ledger, initial_fingerprints, frozen))
        };
        match started() {
            Ok((session, ledger, initial_fingerprints, frozen)) => Self {
                config,
                session,
                folder,
                ledger,
                initial_fingerprints,
                frozen,
                snapshot_step: None,
                closed: false,
                rate: 0.0,
            }
            .prepared(),
            Err(error) => {
                folder.discard();
                Err(error)
            }
        }
    }

    /// Resumes an interrupted run. `params` are the initial parameters, used if there is no
    /// snapshot.
    ///
    /// # Errors
    /// As [`create`](Self::create), or if the run is complete, its files are damaged, or model or
    /// records are not those that it started with.
    pub fn resume(
        out: &Path,
        engine: E,
        params: Params,
        records: Records,
        inputs: &dyn Fn(&Config) -> Result<RunInputs, Error>,
    ) -> Result<Self, Error> {
        let folder = Folder::open(out)?;
        let config = Config::read(&folder.join("config.toml"))?;
        require_external(&config)?;
        let Some(known) = folder.read(DATA_DIGEST)? else {
            return Err(Error::folder(
                out,
                match is_complete(out) {
                    true => "the run is complete",
                    false => {
                        "the folder sealed/ is missing; without it the run cannot be resumed safely"
                    }
                },
            ));
        };
        let mut warnings = Vec::new();
        let (from, ledger) =
            read_interrupted(&folder, &config, &mut |line| warnings.push(line.to_string()))?;
        let (state, snapshot_step, initial_fingerprints, identity) = match from.snapshot {
            Some(snapshot) => (
                ResumeState {
                    ledger: from.ledger,
                    private_state: from.private_state,
                    optimizer: Some(snapshot.optimizer),
                    params: snapshot.params,
                },
                Some(snapshot.step),
                snapshot.initial_fingerprints,
                Some(snapshot.identity),
            ),
            // Interrupted before the first snapshot: the run starts over, and all charges count.
            None => {
                let initial_fingerprints = fingerprints(&params);
                let state = ResumeState {
                    ledger: from.ledger,
                    private_state: from.private_state,
                    optimizer: None,
                    params,
                };
                (state, None, initial_fingerprints, None)
            }
        };
        if let Some(identity) = &identity {
            // The frozen weights are known only after the engine has seen the model.
            let (frozen, state) = (identity.frozen, state.private_state.as_ref());
            require_same_run(&config, identity, state, frozen)?;
        }
        let session = Session::resume(&config, engine, records, state)?;
        let RunInputs { records, frozen } = inputs(&config)?;
        if records != known {
            return Err(Error::folder(
                out,
                "the records are not those that the run started with; the budget was spent on the \
                 original ones",
            ));
        }
        if identity.is_some_and(|identity| identity.frozen != frozen) {
            return Err(Error::folder(
                out,
                "the weights that are not trained are not those that the run started with",
            ));
        }
        if session.steps() != snapshot_step.unwrap_or(0) {
            return Err(Error::folder(out, "the optimizer's state is of another step"));
        }
        let closed = ledger.chain().closing().is_some();
        if !closed {
            ledger.begin_session()?;
        }
        Self {
            config,
            session,
            folder,
            ledger: Arc::new(ledger),
            initial_fingerprints,
            frozen,
            snapshot_step,
            closed,
            rate: 0.0,
        }
        .prepared()
    }

    /// Writes the ledger on each charge, and the first snapshot.
    fn prepared(mut self) -> Result<Self, Error> {
        write_on_charge_and_draw(&self.config, &self.folder, &self.ledger, &mut self.session);
        if let crate::config::Auto::Value(examples) = self.config.training.micro_batch {
            self.session.set_micro_batch(examples);
        }
        history::truncate(&self.folder, self.session.steps())?;
        if self.session.steps() == 0 {
            // An earlier process may have written the entry of step 0.
            self.folder.write(history::FILE, "")?;
            self.save()?;
        }
        Ok(self)
    }

    /// Takes one step; returns `None` if all steps are done.
    ///
    /// # Errors
    /// If a computation fails or a file cannot be written.
    pub fn step(&mut self) -> Result<Option<Step>, Error> {
        if self.closed {
            return Ok(None);
        }
        let Some(step) = self.session.step()? else { return Ok(None) };
        self.rate = step.rate;
        let done = self.session.steps();
        let every = self.config.training.checkpoint_every.max(1);
        if done.is_multiple_of(every) || done == self.session.plan().steps {
            self.save()?;
        }
        Ok(Some(step))
    }

    /// The session: plan, steps, parameters.
    pub fn session(&self) -> &Session<E> {
        &self.session
    }

    /// Saves a snapshot of the current step, from which the run can be resumed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&mut self) -> Result<(), Error> {
        let step = self.session.steps();
        if self.snapshot_step == Some(step) {
            return Ok(());
        }
        let snapshot = Snapshot {
            step,
            params: self.session.params().clone(),
            optimizer: self.session.optimizer()?,
            initial_fingerprints: self.initial_fingerprints.clone(),
            identity: RunIdentity {
                config: self.config.digest(),
                frozen: self.frozen,
                ledger: self.ledger.mark(),
                draws: self.session.draws(),
            },
            selection: None,
        };
        snapshot.save(&self.folder.join("checkpoints"))?;
        self.snapshot_step = Some(step);
        Ok(())
    }

    /// Appends figures of the caller's evaluation data to the history; returns the entry.
    ///
    /// They are marked as the configuration declares the evaluation data.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn record(&self, figures: &Metrics) -> Result<HistoryEntry, Error> {
        let epsilon = self.session.guarantee()?.epsilon;
        let entry = HistoryEntry {
            step: self.session.steps(),
            epsilon: epsilon.is_finite().then_some(epsilon),
            learning_rate: self.rate,
            figures: self.config.data.publicity().into(),
            nll: figures.nll,
            accuracy: figures.accuracy,
            bleu: figures.bleu,
            rmse: figures.rmse,
        };
        entry.append(&self.folder)?;
        Ok(entry)
    }

    /// The folder of the run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder into which the caller saves the model before [`finish`](Self::finish).
    pub fn model_folder(&self) -> PathBuf {
        self.folder.join("model")
    }

    /// The names of the trained tensors that have the same values as before the first step.
    pub fn unchanged_tensors(&self) -> Vec<String> {
        let now = fingerprints(self.session.released_params());
        let unchanged = self
            .session
            .trainable()
            .iter()
            .zip(now.iter().zip(&self.initial_fingerprints))
            .filter(|(_, (now, first))| now == first);
        unchanged.map(|(tensor, _)| tensor.name.clone()).collect()
    }

    /// Closes the ledger, writes the privacy statement beside the saved model, figures and report,
    /// and removes the private state.
    ///
    /// If the run ends before its last planned step, the other steps are charged as well: why it
    /// ended may depend on private data.
    ///
    /// # Errors
    /// If no model was saved, or a file cannot be written.
    pub fn finish(mut self, metrics: Metrics) -> Result<RunResult, Error> {
        self.save()?;
        let weights = weight_digests(&self.model_folder())?;
        let (steps, plan) = (self.session.steps(), self.session.plan());
        match plan.budget {
            None => self.ledger.charge_non_private_steps(steps)?,
            Some(_) if steps < plan.steps => self.ledger.charge_remaining(&plan.events)?,
            Some(_) => {}
        }
        let isolation = self.session.isolation();
        let chain = self.ledger.chain();
        let statement =
            Statement::new(&self.config, plan, &chain, steps, steps, isolation, weights)?;
        self.ledger.close(statement.closing()?)?;
        let text = serde_json::to_string_pretty(&statement).map_err(Error::Encoding)?;
        let path = self.model_folder().join(statement::FILE);
        folder::write(&path, (text + "\n").as_bytes())?;
        let best = BestFigures::of(&history::read(&self.folder, u64::MAX)?);
        let result = RunResult {
            figures: self.config.data.publicity().into(),
            ..RunResult::new(
                &statement,
                &self.ledger.chain(),
                self.config.optimizer.name(),
                self.folder.path().into(),
                metrics.with_best(best),
            )
        };
        result::write(&self.folder, SAMPLES, &Vec::<GeneratedText>::new())?;
        result::write(&self.folder, RESULT, &result)?;
        report::write(&self.folder, &report::Redaction::default())?;
        // Last: the run can be resumed as long as the private state exists.
        self.folder.remove_sealed()?;
        Ok(result)
    }
}

/// Refuses the configuration of a model that this program opens by itself.
fn require_external(config: &Config) -> Result<(), Error> {
    if ExternalModel::of(&config.model.source).is_some() {
        return Ok(());
    }
    Err(Error::config(
        "model.source",
        format!(
            "expected the model of a program (external:…), got {:?}; use muffle train or muffle \
             resume",
            config.model.source
        ),
    ))
}

/// SHA-256 of each file of weights, by name.
fn weight_digests(folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut names = weight_files(folder)?;
    names.sort();
    if names.is_empty() {
        return Err(Error::folder(folder, "expected the saved model, found no file of weights"));
    }
    let digest = |name: String| {
        let digest = snapshot::digest_file(&folder.join(&name))?;
        Ok((name, digest))
    };
    names.into_iter().map(digest).collect()
}
