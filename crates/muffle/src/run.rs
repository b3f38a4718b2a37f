//! A run with a folder around it: the main job, from a configuration to a model with its privacy statement; and how it goes on after an interruption.
//!
//! What is written, and when, is what makes an interruption harmless: the ledger before anything is computed from a lot, what the curator must remember before that too, parameters and
//! optimizer together in snapshots. A run that is killed goes on from its last snapshot. What was charged since then stays charged and is not done again with the same noise: the run ends
//! that many steps earlier, within the same budget.

use crate::config::{Auto, Config, Publicity};
use crate::data::{self, LeftOut, Which};
use crate::evaluate;
use crate::folder::Folder;
use crate::history::{self, Look};
use crate::optimizers::Name;
use crate::session::{Interrupted, Session};
use crate::snapshot::{self, Snapshot};
use crate::subject::{Circumstances, Subject};
use crate::{Failed, Outcome, Plan, ending, memory};
use accounting::{Event, Ledger};
use curator::{Records, Sampling, Sealed};
use model::{Example, Network};
use protocol::Params;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use tasks::Prepared;

/// The files that only the curator reads again.
const SAMPLER: &str = "sealed/sampler.json";
const FINGERPRINT: &str = "sealed/data.sha256";
const LEDGER: &str = "ledger.json";

/// Who is told how it goes, and may ask it to stop.
pub trait Watch {
    /// Something worth a line.
    fn said(&mut self, line: &str);
    /// The numbers are worked out and the first step is next.
    fn begun(&mut self, begun: &Begun<'_>);
    /// After each step.
    fn stepped(&mut self, progress: &Progress);
    /// Whether to stop after this step. What was done is put away.
    fn stops(&mut self) -> bool;
}

/// Says nothing, and never stops.
pub struct Silent;

impl Watch for Silent {
    fn said(&mut self, _: &str) {}
    fn begun(&mut self, _: &Begun<'_>) {}
    fn stepped(&mut self, _: &Progress) {}
    fn stops(&mut self) -> bool {
        false
    }
}

/// What a run begins with.
#[derive(Debug)]
pub struct Begun<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The numbers.
    pub plan: &'a Plan,
    /// Trained numbers, and all of them.
    pub parameters: (usize, usize),
    /// Records that are computed on at a time.
    pub micro_batch: usize,
    /// The step it begins at: 0, or more after an interruption.
    pub step: u64,
    /// Rows that do not take part. **Not private.**
    pub left_out: LeftOut,
    /// About how many tokens a lot has, by the public validation data.
    pub lot_tokens: Option<f64>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps made.
    pub step: u64,
    /// The last look.
    pub look: Look,
    /// Whether the look is of this step.
    pub fresh: bool,
    /// What the optimizer wants to be known.
    pub notes: Vec<String>,
}

/// Trains as a configuration says, in a new folder.
///
/// # Errors
/// If something is no good, a promise cannot be kept, or it was asked to stop.
pub fn train(config: &Config, out: &Path, watch: &mut dyn Watch) -> Result<Outcome, Failed> {
    let config = config.clone().absolute()?;
    // Everything that can be wrong is looked at before a folder is made.
    Plan::check(&config)?;
    let (labels, image) = data::survey(&config.data)?;
    let subject = Subject::open(&config, Circumstances { labels: &labels, image }, &mut |line| watch.said(line))?;
    let folder = Folder::create(out)?;
    let begun = begin(&config, &folder, subject, &labels, None, watch);
    match begun {
        Ok(run) => {
            folder.write(FINGERPRINT, &fingerprint(&config)?)?;
            folder.write("config.toml", &config.print())?;
            run.drive(watch)
        }
        Err(failed) => {
            // Nothing was charged: a folder without a run in it is of no use.
            let _ = std::fs::remove_dir_all(out);
            Err(failed)
        }
    }
}

/// Goes on with a run from its last snapshot.
///
/// # Errors
/// As [`train`], or if the folder is damaged or the data are no longer those it began with.
pub fn resume(out: &Path, watch: &mut dyn Watch) -> Result<Outcome, Failed> {
    let folder = Folder::open(out)?;
    let config = Config::read(&folder.join("config.toml")).map_err(Failed::Input)?;
    if let Some(known) = folder.read(FINGERPRINT)? {
        if known != fingerprint(&config)? {
            return Err(Failed::Input(format!("{}: not the data that the run began with; what it has spent was spent on those", config.data.train)));
        }
    } else if folder.read(ending::RESULT)?.is_some() {
        return Err(Failed::Input(format!("{}: the run is complete", out.display())));
    }
    let (labels, image) = data::survey(&config.data)?;
    let subject = Subject::open(&config, Circumstances { labels: &labels, image }, &mut |line| watch.said(line))?;
    let snapshot = Snapshot::newest(&folder.join("checkpoints"), &mut |line| watch.said(line))?;
    let ledger = match folder.read(LEDGER)? {
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| Failed::Input(format!("{}: what was spent cannot be read: {error}", folder.join(LEDGER).display())))?,
        None if snapshot.as_ref().is_none_or(|snapshot| snapshot.step == 0) => Ledger::new(),
        // Without privacy nothing is charged, and every step counts as without a guarantee.
        None if !private(&config) => {
            let mut ledger = Ledger::new();
            ledger.charge(Event::NonPrivate, snapshot.as_ref().map_or(0, |snapshot| snapshot.step))?;
            ledger
        }
        None => return Err(Failed::Input(format!("{}: it is gone, and with it what was spent", folder.join(LEDGER).display()))),
    };
    let from = Left { snapshot, ledger, sealed: folder.read(SAMPLER)?.map(|text| Sealed::from_text(&text)).transpose()? };
    begin(&config, &folder, subject, &labels, Some(from), watch)?.drive(watch)
}

/// What an interrupted run left.
struct Left {
    snapshot: Option<Snapshot>,
    ledger: Ledger,
    sealed: Option<Sealed>,
}

/// A run that is ready for its next step.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a Config,
    pub(crate) folder: &'a Folder,
    pub(crate) labels: &'a [String],
    pub(crate) subject: Subject,
    pub(crate) session: Session<Network>,
    pub(crate) first: Vec<u64>,
    pub(crate) limit: usize,
    validation: Vec<Example>,
    every: u64,
}

fn begin<'a>(
    config: &'a Config,
    folder: &'a Folder,
    subject: Subject,
    labels: &'a [String],
    from: Option<Left>,
    watch: &mut dyn Watch,
) -> Result<Run<'a>, Failed> {
    if let Auto::Value(threads) = config.training.threads {
        // Refused if the pool is there already, which is as good.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
    let limit = data::limit(&config.data, &subject)?;
    let preparation = subject.preparation(labels, limit);
    let validation = validation(config, &preparation)?;
    let (records, left_out) = data::people(config, &preparation, &folder.sealed())?;
    let micro_batch = config.training.micro_batch.or_else(|| memory::micro_batch(&subject.network, limit));
    let (mut session, first) = session(config, &subject, records, from)?;
    session.set_micro_batch(micro_batch);
    keep(config, folder, &mut session);
    let total: usize = subject.network.tensors(&subject.params).map(|(_, tensor)| tensor.len()).sum();
    let tokens = validation.iter().map(Example::len).sum::<usize>() as f64 / validation.len() as f64;
    watch.begun(&Begun {
        config,
        plan: session.plan(),
        parameters: (subject.params.numbers(), total),
        micro_batch,
        step: session.steps(),
        left_out,
        lot_tokens: (subject.tokenizer.is_some() && tokens.is_finite()).then(|| tokens * session.plan().lot_size()),
    });
    let every = config.evaluation.every.or_else(|| session.plan().steps.div_ceil(20)).max(1);
    Ok(Run { config, folder, labels, subject, session, first, limit, validation, every })
}

/// The session, new or as it was left, and the fingerprints of the tensors before the first step.
fn session(config: &Config, subject: &Subject, records: Records, from: Option<Left>) -> Result<(Session<Network>, Vec<u64>), Failed> {
    let network = subject.network.twin();
    let Some(left) = from else {
        return Ok((Session::new(config, network, subject.params.clone(), records)?, fingerprints(&subject.params)));
    };
    let charges = left.ledger.events().len();
    // Interrupted before the first snapshot: what was charged counts all the same.
    let (step, params, optimizer, first) = match left.snapshot {
        Some(snapshot) => (snapshot.step, snapshot.params, Some(snapshot.optimizer), snapshot.first),
        None => (0, subject.params.clone(), None, fingerprints(&subject.params)),
    };
    // A step draws one lot at least, or is part of an epoch.
    if charges < step && config.privacy.sampling != crate::config::Sampling::Shuffled && private(config) {
        return Err(Failed::Input(format!("the ledger has {charges} charges, the checkpoint {step} steps: an old ledger was put in its place")));
    }
    let session = Session::resume(config, network, records, Interrupted { ledger: left.ledger, sealed: left.sealed, optimizer, params })?;
    if session.steps() != step {
        return Err(Failed::Input(format!("the checkpoint says step {step}, its optimizer step {}", session.steps())));
    }
    Ok((session, first))
}

/// Writes the ledger after each charge and, where a resumed process would need it, the sampler after each draw.
fn keep(config: &Config, folder: &Folder, session: &mut Session<Network>) {
    let ledger = folder.join(LEDGER);
    session.set_journal(Box::new(move |spent| {
        let text = serde_json::to_string(spent).map_err(|error| error.to_string())?;
        crate::folder::write(&ledger, text.as_bytes()).map_err(|failed| failed.to_string())
    }));
    let needed = config.privacy.seed.is_some() || matches!(session.plan().sampling, Sampling::Shuffled { .. });
    if needed {
        let sampler = folder.join(SAMPLER);
        session.set_keeper(Box::new(move |sealed| {
            let text = sealed.to_text().map_err(|refused| refused.to_string())?;
            crate::folder::write(&sampler, text.as_bytes()).map_err(|failed| failed.to_string())
        }));
    }
}

/// What the model is looked at with on the way.
fn validation(config: &Config, preparation: &tasks::Preparation<'_>) -> Result<Vec<Example>, Failed> {
    let mut examples = Vec::new();
    for row in data::rows(&config.data, Which::Validation)?.into_iter().flatten() {
        if examples.len() as u64 >= config.evaluation.examples {
            break;
        }
        match preparation.example(&row?)? {
            Prepared::Example(example) => examples.push(example),
            Prepared::TooLong | Prepared::Empty => {}
            Prepared::UnknownLabel => return Err(Failed::Input("data.validation: a label that is not among data.labels".into())),
            Prepared::Unfit(expected) => return Err(Failed::Input(format!("data.validation: expected {expected}, which is what the model reads"))),
        }
    }
    Ok(examples)
}

impl Run<'_> {
    fn drive(mut self, watch: &mut dyn Watch) -> Result<Outcome, Failed> {
        let mut network = self.subject.network.twin();
        history::cut(self.folder, self.session.steps())?;
        if self.session.steps() == 0 {
            self.put_away()?;
            let look = self.look(&mut network, 0.0)?;
            look.append(self.folder)?;
            watch.stepped(&Progress { step: 0, look, fresh: true, notes: Vec::new() });
        }
        let mut last = history::read(self.folder, self.session.steps())?.pop();
        while let Some(step) = self.session.step()? {
            let done = self.session.steps();
            let over = done == self.session.plan().steps;
            let fresh = done.is_multiple_of(self.every) || over;
            if fresh {
                let look = self.look(&mut network, step.rate)?;
                look.append(self.folder)?;
                last = Some(look);
            }
            if done.is_multiple_of(self.config.training.checkpoint_every.max(1)) || over {
                self.put_away()?;
            }
            let notes = step.notes.iter().map(ToString::to_string).collect();
            if let Some(look) = last {
                watch.stepped(&Progress { step: done, look, fresh, notes });
            }
            if !over && watch.stops() {
                self.put_away()?;
                return Err(Failed::Stopped);
            }
        }
        self.put_away()?;
        ending::finish(self, watch)
    }

    /// ε so far, and figures on the validation data.
    fn look(&mut self, network: &mut Network, rate: f64) -> Result<Look, Failed> {
        let scores = (!self.validation.is_empty()).then(|| evaluate::examples(network, self.session.params(), &self.validation)).transpose()?;
        let epsilon = self.session.guarantee()?.epsilon;
        let look = Look { step: self.session.steps(), epsilon: epsilon.is_finite().then_some(epsilon), rate, nll: None, accuracy: None };
        Ok(look.with(scores))
    }

    fn put_away(&self) -> Result<(), Failed> {
        let snapshot = Snapshot {
            step: self.session.steps(),
            params: self.session.params().clone(),
            optimizer: self.session.optimizer(),
            first: self.first.clone(),
        };
        snapshot.save(&self.folder.join("checkpoints"))
    }

    /// The trained tensors that are what they were before the first step.
    pub(crate) fn unmoved(&self) -> Vec<String> {
        let now = fingerprints(self.session.params());
        let same = self.session.trainable().iter().zip(now.iter().zip(&self.first)).filter(|(_, (now, first))| now == first);
        same.map(|(tensor, _)| tensor.name.clone()).collect()
    }

    /// Whether figures on validation and test data are public.
    pub(crate) fn publicity(&self) -> Publicity {
        self.config.data.evaluation_data
    }
}

fn private(config: &Config) -> bool {
    Name::of(&config.optimizer.name).is_ok_and(|name| name.private)
}

fn fingerprints(params: &Params) -> Vec<u64> {
    let of = |tensor: &tensor::Array| {
        let mut hasher = DefaultHasher::new();
        tensor.data().iter().for_each(|x| x.to_bits().hash(&mut hasher));
        hasher.finish()
    };
    params.iter().map(of).collect()
}

/// SHA-256 of the training data: sealed, for it tells of them.
fn fingerprint(config: &Config) -> Result<String, Failed> {
    if config.data.train == "embedded" {
        return Ok(snapshot::digest(b"embedded"));
    }
    snapshot::digest_file(Path::new(&config.data.train))
}
