//! Privacy loss distributions: the whole law of the privacy loss, composed numerically, never below
//! the truth.

mod compose;
mod convolution;
mod discrete;

use crate::curve::{Curve, TradeOff};
use crate::direction::Direction;
use crate::{gaussian, rdp};
use compose::{Composed, Focus, compose};

/// How far ε may lie above the exact value, relative to it, for up to 1000 releases and then in
/// proportion to their number, up to the second figure: a grid that is not refined as runs grow
/// from thousands of steps to tens of thousands.
const EXCESS: f64 = 2e-6;
const MOST_EXCESS: f64 = 1e-4;

/// How closely ε is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// As close as the constants above say.
    Fine,
    /// To about a thousandth, in a fraction of the time.
    Rough,
}

/// How far a rough ε may lie above the exact value, relative to it.
const ROUGH_EXCESS: f64 = 3e-4;

/// The tilt, as a part of the one that would move the mean of the loss to ε: it brings the tail
/// well within reach of floats without making much of losses far beyond.
const TILT: f64 = 0.6;

/// The tilt where rounding still takes more than [`LN_ROUNDING`] of δ.
const STRONG_TILT: f64 = 0.85;

/// ln of the part of δ that the allowance for rounding may take before a stronger tilt is tried.
const LN_ROUNDING: f64 = -11.5; // 1e-5

/// ln of the part of δ that each kind of tail moved to loss ∞ may take.
const LN_TAIL: f64 = -14.5; // 5e-7

/// The smallest ε with δ(ε) ≤ `delta` for one direction; `None` where the noise is too small for a
/// grid. `bound` is the Rényi bound, which shows where to look and is never exceeded.
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
    let (cut, left_out) = direction.truncated(ln_tail);
    let saddle = rdp::epsilon(&cut, delta).theta;
    // The grid follows the Rényi bound; where that is much too high, once more for what was found.
    let mut found = bound.value;
    let mut tilt = TILT;
    for _ in 0..4 {
        let focus = Focus {
            theta: tilt * saddle,
            saddle,
            ln_tail,
            step: step(saddle, direction.len(), found, precision),
            epsilon: found,
            ln_delta: delta.ln(),
        };
        let Some(composed) = compose(&cut, focus) else { break };
        let (better, ln_rounding) = composed.epsilon(delta - left_out);
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

/// δ(`epsilon`) for one direction, in the same way; `bound` is that of ln δ.
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
        let (cut, left_out) = direction.truncated(ln_tail);
        if cut.largest_loss() <= epsilon {
            // All that is left out is all that there is; what that is can be looked at more
            // closely.
            found = found.min(left_out.ln());
            continue;
        }
        let saddle = rdp::ln_delta(&cut, epsilon).theta;
        let focus = Focus {
            theta: tilt * saddle,
            saddle,
            ln_tail,
            step: step(saddle, direction.len(), epsilon, Precision::Fine),
            epsilon,
            ln_delta: found,
        };
        let Some(composed) = compose(&cut, focus) else { break };
        let better = (composed.delta(epsilon) + left_out).ln().min(found);
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

/// The trade-off curve of both sides. Rates below `delta` are not resolved.
pub(crate) fn trade_off(sides: &[Direction], delta: f64) -> TradeOff {
    let curve = |side: &Direction| {
        if let Some(mu) = side.as_gaussian() {
            return Curve::Gaussian(mu);
        }
        let bound = rdp::epsilon(side, delta);
        if side.is_sharp() || !bound.value.is_finite() {
            return Curve::hopeless();
        }
        let ln_tail = delta.ln() + LN_TAIL;
        let (cut, left_out) = side.truncated(ln_tail);
        // No tilt: the curve is wanted everywhere, to an absolute error.
        let focus = Focus {
            theta: 0.0,
            saddle: bound.theta,
            ln_tail,
            step: step(bound.theta, side.len(), bound.value, Precision::Fine),
            epsilon: bound.value,
            ln_delta: delta.ln(),
        };
        let Some(composed) = compose(&cut, focus) else { return Curve::hopeless() };
        let lost = left_out + composed.infinite + composed.ln_rounding(0.0).exp();
        let losses =
            (0..composed.masses.len()).rev().map(|i| (composed.loss(i), composed.masses[i]));
        Curve::of(losses, lost)
    };
    TradeOff::new(sides.iter().map(curve).collect())
}

/// The grid's step: splitting losses on it makes ln E e^{θL} larger by θ(1+θ)h²/12 a release (see
/// [`discrete`]), hence ε by (1+θ)h²/12 a release at the θ that decides, the saddle point.
fn step(saddle: f64, releases: f64, epsilon: f64, precision: Precision) -> f64 {
    let excess = match precision {
        Precision::Fine => (EXCESS * releases / 1000.0).clamp(EXCESS, MOST_EXCESS),
        Precision::Rough => ROUGH_EXCESS,
    };
    (12.0 * excess * epsilon.max(1e-3) / ((1.0 + saddle) * releases)).sqrt()
}

impl Composed {
    fn loss(&self, i: usize) -> f64 {
        self.step * (self.first + i as i64) as f64
    }

    /// What rounding may have taken from δ(ε): the 2-norm of the error times that of the weights (1
    /// − e^{ε−l})e^{−θl}, l > ε.
    fn ln_rounding(&self, epsilon: f64) -> f64 {
        let weights =
            (-1.0 / (-2.0 * self.theta * self.step).exp_m1()).min(self.masses.len() as f64);
        self.rounding.ln() + 0.5 * weights.ln() + self.ln_mgf - self.theta * epsilon
    }

    /// The smallest ε ≥ 0 with δ(ε) ≤ `delta`, and ln of what was allowed for rounding.
    pub(crate) fn epsilon(&self, delta: f64) -> (f64, f64) {
        let first = self.solve(delta - self.infinite);
        if !first.is_finite() {
            return (first, f64::NEG_INFINITY);
        }
        // The allowance for rounding falls with ε, so that of the first solution serves for the
        // second, which is larger.
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

    /// The smallest ε ≥ 0 at which the masses alone give `delta`: on each cell δ(ε) = p − e^ε·q
    /// with p, q the P- and Q-mass above.
    fn solve(&self, delta: f64) -> f64 {
        if !(delta > 0.0) {
            return f64::INFINITY;
        }
        // p and q times e^{−s}, q also times e^l, with s = ln_mgf − θl at the loss in hand, so that
        // nothing over- or underflows.
        let (mut p, mut q) = (0.0, 0.0);
        let (p_fade, q_fade) =
            ((-self.theta * self.step).exp(), (-(1.0 + self.theta) * self.step).exp());
        let scaled = |loss: f64| (delta.ln() - self.ln_mgf + self.theta * loss).exp();
        let mut target = f64::INFINITY;
        for i in (0..self.masses.len()).rev() {
            // δ·e^{−s}, anew from time to time: it may begin as ∞.
            target = if i % 64 == 0 || target == f64::INFINITY {
                scaled(self.loss(i))
            } else {
                target * p_fade
            };
            if p - q > target || self.first + i as i64 <= 0 {
                // The crossing is in the cell above, or ε = 0 will do: p − e^{ε−l}·q = δ·e^{−s}.
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
        // Everything in the window still promises δ: its lower end is a valid answer.
        self.loss(0).max(0.0)
    }
}
