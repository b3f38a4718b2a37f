//! The default rule of HyFreeDP: a rate near the minimum along the direction, by several probes.
//!
//! A probe at radius ρ with losses of standard deviation τ measures the slope b to τ/(√2 ρ) and the
//! curvature a to √6 τ/ρ². At small rates the curvature of a probe at ± the rate is noise, and b/a,
//! the minimum along the direction, is not known. So
//!
//! 1. the radius is independent of the learning rate. It doubles while the curvature is not
//!    resolved, and is halved when the loss at +ρ rises above the noise;
//! 2. each probe gives an interval for b/a, from the standard deviations of slope and curvature.
//!    The ends are the medians over the last [`PROBES`] probes: from one lot to the next the
//!    curvature changes far more than its noise, and one probe alone decides nothing;
//! 3. a rate below [`LEAST`] of the lower end moves to [`RAISED`] of it, and one above [`MOST`] of the
//!    upper end to [`LOWERED`] of that, by at most a factor `max_change` per probe. Other rates are
//!    kept, so that the noise of the probes does not become noise of the rate;
//! 4. above the usual rate, the default of the method, a rate grows by at most a factor [`RAISE`] per
//!    probe, and in all to [`RANGE`] times the usual one.
//!
//! **Why the usual rate.** b/a minimizes the loss of one step. Its direction is an average over some
//! ten steps, so the next steps go on along it, and their noise adds up, which no probe of one step
//! shows. On SST-2 with all-MiniLM-L6-v2 (40 steps of 512, ε = 3) the NLL was 0.558 after steps at 4
//! times the usual rate; probes then allowed 16 times, where it rose to 0.751, that of no knowledge.
//! The usual rate follows from public values that limit what noise does to the parameters.
//!
//! **Why not less than 2 b/a.** A step of 2 b/a leaves the loss as it is, and a longer one raises it.
//! Below that a rate is not lowered: training at a constant rate η moves towards curvatures of 2/η along
//! its steps, where b/a = η/2, and goes on to learn there (Cohen et al. 2021, the edge of stability). With
//! a limit of 1.5 b/a, the rates of 4 of 9 runs on MNIST (`cnn`, 60 steps) fell to less than half; with
//! DP-MuonBC, the two runs whose rate fell had accuracies 4 and 7 points below that of the third.
//!
//! **Why a fraction of b/a.** A step of f b/a makes 2f − f² of the largest decrease: 0.91 at
//! f = 0.7, where the penalty of a wrong estimate is smaller than at 1. On the embedded corpus the
//! best rates of DP-Adam, DP-AdamBC and DP-MuonBC were between half of b/a and b/a.
//!
//! During the warm-up, when moments are not yet averages, a rate can only fall.
//!
//! All of it is computed from released losses, so it costs no privacy.

use super::Fit;
use crate::State;
use protocol::{Positive, Refused};

/// The number of probes whose medians decide.
const PROBES: usize = 3;

/// The first radius of the probes, relative to the learning rate.
const FIRST_RADIUS: f64 = 2.0;

/// Rates below this fraction of the least b/a are raised.
const LEAST: f64 = 0.5;

/// Rates above this multiple of the largest b/a are lowered.
const MOST: f64 = 2.0;

/// The fraction of the least b/a to which a rate is raised.
const RAISED: f64 = 0.7;

/// The multiple of the largest b/a to which a rate is lowered.
const LOWERED: f64 = 1.5;

/// The largest factor by which a rate above the usual one grows per probe.
const RAISE: f64 = 2.0;

/// The largest rate, relative to the usual one, to which probes raise a rate.
const RANGE: f64 = 4.0;

/// Stands for an upper end that is not known.
const UNKNOWN: f64 = 1e12;

/// The intervals of the last probes, and the radius of the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptive {
    /// The default rate of the method.
    usual: f64,
    radius: f64,
    /// The latest first; before there are so many, [`Interval::OPEN`].
    intervals: [Interval; PROBES],
}

/// An interval for b/a.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    lower: f64,
    upper: f64,
}

impl Interval {
    /// Rules nothing out.
    const OPEN: Self = Self { lower: 0.0, upper: UNKNOWN };

    /// Slope and curvature within `gate` standard deviations. An end that is not resolved is 0 or
    /// [`UNKNOWN`].
    fn new(fit: &Fit, gate: f64) -> Self {
        let (b, margin_b) = (fit.slope, gate * fit.slope_deviation);
        let (a, margin_a) = (fit.curvature, gate * fit.curvature_deviation);
        // Written so that NaN leaves an end open.
        let lower = (b - margin_b).max(0.0) / (a.max(0.0) + margin_a);
        let upper = if a > margin_a { (b + margin_b).max(0.0) / (a - margin_a) } else { f64::NAN };
        Self {
            lower: if lower.is_finite() { lower } else { 0.0 },
            upper: if upper < UNKNOWN { upper } else { UNKNOWN },
        }
    }
}

impl Adaptive {
    /// Creates the rule with probes at ± [`FIRST_RADIUS`] times the learning rate.
    pub(super) fn new(rate: f64, usual: f64) -> Self {
        Self { usual, radius: FIRST_RADIUS * rate, intervals: [Interval::OPEN; PROBES] }
    }

    /// The radius of the next probe.
    pub fn radius(&self) -> f64 {
        self.radius
    }

    /// Takes the fit of a probe, and chooses the radius of the next one.
    pub(super) fn observe(&mut self, fit: &Fit, losses: &[f64], deviation: f64, gate: f64) {
        self.intervals.rotate_right(1);
        self.intervals[0] = Interval::new(fit, gate);
        // The loss at +ρ, the second point, above that at 0.
        let rise = losses.get(1).zip(losses.first()).map_or(0.0, |(ahead, here)| ahead - here);
        if rise > gate * std::f64::consts::SQRT_2 * deviation {
            self.radius /= 2.0;
        } else if fit.curvature <= gate * fit.curvature_deviation {
            self.radius *= 2.0;
        }
        self.radius = self.radius.clamp(1e-12, 1e6);
    }

    /// The next learning rate.
    pub(super) fn next_rate(&self, rate: f64, max_change: f64) -> f64 {
        let median = |end: fn(&Interval) -> f64| {
            let mut ends = self.intervals.map(|interval| end(&interval));
            ends.sort_by(f64::total_cmp);
            ends[PROBES / 2]
        };
        let (lower, upper) = (median(|of| of.lower), median(|of| of.upper));
        let target = if rate < LEAST * lower {
            RAISED * lower
        } else if rate > MOST * upper {
            LOWERED * upper
        } else {
            return rate;
        };
        let raised = (RAISE * rate.max(self.usual)).min(RANGE * self.usual).max(rate);
        target.clamp(rate / max_change, rate * max_change).min(raised).clamp(1e-12, 1e6)
    }

    pub(super) fn save(&self) -> State {
        let mut state = State::new("adaptive");
        state.set_number("radius", self.radius);
        for (i, interval) in self.intervals.iter().enumerate() {
            state.set_number(&format!("lower {i}"), interval.lower);
            state.set_number(&format!("upper {i}"), interval.upper);
        }
        state
    }

    pub(super) fn load(&mut self, state: &State) -> Result<(), Refused> {
        state.check_kind("adaptive")?;
        self.radius = Positive::new("the radius of the probes", state.number("radius")?)?.get();
        for (i, interval) in self.intervals.iter_mut().enumerate() {
            interval.lower = state.number(&format!("lower {i}"))?;
            interval.upper = state.number(&format!("upper {i}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATE: f64 = 1.5;

    /// A usual rate that limits nothing.
    const USUAL: f64 = 1e9;

    fn fit(slope: (f64, f64), curvature: (f64, f64)) -> Fit {
        Fit {
            slope: slope.0,
            slope_deviation: slope.1,
            curvature: curvature.0,
            curvature_deviation: curvature.1,
        }
    }

    fn rule(fits: &[Fit]) -> Adaptive {
        let mut rule = Adaptive::new(1.0, USUAL);
        for fit in fits {
            rule.observe(fit, &[1.0, 1.0, 1.0], 0.1, GATE);
        }
        rule
    }

    /// b in [0.85, 1.15] and a in [0.7, 1.3] leave b/a between 0.654 and 1.643.
    #[test]
    fn a_rate_is_kept_until_it_is_ruled_out() {
        let probe = fit((1.0, 0.1), (1.0, 0.2));
        let rule = rule(&[probe; 3]);
        let (lower, upper) = (0.85 / 1.3, 1.15 / 0.7);
        for kept in [0.33, 0.5, 1.0, 3.2] {
            assert_eq!(rule.next_rate(kept, 100.0), kept);
        }
        let (raised, lowered) = (0.7 * lower, 1.5 * upper);
        for (rate, aim) in [(0.32, raised), (0.01, raised), (3.3, lowered), (40.0, lowered)] {
            let found = rule.next_rate(rate, 100.0);
            assert!((found / aim - 1.0).abs() < 1e-9, "{rate}: {found}");
        }
    }

    /// One probe of three changes nothing, neither the first nor one that differs from the others.
    #[test]
    fn one_probe_alone_does_not_decide() {
        let (usual, sharp) = (fit((1.0, 0.1), (1.0, 0.1)), fit((1.0, 0.1), (100.0, 0.1)));
        for probes in [&[sharp][..], &[usual, sharp, usual], &[sharp, usual, usual]] {
            assert_eq!(rule(probes).next_rate(1.0, 4.0), 1.0, "{} probes", probes.len());
        }
        assert_eq!(rule(&[sharp, sharp]).next_rate(1.0, 4.0), 0.25);
        assert_eq!(rule(&[usual, sharp, sharp]).next_rate(1.0, 4.0), 0.25);
        // Older probes are forgotten.
        assert_eq!(rule(&[sharp, sharp, sharp, usual, usual]).next_rate(1.0, 4.0), 1.0);
    }

    #[test]
    fn a_rate_moves_in_limited_steps_to_its_aim() {
        let rule = rule(&[fit((1.0, 1e-9), (1.0, 1e-9)); 3]);
        let next = |&rate: &f64| Some(rule.next_rate(rate, 4.0));
        let rates: Vec<f64> = std::iter::successors(Some(1e-3), next).take(7).collect();
        let expected = [0.001, 0.004, 0.016, 0.064, 0.256, 0.7, 0.7];
        assert!(rates.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-6), "{rates:?}");
    }

    /// Probes that allow any rate: below the usual one it grows fast, above it slowly, and not for ever.
    #[test]
    fn a_rate_above_the_usual_one_grows_slowly() {
        let mut rule = Adaptive::new(1.0, 0.1);
        (0..3).for_each(|_| {
            rule.observe(&fit((1e6, 1e-9), (1.0, 1e-9)), &[1.0, 0.9, 1.1], 0.1, GATE);
        });
        let next = |&rate: &f64| Some(rule.next_rate(rate, 4.0));
        let rates: Vec<f64> = std::iter::successors(Some(0.01), next).take(6).collect();
        let expected = [0.01, 0.04, 0.16, 0.32, 0.4, 0.4];
        assert!(rates.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{rates:?}");
        // A rate that was chosen above is kept, and can still fall.
        assert_eq!(rule.next_rate(7.0, 4.0), 7.0);
        (0..3).for_each(|_| {
            rule.observe(&fit((1.0, 1e-9), (1.0, 1e-9)), &[1.0, 0.9, 1.1], 0.1, GATE);
        });
        assert!((rule.next_rate(7.0, 4.0) - 1.75).abs() < 1e-6);
    }

    /// Without a resolved curvature there is no upper end; without a slope no lower one.
    #[test]
    fn what_is_not_resolved_rules_nothing_out() {
        let nan = fit((f64::NAN, 0.1), (f64::NAN, 0.1));
        for probe in [fit((0.1, 0.1), (0.1, 0.1)), nan] {
            for rate in [1e-6, 1.0, 1e5] {
                assert_eq!(rule(&[probe; 3]).next_rate(rate, 4.0), rate);
            }
        }
        assert_eq!(rule(&[fit((1.0, 0.1), (0.1, 0.1)); 3]).next_rate(1e5, 4.0), 1e5);
        // A loss that curves up and does not fall rules out every rate above the noise.
        assert_eq!(rule(&[fit((-1.0, 0.1), (1.0, 0.1)); 3]).next_rate(1.0, 4.0), 0.25);
    }

    #[test]
    fn the_radius_grows_until_the_curvature_is_seen() {
        let mut rule = Adaptive::new(1.0, USUAL);
        let (unresolved, resolved) = (fit((1.0, 0.1), (0.1, 0.1)), fit((1.0, 0.1), (1.0, 0.1)));
        rule.observe(&unresolved, &[1.0, 0.9, 1.0], 0.01, GATE);
        assert_eq!(rule.radius(), 4.0);
        rule.observe(&resolved, &[1.0, 0.9, 1.0], 0.01, GATE);
        assert_eq!(rule.radius(), 4.0);
        rule.observe(&unresolved, &[1.0, 1.5, 1.0], 0.01, GATE);
        assert_eq!(rule.radius(), 2.0);
    }

    #[test]
    fn the_state_is_restored() {
        let before = rule(&[fit((1.0, 0.1), (0.1, 0.1)), fit((1.0, 0.1), (1.0, 0.1))]);
        let mut after = Adaptive::new(7.0, USUAL);
        after.load(&before.save()).unwrap();
        assert_eq!(after, before);
        assert!(after.load(&State::new("adaptive")).is_err());
    }
}
