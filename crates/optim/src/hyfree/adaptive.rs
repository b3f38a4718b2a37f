//! The default rule of HyFreeDP: a rate that is kept until the probes rule it out.
//!
//! A probe at radius ρ with losses of standard deviation τ measures the slope b to τ/(√2 ρ) and the
//! curvature a to √6 τ/ρ². At the rates with which training starts, the curvature of one probe is
//! noise, and b/a, the minimum along the direction, is not known. So
//!
//! 1. the radius is independent of the learning rate. It doubles while no change of the loss can be
//!    seen at +ρ, and up to four times the rate while the curvature is not resolved; it is halved
//!    when the loss at +ρ rises above the noise. Larger radii would be more precise and less true,
//!    because the loss is not a parabola;
//! 2. slope and curvature are averaged over probes, each weighted by its precision, with a factor
//!    [`MEMORY`] per probe for what is older;
//! 3. from their standard deviations follows an interval for b/a. A rate above twice its upper end,
//!    or below a tenth of its lower end, is ruled out. If two probes in a row say so, it moves to 0.4
//!    of that end, by at most a factor `max_change` per probe. Any other rate is kept.
//!
//! **Why a fraction of b/a.** A step of f b/a makes 2f − f² of the largest decrease. That minimum is
//! the best single step, not the best rate of a run: momentum takes nearly the same direction again.
//! In single runs on the embedded corpus, a rule that followed b/a was better than the default rate
//! for DP-Adam, and worse for DP-AdamBC and DP-MuonBC (docs/optimizers.md). The constants here were
//! chosen on that corpus.
//!
//! Probes during the warm-up count only for the clip bound of the losses: Adam's second moments, for
//! example, are not yet averages then.
//!
//! All of it is computed from released losses, so it costs no privacy.

use super::Fit;
use crate::State;
use protocol::{Positive, Refused};

/// The weight of what earlier probes measured, per probe.
const MEMORY: f64 = 0.8;

/// The first radius of the probes, relative to the learning rate.
///
/// Far enough to see a change of the loss, which one step at the learning rate rarely shows.
const FIRST_RADIUS: f64 = 2.0;

/// The radius, relative to the learning rate, from which on a change of the loss is enough: the
/// curvature need not be resolved.
const FARTHEST: f64 = 4.0;

/// Rates below this fraction of the least b/a are raised.
const TOO_SMALL: f64 = 0.1;

/// Rates above this multiple of the largest b/a are lowered: from there on a step raises the loss.
const TOO_LARGE: f64 = 2.0;

/// The fraction of b/a to which a rate is changed.
const AIM: f64 = 0.4;

/// Averaged slope and curvature, and the radius of the next probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    radius: f64,
    slope: Estimate,
    curvature: Estimate,
    /// What the last probe said about the rate: too small (1), too large (−1) or neither (0).
    verdict: i8,
    /// Whether the rate was ruled out and has not arrived at [`AIM`] yet.
    adjusting: bool,
}

/// An average weighted by precision.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Estimate {
    /// Σ w x
    sum: f64,
    /// Σ w, where w = 1/variance.
    precision: f64,
}

impl Estimate {
    /// Adds a measurement. One that is not finite is ignored.
    fn add(&mut self, value: f64, deviation: f64) {
        // Without noise the last measurement is exact.
        let precision = deviation.max(1e-12 * value.abs()).powi(-2).min(1e30);
        let sum = MEMORY * self.sum + precision * value;
        if sum.is_finite() {
            *self = Self { sum, precision: MEMORY * self.precision + precision };
        }
    }

    fn value(&self) -> f64 {
        if self.precision > 0.0 { self.sum / self.precision } else { 0.0 }
    }

    fn deviation(&self) -> f64 {
        self.precision.powf(-0.5)
    }
}

impl Adaptive {
    /// Creates the rule with probes at ± [`FIRST_RADIUS`] times the learning rate.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            radius: FIRST_RADIUS * rate,
            slope: Estimate::default(),
            curvature: Estimate::default(),
            verdict: 0,
            adjusting: false,
        }
    }

    /// The radius of the next probe.
    pub fn radius(&self) -> f64 {
        self.radius
    }

    /// Takes the fit of a probe, and chooses the radius of the next one.
    pub(super) fn observe(
        &mut self,
        fit: &Fit,
        losses: &[f64],
        deviation: f64,
        rate: f64,
        gate: f64,
    ) {
        self.slope.add(fit.slope, fit.slope_deviation);
        self.curvature.add(fit.curvature, fit.curvature_deviation);
        // The loss at +ρ, the second point, above that at 0.
        let rise = losses.get(1).zip(losses.first()).map_or(0.0, |(ahead, here)| ahead - here);
        let noise = gate * std::f64::consts::SQRT_2 * deviation;
        let unresolved = fit.curvature <= gate * fit.curvature_deviation;
        if rise > noise {
            self.radius /= 2.0;
        } else if unresolved && (rise.abs() <= noise || self.radius < FARTHEST * rate) {
            self.radius *= 2.0;
        }
        self.radius = self.radius.clamp(1e-12, 1e6);
    }

    /// The next learning rate.
    pub(super) fn next_rate(&mut self, rate: f64, gate: f64, max_change: f64) -> f64 {
        let (b, a) = (self.slope, self.curvature);
        let (margin_b, margin_a) = (gate * b.deviation(), gate * a.deviation());
        // b/a lies between these.
        let lower = (b.value() - margin_b).max(0.0) / (a.value().max(0.0) + margin_a);
        let upper = if a.value() > margin_a {
            (b.value() + margin_b).max(0.0) / (a.value() - margin_a)
        } else {
            f64::INFINITY
        };
        let (least, most) = if self.adjusting { (AIM, AIM) } else { (TOO_SMALL, TOO_LARGE) };
        // Written for the cases in which it changes: NaN keeps the rate.
        let (verdict, target) = if rate < least * lower {
            (1, AIM * lower)
        } else if rate > most * upper {
            (-1, AIM * upper)
        } else {
            (self.verdict, self.adjusting) = (0, false);
            return rate;
        };
        let confirmed = self.adjusting || verdict == self.verdict;
        (self.verdict, self.adjusting) = (verdict, confirmed);
        if !confirmed {
            return rate;
        }
        target.clamp(rate / max_change, rate * max_change).clamp(1e-12, 1e6)
    }

    pub(super) fn save(&self) -> State {
        let mut state = State::new("adaptive");
        for (name, number) in [
            ("radius", self.radius),
            ("slope", self.slope.sum),
            ("slope precision", self.slope.precision),
            ("curvature", self.curvature.sum),
            ("curvature precision", self.curvature.precision),
            ("verdict", f64::from(self.verdict)),
            ("adjusting", f64::from(u8::from(self.adjusting))),
        ] {
            state.set_number(name, number);
        }
        state
    }

    pub(super) fn load(&mut self, state: &State) -> Result<(), Refused> {
        state.check_kind("adaptive")?;
        let estimate = |name: &str| {
            let precision = state.number(&format!("{name} precision"))?;
            Ok::<_, Refused>(Estimate { sum: state.number(name)?, precision })
        };
        *self = Self {
            radius: Positive::new("the radius of the probes", state.number("radius")?)?.get(),
            slope: estimate("slope")?,
            curvature: estimate("curvature")?,
            verdict: state.number("verdict")? as i8,
            adjusting: state.number("adjusting")? != 0.0,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(slope: (f64, f64), curvature: (f64, f64)) -> Adaptive {
        let estimate = |(value, deviation): (f64, f64)| {
            let mut estimate = Estimate::default();
            estimate.add(value, deviation);
            estimate
        };
        Adaptive { slope: estimate(slope), curvature: estimate(curvature), ..Adaptive::new(1.0) }
    }

    /// With a gate of 2, b in [0.8, 1.2] and a in [0.5, 1.5] leave b/a between 0.533 and 2.4.
    #[test]
    fn a_rate_is_kept_until_it_is_ruled_out() {
        let next = |rate: f64| {
            let mut rule = rule((1.0, 0.1), (1.0, 0.25));
            // One probe alone changes nothing.
            assert_eq!(rule.next_rate(rate, 2.0, 100.0), rate);
            (rule.next_rate(rate, 2.0, 100.0), rule.adjusting)
        };
        let (lower, upper) = (0.8 / 1.5, 1.2 / 0.5);
        for kept in [0.06, 0.5, 1.0, 4.7] {
            assert_eq!(next(kept), (kept, false));
        }
        for (rate, end) in [(0.05, lower), (0.01, lower), (4.9, upper), (40.0, upper)] {
            let (found, adjusting) = next(rate);
            assert!((found / (0.4 * end) - 1.0).abs() < 1e-9 && adjusting, "{rate}: {found}");
        }
    }

    #[test]
    fn a_rate_moves_in_limited_steps_to_its_aim() {
        let mut rule = rule((1.0, 1e-9), (1.0, 1e-9));
        let rates: Vec<f64> =
            std::iter::successors(Some(1e-3), |&rate| Some(rule.next_rate(rate, 2.0, 4.0)))
                .take(8)
                .collect();
        let expected = [0.001, 0.001, 0.004, 0.016, 0.064, 0.256, 0.4, 0.4];
        assert!(rates.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-6), "{rates:?}");
    }

    /// Without a resolved curvature there is no upper end; without a slope no lower one.
    #[test]
    fn what_is_not_resolved_rules_nothing_out() {
        for rate in [1e-6, 1.0, 1e5] {
            let unresolved = rule((0.1, 0.1), (0.1, 0.1)).next_rate(rate, 2.0, 4.0);
            assert_eq!(unresolved, rate);
        }
        assert_eq!(rule((1.0, 0.1), (0.1, 0.1)).next_rate(1e5, 2.0, 4.0), 1e5);
        assert_eq!(Adaptive::new(0.1).next_rate(0.1, 2.0, 4.0), 0.1);
        // A loss that curves up and does not fall rules out every rate above the noise.
        let mut rising = rule((-1.0, 0.1), (1.0, 0.1));
        assert_eq!(rising.next_rate(1.0, 2.0, 4.0), 1.0);
        assert_eq!(rising.next_rate(1.0, 2.0, 4.0), 0.25);
    }
}
