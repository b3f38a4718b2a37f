//! Privacy loss distributions, composed numerically; every result is an upper bound.

mod compose;
mod convolution;
mod discrete;

use crate::curve::{Curve, TradeOff};
use crate::direction::Direction;
use crate::{gaussian, rdp};
use compose::{ComposeOptions, Composed, compose};

/// Relative excess of ε over the exact value that the grid may cause, for up to 1000 releases.
///
/// Beyond, the excess grows with the number of releases up to [`MAX_EXCESS`], so that the grid is
/// not refined as runs grow from thousands of steps to tens of thousands.
const EXCESS: f64 = 2e-6;

/// Largest relative excess of ε for long runs.
const MAX_EXCESS: f64 = 1e-4;

/// The precision of ε.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Within [`EXCESS`] to [`MAX_EXCESS`].
    Fine,
    /// Within about a thousandth, in a fraction of the time.
    Rough,
}

/// Relative excess of ε with [`Precision::Rough`].
const ROUGH_EXCESS: f64 = 3e-4;

/// The tilt, as a fraction of the one that would move the mean of the loss to ε.
///
/// It makes the tail representable in floats without overweighting losses far beyond it.
const TILT: f64 = 0.6;

/// The tilt that is used if the rounding bound exceeds [`LN_ROUNDING`] of δ.
const STRONG_TILT: f64 = 0.85;

/// ln of the fraction of δ that the rounding bound may take before a stronger tilt is tried.
const LN_ROUNDING: f64 = -11.5; // 1e-5

/// ln of the fraction of δ that each kind of tail moved to loss ∞ may take.
const LN_TAIL: f64 = -14.5; // 5e-7

/// The smallest ε with δ(ε) ≤ `delta` in one direction; `None` if the noise is too small for a
/// grid.
///
/// `bound` is the Rényi bound: the starting point, which the result never exceeds.
pub(crate) fn epsilon(
    direction: &Direction,
    delta: f64,
    bound: rdp::Bound,
    precision: Precision,
) -> Option<f64> {
    if let Some(mu) = direction.as_gaussian() {
        return Some(gaussian::epsilon(mu, delta));
    }
    if direction.is_sharp() {
        return None;
    }
    if bound.value == 0.0 || !bound.value.is_finite() {
        return Some(bound.value);
    }
    let ln_tail = delta.ln() + LN_TAIL;
    let (cut, truncated_mass) = direction.truncated(ln_tail);
    let saddle = rdp::epsilon(&cut, delta).theta;
    // The grid is laid for the Rényi bound; if that is much too high, again for the ε found.
    let mut found = bound.value;
    let mut tilt = TILT;
    for _ in 0..4 {
        let options = ComposeOptions {
            theta: tilt * saddle,
            saddle,
            ln_tail,
            step: step(saddle, direction.len(), found, precision),
            epsilon: found,
            ln_delta: delta.ln(),
        };
        let Some(composed) = compose(&cut, options) else { break };
        let (better, ln_rounding) = composed.epsilon(delta - truncated_mass);
        let settled = better > 0.75 * found;
        found = found.min(better);
        if tilt < STRONG_TILT && ln_rounding > delta.ln() + LN_ROUNDING {
            tilt = STRONG_TILT;
        } else if settled || found == 0.0 {
            break;
        }
    }
    Some(found)
}

/// δ(`epsilon`) in one direction, by the same method; `bound` is the Rényi bound of ln δ.
pub(crate) fn delta(direction: &Direction, epsilon: f64, bound: rdp::Bound) -> Option<f64> {
    if let Some(mu) = direction.as_gaussian() {
        return Some(gaussian::delta(mu, epsilon));
    }
    if direction.is_sharp() {
        return None;
    }
    let (mut found, mut tilt) = (bound.value, TILT);
    for _ in 0..6 {
        let ln_tail = found + LN_TAIL;
        let (cut, truncated_mass) = direction.truncated(ln_tail);
        if cut.largest_loss() <= epsilon {
            // All losses above ε are truncated: their mass is the bound. Truncate less.
            found = found.min(truncated_mass.ln());
            continue;
        }
        let saddle = rdp::ln_delta(&cut, epsilon).theta;
        let options = ComposeOptions {
            theta: tilt * saddle,
            saddle,
            ln_tail,
            step: step(saddle, direction.len(), epsilon, Precision::Fine),
            epsilon,
            ln_delta: found,
        };
        let Some(composed) = compose(&cut, options) else { break };
        let better = (composed.delta(epsilon) + truncated_mass).ln().min(found);
        let settled = better > found - 3.0;
        found = better;
        if tilt < STRONG_TILT && composed.ln_rounding(epsilon) > found + LN_ROUNDING {
            tilt = STRONG_TILT;
        } else if settled {
            break;
        }
    }
    Some(found.exp())
}

/// The trade-off curve over both directions. Rates below `delta` are not resolved.
pub(crate) fn trade_off(directions: &[Direction], delta: f64) -> TradeOff {
    let curve = |direction: &Direction| {
        if let Some(mu) = direction.as_gaussian() {
            return Curve::Gaussian(mu);
        }
        let bound = rdp::epsilon(direction, delta);
        if direction.is_sharp() || !bound.value.is_finite() {
            return Curve::no_protection();
        }
        let ln_tail = delta.ln() + LN_TAIL;
        let (cut, truncated_mass) = direction.truncated(ln_tail);
        // No tilt: the whole curve is needed, to an absolute error.
        let options = ComposeOptions {
            theta: 0.0,
            saddle: bound.theta,
            ln_tail,
            step: step(bound.theta, direction.len(), bound.value, Precision::Fine),
            epsilon: bound.value,
            ln_delta: delta.ln(),
        };
        let Some(composed) = compose(&cut, options) else { return Curve::no_protection() };
        let infinite = truncated_mass + composed.infinite + composed.ln_rounding(0.0).exp();
        let losses =
            (0..composed.masses.len()).rev().map(|i| (composed.loss(i), composed.masses[i]));
        Curve::of(losses, infinite)
    };
    TradeOff::new(directions.iter().map(curve).collect())
}

/// The step of the grid for the wanted precision.
///
/// Splitting losses on a grid of step h increases ln E e^{θL} by θ(1+θ)h²/12 per release (see
/// [`discrete`]), hence ε by (1+θ)h²/12 per release at the θ that decides, the saddle point.
fn step(saddle: f64, releases: f64, epsilon: f64, precision: Precision) -> f64 {
    let excess = match precision {
        Precision::Fine => (EXCESS * releases / 1000.0).clamp(EXCESS, MAX_EXCESS),
        Precision::Rough => ROUGH_EXCESS,
    };
    (12.0 * excess * epsilon.max(1e-3) / ((1.0 + saddle) * releases)).sqrt()
}

impl Composed {
    fn loss(&self, i: usize) -> f64 {
        self.step * (self.first + i as i64) as f64
    }

    /// ln of a bound on the rounding error of δ(ε).
    ///
    /// It is the 2-norm of the error times that of the weights (1 − e^{ε−l})e^{−θl}, l > ε.
    fn ln_rounding(&self, epsilon: f64) -> f64 {
        let weights =
            (-1.0 / (-2.0 * self.theta * self.step).exp_m1()).min(self.masses.len() as f64);
        self.rounding.ln() + 0.5 * weights.ln() + self.ln_mgf - self.theta * epsilon
    }

    /// The smallest ε ≥ 0 with δ(ε) ≤ `delta`, and ln of the rounding bound included in it.
    pub(crate) fn epsilon(&self, delta: f64) -> (f64, f64) {
        let first = self.solve(delta - self.infinite);
        if !first.is_finite() {
            return (first, f64::NEG_INFINITY);
        }
        // The rounding bound decreases in ε, so that of the first solution holds for the second,
        // which is larger.
        let ln_rounding = self.ln_rounding(first);
        (self.solve(delta - self.infinite - ln_rounding.exp()), ln_rounding)
    }

    /// δ(ε) = Σ over losses above ε of mass × (1 − e^{ε−l}).
    pub(crate) fn delta(&self, epsilon: f64) -> f64 {
        let above = |i: &usize| self.loss(*i) > epsilon;
        let term = |i: usize| {
            let beyond = self.loss(i) - epsilon;
            self.masses[i] * -(-beyond).exp_m1() * (-self.theta * beyond).exp()
        };
        let sum: f64 = (0..self.masses.len()).rev().take_while(above).map(term).sum();
        let sum =
            if sum > 0.0 { (sum.ln() + self.ln_mgf - self.theta * epsilon).exp() } else { 0.0 };
        sum + self.infinite + self.ln_rounding(epsilon).exp()
    }

    /// The smallest ε ≥ 0 at which the masses alone give `delta`.
    ///
    /// On each cell δ(ε) = p − e^ε·q with p, q the P- and Q-mass above.
    fn solve(&self, delta: f64) -> f64 {
        if !(delta > 0.0) {
            return f64::INFINITY;
        }
        // p and q times e^{−s}, q also times e^l, with s = ln_mgf − θl at the current loss, so that
        // nothing over- or underflows.
        let (mut p, mut q) = (0.0, 0.0);
        let (p_fade, q_fade) =
            ((-self.theta * self.step).exp(), (-(1.0 + self.theta) * self.step).exp());
        let scaled = |loss: f64| (delta.ln() - self.ln_mgf + self.theta * loss).exp();
        let mut target = f64::INFINITY;
        for i in (0..self.masses.len()).rev() {
            // δ·e^{−s}, recomputed from time to time: it may start as ∞.
            target = if i % 64 == 0 || target == f64::INFINITY {
                scaled(self.loss(i))
            } else {
                target * p_fade
            };
            if p - q > target || self.first + i as i64 <= 0 {
                // The solution is in the cell above, or ε = 0 is enough: p − e^{ε−l}·q = δ·e^{−s}.
                let loss = self.loss(i);
                let exact = scaled(loss);
                if p - q <= exact {
                    return loss.max(0.0);
                }
                let epsilon = loss + ((p - exact) / q).ln();
                return if epsilon.is_nan() { f64::INFINITY } else { epsilon.max(0.0) };
            }
            p = (p + self.masses[i]) * p_fade;
            q = (q + self.masses[i]) * q_fade;
        }
        // Every loss in the window keeps δ: its lower end is a valid bound.
        self.loss(0).max(0.0)
    }
}
