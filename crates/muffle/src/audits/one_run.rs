//! Audit of one training run with canaries among the records, each included with probability ½.
//!
//! It is another training run on the same data: it has its own ledger, and its cost adds to that of
//! other runs.

use super::folder::AuditFolder;
use super::{AuditCost, AuditKind, AuditProgress, AuditResult, canaries};
use crate::Error;
use crate::Plan;
use crate::Session;
use crate::chart::{Axis, Chart, Series};
use crate::config::{Auto, Config};
use crate::load::data;
use crate::load::model::{DataProperties, LoadedModel};
use crate::report::digits::short;
use crate::run::memory;
use crate::verify::spent::Spent;
use accounting::Adjacency;
use curator::{Journal, Records};
use engine::Example;
use model::Network;
use noise::{Key, Rng};
use protocol::Params;

/// Settings of an audit of one run.
#[derive(Clone, Copy, Debug)]
pub struct OneRunSettings {
    /// Number of canaries.
    pub canaries: usize,
    /// The probability with which the bound holds.
    pub confidence: f64,
    /// The seed of the canaries. The coins come from the operating system.
    pub seed: u64,
}

/// Number of canaries whose losses are computed in one batch.
const BATCH: usize = 16;

impl OneRunSettings {
    /// Trains with canaries among the records, and guesses which of them were included.
    ///
    /// Charges are written into the folder before anything is computed.
    ///
    /// # Errors
    /// If the configuration or the data is invalid, or the folder cannot be written.
    pub fn run(
        &self,
        config: &Config,
        folder: &AuditFolder,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        self.run_in(config, folder, progress).inspect_err(|_| folder.discard_unspent())
    }

    fn run_in(
        &self,
        config: &Config,
        folder: &AuditFolder,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        Plan::check(config)?;
        self.check()?;
        let (labels, image) = data::labels_and_shape(&config.data)?;
        let model =
            LoadedModel::open(config, DataProperties { labels: &labels, image }, &mut |_| ())?;
        let limit = data::length_limit(&config.data, &model)?;
        let records = data::training_data(
            config,
            &model.preparation(&labels, limit),
            folder.path(),
            memory::record_bytes(1),
        )?
        .records;
        let mut config = config.clone();
        config.training.micro_batch = Auto::Value(
            config.training.micro_batch.or_else(|| memory::micro_batch(&model.network, limit, 1)),
        );
        config.privacy.seed = None;
        let places = records.places();
        let journal = folder.begin(&config, places + self.canaries)?;
        let mut result =
            self.with(&config, &model.network, &model.params, records, Some(journal), progress)?;
        if let Some(cost) = &mut result.spent {
            cost.ledger = Some(folder.ledger());
            cost.joint = folder.joint(&cost.spent, places)?;
        }
        folder.finish(&result.document(AuditKind::Run))?;
        Ok(result)
    }

    /// Checks the settings.
    fn check(&self) -> Result<(), Error> {
        match self.canaries {
            0..10 => {
                Err(Error::Audit(format!("canaries: expected at least 10, got {}", self.canaries)))
            }
            _ => Ok(()),
        }
    }

    /// Audits a training run of a given model on given records.
    ///
    /// The journal receives the ledger after each charge, before anything is computed.
    ///
    /// # Errors
    /// If the configuration does not fit the model or the records.
    pub fn with(
        &self,
        config: &Config,
        network: &dyn Network,
        start: &Params,
        records: Records,
        journal: Option<Journal>,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        self.check()?;
        let mut coins = [0; 32];
        getrandom::fill(&mut coins)?;
        let mut coins = Key::new(coins).words();
        let included: Vec<bool> = (0..self.canaries).map(|_| coins.next_u32() & 1 == 1).collect();
        // If a canary is not included, its place has another record under replace-one, and none
        // under add/remove.
        let replace = config.privacy.adjacency == Adjacency::ReplaceOne;
        let all =
            canaries(network, self.seed, if replace { 2 * self.canaries } else { self.canaries });
        let (canaries, replacements) = all.split_at(self.canaries);
        let record_at = |i: usize| match included[i] {
            true => Some(canaries[i].clone()),
            false => replacements.get(i).cloned(),
        };
        let records = records.and_places((0..self.canaries).map(record_at).collect());
        // With a fixed seed of the noise, the confidence would have no meaning.
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
        let mut decreases =
            |examples: &[Example]| loss_decreases(&mut engine, start, session.params(), examples);
        let (canary_decreases, replacement_decreases) =
            (decreases(canaries)?, decreases(replacements)?);
        let scores: Vec<f64> = canary_decreases
            .iter()
            .enumerate()
            .map(|(i, decrease)| decrease - replacement_decreases.get(i).unwrap_or(&0.0))
            .collect();
        let private = session.plan().budget.is_some();
        // Without privacy there is no δ; any value will do.
        let delta = if private { guarantee.delta } else { 1e-5 };
        let chart = histogram(&included, &scores);
        let bound = audit::OneRun { included, scores }.bound(delta, self.confidence)?;
        let spent = Spent::of_config(session.ledger().clone(), config, session.plan().records);
        Ok(AuditResult {
            epsilon_lower: bound.epsilon_lower,
            epsilon_claimed: guarantee.epsilon,
            delta,
            confidence: self.confidence,
            violations: Vec::new(),
            details: vec![
                ("optimizer".into(), config.optimizer.name().into()),
                (
                    "canaries".into(),
                    format!(
                        "{} among {} places, each included with probability ½",
                        self.canaries,
                        session.plan().records
                    ),
                ),
                ("score".into(), "decrease of a canary's loss in the run".into()),
                ("guesses".into(), format!("{} of {} correct", bound.correct, bound.guesses)),
                ("steps".into(), session.steps().to_string()),
                (
                    "largest possible bound".into(),
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
            spent: Some(AuditCost { price: spent.guarantee()?, spent, ledger: None, joint: None }),
            chart,
        })
    }
}

/// The decrease of each example's loss from the first to the last parameters.
fn loss_decreases(
    engine: &mut dyn Network,
    start: &Params,
    end: &Params,
    examples: &[Example],
) -> Result<Vec<f64>, Error> {
    let mut decreases = Vec::with_capacity(examples.len());
    for batch in examples.chunks(BATCH) {
        let batch: Vec<&Example> = batch.iter().collect();
        engine.load(start)?;
        let before = engine.losses(&batch)?;
        engine.load(end)?;
        decreases.extend(
            engine.losses(&batch)?.into_iter().zip(before).map(|(after, before)| before - after),
        );
    }
    engine.unload();
    Ok(decreases)
}

/// A histogram of the scores of included canaries and of the others.
fn histogram(included: &[bool], scores: &[f64]) -> Chart {
    const BINS: usize = 24;
    let finite = || scores.iter().copied().filter(|score| score.is_finite());
    let (low, high) =
        (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let width = ((high - low) / BINS as f64).max(f64::MIN_POSITIVE);
    let series = |of_included: bool| {
        let mut bins = [0u64; BINS];
        for (score, _) in scores
            .iter()
            .zip(included)
            .filter(|(score, included)| **included == of_included && score.is_finite())
        {
            bins[(((score - low) / width) as usize).min(BINS - 1)] += 1;
        }
        let total = bins.iter().sum::<u64>().max(1) as f64;
        let points = bins
            .iter()
            .enumerate()
            .map(|(i, &n)| (low + (i as f64 + 0.5) * width, n as f64 / total))
            .collect();
        match of_included {
            true => Series::new("included", points),
            false => Series::new("not included", points).dashed(),
        }
    };
    Chart {
        title: "Canaries".into(),
        x: Axis::linear("score"),
        y: Axis::linear("share"),
        series: vec![series(true), series(false)],
        marks: Vec::new(),
    }
}
