//! The unsampled Gaussian in closed form (Balle and Wang 2018): N(μ, 1) against N(0, 1).

use crate::special::{ln_ndtr, ndtri};

/// δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
pub(crate) fn delta(mu: f64, epsilon: f64) -> f64 {
    if mu == 0.0 {
        return if epsilon >= 0.0 { 0.0 } else { -epsilon.exp_m1() };
    }
    if !mu.is_finite() {
        return 1.0;
    }
    // e^a − e^b with a > b, without cancelling to a negative number and without overflow of e^ε.
    let a = ln_ndtr(0.5 * mu - epsilon / mu);
    let b = epsilon + ln_ndtr(-0.5 * mu - epsilon / mu);
    let gap = b - a;
    if gap < 0.0 { a.exp() * -gap.exp_m1() } else { 0.0 }
}

/// The smallest ε ≥ 0 with δ(ε) ≤ `delta`; infinite if there is none within reach.
pub(crate) fn epsilon(mu: f64, target: f64) -> f64 {
    if delta(mu, 0.0) <= target {
        return 0.0;
    }
    if !mu.is_finite() {
        return f64::INFINITY;
    }
    // δ(ε) ≤ Φ(μ/2 − ε/μ), which gives an upper end in closed form.
    let mut high = mu * (0.5 * mu - ndtri(target));
    if !high.is_finite() {
        return f64::INFINITY;
    }
    let mut low = 0.0;
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if delta(mu, middle) <= target { high = middle } else { low = middle }
    }
    high
}

/// The μ for which δ(ε) is `target`: the Gaussian that makes the same promise at this one point.
pub(crate) fn mu_at(eps: f64, target: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while delta(high, eps) < target && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if delta(middle, eps) <= target { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: the golden table (σ = 10, T = 100, so μ = 1) and mpmath at 30 digits.
    #[test]
    fn closed_form() {
        assert!((epsilon(1.0, 1e-5) - 4.377_178_095_681_225).abs() < 1e-9, "{}", epsilon(1.0, 1e-5));
        assert!((delta(1.0, 1.0) - 0.126_936_737_506_643_9).abs() < 1e-13, "{}", delta(1.0, 1.0));
    }

    #[test]
    fn extremes_never_shrink() {
        assert_eq!(epsilon(f64::INFINITY, 1e-5), f64::INFINITY);
        assert_eq!(epsilon(0.0, 1e-5), 0.0);
        assert!(epsilon(1e150, 1e-5) >= 1e299);
        assert!(epsilon(1e-9, 1e-300) > 0.0);
        assert_eq!(delta(f64::INFINITY, 5.0), 1.0);
        assert!((mu_at(epsilon(0.7, 1e-6), 1e-6) - 0.7).abs() < 1e-9);
    }
}
