//! The same randomness on neighbouring data: how far one record moves every release, and whether
//! anything else depends on it.
//!
//! The records are made up: an ordinary lot first, then lots that an attacker would choose
//! ([`adversarial`]). What is found is computed without noise, so that on real records, which are
//! taken only where that is asked for, it is not private.

use super::{AuditProgress, Verdict, adversarial, canaries};
use crate::Error;
use crate::Plan;
use crate::chart::{Axis, Chart, Mark, Series};
use crate::config::{Auto, Config};
use crate::load::data;
use crate::load::model::{Circumstances, LoadedModel};
use accounting::Adjacency;
use audit::PairedOracles;
use curator::{Curator, Door, Randomness, Records};
use engine::Example;
use model::Network;
use noise::IndependentGaussian;
use protocol::Params;

/// How it is attacked.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// Steps with each record that is looked at.
    pub steps: u64,
    /// Of how many records.
    pub records: usize,
    /// Of the public randomness that both sides draw from, and of made-up records.
    pub seed: u64,
}

/// The records beside those that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Made up: nothing that is found depends on the training data.
    MadeUp,
    /// The first records of the training data. **What is found is not private.**
    Real,
}

/// Places of the data that is looked at, and of a lot: enough that the record is in about every
/// other lot.
const PLACES: usize = 32;

/// Records that are computed on at a time: several micro-batches in a lot.
const MICRO_BATCH: usize = 3;

/// Places of an adversarial lot, which is one micro-batch, and its steps: after the first few the
/// parameters are no longer those that it was made for.
const ADVERSARIAL_PLACES: usize = 16;
const ADVERSARIAL_STEPS: u64 = 2;

/// Two data sets that differ in one place.
struct Neighbours {
    name: &'static str,
    sides: [Vec<Option<Example>>; 2],
    micro_batch: usize,
}

impl Neighbours {
    /// `at` is the place that differs, among the others.
    fn new(
        name: &'static str,
        others: &[Example],
        at: usize,
        [one, other]: [Option<Example>; 2],
        micro_batch: usize,
    ) -> Self {
        let side = |target: Option<Example>| {
            let mut places: Vec<Option<Example>> = others.iter().cloned().map(Some).collect();
            places.insert(at, target);
            places
        };
        Self { name, sides: [side(one), side(other)], micro_batch }
    }
}

impl Replay {
    /// Attacks what a configuration would do: first with ordinary other records, then with
    /// adversarial ones. Only the lots are smaller, so that one record matters.
    ///
    /// # Errors
    /// If the configuration is no good or, if they are to be read, the data.
    pub fn run(
        &self,
        config: &Config,
        others: Others,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        Plan::check(config)?;
        let (labels, image) = data::survey(&config.data)?;
        let subject =
            LoadedModel::open(config, Circumstances { labels: &labels, image }, &mut |_| ())?;
        let ordinary = match others {
            Others::MadeUp => canaries(&subject.network, self.seed.wrapping_add(1), PLACES - 1),
            Others::Real => {
                let limit = data::limit(&config.data, &subject)?;
                data::first(config, &subject.preparation(&labels, limit), PLACES - 1)?
            }
        };
        let mut config = config.clone();
        config.training.steps = Auto::Value(self.steps);
        config.training.epochs = Auto::Auto;
        config.training.lot_size = Auto::Value((ordinary.len() as u64).div_ceil(2).max(1));
        let (network, params) = (&subject.network, &subject.params);
        let mut rounds = self.ordinary(&config, network, &ordinary);
        rounds.extend(self.made(&config, network, params));
        self.attack(&config, network, params, rounds, others, progress)
    }

    /// The same for a model and other records of one's own: the last place is the one that differs.
    ///
    /// # Errors
    /// If the configuration does not fit them.
    pub fn with(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        others: &[Example],
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        self.attack(
            config,
            network,
            params,
            self.ordinary(config, network, others),
            Others::Real,
            progress,
        )
    }

    /// With adversarial other records only, for a model of one's own: full lots of one micro-batch.
    ///
    /// # Errors
    /// If the configuration does not fit the model.
    pub fn adversarial(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        self.attack(
            config,
            network,
            params,
            self.made(config, network, params),
            Others::MadeUp,
            progress,
        )
    }

    fn ordinary(
        &self,
        config: &Config,
        network: &dyn Network,
        others: &[Example],
    ) -> Vec<(Config, Neighbours)> {
        let strange = canaries(network, self.seed, 2 * self.records);
        let round = |pair: &[Example]| {
            let sides = [Some(pair[0].clone()), replaces(config).then(|| pair[1].clone())];
            (
                config.clone(),
                Neighbours::new("ordinary records", others, others.len(), sides, MICRO_BATCH),
            )
        };
        strange.chunks_exact(2).map(round).collect()
    }

    fn made(
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
                let other =
                    replaces(&config).then(|| lot.targets[(index + 1) % lot.targets.len()].clone());
                // Before the others, where it moves their rows, or after them.
                for at in [0, lot.others.len()] {
                    let sides = [Some(target.clone()), other.clone()];
                    rounds.push((
                        config.clone(),
                        Neighbours::new(lot.name, &lot.others, at, sides, ADVERSARIAL_PLACES),
                    ));
                }
            }
        }
        rounds
    }

    fn attack(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        rounds: Vec<(Config, Neighbours)>,
        others: Others,
        progress: AuditProgress<'_>,
    ) -> Result<Verdict, Error> {
        let mut seen = Seen::default();
        let all = rounds.len() as u64;
        for (round, (config, neighbours)) in rounds.into_iter().enumerate() {
            self.round(&config, network, params, neighbours, round as u64, &mut seen)?;
            progress(round as u64 + 1, all);
        }
        Ok(seen.verdict(all, others, config))
    }

    fn round(
        &self,
        config: &Config,
        network: &dyn Network,
        params: &Params,
        neighbours: Neighbours,
        round: u64,
        seen: &mut Seen,
    ) -> Result<(), Error> {
        let tensors = network.trainable();
        let plan = Plan::new(config, neighbours.sides[0].len(), &tensors)?;
        let Some(budget) = plan.budget else {
            return Err(Error::Audit(format!(
                "{} is not private; choose a private optimizer to replay",
                config.optimizer.name()
            )));
        };
        let make = |places: Vec<Option<Example>>| -> Result<Curator<Box<dyn Network>>, Error> {
            let door = Door::planned(budget, &plan.events)?;
            let (records, randomness) =
                (Records::with_vacancies(places), Randomness::fixed(self.seed.wrapping_add(round)));
            let mut curator =
                Curator::new(network.new_instance(), records, plan.sampling, door, randomness)?;
            curator.set_mechanism(Box::new(IndependentGaussian::new(config.privacy.noise)));
            curator.set_micro_batch(neighbours.micro_batch);
            Ok(curator)
        };
        let [one, other] = neighbours.sides;
        let (mut one, mut other) = (make(one)?, make(other)?);
        let mut optimizer = plan.optimizer(config, &tensors, params)?;
        let mut params = params.clone();
        let mut twins = PairedOracles::new(&mut one, &mut other, sensitivity(config));
        for step in 0..plan.steps {
            // A refusal is compared as well; it ends the round.
            if optimizer.step(&mut params, &mut twins).is_err()
                && twins.report().violations.is_empty()
            {
                return Err(Error::Audit(format!("step {step} was refused on both data sets")));
            }
            seen.farthest.push(twins.report().max_distance);
            if !twins.report().violations.is_empty() {
                break;
            }
        }
        let replayed = twins.report().clone();
        seen.releases += replayed.releases;
        seen.together = seen.together.max(replayed.max_joint_distance);
        match seen.lots.iter_mut().find(|(name, _)| *name == neighbours.name) {
            Some((_, farthest)) => *farthest = farthest.max(replayed.max_distance),
            None => seen.lots.push((neighbours.name, replayed.max_distance)),
        }
        seen.violations.extend(
            replayed.violations.into_iter().map(|line| format!("{}: {line}", neighbours.name)),
        );
        if one.ledger() != other.ledger() || one.draws() != other.draws() {
            seen.violations
                .push(format!("{}: what was charged depends on a record", neighbours.name));
        }
        seen.claimed = plan.price.map_or(f64::INFINITY, |price| price.epsilon);
        seen.delta = budget.delta.get();
        Ok(())
    }
}

fn replaces(config: &Config) -> bool {
    config.privacy.adjacency == Adjacency::ReplaceOne
}

/// How far a sum may be moved, in clip bounds.
fn sensitivity(config: &Config) -> f64 {
    if replaces(config) { 2.0 } else { 1.0 }
}

/// Over all rounds.
#[derive(Default)]
struct Seen {
    releases: u64,
    /// The largest share of the sensitivity up to each step.
    farthest: Vec<f64>,
    /// The same for each kind of lot.
    lots: Vec<(&'static str, f64)>,
    together: f64,
    violations: Vec<String>,
    claimed: f64,
    delta: f64,
}

impl Seen {
    fn verdict(self, rounds: u64, others: Others, config: &Config) -> Verdict {
        let farthest = self.farthest.iter().copied().fold(0.0, f64::max);
        let mut violations = self.violations;
        if self.releases == 0 || farthest == 0.0 {
            violations.push("no release was moved by any record: nothing was looked at".into());
        }
        let points = self
            .farthest
            .iter()
            .enumerate()
            .map(|(step, &share)| (step as f64 + 1.0, share))
            .collect();
        let lots: Vec<String> =
            self.lots.iter().map(|(name, farthest)| format!("{name} {farthest:.4}")).collect();
        let (records, mark) = match others {
            Others::MadeUp => ("made up: nothing shown here depends on the training data", ""),
            Others::Real => (
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
                    "{} releases, of {rounds} pairs of data sets that differ in one record",
                    self.releases
                ),
            ),
            (
                "farthest apart".into(),
                format!(
                    "{farthest:.4} of the declared sensitivity ({} C){mark}",
                    sensitivity(config)
                ),
            ),
            ("by other records".into(), format!("{}{mark}", lots.join(", "))),
            (
                "all blocks of a lot".into(),
                format!("{:.4} of what was announced and charged{mark}", self.together),
            ),
            ("control flow".into(), "charges, draws, refusals and declared noise compared".into()),
        ];
        Verdict {
            // A distance is no estimate of ε; within its bounds it says nothing against the claim.
            epsilon_lower: 0.0,
            epsilon_claimed: self.claimed,
            delta: self.delta,
            confidence: 1.0,
            violations: violations.into_iter().map(|line| format!("{line}{mark}")).collect(),
            details,
            private: others == Others::MadeUp,
            spent: None,
            chart: Chart {
                title: format!("How far one record moved a release{mark}"),
                x: Axis::linear("step, one record after the other"),
                y: Axis::linear("largest so far, share of the declared sensitivity"),
                series: vec![Series::new("moved", points)],
                marks: vec![Mark { name: "declared".into(), y: 1.0 }],
            },
        }
    }
}
