//! Audit of a mechanism by many releases on data with and without one record.
//!
//! The two oracles hold neighbouring data, which must be synthetic: the direction of the record's
//! contribution is measured first, from answers with very little noise. Then each oracle answers
//! the same query many times, so that repeated noise is detected, too. The more the contribution of
//! the record differs from others, the larger is the bound.

use crate::distinguish::{Claim, EpsilonBounds, Scores};
use crate::error::{Error, Result};
use protocol::{Announcement, Bound, GradientQuery, Oracle, Params, Refused};
use std::collections::HashSet;

/// The query, the lots and the number of trials of an audit.
#[derive(Clone, Copy, Debug)]
pub struct MechanismAudit<'a> {
    /// The query.
    pub query: GradientQuery<'a>,
    /// The probability that a record is in a lot.
    pub rate: f64,
    /// Lots per trial.
    pub steps: u64,
    /// Trials with the record, and as many without.
    pub trials: u64,
}

/// The scores of all trials, and violations of the declared noise.
#[derive(Clone, Debug)]
pub struct MechanismScores {
    /// Scores of each view of the releases: all tensors together, then each tensor.
    pub views: Vec<(String, Scores)>,
    /// Violations of the declared noise, one line each.
    pub noise: Vec<String>,
}

/// Noise multiplier of the answers from which the direction is measured.
const PROBE_SIGMA: f64 = 1e-5;

/// Standard errors by which a statistic may deviate, given thousands of elements.
const MAX_STANDARD_ERRORS: f64 = 7.0;

impl MechanismAudit<'_> {
    /// Runs all trials. `progress` is called with the number of trials done.
    ///
    /// # Errors
    /// If an oracle refuses, or no release depends on the record.
    pub fn observe(
        &self,
        with: &mut dyn Oracle,
        without: &mut dyn Oracle,
        mut progress: impl FnMut(u64),
    ) -> Result<MechanismScores> {
        let direction = self.direction(with, without)?;
        let tensors: Vec<usize> = (0..direction.len())
            .filter(|&k| direction[k].data().iter().any(|&x| x != 0.0))
            .collect();
        if tensors.is_empty() {
            return Err(Error::NoEffect);
        }
        let mut views: Vec<Vec<usize>> = vec![tensors.clone()];
        if tensors.len() > 1 {
            views.extend(tensors.iter().map(|&k| vec![k]));
        }
        let mut scores = vec![Scores::default(); views.len()];
        let mut noise = Vec::new();
        let mut done = 0;
        for present in [false, true] {
            let oracle: &mut dyn Oracle = if present { &mut *with } else { &mut *without };
            let mut check = NoiseCheck::new(&direction);
            for _ in 0..self.trials {
                let mut sums = vec![0.0; views.len()];
                for _ in 0..self.steps {
                    let answer = self.ask(oracle, self.query.bounds)?;
                    check.record(&answer.value);
                    // Log-likelihood ratio of N(v) to N(0), by tensor.
                    let log_ratios: Vec<f64> = (0..direction.len())
                        .map(|k| {
                            let std = answer.std[self.query.blocks.of(k)];
                            let pairs = answer.value[k].data().iter().zip(direction[k].data());
                            pairs
                                .map(|(&x, &v)| f64::from(v) * (f64::from(x) - 0.5 * f64::from(v)))
                                .sum::<f64>()
                                / (std * std)
                        })
                        .collect();
                    for (sum, view) in sums.iter_mut().zip(&views) {
                        // Log-likelihood ratio of the mixture (1 − q) N(0) + q N(v) to N(0).
                        let present: f64 = view.iter().map(|&k| log_ratios[k]).sum();
                        *sum += if self.rate < 1.0 {
                            ln_add((1.0 - self.rate).ln(), self.rate.ln() + present)
                        } else {
                            present
                        };
                    }
                }
                for (scores, sum) in scores.iter_mut().zip(sums) {
                    if present { scores.with.push(sum) } else { scores.without.push(sum) }
                }
                done += 1;
                progress(done);
            }
            let std = self.ask(oracle, self.query.bounds)?.std;
            noise.extend(check.violations(&self.query, &std));
            // The record correlates tensors, so only releases without it are checked, in which
            // shared noise is the only cause.
            if let Some((a, b)) = check.correlated(&self.query, &std).filter(|_| !present) {
                noise.push(format!("the noise of tensors {a} and {b} is correlated"));
            }
        }
        let name = |view: &Vec<usize>| match view[..] {
            [k] if tensors.len() > 1 => format!("tensor {k}"),
            _ => "all tensors".into(),
        };
        Ok(MechanismScores { views: views.iter().map(name).zip(scores).collect(), noise })
    }

    /// Draws a lot and asks the query with these bounds.
    fn ask(
        &self,
        oracle: &mut dyn Oracle,
        bounds: &[Bound],
    ) -> std::result::Result<protocol::Noisy<Params>, Refused> {
        oracle.draw(&Announcement::gradient(bounds))?;
        let answer = oracle.gradient(&GradientQuery { bounds, ..self.query })?;
        let value = answer.value.into_params(self.query.at.len())?;
        Ok(protocol::Noisy { value, std: answer.std })
    }

    /// Returns the record's contribution to a release: the largest difference over several lots.
    ///
    /// There are so many lots that the record is in one of them with near certainty.
    fn direction(
        &self,
        with: &mut dyn Oracle,
        without: &mut dyn Oracle,
    ) -> std::result::Result<Params, Refused> {
        let bounds = self.query.bounds.iter();
        let bounds = bounds.map(|bound| Bound::new(bound.clip.get(), PROBE_SIGMA));
        let bounds = bounds.collect::<std::result::Result<Vec<_>, _>>()?;
        let lots = if self.rate < 1.0 { (20.0 / self.rate).ceil() as u64 } else { 1 };
        let mut best = (0.0, Params::default());
        for _ in 0..lots {
            let (one, other) = (self.ask(with, &bounds)?, self.ask(without, &bounds)?);
            let mut difference = one.value;
            let mut square = 0.0f64;
            for (k, (a, b)) in difference.iter_mut().zip(other.value.iter()).enumerate() {
                // Differences within the noise count as zero.
                let least = 20.0 * one.std[self.query.blocks.of(k)] as f32;
                for (a, &b) in a.data_mut().iter_mut().zip(b.data()) {
                    *a -= b;
                    *a = if a.abs() > least { *a } else { 0.0 };
                    square += f64::from(*a).powi(2);
                }
            }
            if square > best.0 {
                best = (square, difference);
            }
        }
        Ok(if best.0 > 0.0 { best.1 } else { self.query.at.zeros_like() })
    }
}

impl MechanismScores {
    /// Returns the largest bound of all views with the view's name, jointly at the confidence.
    ///
    /// # Errors
    /// As [`Scores::bound`].
    pub fn bound(&self, claim: &Claim, confidence: f64) -> Result<(String, EpsilonBounds)> {
        let each = 1.0 - (1.0 - confidence) / self.views.len() as f64;
        let mut best: Option<(String, EpsilonBounds)> = None;
        for (name, scores) in &self.views {
            let found = scores.bound(claim, each)?;
            if best.as_ref().is_none_or(|(_, best)| found.epsilon_lower() > best.epsilon_lower()) {
                best = Some((name.clone(), found));
            }
        }
        best.ok_or(Error::NoEffect)
    }
}

/// Checks the noise itself: variance per element, repetition, and correlation between tensors.
struct NoiseCheck {
    /// The previous release, if it is not yet paired.
    unpaired: Option<Vec<f64>>,
    /// Sums of squared differences of pairs of releases, per element.
    squares: Vec<f64>,
    pairs: u64,
    /// The tensor of each element.
    tensors: Vec<usize>,
    /// Bits of the first elements of all releases.
    seen: HashSet<[u32; 4]>,
    repeated: bool,
    /// Sums of products of the first elements, for each two tensors.
    products: Vec<f64>,
    releases: u64,
}

impl NoiseCheck {
    fn new(like: &Params) -> Self {
        let tensors =
            like.iter().enumerate().flat_map(|(k, tensor)| vec![k; tensor.len()]).collect();
        let products = vec![0.0; like.len() * like.len()];
        Self {
            unpaired: None,
            squares: vec![0.0; like.elements()],
            pairs: 0,
            tensors,
            seen: HashSet::new(),
            repeated: false,
            products,
            releases: 0,
        }
    }

    /// Takes a release into account.
    fn record(&mut self, release: &Params) {
        let mut elements = release.iter().flat_map(|tensor| tensor.data());
        let first = [(); 4].map(|()| elements.next().map_or(0, |x| x.to_bits()));
        // Two elements have 48 random bits, so equal ones mean repeated noise.
        self.repeated |= !self.seen.insert(first) && self.squares.len() > 1;
        self.releases += 1;
        let firsts: Vec<f64> = release
            .iter()
            .map(|tensor| tensor.data().first().map_or(0.0, |&x| f64::from(x)))
            .collect();
        for (pair, sum) in self.products.iter_mut().enumerate() {
            *sum += firsts[pair / firsts.len()] * firsts[pair % firsts.len()];
        }
        let all = release.iter().flat_map(|tensor| tensor.data()).map(|&x| f64::from(x));
        match self.unpaired.take() {
            None => self.unpaired = Some(all.collect()),
            Some(previous) => {
                self.squares
                    .iter_mut()
                    .zip(previous)
                    .zip(all)
                    .for_each(|((sum, a), b)| *sum += (a - b).powi(2));
                self.pairs += 1;
            }
        }
    }

    /// Returns two tensors with correlated first elements, if any.
    ///
    /// In standard deviations, the mean product of independent noise is 0 with a standard error of
    /// 1/√n.
    fn correlated(&self, query: &GradientQuery<'_>, std: &[f64]) -> Option<(usize, usize)> {
        let tensors = query.blocks.tensors();
        let n = self.releases.max(1) as f64;
        let pairs = (0..tensors).flat_map(|a| (a + 1..tensors).map(move |b| (a, b)));
        pairs.into_iter().find(|&(a, b)| {
            let mean = self.products[a * tensors + b]
                / n
                / (std[query.blocks.of(a)] * std[query.blocks.of(b)]);
            mean.abs() > MAX_STANDARD_ERRORS / n.sqrt()
        })
    }

    /// Returns the violations of the declared noise.
    ///
    /// Var(x − x′)/2 is the variance of the noise, and larger if lots vary.
    fn violations(&self, query: &GradientQuery<'_>, std: &[f64]) -> Vec<String> {
        let mut list = Vec::new();
        if self.repeated {
            list.push("two releases are equal: the noise is repeated".to_string());
        }
        let least = 1.0 - MAX_STANDARD_ERRORS * (2.0 / self.pairs.max(1) as f64).sqrt();
        let share = |(element, sum): (usize, &f64)| {
            let tensor = self.tensors[element];
            (tensor, sum / self.pairs.max(1) as f64 / 2.0 / std[query.blocks.of(tensor)].powi(2))
        };
        let worst = self.squares.iter().enumerate().map(share).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((tensor, share)) = worst.filter(|(_, share)| !(*share >= least)) {
            list.push(format!(
                "an element of tensor {tensor} has {:.3} of the declared noise",
                share.sqrt()
            ));
        }
        list
    }
}

/// Computes ln(e^a + e^b).
fn ln_add(a: f64, b: f64) -> f64 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if high == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}
