//! Lower bounds on ε from scores on data with and without a record.
//!
//! A membership test on a score has a false-positive rate α and a false-negative rate β. Two bounds
//! follow:
//!
//! - If the mechanism is (ε, δ)-private, 1 − β ≤ e^ε α + δ and 1 − α ≤ e^ε β + δ. That bounds ε
//!   for any mechanism, but it needs rare events: n trials show an ε of at most about ln n.
//! - If the claim is true, (α, β) is on or above its trade-off curve (Dong, Roth, Su 2022; Nasr et
//!   al. 2023). The claim is a list of events. Multiplying their noise by m gives a family of
//!   claims. The smallest refuted m is an upper bound on the actual noise, and ε of that claim is
//!   the lower bound on ε. It uses frequent errors, so it is tight.
//!
//! Thresholds are chosen on one part of the trials; the rates are measured on the rest, with
//! Clopper–Pearson bounds that hold jointly at the given confidence.

use crate::error::{Error, Result, check_confidence};
use crate::rate::clopper_pearson_upper;
use accounting::{Accountant, Composition, Cost, Delta, Event, Release, Sigma, TradeOff, Unit};

/// A claimed guarantee.
///
/// ```
/// use accounting::{Adjacency, Composition, Delta, Event, Sampling, Sigma};
/// use audit::Claim;
///
/// let release = Event::gaussian(Sampling::Full, Sigma::new(1.0)?);
/// let claim = Claim {
///     events: Composition::repeated(release, 1),
///     unit: Adjacency::AddRemove.into(),
///     delta: Delta::new(1e-5)?,
/// };
/// assert!((4.3..4.4).contains(&claim.epsilon()?));
/// # Ok::<(), audit::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Claim {
    /// The events that were charged.
    pub events: Composition,
    /// The unit of privacy.
    pub unit: Unit,
    /// δ of the guarantee.
    pub delta: Delta,
}

impl Claim {
    /// Computes the claimed ε.
    ///
    /// # Errors
    /// If the accountant does not support the events.
    pub fn epsilon(&self) -> Result<f64> {
        Ok(Cost::new(&self.events, self.unit)?.epsilon(Accountant::Best, self.delta)?.epsilon)
    }

    /// Returns the claim with all noise multiplied by `factor`.
    fn with_noise_times(&self, factor: f64) -> Result<Self> {
        let mut events = Composition::new();
        for (event, count) in self.events.runs() {
            let event = match event {
                Event::NonPrivate => Event::NonPrivate,
                Event::Gaussian { lots, release } => {
                    let blocks = release
                        .blocks()
                        .iter()
                        .map(|&(sigma, count)| Ok((Sigma::new(sigma.get() * factor)?, count)));
                    Event::Gaussian {
                        lots: *lots,
                        release: Release::joint(blocks.collect::<Result<Vec<_>>>()?)?,
                    }
                }
                Event::Laplace { lots, multiplier } => Event::Laplace {
                    lots: *lots,
                    multiplier: Sigma::new(multiplier.get() * factor)?,
                },
                Event::EpsilonDelta { .. } | Event::Zcdp { .. } => {
                    let event = event.to_string();
                    let refused = accounting::Error::Unsupported { accountant: "audit", event };
                    return Err(refused.into());
                }
            };
            events.push(event, *count)?;
        }
        Ok(Self { events, ..*self })
    }

    /// Computes the trade-off curve that holds if the claim is true.
    ///
    /// # Errors
    /// If the accountant has no trade-off curve for these events.
    pub fn trade_off(&self) -> Result<TradeOff> {
        Ok(Cost::new(&self.events, self.unit)?.trade_off(self.delta)?)
    }
}

/// Scores of trials: higher where the record seems to be present.
///
/// ```
/// use accounting::{Adjacency, Composition, Delta, Event, Sampling, Sigma};
/// use audit::{Claim, Scores};
///
/// let release = Event::gaussian(Sampling::Full, Sigma::new(1.0)?);
/// let claim = Claim {
///     events: Composition::repeated(release, 1),
///     unit: Adjacency::AddRemove.into(),
///     delta: Delta::new(1e-5)?,
/// };
/// // Scores that tell the two data sets apart without error refute the claim.
/// let scores = Scores { without: vec![0.0; 5000], with: vec![1.0; 5000] };
/// assert!(scores.bound(&claim, 0.99)?.epsilon_lower() > claim.epsilon()?);
/// # Ok::<(), audit::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Scores on data without the record.
    pub without: Vec<f64>,
    /// Scores on data with the record.
    pub with: Vec<f64>,
}

/// A test by a threshold on the score, with its error rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdTest {
    /// Scores above it count as positive.
    pub threshold: f64,
    /// The observed false-positive rate.
    pub false_positives: f64,
    /// The observed true-positive rate.
    pub true_positives: f64,
    /// Upper bound on the false-positive rate.
    pub false_positives_at_most: f64,
    /// Lower bound on the true-positive rate.
    pub true_positives_at_least: f64,
}

/// Lower bounds on ε.
#[derive(Clone, Debug)]
pub struct EpsilonBounds {
    /// Lower bound on ε for any mechanism.
    pub epsilon_any: f64,
    /// Lower bound on ε for the claimed mechanism with more or less noise.
    pub epsilon_family: f64,
    /// Upper bound on the actual noise, as a multiple of the claimed noise.
    pub noise_at_most: f64,
    /// The tests.
    pub tests: Vec<ThresholdTest>,
}

impl EpsilonBounds {
    /// Returns the larger bound.
    pub fn epsilon_lower(&self) -> f64 {
        self.epsilon_any.max(self.epsilon_family)
    }
}

/// The first 1/`SELECTION_SHARE` of the trials is used to choose thresholds.
const SELECTION_SHARE: usize = 5;

/// Range of noise factors that are tested.
const FACTORS: [f64; 2] = [1.0 / 32.0, 1024.0];

impl Scores {
    /// Computes lower bounds on ε at the claim's δ, which hold jointly at the given confidence.
    ///
    /// # Errors
    /// If there are too few trials, the confidence is not a probability, or the claim cannot be
    /// evaluated.
    pub fn bound(&self, claim: &Claim, confidence: f64) -> Result<EpsilonBounds> {
        let least = 10 * SELECTION_SHARE;
        if self.without.len() < least || self.with.len() < least {
            let (with, without) = (self.with.len(), self.without.len());
            return Err(Error::TooFewTrials { least, with, without });
        }
        check_confidence(confidence)?;
        // NaN counts as a neutral score.
        let clean = |scores: &[f64]| -> Vec<f64> {
            scores.iter().map(|&x| if x.is_nan() { 0.0 } else { x }).collect()
        };
        let (without, with) = (clean(&self.without), clean(&self.with));
        let [(chosen_without, without), (chosen_with, with)] =
            [&without, &with].map(|scores| scores.split_at(scores.len() / SELECTION_SHARE));
        let alpha = (1.0 - confidence) / 6.0;
        let thresholds = choose(chosen_without, chosen_with, claim.delta.get(), alpha);
        let tests: Vec<ThresholdTest> =
            thresholds.into_iter().map(|threshold| test(without, with, threshold, alpha)).collect();
        let epsilon_any =
            tests.iter().map(|test| test.epsilon(claim.delta.get())).fold(0.0, f64::max);
        let noise_at_most = noise_at_most(claim, &tests)?;
        let epsilon_family = if noise_at_most < FACTORS[1] {
            claim.with_noise_times(noise_at_most)?.epsilon()?
        } else {
            0.0
        };
        Ok(EpsilonBounds { epsilon_any, epsilon_family, noise_at_most, tests })
    }
}

impl ThresholdTest {
    /// Returns the largest ε that these rates refute for any mechanism, in both directions.
    fn epsilon(&self, delta: f64) -> f64 {
        let bound = |power: f64, error: f64| {
            if power > delta { ((power - delta) / error).ln().max(0.0) } else { 0.0 }
        };
        let positive = bound(self.true_positives_at_least, self.false_positives_at_most);
        positive.max(bound(1.0 - self.false_positives_at_most, 1.0 - self.true_positives_at_least))
    }

    /// Returns the smallest μ of a Gaussian mechanism that allows these rates.
    fn mu(&self) -> f64 {
        accounting::curve::gdp_mu_of(self.false_positives_at_most, self.true_positives_at_least)
    }

    /// Whether these rates contradict this trade-off curve.
    fn refutes(&self, curve: &TradeOff) -> bool {
        let (fpr, tpr) = (self.false_positives_at_most, self.true_positives_at_least);
        tpr > curve.tpr(fpr) || 1.0 - fpr > curve.tpr(1.0 - tpr)
    }
}

/// Measures the error rates of a threshold.
fn test(without: &[f64], with: &[f64], threshold: f64, alpha: f64) -> ThresholdTest {
    let above = |scores: &[f64]| scores.iter().filter(|&&score| score > threshold).count() as u64;
    let (false_positives, true_positives) = (above(without), above(with));
    let (negatives, positives) = (without.len() as u64, with.len() as u64);
    ThresholdTest {
        threshold,
        false_positives: false_positives as f64 / negatives as f64,
        true_positives: true_positives as f64 / positives as f64,
        false_positives_at_most: clopper_pearson_upper(false_positives, negatives, alpha),
        true_positives_at_least: 1.0
            - clopper_pearson_upper(positives - true_positives, positives, alpha),
    }
}

/// Returns the best thresholds for both directions of (ε, δ) and for the trade-off curve.
fn choose(without: &[f64], with: &[f64], delta: f64, alpha: f64) -> Vec<f64> {
    let mut all: Vec<f64> = without.iter().chain(with).copied().collect();
    all.sort_by(f64::total_cmp);
    // Quantiles, denser towards both ends, where rare events are.
    let last = all.len() - 1;
    let mut indices: Vec<usize> = (0..=60).map(|i| i * last / 60).collect();
    indices.extend((0..30).flat_map(|i| {
        let from_end = (1.35f64.powi(i) as usize).min(last);
        [from_end, last - from_end]
    }));
    indices.sort_unstable();
    indices.dedup();
    let tests: Vec<ThresholdTest> =
        indices.into_iter().map(|index| test(without, with, all[index], alpha)).collect();
    let best = |value: &dyn Fn(&ThresholdTest) -> f64| {
        tests.iter().max_by(|a, b| value(a).total_cmp(&value(b))).map(|test| test.threshold)
    };
    let positive = |test: &ThresholdTest| {
        ((test.true_positives_at_least - delta).max(0.0) / test.false_positives_at_most).ln()
    };
    let negative = |test: &ThresholdTest| {
        ((1.0 - test.false_positives_at_most - delta).max(0.0)
            / (1.0 - test.true_positives_at_least))
            .ln()
    };
    [best(&positive), best(&negative), best(&ThresholdTest::mu)].into_iter().flatten().collect()
}

/// Finds the smallest noise factor at which the tests refute the claim, by bisection.
fn noise_at_most(claim: &Claim, tests: &[ThresholdTest]) -> Result<f64> {
    let refuted = |factor: f64| -> Result<bool> {
        let curve = claim.with_noise_times(factor)?.trade_off()?;
        Ok(tests.iter().any(|test| test.refutes(&curve)))
    };
    let [mut low, mut high] = FACTORS;
    if !refuted(high)? {
        return Ok(high);
    }
    if refuted(low)? {
        return Ok(low);
    }
    for _ in 0..24 {
        let middle = (low * high).sqrt();
        if refuted(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{Adjacency, Sampling, SamplingRate};
    use noise::PublicRandom;

    fn claim(events: Composition) -> Claim {
        Claim { events, unit: Adjacency::AddRemove.into(), delta: Delta::new(1e-5).unwrap() }
    }

    fn gaussian(sigma: f64) -> Claim {
        claim(Composition::repeated(Event::gaussian(Sampling::Full, Sigma::new(sigma).unwrap()), 1))
    }

    fn normals(seed: u64, count: usize, mean: f64, std: f64) -> Vec<f64> {
        let mut values = vec![0.0f32; count];
        PublicRandom::from_seed(seed).fill_normals(&mut values);
        values.into_iter().map(|z| mean + std * f64::from(z)).collect()
    }

    /// N(1, 1) against N(0, 1): ε = 4.377 at δ = 1e-5.
    #[test]
    fn bounds_are_close_to_and_not_above_the_exact_epsilon() {
        for seed in 0..5 {
            let scores = Scores {
                without: normals(2 * seed, 100_000, 0.0, 1.0),
                with: normals(2 * seed + 1, 100_000, 1.0, 1.0),
            };
            let claim = gaussian(1.0);
            let (found, truth) = (scores.bound(&claim, 0.99).unwrap(), claim.epsilon().unwrap());
            assert!((truth - 4.377_18).abs() < 1e-3);
            assert!(found.epsilon_lower() <= truth, "{} {truth}", found.epsilon_lower());
            assert!(found.epsilon_family >= 0.93 * truth, "{} {truth}", found.epsilon_family);
            assert!(
                found.epsilon_any >= 0.5 * truth && found.epsilon_any <= truth,
                "{} {truth}",
                found.epsilon_any
            );
        }
    }

    /// The claim is about another mechanism than the actual one.
    #[test]
    fn claims_with_too_small_an_epsilon_are_refuted() {
        for (std, wrong) in [(0.95, true), (0.7, true), (1.0, false), (1.1, false)] {
            let scores = Scores {
                without: normals(1, 100_000, 0.0, std),
                with: normals(2, 100_000, 1.0, std),
            };
            let (claim, confidence) = (gaussian(1.0), 0.99);
            let found = scores.bound(&claim, confidence).unwrap();
            assert_eq!(found.epsilon_lower() > claim.epsilon().unwrap(), wrong, "{std}: {found:?}");
            assert_eq!(found.noise_at_most < 1.0, wrong, "{std}");
        }
    }

    /// A release without noise is detected without assumptions on the mechanism.
    #[test]
    fn perfect_separation_gives_a_large_bound() {
        let scores = Scores { without: vec![0.0; 100_000], with: vec![1.0; 100_000] };
        let found = scores.bound(&gaussian(1.0), 0.99).unwrap();
        assert!(found.epsilon_any > 9.0, "{}", found.epsilon_any);
        assert!(found.noise_at_most < 0.2, "{}", found.noise_at_most);
        // Constant scores and NaN give no bound.
        for constant in [0.0, f64::NAN] {
            let scores = Scores { without: vec![constant; 100], with: vec![constant; 100] };
            assert_eq!(scores.bound(&gaussian(1.0), 0.99).unwrap().epsilon_lower(), 0.0);
        }
        assert!(
            Scores { without: vec![0.0; 9], with: vec![1.0; 900] }
                .bound(&gaussian(1.0), 0.99)
                .is_err()
        );
    }

    /// With sampling the claim's curve is not Gaussian, and the bound is still close.
    #[test]
    fn bounds_of_sampled_mechanisms_use_their_own_curve() {
        let (rate, count) = (0.3, 100_000);
        let events = Composition::repeated(
            Event::poisson(SamplingRate::new(rate).unwrap(), Sigma::new(0.8).unwrap()),
            1,
        );
        let claim = claim(events);
        let with: Vec<f64> = normals(3, count, 0.0, 0.8)
            .into_iter()
            .enumerate()
            .map(|(i, z)| if (i as f64 * 0.618_033_988).fract() < rate { z + 1.0 } else { z })
            .collect();
        let found =
            Scores { without: normals(4, count, 0.0, 0.8), with }.bound(&claim, 0.99).unwrap();
        let truth = claim.epsilon().unwrap();
        assert!(
            found.epsilon_lower() <= truth && found.epsilon_lower() > 0.8 * truth,
            "{} {truth}",
            found.epsilon_lower()
        );
    }
}
