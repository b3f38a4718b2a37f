//! A run with a folder around it: the main job, from a configuration to a model with its privacy
//! statement; and how it goes on after an interruption.
//!
//! What is written, and when, is what makes an interruption harmless: the ledger before anything is
//! computed from a lot, what the curator must remember before that too, parameters and optimizer
//! together in snapshots. A run that is killed goes on from its last snapshot. What was charged
//! since then stays charged and is not done again with the same noise: the run ends that many steps
//! earlier, within the same budget.

mod builder;
pub mod chain;
pub mod folder;
pub mod history;
pub mod outcome;
pub mod result;
pub mod session;
pub mod snapshot;

pub use builder::SessionBuilder;

pub(crate) mod disk;
pub(crate) mod ledger_file;
pub(crate) mod memory;
mod progress;
pub(crate) mod resume;
pub(crate) mod sampler_file;
pub mod together;

use crate::Error;
use crate::Outcome;
use crate::Plan;
use crate::config::{Config, Publicity};
use crate::evaluate;
use crate::load::data::{self, Split};
use crate::load::model::{Circumstances, LoadedModel};
use crate::run::folder::Folder;
use crate::run::history::HistoryEntry;
use crate::run::ledger_file::LedgerFile;
pub use crate::run::progress::{Progress, RunObserver, RunStart, Silent};
use crate::run::resume::{InterruptedRun, belongs};
pub use crate::run::resume::{resume, resume_among};
use crate::run::session::{ResumeState, Session};
use crate::run::snapshot::{RunIdentity, Snapshot};
use crate::run::together::COMPARED_EVERY;
use ::data::Prepared;
use curator::Records;
use distributed::Ranks;
use engine::{Engine, Example};
use model::Network;
use protocol::Params;
use std::path::Path;
use std::sync::Arc;

/// A session on a model of any device.
type ModelSession = Session<Box<dyn Network>>;

/// SHA-256 of the training data: sealed, for it tells of them.
pub(crate) const FINGERPRINT: &str = "sealed/data.sha256";

/// Where a run is written: what the first process has, and no other.
#[derive(Clone)]
pub(crate) struct Files<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) ledger: Arc<LedgerFile>,
}

/// Trains as a configuration says, in a new folder.
///
/// # Errors
/// If something is no good, a promise cannot be kept, or it was asked to stop.
pub fn train(
    config: &Config,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Outcome, Error> {
    train_among(&Ranks::alone(), config, out, observer)?.ok_or_else(no_outcome)
}

/// The same as one of several processes. The first has the folder and the outcome, and speaks to
/// `observer`.
///
/// # Errors
/// As [`train`], or if a process is gone.
pub fn train_among(
    ranks: &Ranks,
    config: &Config,
    out: &Path,
    observer: &mut dyn RunObserver,
) -> Result<Option<Outcome>, Error> {
    let config = config.clone().absolute()?;
    // Everything that can be wrong is looked at before a folder is made.
    Plan::check(&config)?;
    let (labels, image) = data::survey(&config.data)?;
    let open = || {
        LoadedModel::open(&config, Circumstances { labels: &labels, image }, &mut |line| {
            observer.message(line)
        })
    };
    let subject = together::in_turn(ranks, open)?;
    let people = fingerprint(&config)?;
    not_the_people(&config, &people)?;
    same_beginning(ranks, &config, people.clone())?;
    if !ranks.is_first() {
        return begin(ranks, &config, None, subject, &labels, None, observer)?.drive(observer);
    }
    let folder = Folder::create(out)?;
    let ready = LedgerFile::new(&folder).and_then(|ledger| {
        let files = Files { folder: &folder, ledger: Arc::new(ledger) };
        let run = begin(ranks, &config, Some(files.clone()), subject, &labels, None, observer)?;
        folder.write(FINGERPRINT, &people)?;
        files.ledger.write()?;
        // From here on there is a run in the folder.
        folder.write("config.toml", &config.print())?;
        Ok(run)
    });
    match ready {
        Ok(run) => run.drive(observer),
        Err(failed) => {
            folder.discard();
            Err(failed)
        }
    }
}

pub(crate) fn same_beginning(ranks: &Ranks, config: &Config, people: String) -> Result<(), Error> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    let every = config.training.checkpoint_every.to_string();
    together::same(
        ranks,
        &[
            ("version of muffle", version),
            ("configuration", config.digest()),
            ("checkpoint_every", every),
            ("training data", people),
        ],
    )
}

/// Refuses figures on the protected records: they would be released without a charge.
fn not_the_people(config: &Config, people: &str) -> Result<(), Error> {
    for (key, path) in [("validation", &config.data.validation), ("test", &config.data.test)] {
        if let Some(path) = path
            && snapshot::digest_file(path)? == people
        {
            return Err(Error::config(format!(
                "data.{key}: {} is the training data; figures on its records are not covered by \
                 any guarantee",
                path.display()
            )));
        }
    }
    Ok(())
}

pub(crate) fn no_outcome() -> Error {
    Error::Internal("only the first process has the outcome of a run")
}

/// A run that is ready for its next step.
pub(crate) struct Run<'a> {
    ranks: Ranks,
    pub(crate) config: &'a Config,
    /// The first process's.
    files: Option<Files<'a>>,
    pub(crate) labels: &'a [String],
    pub(crate) subject: LoadedModel,
    pub(crate) session: ModelSession,
    pub(crate) first: Vec<u64>,
    pub(crate) limit: usize,
    config_digest: String,
    frozen: u64,
    validation: Vec<Example>,
    every: u64,
    /// The step of the last snapshot that this process wrote or resumed from.
    put_away: Option<u64>,
}

pub(crate) fn begin<'a>(
    ranks: &Ranks,
    config: &'a Config,
    files: Option<Files<'a>>,
    mut subject: LoadedModel,
    labels: &'a [String],
    from: Option<InterruptedRun>,
    observer: &mut dyn RunObserver,
) -> Result<Run<'a>, Error> {
    together::set_threads(ranks, config);
    let limit = data::limit(&config.data, &subject)?;
    let preparation = subject.preparation(labels, limit);
    let validation = validation(config, &preparation)?;
    first_row(config, &preparation)?;
    let spill = files.as_ref().map_or_else(std::env::temp_dir, |files| files.folder.sealed());
    let data::People { records, left_out, digest } = data::people(config, &preparation, &spill)?;
    let micro_batch = config
        .training
        .micro_batch
        .or_else(|| memory::micro_batch(&subject.network, limit, ranks.count()));
    let frozen = frozen(&subject);
    together::same(
        ranks,
        &[("model", frozen.to_string()), ("set of prepared records (the tokenizer?)", digest)],
    )?;
    // The snapshot that it resumes from need not be written again.
    let put_away = from.as_ref().and_then(|left| Some(left.snapshot.as_ref()?.step));
    let (mut session, first) = session(ranks, config, &subject, records, from, frozen)?;
    // Without privacy every step is charged at the end.
    let charges = session.plan().events.len().max(session.plan().steps);
    if charges > chain::MOST_CHARGES {
        return Err(Error::config(format!(
            "training.steps: expected at most {} charges, got {charges} (several a step, if the \
             learning rate is searched for)",
            chain::MOST_CHARGES
        )));
    }
    together::same_params(ranks, session.params())?;
    session.set_micro_batch(micro_batch);
    if let Some(files) = &files {
        keep(config, files, &mut session);
    }
    let total: usize =
        subject.network.tensors(&subject.params).into_iter().map(|(_, tensor)| tensor.len()).sum();
    let tokens =
        validation.iter().map(Example::len).sum::<usize>() as f64 / validation.len() as f64;
    observer.started(&RunStart {
        config,
        plan: session.plan(),
        parameters: (subject.params.elements(), total),
        micro_batch,
        processes: ranks.count(),
        step: session.steps(),
        left_out,
        lot_tokens: (subject.tokenizer.is_some() && tokens.is_finite())
            .then(|| tokens * session.plan().lot_size()),
    });
    // They live on in the session.
    subject.params = Params::default();
    let every = config.evaluation.every.or_else(|| session.plan().steps.div_ceil(20)).max(1);
    Ok(Run {
        ranks: ranks.clone(),
        config,
        files,
        labels,
        subject,
        session,
        first,
        limit,
        config_digest: config.digest(),
        frozen,
        validation,
        every,
        put_away,
    })
}

/// The session, new or as it was left, and the fingerprints of the tensors before the first step.
fn session(
    ranks: &Ranks,
    config: &Config,
    subject: &LoadedModel,
    records: Records,
    from: Option<InterruptedRun>,
    frozen: u64,
) -> Result<(ModelSession, Vec<u64>), Error> {
    let network = subject.network.new_instance();
    let Some(left) = from else {
        let session =
            Session::among(ranks, config, network, subject.params.clone(), records, None)?;
        return Ok((session, fingerprints(&subject.params)));
    };
    let (step, params, optimizer, first) = match left.snapshot {
        Some(snapshot) => {
            belongs(config, &snapshot.belongs, left.sealed.as_ref(), frozen)?;
            (snapshot.step, snapshot.params, Some(snapshot.optimizer), snapshot.first)
        }
        // ResumeState before the first snapshot: what was charged counts all the same.
        None => (0, subject.params.clone(), None, fingerprints(&subject.params)),
    };
    let past = ResumeState {
        ledger: left.ledger,
        sealed: left.sealed,
        optimizer,
        params: Params::default(),
    };
    let session = Session::among(ranks, config, network, params, records, Some(past))?;
    if session.steps() != step {
        return Err(Error::format(
            Path::new("checkpoints"),
            format!(
                "the checkpoint is of step {step}, its optimizer state of step {}",
                session.steps()
            ),
        ));
    }
    Ok((session, first))
}

/// Whether a resumed process needs to know what was drawn.
pub(crate) fn keeps(config: &Config) -> bool {
    config.optimizer.is_private()
        && (config.privacy.seed.is_some()
            || config.privacy.sampling == accounting::SamplingMethod::Shuffled)
}

/// Writes the ledger after each charge and, where a resumed process would need it, the sampler
/// after each draw.
fn keep(config: &Config, files: &Files<'_>, session: &mut ModelSession) {
    let ledger = files.ledger.clone();
    session.set_journal(Box::new(move |spent| ledger.follow(spent)));
    if keeps(config) {
        let (path, ledger) = (files.folder.join(sampler_file::SAMPLER), files.ledger.clone());
        session.set_state_sink(Box::new(move |sealed| {
            let written = sampler_file::write(&path, &ledger.mark(), sealed)
                .and_then(|()| ledger.drawn(sealed.draws()));
            written.map_err(|failed| failed.to_string())
        }));
    }
}

/// Whether the test data can be read, and is what the model reads: better known now than after the
/// last step.
fn first_row(config: &Config, preparation: &::data::Preparation<'_>) -> Result<(), Error> {
    let Some(row) = data::rows(&config.data, Split::Test)?.and_then(|mut rows| rows.next()) else {
        return Ok(());
    };
    match preparation.example(&row?)? {
        Prepared::UnknownLabel => Err(unfit("data.test", UNKNOWN_LABEL)),
        Prepared::WrongKind(expected) => {
            Err(unfit("data.test", &format!("expected {expected}, which is what the model reads")))
        }
        _ => Ok(()),
    }
}

const UNKNOWN_LABEL: &str = "a label that is not among data.labels";

/// Evaluation data that does not fit the configuration or the model.
fn unfit(key: &str, message: &str) -> Error {
    Error::Rows { place: key.into(), message: message.into() }
}

/// What the model is looked at with on the way.
fn validation(
    config: &Config,
    preparation: &::data::Preparation<'_>,
) -> Result<Vec<Example>, Error> {
    let (mut examples, mut unusable) = (Vec::new(), false);
    for row in data::rows(&config.data, Split::Validation)?.into_iter().flatten() {
        if examples.len() as u64 >= config.evaluation.examples {
            break;
        }
        match preparation.example(&row?)? {
            Prepared::Example(example) => examples.push(example),
            Prepared::TooLong | Prepared::Empty => unusable = true,
            Prepared::UnknownLabel => {
                return Err(unfit("data.validation", UNKNOWN_LABEL));
            }
            Prepared::WrongKind(expected) => {
                let expected = format!("expected {expected}, which is what the model reads");
                return Err(unfit("data.validation", &expected));
            }
        }
    }
    // Said of these rows, because of the training data it may not be said.
    if examples.is_empty() && unusable {
        let expected = format!(
            "every row is empty or has {} tokens or more; a larger data.max_length may be meant",
            preparation.limit
        );
        return Err(unfit("data.validation", &expected));
    }
    Ok(examples)
}

impl<'a> Run<'a> {
    pub(crate) fn drive(
        mut self,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<Outcome>, Error> {
        let mut last = self.past(observer)?;
        let mut at_once = self.session.micro_batch();
        // A run that was closed makes no further step: only its last files are missing.
        let closed =
            self.files.as_ref().is_some_and(|files| files.ledger.chain().closing().is_some());
        while let Some(step) = if closed { None } else { self.session.step()? } {
            if self.session.micro_batch() < at_once {
                at_once = self.session.micro_batch();
                observer.message(&format!(
                    "warning: there was not enough memory; going on with {at_once} records at a \
                     time (NON-PRIVATE, shown here only)"
                ));
            }
            let done = self.session.steps();
            let over = done == self.session.plan().steps;
            let fresh = done.is_multiple_of(self.every) || over;
            if done.is_multiple_of(COMPARED_EVERY) || over {
                together::same_params(&self.ranks, self.session.params())?;
            }
            if let Some(folder) = self.folder().filter(|_| fresh) {
                let entry = self.evaluate(step.rate)?;
                entry.append(folder)?;
                last = Some(entry);
            }
            if done.is_multiple_of(self.config.training.checkpoint_every.max(1)) || over {
                self.put_away()?;
            }
            let notes = step.notes.iter().map(ToString::to_string).collect();
            if let Some(latest) = last {
                observer.stepped(&Progress { step: done, latest, fresh, notes });
            }
            if !over && self.stops(observer)? {
                self.put_away()?;
                return Err(Error::Stopped);
            }
        }
        self.put_away()?;
        self.files.clone().map(|files| outcome::finish(self, &files, observer)).transpose()
    }

    fn folder(&self) -> Option<&'a Folder> {
        self.files.as_ref().map(|files| files.folder)
    }

    /// The last entry of the history, or one before the first step.
    fn past(&mut self, observer: &mut dyn RunObserver) -> Result<Option<HistoryEntry>, Error> {
        if self.session.steps() == 0 {
            self.put_away()?;
        }
        let Some(folder) = self.folder() else { return Ok(None) };
        history::cut(folder, self.session.steps())?;
        if self.session.steps() == 0 {
            // The entry before the first step is written again.
            folder.write(history::FILE, "")?;
            let latest = self.evaluate(0.0)?;
            latest.append(folder)?;
            observer.stepped(&Progress { step: 0, latest, fresh: true, notes: Vec::new() });
        }
        Ok(history::read(folder, self.session.steps())?.pop())
    }

    /// Whether to stop after this step: as the first process says.
    fn stops(&self, observer: &mut dyn RunObserver) -> Result<bool, Error> {
        let own = observer.should_stop();
        Ok(if self.ranks.count() == 1 {
            own
        } else {
            self.ranks.broadcast(vec![own.into()])? == [1]
        })
    }

    /// ε so far, and figures on the validation data.
    fn evaluate(&mut self, rate: f64) -> Result<HistoryEntry, Error> {
        // With buffers of its own, which are gone afterwards.
        let mut network = self.subject.network.new_instance();
        let scores = (!self.validation.is_empty())
            .then(|| evaluate::examples(&mut network, self.session.params(), &self.validation))
            .transpose()?;
        let epsilon = self.session.guarantee()?.epsilon;
        let entry = HistoryEntry {
            step: self.session.steps(),
            epsilon: epsilon.is_finite().then_some(epsilon),
            learning_rate: rate,
            figures: self.publicity().into(),
            nll: None,
            accuracy: None,
        };
        Ok(entry.with(scores))
    }

    fn put_away(&mut self) -> Result<(), Error> {
        if self.put_away == Some(self.session.steps()) {
            return Ok(());
        }
        let (step, optimizer) = (self.session.steps(), self.session.optimizer()?);
        self.put_away = Some(step);
        let Some(files) = &self.files else { return Ok(()) };
        let snapshot = Snapshot {
            step,
            params: self.session.params().clone(),
            optimizer,
            first: self.first.clone(),
            belongs: RunIdentity {
                config: self.config_digest.clone(),
                frozen: self.frozen,
                ledger: files.ledger.mark(),
                draws: self.session.draws(),
            },
        };
        snapshot.save(&files.folder.join("checkpoints"))
    }

    /// The trained tensors that are what they were before the first step.
    pub(crate) fn unmoved(&self) -> Vec<String> {
        let now = fingerprints(self.session.params());
        let same = self
            .session
            .trainable()
            .iter()
            .zip(now.iter().zip(&self.first))
            .filter(|(_, (now, first))| now == first);
        same.map(|(tensor, _)| tensor.name.clone()).collect()
    }

    /// Whether figures on validation and test data are public.
    pub(crate) fn publicity(&self) -> Publicity {
        self.config.data.publicity()
    }
}

fn fingerprints(params: &Params) -> Vec<u64> {
    params.iter().map(|tensor| snapshot::fingerprint(std::iter::once(tensor))).collect()
}

/// Of the weights that are not trained.
fn frozen(subject: &LoadedModel) -> u64 {
    let trained: Vec<String> =
        subject.network.trainable().into_iter().map(|tensor| tensor.name).collect();
    let all = subject.network.tensors(&subject.params);
    snapshot::fingerprint(
        all.iter()
            .filter(|(name, _)| !trained.iter().any(|trained| trained == name))
            .map(|(_, tensor)| &**tensor),
    )
}

/// SHA-256 of the training data.
pub(crate) fn fingerprint(config: &Config) -> Result<String, Error> {
    if config.data.train == "embedded" {
        return Ok(snapshot::digest(b"embedded"));
    }
    snapshot::digest_file(Path::new(&config.data.train))
}
