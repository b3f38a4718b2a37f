//! Rényi differential privacy: moments of the privacy loss, summed over the run, converted once.
//!
//! Orders are α = 1 + θ, any real number above 1: the moments come from quadrature of the exact
//! dominating pair (Mironov, Talwar, Zhang 2019 treat the Poisson case by series; the integral is
//! the same for integer and fractional orders), and the best order is found instead of picked from
//! a grid. The conversion is the tight one of Canonne, Kamath, Steinke (2020, Prop. 12).

use crate::direction::Direction;
use crate::pair::Moments;

/// Bound on the error of rounding and quadrature in ln E e^{θL} of one release.
///
/// It is added for each release, so that the result is an upper bound.
const SLACK: f64 = 1e-14;

/// Range of θ = α − 1 in which orders are searched. Any order gives a valid bound.
const THETA: (f64, f64) = (1e-9, 1e6);

/// A bound and the θ = α − 1 that gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    pub(crate) value: f64,
    pub(crate) theta: f64,
}

/// ln E e^{θL} = θ·D_{1+θ} of the whole run, an upper bound.
pub(crate) fn ln_mgf(direction: &Direction, theta: f64) -> f64 {
    direction.moments(theta).ln_mgf + slack(direction)
}

fn slack(direction: &Direction) -> f64 {
    if direction.as_gaussian().is_some() { 0.0 } else { SLACK * direction.len() }
}

/// The ε that order 1 + θ gives at δ = e^`ln_delta`.
fn epsilon_at(ln_mgf: f64, theta: f64, ln_delta: f64) -> f64 {
    let value = (ln_mgf - theta * (1.0 / theta).ln_1p() - theta.ln_1p() - ln_delta) / theta;
    if value.is_nan() { f64::INFINITY } else { value.max(0.0) }
}

/// The smallest ε over all orders.
///
/// ε(θ) = (K(θ) + θ ln(θ/(1+θ)) − ln(1+θ) − ln δ)/θ is stationary where θK′ − K + ln(1+θ) + ln δ =
/// 0, and the left side increases (its derivative is θK″ + 1/(1+θ)): there is one minimum, and a
/// root search finds it.
pub(crate) fn epsilon(direction: &Direction, delta: f64) -> Bound {
    if direction.as_gaussian() == Some(0.0) {
        return Bound { value: 0.0, theta: 1.0 };
    }
    let ln_delta = delta.ln();
    let mut best = Bound { value: f64::INFINITY, theta: 1.0 };
    stationary(direction, |theta, moments| {
        let value = epsilon_at(moments.ln_mgf + slack(direction), theta, ln_delta);
        if value < best.value {
            best = Bound { value, theta };
        }
        (
            theta * moments.mean - moments.ln_mgf + theta.ln_1p() + ln_delta,
            theta * (theta * moments.variance + 1.0 / (1.0 + theta)),
        )
    });
    best
}

/// ln of the smallest δ over all orders.
///
/// ln δ = K(θ) − θε + θ ln(θ/(1+θ)) − ln(1+θ) is stationary where K′ − ε + ln(θ/(1+θ)) = 0.
pub(crate) fn ln_delta(direction: &Direction, epsilon: f64) -> Bound {
    let mut best = Bound { value: 0.0, theta: 1.0 };
    stationary(direction, |theta, moments| {
        let log_odds = -(1.0 / theta).ln_1p();
        let value =
            moments.ln_mgf + slack(direction) + theta * (log_odds - epsilon) - theta.ln_1p();
        if value < best.value {
            best = Bound { value, theta };
        }
        (moments.mean - epsilon + log_odds, theta * moments.variance + 1.0 / (1.0 + theta))
    });
    best
}

/// The smallest l with P(L ≥ l) ≤ e^`ln_tail` by Chernoff's inequality, and the tilt.
///
/// For a distribution given by its moments, l = (K(t) − ln_tail)/t at the best tilt t, which is
/// stationary where tK′ − K + ln_tail = 0. The search goes from `start` to `most`; it need not be
/// exact, as any tilt gives a valid bound.
pub(crate) fn tail(
    moments: impl Fn(f64) -> Moments,
    ln_tail: f64,
    start: f64,
    most: f64,
) -> (f64, f64) {
    let mut best = (f64::INFINITY, start);
    root(start, most, 0.02, |t| {
        let m = moments(t);
        let edge = (m.ln_mgf - ln_tail) / t;
        if edge < best.0 {
            best = (edge, t);
        }
        (t * m.mean - m.ln_mgf + ln_tail, t * t * m.variance)
    });
    best
}

fn stationary(direction: &Direction, mut slope: impl FnMut(f64, Moments) -> (f64, f64)) {
    root(1.0, THETA.1, 1e-5, |theta| slope(theta, direction.moments(theta)));
}

/// Searches the root of an increasing function of x = ln θ until x is known to `tolerance`.
///
/// The function returns its value and its derivative in x.
fn root(start: f64, most: f64, tolerance: f64, mut function: impl FnMut(f64) -> (f64, f64)) {
    let (lowest, highest) = (THETA.0.ln(), most.ln());
    let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
    let mut x = start.ln().clamp(lowest, highest);
    for _ in 0..100 {
        let (value, derivative) = function(x.exp());
        // NaN means that the moments overflowed: the root, if any, is at smaller orders.
        if value < 0.0 {
            low = x
        } else {
            high = x
        }
        // Large orders are expensive to integrate, so steps up are smaller than steps down.
        let mut next = (x - value / derivative).clamp(x - 4.0, x + 1.4);
        if !(next > low && next < high) {
            next = match (low.is_finite(), high.is_finite()) {
                (true, true) => 0.5 * (low + high),
                (true, false) => x + 1.4,
                _ => x - 4.0,
            };
        }
        next = next.clamp(lowest, highest);
        if (next - x).abs() < tolerance {
            // Near a steep change of the function Newton's steps are tiny on one side of it. So a
            // root is accepted only if it is bracketed from both sides, or lies at a limit.
            let beyond = if value < 0.0 { x + 10.0 * tolerance } else { x - 10.0 * tolerance };
            if high - low <= 20.0 * tolerance || !(beyond > lowest && beyond < highest) {
                break;
            }
            next = if beyond > low && beyond < high { beyond } else { 0.5 * (low + high) };
        }
        x = next;
    }
}
