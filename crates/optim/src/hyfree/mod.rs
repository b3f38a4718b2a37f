//! HyFreeDP: a learning rate found by probing the loss (Bu and Liu 2025).
//!
//! Every few steps the loss is probed privately at a few points along the direction, and a parabola
//! L(0) − b x + a x²/2 is fitted: its minimum b/a is the Newton step. It works with any descent. The
//! losses are released and charged; everything computed from them is post-processing.
//!
//! Differences from the paper, all of which are options:
//!
//! | | paper | default |
//! |---|---|---|
//! | learning rate ([`Rule`]) | b/a at every probe | changed where probes rule it out, at most to 4 times the default of the method, see `adaptive.rs` |
//! | first learning rate | 1e-4 | the default of the method, with its warm-up |
//! | points of the probes | ± the learning rate | ± a radius of its own |
//! | clip bound R_l of the losses | L̃(0) | 3 L̃(0), which falls by at most one half per probe, and in all to a quarter |
//! | lot of the probes | the gradient's | one of its own, which costs far less |
//!
//! With R_l = L̃(0) the bound could only fall, to 0, because clipped losses are at most R_l.
//! Gradients are clipped automatically (C/(‖g‖ + γ)) unless `optimizer.clipping` says otherwise.

mod adaptive;
mod fit;

pub use self::adaptive::Adaptive;
pub use self::fit::Fit;

use crate::{Auto, FoundRate, Note, Schedule, Search, State, keys, within};
use protocol::{Announcement, Bound, LossQuery, Oracle, Params, Positive, Refused};
use serde::{Deserialize, Serialize};

keys! {
    /// Hyperparameters of HyFreeDP.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// The learning rate before the first probe; by default that of the method, 1e-4 for the rules
        /// gated and literal.
        pub start: Auto<f64> = Auto::Auto,
        /// How the learning rate follows from the probes: adaptive, gated or literal.
        pub rule: Rule = Rule::Adaptive,
        /// K: probes are made in every step whose number, counted from 1, is a multiple of this.
        pub every: u64 = 5,
        /// Number of points at which the loss is probed: 3 or 5.
        pub points: Points = Points::Three,
        /// The lot that is probed: fresh or same.
        pub lot: ProbeLot = ProbeLot::Fresh,
        /// Factor by which the gradients get more noise, to pay for the probes.
        pub gradient_factor: f64 = 1.01,
        /// Standard deviations by which slope and curvature must exceed the noise; for adaptive, those
        /// that the interval of the best rate covers on each side.
        pub gate: f64 = 1.5,
        /// The weight of a new estimate in the learning rate, for the rule gated; 0.1 by default.
        pub smoothing: Auto<f64> = Auto::Auto,
        /// The largest factor by which the learning rate may change per probe, or, for gated, an
        /// estimate may differ from it; 4 by default, 2 for gated.
        pub max_change: Auto<f64> = Auto::Auto,
        /// The clip bound of the losses before the first probe.
        pub loss_clip: f64 = 10.0,
        /// The clip bound of the losses as a multiple of L̃(0).
        pub loss_clip_factor: f64 = 3.0,
        /// The largest share by which the clip bound of the losses may fall per probe.
        pub loss_clip_fall: f64 = 0.5,
        /// The least clip bound of the losses; by default a quarter of the largest multiple of L̃(0).
        pub lowest_loss_clip: Auto<f64> = Auto::Auto,
    }
}

/// How the learning rate follows from the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The rate is kept until probes rule it out; their radius is adapted, see `adaptive.rs`.
    Adaptive,
    /// Probes at ± the learning rate; b/a is used, smoothed and limited, if the gate is exceeded.
    Gated,
    /// Probes at ± the learning rate, which becomes b/a, to the letter of the paper.
    Literal,
}

/// Where the loss is probed, in units of the radius. In text: 3 or 5.
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

    /// Number of releases of one probe.
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
    /// The gradient's: charged together with it.
    Same,
    /// One of its own.
    Fresh,
}

/// Finds the learning rate by probing the loss.
pub struct HyFree {
    config: Config,
    /// The noise multiplier of each probe.
    sigma: Positive,
    /// The learning rate after the warm-up.
    rate: f64,
    /// The warm-up; the found rate replaces its peak.
    schedule: Schedule,
    clip: f64,
    /// The least clip bound of the losses so far.
    lowest_clip: f64,
    adaptive: Adaptive,
}

impl HyFree {
    /// Starts at the configured learning rate, or at the peak of `schedule`, which is the default of
    /// the method; `sigma` is the noise multiplier of each probe.
    ///
    /// The rates that are found replace the peak; the warm-up remains.
    ///
    /// # Errors
    /// If a hyperparameter is out of range.
    pub fn new(config: &Config, schedule: Schedule, sigma: Positive) -> Result<Self, Refused> {
        let lowest = config.lowest_loss_clip.or(LOWEST_CLIP);
        let lowest = Positive::new("optimizer.hyfree.lowest_loss_clip", lowest)?.get();
        Positive::new("optimizer.hyfree.loss_clip_factor", config.loss_clip_factor)?;
        let most = 1.0 + f64::EPSILON;
        within("optimizer.hyfree.loss_clip_fall", config.loss_clip_fall, 0.0, most)?;
        within("optimizer.hyfree.gate", config.gate, 0.0, f64::INFINITY)?;
        within("optimizer.hyfree.max_change", config.max_change.or(2.0), 1.0, f64::INFINITY)?;
        let smoothing = config.smoothing.or(0.1);
        if !(smoothing > 0.0 && smoothing <= 1.0) {
            return Err(Refused::Query(format!(
                "optimizer.hyfree.smoothing: expected more than 0 and at most 1, got {smoothing}"
            )));
        }
        let rate =
            Positive::new("optimizer.hyfree.start", config.start.or(schedule.peak.get()))?.get();
        Ok(Self {
            rate,
            clip: Positive::new("optimizer.hyfree.loss_clip", config.loss_clip)?.get(),
            lowest_clip: lowest,
            config: Config { every: config.every.max(1), ..*config },
            schedule,
            sigma,
            adaptive: Adaptive::new(rate, schedule.peak.get()),
        })
    }

    /// The radius of the probes.
    fn radius(&self) -> f64 {
        match self.config.rule {
            Rule::Adaptive => self.adaptive.radius(),
            Rule::Gated | Rule::Literal => self.rate,
        }
    }

    /// The learning rate after a fit; a note if it is kept.
    fn next_rate(&mut self, fit: &Fit, losses: &[f64], deviation: f64) -> Result<f64, Note> {
        let gate = self.config.gate;
        let newton = fit.slope / fit.curvature;
        match self.config.rule {
            Rule::Adaptive => {
                let max_change = self.config.max_change.or(4.0);
                self.adaptive.observe(fit, losses, deviation, gate);
                Ok(self.adaptive.next_rate(self.rate, max_change))
            }
            // Written for the good case: NaN keeps the rate.
            Rule::Gated
                if fit.curvature > gate * fit.curvature_deviation
                    && fit.slope > gate * fit.slope_deviation =>
            {
                let smoothing = self.config.smoothing.or(0.1);
                let max_change = self.config.max_change.or(2.0);
                let newton = newton.clamp(self.rate / max_change, self.rate * max_change);
                Ok((1.0 - smoothing) * self.rate + smoothing * newton)
            }
            Rule::Literal if newton > RATES.start && newton < RATES.end => Ok(newton),
            Rule::Gated | Rule::Literal => Err(unresolved(fit, self.rate)),
        }
    }

    /// Whether a step, counted from 0, probes.
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
        // Step 0 stands for those that do not probe; if every step probes, there are none.
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
            let radius = self.radius();
            let points: Vec<f64> = self.config.points.all().iter().map(|x| x * radius).collect();
            let mut deviation = 0.0;
            let mut losses = Vec::with_capacity(points.len());
            for &x in &points {
                let released = oracle.loss(&LossQuery { at: &trial(x)?, bound })?;
                deviation = released.std[0];
                losses.push(released.value);
            }
            let fit = Fit::new(&points, &losses, deviation);
            match self.next_rate(&fit, &losses, deviation) {
                // During the warm-up, the directions are not yet those of the run.
                Ok(rate) if step < self.schedule.warm_up => self.rate = rate.min(self.rate),
                Ok(rate) => self.rate = rate,
                Err(note) => notes.push(note),
            }
            let target = self.config.loss_clip_factor * losses[0];
            if self.config.lowest_loss_clip == Auto::Auto {
                self.lowest_clip = self.lowest_clip.max(LOWEST_SHARE * target);
            }
            let fallen = (1.0 - self.config.loss_clip_fall) * self.clip;
            // Within what a curator accepts, whatever was released.
            self.clip = fallen.max(self.lowest_clip).max(target).min(1e12);
        }
        let factor = self.schedule.at(step) / self.schedule.peak.get();
        Ok(FoundRate { rate: factor * self.rate, notes })
    }

    fn save(&self) -> State {
        let mut state = State::new("hyfree");
        state.set_number("rate", self.rate);
        state.set_number("clip", self.clip);
        state.set_number("lowest clip", self.lowest_clip);
        state.set_part("adaptive", self.adaptive.save());
        state
    }

    fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("hyfree")?;
        let positive = |name| Ok::<_, Refused>(Positive::new(name, state.number(name)?)?.get());
        self.rate = positive("rate")?;
        self.clip = positive("clip")?;
        self.lowest_clip = positive("lowest clip")?;
        self.adaptive.load(&state.part("adaptive")?)
    }
}

/// The least clip bound of the losses before the first probe.
const LOWEST_CLIP: f64 = 1e-2;

/// The least clip bound of the losses, relative to the largest multiple of L̃(0) so far.
///
/// In classification, most losses become small and a few stay large. Then the mean of the clipped
/// losses falls with their bound, and a bound that followed it would fall to 0: on Fashion-MNIST
/// from 7 to 0.1, where the mean loss was 0.5.
const LOWEST_SHARE: f64 = 0.25;

/// Learning rates that a literal b/a may have; others keep the rate.
const RATES: std::ops::Range<f64> = 1e-12..1e6;

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

    /// The kinds of steps count what the steps themselves announce.
    #[test]
    fn kinds_cover_every_step() {
        let sigma = Positive::new("σ", 1.0).unwrap();
        for (every, steps) in [(0, 4), (1, 7), (3, 10), (3, 2), (5, 20), (u64::MAX, 9)] {
            for lot in [ProbeLot::Same, ProbeLot::Fresh] {
                let config = Config { every, lot, ..Config::default() };
                let search =
                    HyFree::new(&config, Schedule::constant(1e-4).unwrap(), sigma).unwrap();
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
