//! Audit of one run with canaries, each included by a fair coin (Steinke, Nasr, Jagielski 2023).
//!
//! After the run, the canaries with the highest scores are guessed to be included and those with
//! the lowest to be excluded; about the others no guess is made. Let W be binomial: the number of
//! successes in r trials with probability e^ε/(1 + e^ε). If the run is (ε, δ)-private, the number
//! of correct guesses among r satisfies
//!
//! P(correct ≥ v) ≤ P(W ≥ v) + 2 m δ · max_{1 ≤ i ≤ v} P(v > W ≥ v − i)/i
//!
//! for m canaries (their Theorem 5.2). An ε for which the right-hand side is below 1 − confidence
//! is refuted, and so is every smaller ε, because a run that is private at a smaller ε is private
//! at a larger one. One run cannot show a large ε, but the bound needs no assumption about the run.

use crate::error::{Error, Result, check_confidence};
use crate::rate::binomial;

/// The canaries of a run: whether each was included, and its score.
///
/// ```
/// use audit::OneRun;
///
/// let included: Vec<bool> = (0..200).map(|canary| canary % 2 == 0).collect();
/// let scores = included.iter().map(|&included| f64::from(u8::from(included))).collect();
/// let bound = OneRun { included, scores }.bound(1e-5, 0.95)?;
/// assert!(bound.correct == bound.guesses && bound.epsilon_lower > 2.0);
/// # Ok::<(), audit::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OneRun {
    /// Whether each canary was included.
    pub included: Vec<bool>,
    /// The score of each canary, higher where it seems to be included.
    pub scores: Vec<f64>,
}

/// A lower bound on ε from guesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneRunBound {
    /// The number of guesses.
    pub guesses: u64,
    /// The number of correct guesses.
    pub correct: u64,
    /// Lower bound on ε.
    pub epsilon_lower: f64,
}

/// Shares of the canaries about which guesses are made.
///
/// They are fixed in advance, and the confidence is divided among them.
const SHARES: [f64; 5] = [0.02, 0.1, 0.25, 0.5, 0.9];

impl OneRun {
    /// Returns the largest of several bounds, which hold jointly at the given confidence.
    ///
    /// # Errors
    /// If there are fewer than 2 canaries, or not one score for each, or the confidence is not a
    /// probability.
    pub fn bound(&self, delta: f64, confidence: f64) -> Result<OneRunBound> {
        let canaries = self.scores.len();
        if canaries < 2 || canaries != self.included.len() {
            return Err(Error::Canaries { canaries: self.included.len(), scores: canaries });
        }
        check_confidence(confidence)?;
        let mut order: Vec<usize> = (0..canaries).collect();
        // NaN counts as 0; among equal scores the order is that of the canaries, which does not
        // depend on the coins.
        let score =
            |canary: usize| if self.scores[canary].is_nan() { 0.0 } else { self.scores[canary] };
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        let alpha = (1.0 - confidence) / SHARES.len() as f64;
        let bound_for = |share: f64| {
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
        let all = SHARES.map(bound_for);
        Ok(all.into_iter().fold(all[0], |best, one| {
            if one.epsilon_lower > best.epsilon_lower { one } else { best }
        }))
    }
}

/// Returns the largest ε that the guesses refute, at the error probability `alpha`.
///
/// `correct` of `guesses` were correct, out of `canaries` canaries.
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

/// Bounds the probability of at least so many correct guesses if the run is (ε, δ)-private.
fn p_value(canaries: u64, guesses: u64, correct: u64, epsilon: f64, delta: f64) -> f64 {
    let p = 1.0 / (1.0 + (-epsilon).exp());
    let at_least: f64 = (correct..=guesses).map(|k| binomial(k, guesses, p)).sum();
    let (mut below, mut worst) = (0.0, 0.0f64);
    for i in 1..=correct {
        below += binomial(correct - i, guesses, p);
        worst = worst.max(below / i as f64);
    }
    (at_least + 2.0 * canaries as f64 * delta * worst).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::{PublicRandom, Rng};

    /// For randomised response at ε, the bound is below ε and close to it.
    ///
    /// A score is the truth about its canary with probability e^ε/(1 + e^ε).
    #[test]
    fn bounds_of_randomised_response_are_close() {
        for (epsilon, seed) in [(0.5f64, 1), (1.0, 2), (2.0, 3), (4.0, 4)] {
            let mut words = PublicRandom::from_seed(seed).words();
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
    fn random_guesses_give_no_bound() {
        let mut words = PublicRandom::from_seed(7).words();
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
        // Perfect guesses about 2000 canaries give a bound above 5.5.
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
    fn the_bound_inverts_the_binomial_tail() {
        let epsilon = epsilon_lower(1000, 100, 90, 0.0, 0.05);
        let coin = 1.0 / (1.0 + (-epsilon).exp());
        let tail: f64 = (90..=100).map(|k| binomial(k, 100, coin)).sum();
        assert!((tail - 0.05).abs() < 1e-9, "{tail}");
        let with = epsilon_lower(1000, 100, 90, 1e-5, 0.05);
        assert!(with < epsilon && with > epsilon - 0.05, "{with} {epsilon}");
        assert!(epsilon_lower(1000, 100, 90, 1e-2, 0.05) < with);
    }
}
