//! One run with many canaries, each put in or not by a coin (Steinke, Nasr, Jagielski 2023).
//!
//! After the run, guesses are made: the canaries with the highest scores were in, those with the
//! lowest were not, of the others nothing is said. If the run is (ε, δ)-private, the number of
//! correct guesses among r is not much larger than that of r coins which fall correct with probability
//! e^ε/(1 + e^ε): with W the number of such coins,
//!
//! P(correct ≥ v) ≤ P(W ≥ v) + 2 m δ · max_{1 ≤ i ≤ v} P(v > W ≥ v − i)/i
//!
//! for m canaries (their Theorem 5.2). An ε for which the correct-hand side is below 1 − confidence
//! is refuted, and with it all below, because what is private at a smaller ε is so at a larger one.
//! One run shows little of a large ε, and needs no assumption about the run at all.

use crate::rate::binomial;
use accounting::{Error, Result};

/// Canaries, what was tossed for each, and how it scored.
#[derive(Clone, Debug, Default)]
pub struct OneRun {
    /// Whether each was put in.
    pub included: Vec<bool>,
    /// Higher where one seems to be in.
    pub scores: Vec<f64>,
}

/// What the guesses say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneRunBound {
    /// Guesses that were made.
    pub guesses: u64,
    /// Right ones.
    pub correct: u64,
    /// ε is at least this.
    pub epsilon_lower: f64,
}

/// The shares of all canaries of which something is guessed. They are fixed beforehand, and the
/// confidence is divided among them.
const SHARES: [f64; 5] = [0.02, 0.1, 0.25, 0.5, 0.9];

impl OneRun {
    /// The best of the bounds, which hold together with the given confidence.
    ///
    /// # Errors
    /// If there are no canaries, or not as many scores.
    pub fn bound(&self, delta: f64, confidence: f64) -> Result<OneRunBound> {
        let canaries = self.scores.len();
        if canaries < 2 || canaries != self.included.len() {
            return Err(Error::OutOfRange {
                name: "the canaries",
                expected: "at least 2, each with a score",
                got: canaries.to_string(),
            });
        }
        if !(confidence > 0.0 && confidence < 1.0) {
            return Err(Error::OutOfRange {
                name: "the confidence",
                expected: "between 0 and 1",
                got: confidence.to_string(),
            });
        }
        let mut order: Vec<usize> = (0..canaries).collect();
        // What is not a number counts as nothing; among equals the order is that of the canaries,
        // which does not depend on the coins.
        let score =
            |canary: usize| if self.scores[canary].is_nan() { 0.0 } else { self.scores[canary] };
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        let alpha = (1.0 - confidence) / SHARES.len() as f64;
        let of = |share: f64| {
            let half = ((share * canaries as f64 / 2.0).round() as usize).clamp(1, canaries / 2);
            let correct = order[..half].iter().filter(|&&canary| self.included[canary]).count()
                + order[canaries - half..].iter().filter(|&&canary| !self.included[canary]).count();
            let (guesses, correct) = (2 * half as u64, correct as u64);
            OneRunBound {
                guesses,
                correct,
                epsilon_lower: epsilon_lower(canaries as u64, guesses, correct, delta, alpha),
            }
        };
        let all = SHARES.map(of);
        Ok(all.into_iter().fold(all[0], |best, one| {
            if one.epsilon_lower > best.epsilon_lower { one } else { best }
        }))
    }
}

/// The largest ε that is refuted by `correct` of `guesses` correct guesses about some of `canaries`.
pub fn epsilon_lower(canaries: u64, guesses: u64, correct: u64, delta: f64, alpha: f64) -> f64 {
    let refuted = |epsilon: f64| p_value(canaries, guesses, correct, epsilon, delta) < alpha;
    if !refuted(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if refuted(middle) { low = middle } else { high = middle }
    }
    low
}

/// How likely so many correct guesses are at most.
fn p_value(canaries: u64, guesses: u64, correct: u64, epsilon: f64, delta: f64) -> f64 {
    let coin = 1.0 / (1.0 + (-epsilon).exp());
    let at_least: f64 = (correct..=guesses).map(|k| binomial(k, guesses, coin)).sum();
    let (mut below, mut worst) = (0.0, 0.0f64);
    for i in 1..=correct {
        below += binomial(correct - i, guesses, coin);
        worst = worst.max(below / i as f64);
    }
    (at_least + 2.0 * canaries as f64 * delta * worst).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::normal::{Key, Rng};

    /// Randomised response at ε: each canary tells its coin with probability e^ε/(1 + e^ε). The
    /// bound is below ε and near it.
    #[test]
    fn randomised_response_is_measured() {
        for (epsilon, seed) in [(0.5f64, 1), (1.0, 2), (2.0, 3), (4.0, 4)] {
            let mut words = Key::from_seed(seed).words();
            let mut uniform = || f64::from(words.next_u32()) / 2f64.powi(32);
            let run = (0..10_000).map(|_| {
                let coin = uniform() < 0.5;
                let truth = uniform() < 1.0 / (1.0 + (-epsilon).exp());
                (coin, f64::from(u8::from(coin == truth)))
            });
            let (included, scores): (Vec<bool>, Vec<f64>) = run.unzip();
            let found = OneRun { included, scores }.bound(1e-5, 0.99).unwrap();
            assert!(
                found.epsilon_lower <= epsilon && found.epsilon_lower > 0.8 * epsilon,
                "{epsilon}: {found:?}"
            );
        }
    }

    #[test]
    fn guesses_by_chance_show_nothing() {
        let mut words = Key::from_seed(7).words();
        let included: Vec<bool> = (0..2000).map(|_| words.next_u32().is_multiple_of(2)).collect();
        for scores in [
            vec![0.0; 2000],
            vec![f64::NAN; 2000],
            (0..2000).map(|_| f64::from(words.next_u32())).collect(),
        ] {
            assert_eq!(
                OneRun { included: included.clone(), scores }
                    .bound(1e-5, 0.95)
                    .unwrap()
                    .epsilon_lower,
                0.0
            );
        }
        // Told outright, 2000 canaries show so much and no more.
        let scores = included.iter().map(|&there| f64::from(u8::from(there))).collect();
        let told = OneRun { included, scores }.bound(1e-5, 0.95).unwrap();
        assert!(told.correct == told.guesses && told.epsilon_lower > 5.5, "{told:?}");
        assert!(OneRun::default().bound(1e-5, 0.95).is_err());
        let two = OneRun { included: vec![true, false], scores: vec![1.0, 0.0] };
        assert!(
            two.bound(1e-5, 0.95).is_ok()
                && two.bound(1e-5, -5.0).is_err()
                && two.bound(1e-5, 2.0).is_err()
        );
    }

    /// Without δ: where the binomial tail is α. With it the bound is smaller.
    #[test]
    fn the_bound_is_where_the_tail_is() {
        let epsilon = epsilon_lower(1000, 100, 90, 0.0, 0.05);
        let coin = 1.0 / (1.0 + (-epsilon).exp());
        let tail: f64 = (90..=100).map(|k| binomial(k, 100, coin)).sum();
        assert!((tail - 0.05).abs() < 1e-9, "{tail}");
        let with = epsilon_lower(1000, 100, 90, 1e-5, 0.05);
        assert!(with < epsilon && with > epsilon - 0.05, "{with} {epsilon}");
        assert!(epsilon_lower(1000, 100, 90, 1e-2, 0.05) < with);
    }
}
