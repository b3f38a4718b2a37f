//! One training run with canaries among the records, each included with probability ½.
//!
//! It is another training run on the same data: it has a ledger of its own, and what it spends adds
//! to what the data have spent.

use super::folder::AuditFolder;
use super::{AuditKind, AuditProgress, Expense, Verdict, canaries};
use crate::Error;
use crate::Plan;
use crate::Session;
use crate::chart::{Axis, Chart, Series};
use crate::config::{Auto, Config};
use crate::load::data;
use crate::load::model::{Circumstances, LoadedModel};
use crate::report::digits::short;
use crate::run::memory;
use crate::verify::spent::{self, Spent};
use accounting::Adjacency;
use curator::{Journal, Records};
use engine::Example;
use model::Network;
use noise::{Key, Rng};
use protocol::Params;

/// How it is attacked.
#[derive(Clone, Copy, Debug)]
pub struct OneRun {
    /// How many canaries.
    pub canaries: usize,
    /// With which probability the bound shall hold.
    pub confidence: f64,
    /// Of the canaries. The coins come from the system.
    pub seed: u64,
}

/// Canaries whose losses are computed at a time.
const AT_ONCE: usize = 16;

impl OneRun {
    /// Trains as a configuration says, with canaries added, and guesses which were in. What is
    /// charged is written into the folder before anything is computed.
    ///
    /// # Errors
    /// If the configuration or the data are no good, or something cannot be written.
    pub fn run(
        &self,
        config: &Config,
        folder: &AuditFolder,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        self.run_in(config, folder, progress).inspect_err(|_| folder.discard_unspent())
    }

    fn run_in(
        &self,
        config: &Config,
        folder: &AuditFolder,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        Plan::check(config)?;
        self.check()?;
        let (labels, image) = data::survey(&config.data)?;
        let subject =
            LoadedModel::open(config, Circumstances { labels: &labels, image }, &mut |_| ())?;
        let limit = data::limit(&config.data, &subject)?;
        let people =
            data::people(config, &subject.preparation(&labels, limit), folder.path())?.records;
        let mut config = config.clone();
        config.training.micro_batch = Auto::Value(
            config.training.micro_batch.or_else(|| memory::micro_batch(&subject.network, limit, 1)),
        );
        config.privacy.seed = None;
        let places = people.places();
        let journal = folder.begin(&config, places + self.canaries)?;
        let mut verdict =
            self.with(&config, &subject.network, &subject.params, people, Some(journal), progress)?;
        if let Some(expense) = &mut verdict.spent {
            expense.ledger = Some(folder.ledger());
            expense.joint = folder.joint(&expense.spent, places)?;
        }
        folder.finish(&verdict.document(AuditKind::Run))?;
        Ok(verdict)
    }

    fn check(&self) -> Result<(), Error> {
        match self.canaries {
            0..10 => {
                Err(Error::Audit(format!("canaries: expected at least 10, got {}", self.canaries)))
            }
            _ => Ok(()),
        }
    }

    /// The same for a model and records of one's own. The journal, if there is one, gets the ledger
    /// before anything is computed from what it pays for.
    ///
    /// # Errors
    /// If the configuration does not fit them.
    pub fn with(
        &self,
        config: &Config,
        network: &dyn Network,
        start: &Params,
        people: Records,
        journal: Option<Journal>,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        self.check()?;
        let mut coins = [0; 32];
        getrandom::fill(&mut coins)?;
        let mut coins = Key::new(coins).words();
        let put_in: Vec<bool> = (0..self.canaries).map(|_| coins.next_u32() & 1 == 1).collect();
        // Under replace-one another record is in the place; under add/remove none.
        let replace = config.privacy.adjacency == Adjacency::ReplaceOne;
        let made =
            canaries(network, self.seed, if replace { 2 * self.canaries } else { self.canaries });
        let (ones, others) = made.split_at(self.canaries);
        let place =
            |i: usize| if put_in[i] { Some(ones[i].clone()) } else { others.get(i).cloned() };
        let records = people.and_places((0..self.canaries).map(place).collect());
        // With noise that is fixed there is no probability of which a confidence could speak.
        let mut config = config.clone();
        config.privacy.seed = None;
        let config = &config;
        let mut session = Session::new(config, network.new_instance(), start.clone(), records)?;
        if let Some(journal) = journal {
            session.set_journal(journal);
        }
        if let Auto::Value(examples) = config.training.micro_batch {
            session.set_micro_batch(examples);
        }
        let steps = session.plan().steps;
        while session.step()?.is_some() {
            progress(session.steps(), steps);
        }
        let guarantee = session.guarantee()?;
        let mut engine = network.new_instance();
        let mut fell =
            |examples: &[Example]| fallen(&mut engine, start, session.params(), examples);
        let (of_ones, of_others) = (fell(ones)?, fell(others)?);
        let scores: Vec<f64> = of_ones
            .iter()
            .enumerate()
            .map(|(i, fell)| fell - of_others.get(i).unwrap_or(&0.0))
            .collect();
        let private = session.plan().budget.is_some();
        // Without privacy there is no δ; any will do.
        let delta = if private { guarantee.delta } else { 1e-5 };
        let chart = histogram(&put_in, &scores);
        let attacked = audit::OneRun { included: put_in, scores };
        let found = attacked.bound(delta, self.confidence)?;
        let spent = Spent {
            ledger: session.ledger().clone(),
            promise: spent::promise(config, session.plan().records),
        };
        Ok(Verdict {
            epsilon_lower: found.epsilon_lower,
            epsilon_claimed: guarantee.epsilon,
            delta,
            confidence: self.confidence,
            violations: Vec::new(),
            details: vec![
                ("optimizer".into(), config.optimizer.name().into()),
                (
                    "canaries".into(),
                    format!(
                        "{} among {} places, each in with probability ½",
                        self.canaries,
                        session.plan().records
                    ),
                ),
                ("score".into(), "by how much the run lowered a canary's loss".into()),
                ("guesses".into(), format!("{} of {} right", found.correct, found.guesses)),
                ("steps".into(), session.steps().to_string()),
                (
                    "could be shown at most".into(),
                    short(audit::one_run::epsilon_lower(
                        self.canaries as u64,
                        self.canaries as u64,
                        self.canaries as u64,
                        delta,
                        1.0 - self.confidence,
                    )),
                ),
            ],
            private,
            spent: Some(Expense { price: spent.guarantee()?, spent, ledger: None, joint: None }),
            chart,
        })
    }
}

/// By how much each example's loss fell.
fn fallen(
    engine: &mut dyn Network,
    start: &Params,
    end: &Params,
    examples: &[Example],
) -> Result<Vec<f64>, Error> {
    let mut fell = Vec::with_capacity(examples.len());
    for some in examples.chunks(AT_ONCE) {
        let some: Vec<&Example> = some.iter().collect();
        engine.load(start)?;
        let before = engine.losses(&some)?;
        engine.load(end)?;
        fell.extend(
            engine.losses(&some)?.into_iter().zip(before).map(|(after, before)| before - after),
        );
    }
    engine.unload();
    Ok(fell)
}

/// How the scores lie, of canaries that were in and of those that were not.
fn histogram(put_in: &[bool], scores: &[f64]) -> Chart {
    const BINS: usize = 24;
    let finite = || scores.iter().copied().filter(|score| score.is_finite());
    let (low, high) =
        (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let width = ((high - low) / BINS as f64).max(f64::MIN_POSITIVE);
    let of = |there: bool| {
        let mut bins = [0u64; BINS];
        for (score, _) in scores
            .iter()
            .zip(put_in)
            .filter(|(score, put_in)| **put_in == there && score.is_finite())
        {
            bins[(((score - low) / width) as usize).min(BINS - 1)] += 1;
        }
        let all = bins.iter().sum::<u64>().max(1) as f64;
        let points = bins
            .iter()
            .enumerate()
            .map(|(i, &n)| (low + (i as f64 + 0.5) * width, n as f64 / all))
            .collect();
        match there {
            true => Series::new("in", points),
            false => Series::new("not in", points).dashed(),
        }
    };
    Chart {
        title: "Canaries".into(),
        x: Axis::linear("score"),
        y: Axis::linear("share"),
        series: vec![of(true), of(false)],
        marks: Vec::new(),
    }
}
