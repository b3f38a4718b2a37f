//! HyFreeDP: a learning rate found by probing the loss (Bu and Liu 2025).
//!
//! Every few steps the loss is probed privately at a few points along the direction, and a parabola
//! L(0) − b x + a x²/2 is fitted. Its minimum, b/a, is the Newton step. It works with any descent.
//!
//! Three things differ from the paper:
//!
//! - A fit is used only if slope and curvature exceed the known noise by `gate` standard
//!   deviations. Otherwise the rate decreases by orders of magnitude where the probes resolve
//!   nothing.
//! - The clip bound of the losses follows 3·L̃(0), not L̃(0). Clipped losses are at most the bound,
//!   so a bound that follows L̃(0) could only decrease, down to 0.
//! - The probes may have their own lot, which costs far less than more releases from the gradient's
//!   lot.

use crate::{FoundRate, Note, Search, State, within};
use protocol::{Announcement, Bound, LossQuery, Oracle, Params, Positive, Refused};
use serde::{Deserialize, Serialize};

/// Hyperparameters of HyFreeDP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The learning rate before the first probe.
    pub start: f64,
    /// Probes are made in every step whose number, counted from 1, is a multiple of this.
    pub every: u64,
    /// Number of points at which the loss is probed: 3 or 5.
    pub points: Points,
    /// The lot that is probed: fresh or same.
    pub lot: ProbeLot,
    /// Factor by which the gradients get more noise, to pay for the probes.
    pub gradient_factor: f64,
    /// Standard deviations by which a fit must stand out; 0 for the paper's rule.
    pub gate: f64,
    /// The clip bound of the losses before the first probe.
    pub loss_clip: f64,
    /// The least clip bound of the losses.
    pub lowest_loss_clip: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            start: 1e-4,
            every: 5,
            points: Points::Three,
            lot: ProbeLot::Fresh,
            gradient_factor: 1.01,
            gate: 2.0,
            loss_clip: 10.0,
            lowest_loss_clip: 0.1,
        }
    }
}

/// Points at which the loss is probed, in units of the current learning rate; as text, 3 or 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub enum Points {
    /// 0, 1, −1
    Three,
    /// 0, 1, −1, 2, −2
    Five,
}

impl Points {
    fn all(self) -> &'static [f64] {
        match self {
            Self::Three => &[0.0, 1.0, -1.0],
            Self::Five => &[0.0, 1.0, -1.0, 2.0, -2.0],
        }
    }

    /// Returns the number of points, each of which is one release.
    pub fn count(self) -> u64 {
        self.all().len() as u64
    }
}

impl TryFrom<u64> for Points {
    type Error = String;
    fn try_from(count: u64) -> Result<Self, String> {
        match count {
            3 => Ok(Self::Three),
            5 => Ok(Self::Five),
            other => Err(format!("expected 3 or 5, got {other}")),
        }
    }
}

impl From<Points> for u64 {
    fn from(points: Points) -> Self {
        points.count()
    }
}

/// The lot that is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeLot {
    /// The gradient's lot. Gradient and probes are charged together.
    Same,
    /// A lot that is drawn for the probes.
    Fresh,
}

/// Finds the learning rate by probing the loss.
pub struct HyFree {
    config: Config,
    /// The noise multiplier of each probe.
    sigma: Positive,
    rate: f64,
    clip: f64,
}

/// A parabola fitted to noisy losses, with the standard deviations of its coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// b: the negative slope of the loss at 0.
    pub slope: f64,
    /// a: the curvature.
    pub curvature: f64,
    /// The standard deviation of the slope.
    pub slope_deviation: f64,
    /// The standard deviation of the curvature.
    pub curvature_deviation: f64,
}

impl Fit {
    /// Fits −b x + a x²/2 to y = L(x) − L(0) by least squares.
    ///
    /// The points are 0, then pairs ±x. `deviation` is the standard deviation τ of each loss. For
    /// such points Σx³ = 0, so b = −Σxy/Σx² and a = 2Σx²y/Σx⁴. Both are linear in the losses,
    /// including L(0), which is part of every y: sd_b = τ/√Σx², sd_a = 2τ √(Σx⁴ + (Σx²)²)/Σx⁴.
    pub fn new(points: &[f64], losses: &[f64], deviation: f64) -> Self {
        let sum = |f: &dyn Fn(f64, f64) -> f64| {
            points.iter().zip(losses).map(|(&x, &loss)| f(x, loss - losses[0])).sum::<f64>()
        };
        let (s2, s4) = (sum(&|x, _| x * x), sum(&|x, _| x.powi(4)));
        Self {
            slope: -sum(&|x, y| x * y) / s2,
            curvature: 2.0 * sum(&|x, y| x * x * y) / s4,
            slope_deviation: deviation / s2.sqrt(),
            curvature_deviation: 2.0 * deviation * (s4 + s2 * s2).sqrt() / s4,
        }
    }
}

impl HyFree {
    /// Creates the search; `sigma` is the noise multiplier of each probe.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(config: &Config, sigma: Positive) -> Result<Self, Refused> {
        Positive::new("optimizer.hyfree.lowest_loss_clip", config.lowest_loss_clip)?;
        within("optimizer.hyfree.gate", config.gate, 0.0, f64::INFINITY)?;
        Ok(Self {
            rate: Positive::new("optimizer.hyfree.start", config.start)?.get(),
            clip: Positive::new("optimizer.hyfree.loss_clip", config.loss_clip)?.get(),
            config: Config { every: config.every.max(1), ..*config },
            sigma,
        })
    }

    /// Returns whether a step, counted from 0, probes the loss.
    fn probes(&self, step: u64) -> bool {
        (step % self.config.every) + 1 == self.config.every
    }
}

impl Search for HyFree {
    fn asks(&self) -> bool {
        true
    }

    fn kinds(&self, steps: u64) -> Vec<(u64, u64)> {
        let every = self.config.every;
        let probing = steps / every;
        // Step 0 represents the steps that do not probe. If every step probes, their count is 0.
        let kinds = [(0, steps - probing), (every - 1, probing)];
        kinds.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        (self.config.lot == ProbeLot::Same && self.probes(step))
            .then_some((self.sigma, self.config.points.count()))
    }

    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        let count = self.config.points.count();
        (self.config.lot == ProbeLot::Fresh && self.probes(step))
            .then(|| Announcement::default().and(self.sigma, count))
    }

    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<FoundRate, Refused> {
        let mut notes = Vec::new();
        if self.probes(step) {
            if let Some(announced) = self.fresh_lot(step) {
                oracle.draw(&announced)?;
            }
            let bound = Bound {
                clip: Positive::new("the clip bound of the losses", self.clip)?,
                sigma: self.sigma,
            };
            let points: Vec<f64> = self.config.points.all().iter().map(|x| x * self.rate).collect();
            let mut deviation = 0.0;
            let mut losses = Vec::with_capacity(points.len());
            for &x in &points {
                let released = oracle.loss(&LossQuery { at: &trial(x)?, bound })?;
                deviation = released.std[0];
                losses.push(released.value);
            }
            let fit = Fit::new(&points, &losses, deviation);
            // Tests for the valid case, so that NaN does not change the rate.
            if fit.curvature > self.config.gate * fit.curvature_deviation
                && fit.slope > self.config.gate * fit.slope_deviation
            {
                let newton = (fit.slope / fit.curvature).clamp(self.rate / 2.0, self.rate * 2.0);
                self.rate = 0.9 * self.rate + 0.1 * newton;
            } else {
                notes.push(unresolved(&fit, self.rate));
            }
            // At most what a curator accepts, whatever loss was released.
            self.clip = self.config.lowest_loss_clip.max(3.0 * losses[0]).min(1e12);
        }
        Ok(FoundRate { rate: self.rate, notes })
    }

    fn save(&self) -> State {
        let mut state = State::new("hyfree");
        state.set_number("rate", self.rate);
        state.set_number("clip", self.clip);
        state
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        state.check_kind("hyfree")?;
        let (rate, clip) = (state.number("rate")?, state.number("clip")?);
        self.rate = Positive::new("the learning rate", rate)?.get();
        self.clip = Positive::new("the clip bound of the losses", clip)?.get();
        Ok(())
    }
}

fn unresolved(fit: &Fit, rate: f64) -> Note {
    Note(format!(
        "the probes do not resolve the loss at a learning rate of {rate:.3e}: slope {:.2e} ± \
         {:.1e}, curvature {:.2e} ± {:.1e}; the rate is kept. \
         Larger lots, a larger optimizer.hyfree.start or less noise on the probes would help",
        fit.slope, fit.slope_deviation, fit.curvature, fit.curvature_deviation
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::PublicRandom;

    #[test]
    fn a_parabola_is_found_exactly() {
        for points in [Points::Three, Points::Five] {
            let xs: Vec<f64> = points.all().iter().map(|x| x * 0.3).collect();
            let losses: Vec<f64> = xs.iter().map(|x| 5.0 - 0.7 * x + 0.5 * 2.5 * x * x).collect();
            let fit = Fit::new(&xs, &losses, 0.0);
            assert!((fit.slope - 0.7).abs() < 1e-12 && (fit.curvature - 2.5).abs() < 1e-12);
        }
    }

    /// The counts of the kinds are those of the steps with the same announcements.
    #[test]
    fn kinds_cover_every_step() {
        let sigma = Positive::new("σ", 1.0).unwrap();
        for (every, steps) in [(0, 4), (1, 7), (3, 10), (3, 2), (5, 20), (u64::MAX, 9)] {
            for lot in [ProbeLot::Same, ProbeLot::Fresh] {
                let config = Config { every, lot, ..Config::default() };
                let search = HyFree::new(&config, sigma).unwrap();
                let asked = |step| (search.same_lot(step), search.fresh_lot(step));
                let mut counted = 0;
                for (step, count) in search.kinds(steps) {
                    let same = (0..steps).filter(|&other| asked(other) == asked(step)).count();
                    assert_eq!(same as u64, count, "every {every} of {steps}");
                    counted += count;
                }
                assert_eq!(counted, steps);
            }
        }
    }

    /// Standard deviations are those of 200,000 simulated probes, within 5.5 standard errors.
    #[test]
    fn deviations_are_those_of_simulated_probes() {
        let (eta, tau, count) = (0.2, 0.05, 200_000);
        for points in [Points::Three, Points::Five] {
            let xs: Vec<f64> = points.all().iter().map(|x| x * eta).collect();
            let mut noise = vec![0.0; count * xs.len()];
            PublicRandom::from_seed(2).fill_normals(&mut noise);
            let fits: Vec<Fit> = noise
                .chunks_exact(xs.len())
                .map(|noise| {
                    Fit::new(
                        &xs,
                        &noise.iter().map(|&z| 1.0 + tau * f64::from(z)).collect::<Vec<_>>(),
                        tau,
                    )
                })
                .collect();
            let spread = |f: &dyn Fn(&Fit) -> f64| {
                (fits.iter().map(|fit| f(fit).powi(2)).sum::<f64>() / count as f64).sqrt()
            };
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 5.5 / (2.0 * count as f64).sqrt();
            assert!(close(spread(&|fit| fit.slope), fits[0].slope_deviation));
            assert!(close(spread(&|fit| fit.curvature), fits[0].curvature_deviation));
            if points == Points::Three {
                assert!((fits[0].slope_deviation - tau / (2f64.sqrt() * eta)).abs() < 1e-12);
                assert!(
                    (fits[0].curvature_deviation - 6f64.sqrt() * tau / (eta * eta)).abs() < 1e-12
                );
            }
        }
    }
}
