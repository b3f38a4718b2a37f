//! HyFreeDP: a learning rate that finds itself (Bu and Liu 2025).
//!
//! Every few steps the loss is probed privately at a few points along the direction, and a parabola
//! L(0) − b x + a x²/2 is fitted: its lowest point b/a is the Newton step. Any descent can be
//! searched along.
//!
//! Three things differ from the paper. A fit is believed only if slope and curvature stand out from
//! the known noise by `gate` standard deviations; without that, the rate drifts down by orders of
//! magnitude where the probes resolve nothing. The clip bound of the losses follows 3·L̃(0), not
//! L̃(0): clipped losses are at most the bound, so the latter can only fall, to 0. And the probes
//! may have a lot of their own, which is far cheaper than asking the gradient's lot again.

use crate::{Found, Note, Search, State};
use protocol::{Announcement, Bound, LossQuery, Oracle, Params, Positive, Refused};

/// Its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The rate before the first probe.
    pub start: Positive,
    /// Probes are made in every step whose number, counted from 1, is a multiple of this.
    pub every: u64,
    /// Where the loss is probed.
    pub points: Points,
    /// Which lot is asked.
    pub lot: ProbeLot,
    /// The multiplier of each probe's noise.
    pub sigma: Positive,
    /// The clip bound of the losses before the first probe.
    pub clip: Positive,
    /// The lowest clip bound.
    pub lowest_clip: Positive,
    /// How many standard deviations slope and curvature must stand out by; 0 for the paper's rule.
    pub gate: f64,
}

impl Config {
    /// The customary numbers, and this multiplier.
    ///
    /// # Errors
    /// If the multiplier is not a finite number greater than 0.
    pub fn new(sigma: f64) -> Result<Self, Refused> {
        Ok(Self {
            start: Positive::new("the learning rate", 1e-4)?,
            every: 5,
            points: Points::Three,
            lot: ProbeLot::Fresh,
            sigma: Positive::new("the multiplier of the probes", sigma)?,
            clip: Positive::new("the clip bound of the losses", 10.0)?,
            lowest_clip: Positive::new("the lowest clip bound of the losses", 0.1)?,
            gate: 2.0,
        })
    }
}

/// Where the loss is probed, in units of the present rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// How many releases a probe is.
    pub fn count(self) -> u64 {
        self.all().len() as u64
    }
}

/// Which lot is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeLot {
    /// The gradient's: paid for together with it.
    Same,
    /// One of its own.
    Fresh,
}

/// Finds the rate by probing.
pub struct HyFree {
    config: Config,
    rate: f64,
    clip: f64,
}

/// A parabola through noisy points, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// b: how steeply the loss falls at 0.
    pub slope: f64,
    /// a
    pub curvature: f64,
    /// The standard deviations that noise of the given size leaves in them.
    pub slope_deviation: f64,
    /// The same for the curvature.
    pub curvature_deviation: f64,
}

impl Fit {
    /// Least squares of −b x + a x²/2 to y = L(x) − L(0), for points that come in pairs ±x after 0;
    /// `deviation` is that of each loss.
    ///
    /// For such points Σx³ = 0, so b = −Σxy/Σx² and a = 2Σx²y/Σx⁴. Both are linear in the losses,
    /// L(0) included, which enters every y: sd_b = τ/√Σx², sd_a = 2τ √(Σx⁴ + (Σx²)²)/Σx⁴.
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
    /// Starts at the configured rate.
    pub fn new(config: Config) -> Self {
        Self { config, rate: config.start.get(), clip: config.clip.get() }
    }

    fn probes(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.config.every)
    }
}

impl Search for HyFree {
    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        (self.config.lot == ProbeLot::Same && self.probes(step))
            .then_some((self.config.sigma, self.config.points.count()))
    }

    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        let count = self.config.points.count();
        (self.config.lot == ProbeLot::Fresh && self.probes(step))
            .then(|| Announcement::default().and(self.config.sigma, count))
    }

    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<Found, Refused> {
        let mut notes = Vec::new();
        if self.probes(step) {
            if let Some(announced) = self.fresh_lot(step) {
                oracle.draw(&announced)?;
            }
            let bound = Bound {
                clip: Positive::new("the clip bound of the losses", self.clip)?,
                sigma: self.config.sigma,
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
            // Written for the good case: NaN keeps the rate.
            if fit.curvature > self.config.gate * fit.curvature_deviation
                && fit.slope > self.config.gate * fit.slope_deviation
            {
                let newton = (fit.slope / fit.curvature).clamp(self.rate / 2.0, self.rate * 2.0);
                self.rate = 0.9 * self.rate + 0.1 * newton;
            } else {
                notes.push(unresolved(&fit, self.rate));
            }
            // Within what a curator takes, whatever was released.
            self.clip = self.config.lowest_clip.get().max(3.0 * losses[0]).min(1e12);
        }
        Ok(Found { rate: self.rate, notes })
    }

    fn save(&self) -> State {
        let mut state = State::new("hyfree");
        state.set_number("rate", self.rate);
        state.set_number("clip", self.clip);
        state
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        state.is_of("hyfree")?;
        let (rate, clip) = (state.number("rate")?, state.number("clip")?);
        self.rate = Positive::new("the learning rate", rate)?.get();
        self.clip = Positive::new("the clip bound of the losses", clip)?.get();
        Ok(())
    }
}

fn unresolved(fit: &Fit, rate: f64) -> Note {
    Note(format!(
        "the probes do not resolve the loss at a learning rate of {rate:.3e}: slope {:.2e} ± \
         {:.1e}, curvature {:.2e} ± {:.1e}; it is kept. \
         Larger lots, a larger first rate or less noise on the probes would help",
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

    /// The deviations against 200,000 simulated probes, within 5.5 standard errors.
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
