//! The same randomness on neighbouring data: whether every release of a run stays within its declared sensitivity, and nothing else depends on one record.

use super::{Said, Verdict, canaries};
use crate::config::{Auto, Config};
use crate::data;
use crate::optimizers::{self, Setting};
use crate::plot::{Axis, Line, Mark, Plot, Scale, Series};
use crate::subject::{Circumstances, Subject};
use crate::{Failed, Plan};
use accounting::Adjacency;
use audit::Twins;
use curator::{Curator, Door, Randomness, Records};
use model::{Engine, Example, Network};

/// How it is attacked.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// Steps with each record that is looked at.
    pub steps: u64,
    /// Of how many records.
    pub records: usize,
    /// Of the public randomness that both sides draw from.
    pub seed: u64,
}

/// Places of the data that is looked at, and of a lot: enough that the record is in about every other lot.
const PLACES: usize = 32;

impl Replay {
    /// Attacks what a configuration would do, on the beginning of its data. Only the lots are smaller, so that one record matters.
    ///
    /// # Errors
    /// If the configuration or the data are no good.
    pub fn run(&self, config: &Config, said: Said<'_>) -> Result<Verdict, Failed> {
        Plan::check(config)?;
        let (labels, image) = data::survey(&config.data)?;
        let subject = Subject::open(config, Circumstances { labels: &labels, image }, &mut |_| ())?;
        let limit = data::limit(&config.data, &subject)?;
        let people = data::first(config, &subject.preparation(&labels, limit), PLACES - 1)?;
        let mut config = config.clone();
        config.training.steps = Auto::Value(self.steps);
        config.training.epochs = Auto::Auto;
        config.training.lot_size = Auto::Value((people.len() as u64).div_ceil(2).max(1));
        self.with(&config, &subject.network, &subject.params, &people, said)
    }

    /// The same for a model and records of one's own: the last place is the one that differs.
    ///
    /// # Errors
    /// If the configuration does not fit them.
    pub fn with(
        &self,
        config: &Config,
        network: &Network,
        params: &protocol::Params,
        people: &[Example],
        said: Said<'_>,
    ) -> Result<Verdict, Failed> {
        let replace = config.privacy.adjacency == Adjacency::ReplaceOne;
        let strange = canaries(network, self.seed, 2 * self.records);
        let mut seen = Seen::default();
        for (round, pair) in strange.chunks_exact(2).enumerate() {
            let other = replace.then(|| pair[1].clone());
            let places = |last: Option<Example>| Records::with_vacancies(people.iter().cloned().map(Some).chain([last]).collect());
            let sides = [places(Some(pair[0].clone())), places(other)];
            self.round(config, network, params, sides, round as u64, &mut seen)?;
            said(round as u64 + 1, self.records as u64);
        }
        let sensitivity = if replace { 2.0 } else { 1.0 };
        Ok(seen.verdict(self, sensitivity, config))
    }

    fn round(
        &self,
        config: &Config,
        network: &Network,
        params: &protocol::Params,
        [one, other]: [Records; 2],
        round: u64,
        seen: &mut Seen,
    ) -> Result<(), Failed> {
        let tensors = network.trainable();
        let plan = Plan::new(config, one.places(), &tensors, params)?;
        let Some(budget) = plan.budget else {
            return Err(Failed::Input(format!("{} promises nothing: there is nothing to be replayed", config.optimizer.name)));
        };
        let make = |records: Records| -> Result<Curator<Network>, Failed> {
            let door = Door::planned(budget, &plan.events)?;
            let mut curator = Curator::new(network.twin(), records, plan.sampling, door, Randomness::fixed(self.seed.wrapping_add(round)))?;
            curator.set_noise(config.privacy.noise);
            // Several micro-batches in a lot.
            curator.set_micro_batch(3);
            Ok(curator)
        };
        let (mut one, mut other) = (make(one)?, make(other)?);
        let setting = Setting { tensors: &tensors, params, lot_size: plan.lot_size(), steps: plan.steps };
        let mut optimizer = optimizers::build(config, plan.sigma, setting)?;
        let mut params = params.clone();
        let sensitivity = if config.privacy.adjacency == Adjacency::ReplaceOne { 2.0 } else { 1.0 };
        let mut twins = Twins::new(&mut one, &mut other, sensitivity);
        for step in 0..plan.steps {
            // A refusal is compared as well; it ends the round.
            if optimizer.step(&mut params, &mut twins).is_err() && twins.replayed().violations.is_empty() {
                return Err(Failed::Input(format!("step {step} was refused on both sides alike")));
            }
            seen.farthest.push(twins.replayed().farthest);
            if !twins.replayed().violations.is_empty() {
                break;
            }
        }
        let replayed = twins.replayed().clone();
        seen.releases += replayed.releases;
        seen.together = seen.together.max(replayed.farthest_together);
        seen.violations.extend(replayed.violations);
        if one.ledger() != other.ledger() || one.draws() != other.draws() {
            seen.violations.push("what was charged depends on a record".into());
        }
        seen.claimed = plan.price.map_or(f64::INFINITY, |price| price.epsilon);
        seen.delta = budget.delta.get();
        Ok(())
    }
}

/// Over all rounds.
#[derive(Default)]
struct Seen {
    releases: u64,
    /// The largest share of the sensitivity up to each step.
    farthest: Vec<f64>,
    together: f64,
    violations: Vec<String>,
    claimed: f64,
    delta: f64,
}

impl Seen {
    fn verdict(self, replay: &Replay, sensitivity: f64, config: &Config) -> Verdict {
        let farthest = self.farthest.iter().copied().fold(0.0, f64::max);
        let mut violations = self.violations;
        if self.releases == 0 || farthest == 0.0 {
            violations.push("no release was moved by any record: nothing was looked at".into());
        }
        let points = self.farthest.iter().enumerate().map(|(step, &share)| (step as f64 + 1.0, share)).collect();
        let details = vec![
            ("optimizer".into(), config.optimizer.name.clone()),
            (
                "compared".into(),
                format!("{} releases, with {} records and without, {} steps each", self.releases, replay.records, replay.steps),
            ),
            ("farthest apart".into(), format!("{farthest:.4} of the declared sensitivity ({sensitivity} C)")),
            ("all blocks of a lot".into(), format!("{:.4} of what was announced and charged", self.together)),
            ("control flow".into(), "charges, draws, refusals and declared noise compared".into()),
        ];
        Verdict {
            // A distance is no estimate of ε; within its bounds it says nothing against the claim.
            epsilon_lower: 0.0,
            epsilon_claimed: self.claimed,
            delta: self.delta,
            confidence: 1.0,
            violations,
            details,
            plot: Plot {
                title: "How far one record moved a release".into(),
                x: Axis { label: "step, one record after the other".into(), scale: Scale::Linear },
                y: Axis { label: "largest so far, share of the declared sensitivity".into(), scale: Scale::Linear },
                series: vec![Series { name: "moved".into(), points, spread: Vec::new(), line: Line::Solid }],
                marks: vec![Mark { name: "declared".into(), y: 1.0 }],
            },
        }
    }
}
