//! The default rule of HyFreeDP: averaged estimates and a probe radius of their own.
//!
//! A probe at radius ρ with losses of standard deviation τ measures the slope b to τ/(√2 ρ) and the
//! curvature a to √6 τ/ρ²: at the small rates with which training starts, the curvature of one probe
//! is noise. Three things help, and cost no privacy:
//!
//! 1. The radius is independent of the learning rate. It doubles while the curvature is not resolved,
//!    and is halved when the loss at +ρ rises above the noise.
//! 2. Slope and curvature are averaged over probes, each weighted by its precision, with a factor
//!    [`MEMORY`] per probe for what is older.
//! 3. While the slope is resolved and the curvature is not, the loss falls in a straight line as far
//!    as can be seen, and the learning rate grows.

use super::Fit;
use crate::State;
use protocol::{Positive, Refused};

/// The weight of what earlier probes measured, per probe.
const MEMORY: f64 = 0.8;

/// The first radius of the probes, relative to the learning rate.
///
/// Far enough to see a change of the loss, which one step at the learning rate rarely shows.
const FIRST_RADIUS: f64 = 8.0;

/// Averaged slope and curvature, and the radius of the next probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    radius: f64,
    slope: Estimate,
    curvature: Estimate,
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

    /// Whether it is above zero by `gate` standard deviations.
    fn is_positive(&self, gate: f64) -> bool {
        self.value() > gate * self.deviation()
    }
}

impl Adaptive {
    /// Creates the rule with probes at ± [`FIRST_RADIUS`] times the learning rate.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            radius: FIRST_RADIUS * rate,
            slope: Estimate::default(),
            curvature: Estimate::default(),
        }
    }

    /// The radius of the next probe.
    pub fn radius(&self) -> f64 {
        self.radius
    }

    /// Takes the fit of a probe, and chooses the radius of the next one.
    pub(super) fn observe(&mut self, fit: &Fit, losses: &[f64], deviation: f64, gate: f64) {
        self.slope.add(fit.slope, fit.slope_deviation);
        self.curvature.add(fit.curvature, fit.curvature_deviation);
        // The loss at +ρ, the second point, above that at 0.
        let rise = losses.get(1).zip(losses.first()).map_or(0.0, |(ahead, here)| ahead - here);
        let noise = gate * std::f64::consts::SQRT_2 * deviation;
        if rise > noise {
            self.radius /= 2.0;
        } else if fit.curvature <= gate * fit.curvature_deviation {
            self.radius *= 2.0;
        }
        self.radius = self.radius.clamp(1e-12, 1e6);
    }

    /// The next learning rate.
    pub(super) fn next_rate(&self, rate: f64, gate: f64, smoothing: f64, max_change: f64) -> f64 {
        let target = match (self.slope.is_positive(gate), self.curvature.is_positive(gate)) {
            (true, true) => self.slope.value() / self.curvature.value(),
            // No curvature as far as the probes see: the rate grows at once, within that range.
            (true, false) => return (max_change * rate).min(self.radius.max(rate)),
            // The loss curves up and does not fall: the largest rate that the noise allows for.
            (false, true) => {
                let slope = self.slope.value() + gate * self.slope.deviation();
                (slope / self.curvature.value()).clamp(0.0, rate)
            }
            (false, false) => rate,
        };
        // Written for the good case: NaN keeps the rate.
        if !(target >= 0.0) {
            return rate;
        }
        let target = target.clamp(rate / max_change, rate * max_change);
        // In logarithms, so that rates grow as fast as they fall.
        (rate * (target / rate).powf(smoothing)).clamp(1e-12, 1e6)
    }

    pub(super) fn save(&self) -> State {
        let mut state = State::new("adaptive");
        for (name, number) in [
            ("radius", self.radius),
            ("slope", self.slope.sum),
            ("slope precision", self.slope.precision),
            ("curvature", self.curvature.sum),
            ("curvature precision", self.curvature.precision),
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
        };
        Ok(())
    }
}
