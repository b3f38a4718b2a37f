//! Audit by replay: the same randomness on neighbouring data sets. Measures how far one record
//! moves every release, and whether anything else depends on it.
//!
//! The records are synthetic: ordinary lots first, then [`adversarial`] ones. The result is
//! computed without noise. On real records, which are used only on request, it is not private.

use super::{AuditProgress, AuditResult, adversarial, canaries};
use crate::Error;
use crate::Plan;
use crate::chart::{Axis, Chart, Mark, Series};
use crate::config::{Auto, Config};
use crate::load::data;
use crate::load::model::{DataProperties, LoadedModel};
use accounting::Adjacency;
use audit::PairedOracles;
use curator::{Curator, Door, Randomness, Records};
use engine::Example;
use model::Network;
use noise::IndependentGaussian;
use protocol::Params;

/// Settings of an audit by replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySettings {
    /// Number of steps for each target record.
    pub steps: u64,
    /// Number of target records.
    pub records: usize,
    /// The seed of the randomness of both curators, and of synthetic records. Public.
    pub seed: u64,
}

/// The source of the records that both data sets have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherRecords {
    /// Synthetic records: the result does not depend on the training data.
    Synthetic,
    /// The first records of the training data. **The result is not private.**
    Real,
}

/// Number of places of an ordinary data set; a lot has half of them.
const PLACES: usize = 32;

/// The micro-batch size of ordinary lots: a lot has several micro-batches.
const MICRO_BATCH: usize = 3;

/// Number of places of an adversarial lot, which is one micro-batch.
const ADVERSARIAL_PLACES: usize = 16;
/// Maximum number of steps on an adversarial lot, which is made for the initial parameters.
const ADVERSARIAL_STEPS: u64 = 2;

/// Two neighbouring data sets: they differ in one place.
struct Neighbours {
    /// The property of the records they have in common.
    name: &'static str,
    data_sets: [Vec<Option<Example>>; 2],
    micro_batch: usize,
}

impl Neighbours {
    /// Inserts one of two targets among the other records, at `position`.
    fn new(
        name: &'static str,
        others: &[Example],
        position: usize,
        [first, second]: [Option<Example>; 2],
        micro_batch: usize,
    ) -> Self {
        let data_set = |target: Option<Example>| {
            let mut places: Vec<Option<Example>> = others.iter().cloned().map(Some).collect();
            places.insert(position, target);
            places
        };
        Self { name, data_sets: [data_set(first), data_set(second)], micro_batch }
    }
}

impl ReplaySettings {
    /// Audits a configuration, first with ordinary other records, then with adversarial ones.
    ///
    /// Lots are smaller than configured, so that one record matters.
    ///
    /// # Errors
    /// If the configuration is invalid or, with real records, the data.
    pub fn run(
        &self,
        config: &Config,
        others: OtherRecords,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        Plan::check(config)?;
        let (labels, image) = data::labels_and_shape(&config.data)?;
        let model =
            LoadedModel::open(config, DataProperties { labels: &labels, image }, &mut |_| ())?;
        let ordinary = match others {
            OtherRecords::Synthetic => {
                canaries(&model.network, self.seed.wrapping_add(1), PLACES - 1)
            }
            OtherRecords::Real => {
                let limit = data::length_limit(&config.data, &model)?;
                data::first_examples(config, &model.preparation(&labels, limit), PLACES - 1)?
            }
        };
        let mut config = config.clone();
        config.training.steps = Auto::Value(self.steps);
        config.training.epochs = Auto::Auto;
        config.training.lot_size = Auto::Value((ordinary.len() as u64).div_ceil(2).max(1));
        let (network, params) = (&model.network, &model.params);
        let mut rounds = self.ordinary_rounds(&config, network, &ordinary);
        rounds.extend(self.adversarial_rounds(&config, network, params));
        self.audit(&config, network, params, rounds, others, progress)
    }

    /// Audits a given model with given other records. The last place is the one that differs.
    ///
    /// # Errors
    /// If the configuration does not fit the model or the records.
    pub fn with(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        others: &[Example],
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        let rounds = self.ordinary_rounds(config, network, others);
        self.audit(config, network, params, rounds, OtherRecords::Real, progress)
    }

    /// Audits a given model with adversarial other records only, in full lots of one micro-batch.
    ///
    /// # Errors
    /// If the configuration does not fit the model.
    pub fn adversarial(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        let rounds = self.adversarial_rounds(config, network, params);
        self.audit(config, network, params, rounds, OtherRecords::Synthetic, progress)
    }

    /// A round for each target record, with the same other records.
    fn ordinary_rounds(
        &self,
        config: &Config,
        network: &dyn Network,
        others: &[Example],
    ) -> Vec<(Config, Neighbours)> {
        let targets = canaries(network, self.seed, 2 * self.records);
        let round = |pair: &[Example]| {
            let targets = [Some(pair[0].clone()), is_replace_one(config).then(|| pair[1].clone())];
            (
                config.clone(),
                Neighbours::new("ordinary records", others, others.len(), targets, MICRO_BATCH),
            )
        };
        targets.chunks_exact(2).map(round).collect()
    }

    /// Two rounds for each target record of each adversarial lot.
    fn adversarial_rounds(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
    ) -> Vec<(Config, Neighbours)> {
        let mut config = config.clone();
        config.training.steps = Auto::Value(self.steps.min(ADVERSARIAL_STEPS));
        config.training.epochs = Auto::Auto;
        config.privacy.sampling = accounting::SamplingMethod::Full;
        let mut rounds = Vec::new();
        for lot in adversarial::lots(network, params, self.seed, ADVERSARIAL_PLACES - 1) {
            config.training.lot_size = Auto::Value(lot.others.len() as u64 + 1);
            for (index, target) in lot.targets.iter().enumerate() {
                let replacement = is_replace_one(&config)
                    .then(|| lot.targets[(index + 1) % lot.targets.len()].clone());
                // The target is before the others, where it shifts their rows, or after them.
                for position in [0, lot.others.len()] {
                    let neighbours = Neighbours::new(
                        lot.name,
                        &lot.others,
                        position,
                        [Some(target.clone()), replacement.clone()],
                        ADVERSARIAL_PLACES,
                    );
                    rounds.push((config.clone(), neighbours));
                }
            }
        }
        rounds
    }

    /// Replays all rounds.
    fn audit(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        rounds: Vec<(Config, Neighbours)>,
        others: OtherRecords,
        progress: AuditProgress<'_>,
    ) -> Result<AuditResult, Error> {
        let mut observed = Observations::default();
        let count = rounds.len() as u64;
        for (round, (config, neighbours)) in rounds.into_iter().enumerate() {
            self.replay(&config, network, params, neighbours, round as u64, &mut observed)?;
            progress(round as u64 + 1, count);
        }
        Ok(observed.result(count, others, config))
    }

    /// Trains two curators on neighbouring data sets with the same randomness.
    fn replay(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        neighbours: Neighbours,
        round: u64,
        observed: &mut Observations,
    ) -> Result<(), Error> {
        let tensors = network.trainable();
        let plan = Plan::new(config, neighbours.data_sets[0].len(), &tensors)?;
        let Some(budget) = plan.budget else {
            return Err(Error::Audit(format!(
                "optimizer.name: expected a private optimizer, got {}",
                config.optimizer.name()
            )));
        };
        let curator = |places: Vec<Option<Example>>| -> Result<Curator<Box<dyn Network>>, Error> {
            let door = Door::planned(budget, &plan.events)?;
            let (records, randomness) =
                (Records::with_vacancies(places), Randomness::fixed(self.seed.wrapping_add(round)));
            let mut curator =
                Curator::new(network.new_instance(), records, plan.sampling, door, randomness)?;
            curator.set_mechanism(Box::new(IndependentGaussian::new(config.privacy.noise)));
            curator.set_micro_batch(neighbours.micro_batch);
            Ok(curator)
        };
        let [first, second] = neighbours.data_sets;
        let (mut first, mut second) = (curator(first)?, curator(second)?);
        let mut optimizer = plan.optimizer(config, &tensors, params)?;
        let mut params = params.clone();
        let mut pair = PairedOracles::new(&mut first, &mut second, sensitivity(config));
        for step in 0..plan.steps {
            // A refusal is compared as well; it ends the round.
            if optimizer.step(&mut params, &mut pair).is_err()
                && pair.report().violations.is_empty()
            {
                return Err(Error::Audit(format!("step {step} was refused on both data sets")));
            }
            observed.max_distances.push(pair.report().max_distance);
            if !pair.report().violations.is_empty() {
                break;
            }
        }
        let report = pair.report().clone();
        observed.releases += report.releases;
        observed.max_joint_distance = observed.max_joint_distance.max(report.max_joint_distance);
        match observed.lots.iter_mut().find(|(name, _)| *name == neighbours.name) {
            Some((_, distance)) => *distance = distance.max(report.max_distance),
            None => observed.lots.push((neighbours.name, report.max_distance)),
        }
        observed.violations.extend(
            report.violations.into_iter().map(|line| format!("{}: {line}", neighbours.name)),
        );
        if first.ledger() != second.ledger() || first.draws() != second.draws() {
            observed
                .violations
                .push(format!("{}: charges or draws depend on a record", neighbours.name));
        }
        observed.claimed = plan.price.map_or(f64::INFINITY, |price| price.epsilon);
        observed.delta = budget.delta.get();
        Ok(())
    }
}

/// Whether neighbours differ by a replaced record.
fn is_replace_one(config: &Config) -> bool {
    config.privacy.adjacency == Adjacency::ReplaceOne
}

/// The sensitivity of a sum, in clip bounds.
fn sensitivity(config: &Config) -> f64 {
    config.privacy.adjacency.sensitivity()
}

/// Observations over all rounds. Distances are shares of the declared sensitivity.
#[derive(Default)]
struct Observations {
    releases: u64,
    /// The largest distance up to each step, one round after the other.
    max_distances: Vec<f64>,
    /// The largest distance for each kind of lot.
    lots: Vec<(&'static str, f64)>,
    /// The largest distance of all blocks of a lot jointly.
    max_joint_distance: f64,
    violations: Vec<String>,
    /// The claimed ε.
    claimed: f64,
    delta: f64,
}

impl Observations {
    fn result(self, rounds: u64, others: OtherRecords, config: &Config) -> AuditResult {
        let max_distance = self.max_distances.iter().copied().fold(0.0, f64::max);
        let mut violations = self.violations;
        if self.releases == 0 || max_distance == 0.0 {
            violations.push("no record changed any release: the audit tested nothing".into());
        }
        let points = self
            .max_distances
            .iter()
            .enumerate()
            .map(|(step, &share)| (step as f64 + 1.0, share))
            .collect();
        let lots: Vec<String> =
            self.lots.iter().map(|(name, distance)| format!("{name} {distance:.4}")).collect();
        let (records, mark) = match others {
            OtherRecords::Synthetic => {
                ("synthetic: nothing shown here depends on the training data", "")
            }
            OtherRecords::Real => (
                "REAL (NON-PRIVATE: computed from them without noise, for their holder only)",
                " (NON-PRIVATE)",
            ),
        };
        let details = vec![
            ("optimizer".into(), config.optimizer.name().into()),
            ("records".into(), records.into()),
            (
                "compared".into(),
                format!(
                    "{} releases on {rounds} pairs of data sets that differ in one record",
                    self.releases
                ),
            ),
            (
                "largest distance".into(),
                format!(
                    "{max_distance:.4} of the declared sensitivity ({} C){mark}",
                    sensitivity(config)
                ),
            ),
            ("by other records".into(), format!("{}{mark}", lots.join(", "))),
            (
                "all blocks of a lot".into(),
                format!("{:.4} of the charged sensitivity{mark}", self.max_joint_distance),
            ),
            ("control flow".into(), "charges, draws, refusals and declared noise compared".into()),
        ];
        AuditResult {
            // A distance is no estimate of ε; within the sensitivity it does not contradict the
            // claim.
            epsilon_lower: 0.0,
            epsilon_claimed: self.claimed,
            delta: self.delta,
            confidence: 1.0,
            violations: violations.into_iter().map(|line| format!("{line}{mark}")).collect(),
            details,
            private: others == OtherRecords::Synthetic,
            spent: None,
            chart: Chart {
                title: format!("Distance between releases on neighbouring data{mark}"),
                x: Axis::linear("step, one target record after the other"),
                y: Axis::linear("largest so far, share of the declared sensitivity"),
                series: vec![Series::new("distance", points)],
                marks: vec![Mark { name: "declared".into(), y: 1.0 }],
            },
        }
    }
}
