//! ε from scores on data with and without somebody.
//!
//! Whoever guesses from a score errs at some rates α (says *there* of somebody who is not) and β
//! (says *not there* of somebody who is). Two things follow:
//!
//! - If the mechanism is (ε, δ)-private, 1 − β ≤ e^ε α + δ and 1 − α ≤ e^ε β + δ. That bounds ε
//!   whatever the mechanism is, but it needs rare events: with n trials no more than about ln n can
//!   be shown.
//! - If the mechanism is what it claims to be, (α, β) lies on or above the trade-off curve of the
//!   claim (Dong, Roth, Su 2022; Nasr et al. 2023). The claim is a list of events; with its noise
//!   multiplied by m it is the claim of a weaker or stronger mechanism. The smallest m that is
//!   refuted is how much noise there is at most, and ε of that claim is the bound. It uses the
//!   common errors, so it is tight.
//!
//! Thresholds are chosen by looking at one part of the trials; the rates are measured on the
//! others, with Clopper and Pearson's bounds, all of which hold together with the given confidence.

use crate::rate::clopper_pearson_upper;
use accounting::{
    Accountant, Composition, Cost, Delta, Error, Event, Release, Result, Sigma, TradeOff, Unit,
};

/// What is claimed.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What was charged.
    pub events: Composition,
    /// Who is protected.
    pub unit: Unit,
    /// δ of the guarantee.
    pub delta: Delta,
}

impl Claim {
    /// The ε that is claimed.
    ///
    /// # Errors
    /// If the events have no price.
    pub fn epsilon(&self) -> Result<f64> {
        Ok(Cost::new(&self.events, self.unit)?.epsilon(Accountant::Best, self.delta)?.epsilon)
    }

    /// What would be claimed with all noise multiplied by a number.
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
            };
            events.push(event, *count)?;
        }
        Ok(Self { events, ..*self })
    }

    /// What an attacker can gain if it is true.
    ///
    /// # Errors
    /// If there is no such analysis of these events.
    pub fn trade_off(&self) -> Result<TradeOff> {
        Cost::new(&self.events, self.unit)?.trade_off(self.delta)
    }
}

/// Scores of trials: higher where somebody seems to be there.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Of data without them.
    pub without: Vec<f64>,
    /// Of data with them.
    pub with: Vec<f64>,
}

/// A test, and how often it errs at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdTest {
    /// *There* is said above it.
    pub threshold: f64,
    /// How often *there* was said wrongly.
    pub false_positives: f64,
    /// How often *there* was said rightly.
    pub true_positives: f64,
    /// An upper bound on how often *there* is said wrongly.
    pub false_positives_at_most: f64,
    /// A lower bound on how often *there* is said rightly.
    pub true_positives_at_least: f64,
}

/// What the scores say about ε.
#[derive(Clone, Debug)]
pub struct EpsilonBounds {
    /// ε is at least this, whatever the mechanism is.
    pub epsilon_any: f64,
    /// ε is at least this if it is the claimed mechanism with more or less noise.
    pub epsilon_family: f64,
    /// By how much the noise of the claim can be multiplied at most, so that what was seen is still
    /// possible.
    pub noise_at_most: f64,
    /// The tests that were made.
    pub tests: Vec<ThresholdTest>,
}

impl EpsilonBounds {
    /// The larger bound.
    pub fn epsilon_lower(&self) -> f64 {
        self.epsilon_any.max(self.epsilon_family)
    }
}

/// Of so many trials one is used to choose thresholds.
const CHOOSING: usize = 5;

/// The largest and smallest factor of the noise that is looked at.
const FACTORS: [f64; 2] = [1.0 / 32.0, 1024.0];

impl Scores {
    /// Lower bounds on ε at the claim's δ. All of it holds with the given confidence.
    ///
    /// # Errors
    /// If there are too few trials, the confidence is no probability, or the claim has no price.
    pub fn bound(&self, claim: &Claim, confidence: f64) -> Result<EpsilonBounds> {
        let least = 10 * CHOOSING;
        if self.without.len() < least || self.with.len() < least {
            let got = format!("{} and {}", self.without.len(), self.with.len());
            return Err(Error::OutOfRange {
                name: "the number of trials",
                expected: "at least 50 on each side",
                got,
            });
        }
        if !(confidence > 0.0 && confidence < 1.0) {
            return Err(Error::OutOfRange {
                name: "the confidence",
                expected: "between 0 and 1",
                got: confidence.to_string(),
            });
        }
        // A score that is not a number says nothing.
        let clean = |scores: &[f64]| -> Vec<f64> {
            scores.iter().map(|&x| if x.is_nan() { 0.0 } else { x }).collect()
        };
        let (without, with) = (clean(&self.without), clean(&self.with));
        let [(look_without, without), (look_with, with)] =
            [&without, &with].map(|scores| scores.split_at(scores.len() / CHOOSING));
        let alpha = (1.0 - confidence) / 6.0;
        let thresholds = choose(look_without, look_with, claim.delta.get(), alpha);
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
    /// (ε, δ)-privacy of any kind, in both directions.
    fn epsilon(&self, delta: f64) -> f64 {
        let bound = |right: f64, wrong: f64| {
            if right > delta { ((right - delta) / wrong).ln().max(0.0) } else { 0.0 }
        };
        let there = bound(self.true_positives_at_least, self.false_positives_at_most);
        there.max(bound(1.0 - self.false_positives_at_most, 1.0 - self.true_positives_at_least))
    }

    /// The Gaussian that these rates need at least.
    fn mu(&self) -> f64 {
        accounting::curve::gdp_mu_of(self.false_positives_at_most, self.true_positives_at_least)
    }

    /// Whether no mechanism with this trade-off can be what was seen.
    fn refutes(&self, curve: &TradeOff) -> bool {
        let (wrong, right) = (self.false_positives_at_most, self.true_positives_at_least);
        right > curve.tpr(wrong) || 1.0 - wrong > curve.tpr(1.0 - right)
    }
}

/// Counts, on trials that were not looked at before.
fn test(without: &[f64], with: &[f64], threshold: f64, alpha: f64) -> ThresholdTest {
    let above = |scores: &[f64]| scores.iter().filter(|&&score| score > threshold).count() as u64;
    let (wrong, right) = (above(without), above(with));
    let (negatives, positives) = (without.len() as u64, with.len() as u64);
    ThresholdTest {
        threshold,
        false_positives: wrong as f64 / negatives as f64,
        true_positives: right as f64 / positives as f64,
        false_positives_at_most: clopper_pearson_upper(wrong, negatives, alpha),
        true_positives_at_least: 1.0 - clopper_pearson_upper(positives - right, positives, alpha),
    }
}

/// The thresholds that promise most: for either direction of (ε, δ), and for the trade-off.
fn choose(without: &[f64], with: &[f64], delta: f64, alpha: f64) -> Vec<f64> {
    let mut all: Vec<f64> = without.iter().chain(with).copied().collect();
    all.sort_by(f64::total_cmp);
    // Some in the middle and more towards the ends, where rare events are.
    let last = all.len() - 1;
    let mut places: Vec<usize> = (0..=60).map(|i| i * last / 60).collect();
    places.extend((0..30).flat_map(|i| {
        let from_end = (1.35f64.powi(i) as usize).min(last);
        [from_end, last - from_end]
    }));
    places.sort_unstable();
    places.dedup();
    let tests: Vec<ThresholdTest> =
        places.into_iter().map(|place| test(without, with, all[place], alpha)).collect();
    let best = |value: &dyn Fn(&ThresholdTest) -> f64| {
        tests.iter().max_by(|a, b| value(a).total_cmp(&value(b))).map(|test| test.threshold)
    };
    let there = |test: &ThresholdTest| {
        ((test.true_positives_at_least - delta).max(0.0) / test.false_positives_at_most).ln()
    };
    let not_there = |test: &ThresholdTest| {
        ((1.0 - test.false_positives_at_most - delta).max(0.0)
            / (1.0 - test.true_positives_at_least))
            .ln()
    };
    [best(&there), best(&not_there), best(&ThresholdTest::mu)].into_iter().flatten().collect()
}

/// The smallest factor by which the noise of the claim can be multiplied and the tests refute it.
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
    use accounting::{Adjacency, Lots, Rate};
    use tensor::normal::Key;

    fn claim(events: Composition) -> Claim {
        Claim { events, unit: Adjacency::AddRemove.into(), delta: Delta::new(1e-5).unwrap() }
    }

    fn gaussian(sigma: f64) -> Claim {
        claim(Composition::repeated(Event::gaussian(Lots::Full, Sigma::new(sigma).unwrap()), 1))
    }

    fn normals(seed: u64, count: usize, mean: f64, std: f64) -> Vec<f64> {
        let mut numbers = vec![0.0f32; count];
        Key::from_seed(seed).fill_normals(&mut numbers);
        numbers.into_iter().map(|z| mean + std * f64::from(z)).collect()
    }

    /// N(1, 1) against N(0, 1): ε = 4.377 at δ = 1e-5.
    #[test]
    fn the_bound_is_near_the_truth_and_not_above_it() {
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

    /// The claim is about another mechanism than the one that is there.
    #[test]
    fn what_is_claimed_too_low_is_found() {
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

    /// Somebody who is never noised: shown without any assumption.
    #[test]
    fn perfect_separation_is_found_by_any_bound() {
        let scores = Scores { without: vec![0.0; 100_000], with: vec![1.0; 100_000] };
        let found = scores.bound(&gaussian(1.0), 0.99).unwrap();
        assert!(found.epsilon_any > 9.0, "{}", found.epsilon_any);
        assert!(found.noise_at_most < 0.2, "{}", found.noise_at_most);
        // And scores that say nothing show nothing, as do those that are not numbers.
        for nothing in [0.0, f64::NAN] {
            let scores = Scores { without: vec![nothing; 100], with: vec![nothing; 100] };
            assert_eq!(scores.bound(&gaussian(1.0), 0.99).unwrap().epsilon_lower(), 0.0);
        }
        assert!(
            Scores { without: vec![0.0; 9], with: vec![1.0; 900] }
                .bound(&gaussian(1.0), 0.99)
                .is_err()
        );
    }

    /// Lots that are drawn: the curve of the claim is not a Gaussian's, and the bound is still near
    /// it.
    #[test]
    fn sampled_claims_are_bounded_by_their_own_curve() {
        let (rate, count) = (0.3, 100_000);
        let events = Composition::repeated(
            Event::poisson(Rate::new(rate).unwrap(), Sigma::new(0.8).unwrap()),
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
