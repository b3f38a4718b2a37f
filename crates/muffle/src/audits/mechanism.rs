//! The mechanism itself: a small model, one record that stands out, and the curator asked again and
//! again.

use super::{AuditProgress, Verdict, trade_off};
use crate::Error;
use crate::chart::Series;
use crate::device::device;
use crate::report::digits::short;
use accounting::{Adjacency, Composition, Delta, SamplingRate, Sigma};
use audit::Claim;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::Example;
use model::Mlp;
use model::Network;
use model::activation::Activation;
use protocol::{Blocks, Bound, Clipping, Geometry, GradientQuery};

/// How it is attacked.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    /// The noise multiplier of each block.
    pub sigma: f64,
    /// Lots of one trial.
    pub steps: u64,
    /// The probability that a record is in a lot.
    pub rate: f64,
    /// Whether every tensor is clipped by itself.
    pub blocks: bool,
    /// δ of the claim.
    pub delta: f64,
    /// Trials with the record, and as many without.
    pub trials: u64,
    /// With which probability the bound shall hold.
    pub confidence: f64,
}

const CLIP: f64 = 1e-3;

impl Mechanism {
    /// Attacks it.
    ///
    /// # Errors
    /// If a number makes no sense.
    pub fn run(&self, progress: AuditProgress<'_>) -> Result<Verdict, Error> {
        let (rate, delta) = (SamplingRate::new(self.rate)?, Delta::new(self.delta)?);
        let sampling = if self.rate < 1.0 { Sampling::Poisson { rate } } else { Sampling::Full };
        let graph =
            Mlp { input: 4, hidden: vec![6], classes: 3, activation: Activation::Tanh }.graph();
        let values = graph.init(0)?;
        let (network, at) = device().network(graph, values, &|_| true)?;
        // With a gradient in every tensor, and far beyond the clip bound.
        let record = Example::features(vec![0.9, -0.6, 0.4, 1.2], 1);
        let make = |record: Option<Example>| -> Result<Curator<Box<dyn Network>>, Error> {
            Ok(Curator::new(
                network.new_instance(),
                Records::with_vacancies(vec![record]),
                sampling,
                Door::unlimited(),
                Randomness::from_system()?,
            )?)
        };
        let (mut with, mut without) = (make(Some(record))?, make(None)?);
        let blocks = if self.blocks { Blocks::each(at.len()) } else { Blocks::flat(at.len()) };
        let bounds = (0..blocks.count())
            .map(|_| Bound::new(CLIP, self.sigma))
            .collect::<Result<Vec<_>, _>>()?;
        let query = GradientQuery {
            at: &at,
            geometry: &Geometry::Identity,
            blocks: &blocks,
            bounds: &bounds,
            clipping: Clipping::Cut,
        };
        let all = 2 * self.trials;
        let asking = audit::MechanismAudit {
            query,
            rate: self.rate,
            steps: self.steps,
            trials: self.trials,
        };
        // The model is so small that handing work to other threads would take most of the time.
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        let done = std::sync::atomic::AtomicU64::new(0);
        let observed = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                alone.install(|| {
                    asking.observe(&mut with, &mut without, |trials| {
                        done.store(trials, std::sync::atomic::Ordering::Relaxed)
                    })
                })
            });
            while !asking.is_finished() {
                progress(done.load(std::sync::atomic::Ordering::Relaxed), all);
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            asking.join()
        });
        let observed = observed.map_err(|_| Error::Internal("the audit panicked"))??;
        // What the curator charges for a trial is what it claims.
        let claim = Claim {
            events: charged(&with, &query, self.steps)?,
            unit: Adjacency::AddRemove.into(),
            delta,
        };
        let (view, found) = observed.bound(&claim, self.confidence)?;
        let tests = |name: &str, of: &dyn Fn(&audit::ThresholdTest) -> (f64, f64)| {
            let mut points: Vec<(f64, f64)> = found.tests.iter().map(of).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series::new(name, points).dashed()
        };
        let seen = vec![
            tests("seen", &|test| (test.false_positives, test.true_positives)),
            tests("at least, with confidence", &|test| {
                (test.false_positives_at_most, test.true_positives_at_least)
            }),
        ];
        Ok(Verdict {
            epsilon_lower: found.epsilon_lower(),
            epsilon_claimed: claim.epsilon()?,
            delta: self.delta,
            confidence: self.confidence,
            violations: observed.noise.clone(),
            details: vec![
                ("trials".into(), format!("{} with the record, {0} without", self.trials)),
                ("bound for any mechanism".into(), short(found.epsilon_any)),
                ("bound by the claim's trade-off".into(), short(found.epsilon_family)),
                (
                    "noise".into(),
                    format!(
                        "at most {:.4} of what is claimed would explain it",
                        found.noise_at_most
                    ),
                ),
                ("seen in".into(), view),
            ],
            // The record is made up.
            private: true,
            spent: None,
            chart: trade_off(&claim, seen)?,
        })
    }
}

/// What one trial is charged as, by the ledger of a curator that was asked for nothing else.
fn charged(
    curator: &Curator<Box<dyn Network>>,
    query: &GradientQuery<'_>,
    steps: u64,
) -> Result<Composition, Error> {
    let sigma = Sigma::new(query.bounds[0].sigma.get())?;
    let runs = curator.ledger().events().runs();
    let asked = runs.iter().map(|(event, _)| event).rfind(|event| match event {
        accounting::Event::Gaussian { release, .. } => {
            release.blocks().iter().any(|(known, _)| *known == sigma)
        }
        accounting::Event::NonPrivate => false,
    });
    let event = asked.ok_or(Error::Internal("nothing was charged for the audited query"))?;
    Ok(Composition::repeated(event.clone(), steps))
}
