//! Audit of the mechanism: many releases of a small model, with and without one record.

use super::{AuditProgress, AuditResult, trade_off_chart};
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

/// Settings of an audit of the mechanism.
#[derive(Clone, Copy, Debug)]
pub struct MechanismSettings {
    /// The noise multiplier of each block.
    pub sigma: f64,
    /// Number of lots of one trial.
    pub steps: u64,
    /// The probability that a record is in a lot.
    pub rate: f64,
    /// Whether every tensor is a clip block.
    pub per_tensor: bool,
    /// δ of the claim.
    pub delta: f64,
    /// Number of trials with the record, and as many without.
    pub trials: u64,
    /// The probability with which the bound holds.
    pub confidence: f64,
}

/// The clip bound of each block: far below the gradient of the record.
const CLIP: f64 = 1e-3;

impl MechanismSettings {
    /// Runs the audit.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn run(&self, progress: AuditProgress<'_>) -> Result<AuditResult, Error> {
        let (rate, delta) = (SamplingRate::new(self.rate)?, Delta::new(self.delta)?);
        let sampling = if self.rate < 1.0 { Sampling::Poisson { rate } } else { Sampling::Full };
        let graph =
            Mlp { input: 4, hidden: vec![6], classes: 3, activation: Activation::Tanh }.graph();
        let values = graph.init(0)?;
        let (network, at) = device().network(graph, values, &|_| true)?;
        // Its gradient is far beyond the clip bound in every tensor.
        let record = Example::features(vec![0.9, -0.6, 0.4, 1.2], 1);
        let curator = |record: Option<Example>| -> Result<Curator<Box<dyn Network>>, Error> {
            Ok(Curator::new(
                network.new_instance(),
                Records::with_vacancies(vec![record]),
                sampling,
                Door::unlimited(),
                Randomness::from_system()?,
            )?)
        };
        let (mut with, mut without) = (curator(Some(record))?, curator(None)?);
        let blocks = if self.per_tensor { Blocks::each(at.len()) } else { Blocks::flat(at.len()) };
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
        let total = 2 * self.trials;
        let audit = audit::MechanismAudit {
            query,
            rate: self.rate,
            steps: self.steps,
            trials: self.trials,
        };
        // The model is so small that synchronizing threads would take most of the time.
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        let done = std::sync::atomic::AtomicU64::new(0);
        let observed = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                one_thread.install(|| {
                    audit.observe(&mut with, &mut without, |trials| {
                        done.store(trials, std::sync::atomic::Ordering::Relaxed)
                    })
                })
            });
            while !worker.is_finished() {
                progress(done.load(std::sync::atomic::Ordering::Relaxed), total);
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            worker.join()
        });
        let observed = observed.map_err(|_| Error::Internal("the audit panicked"))??;
        // The claim is what the curator charges for a trial.
        let claim = Claim {
            events: trial_charge(&with, &query, self.steps)?,
            unit: Adjacency::AddRemove.into(),
            delta,
        };
        let (view, bounds) = observed.bound(&claim, self.confidence)?;
        let tests = |name: &str, rates: &dyn Fn(&audit::ThresholdTest) -> (f64, f64)| {
            let mut points: Vec<(f64, f64)> = bounds.tests.iter().map(rates).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series::new(name, points).dashed()
        };
        let series = vec![
            tests("observed", &|test| (test.false_positives, test.true_positives)),
            tests("at least, with confidence", &|test| {
                (test.false_positives_at_most, test.true_positives_at_least)
            }),
        ];
        Ok(AuditResult {
            epsilon_lower: bounds.epsilon_lower(),
            epsilon_claimed: claim.epsilon()?,
            delta: self.delta,
            confidence: self.confidence,
            violations: observed.noise.clone(),
            details: vec![
                ("trials".into(), format!("{} with the record, {0} without", self.trials)),
                ("bound for any mechanism".into(), short(bounds.epsilon_any)),
                ("bound by the claim's trade-off".into(), short(bounds.epsilon_family)),
                (
                    "noise".into(),
                    format!(
                        "consistent with at most {:.4} of the claimed noise",
                        bounds.noise_at_most
                    ),
                ),
                ("best view".into(), view),
            ],
            // The record is synthetic.
            private: true,
            spent: None,
            chart: trade_off_chart(&claim, series)?,
        })
    }
}

/// The charge for one trial, from the ledger of a curator that answered only such queries.
fn trial_charge(
    curator: &Curator<Box<dyn Network>>,
    query: &GradientQuery<'_>,
    steps: u64,
) -> Result<Composition, Error> {
    let sigma = Sigma::new(query.bounds[0].sigma.get())?;
    let runs = curator.ledger().events().runs();
    let event = runs.iter().map(|(event, _)| event).rfind(|event| match event {
        accounting::Event::Gaussian { release, .. } => {
            release.blocks().iter().any(|(block_sigma, _)| *block_sigma == sigma)
        }
        _ => false,
    });
    let event = event.ok_or(Error::Internal("nothing was charged for the audited query"))?;
    Ok(Composition::repeated(event.clone(), steps))
}
