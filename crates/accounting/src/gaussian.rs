//! The unsampled Gaussian mechanism in closed form (Balle and Wang 2018): N(μ, 1) against N(0, 1).

use crate::special::{GAUSS_8, LN_SQRT_2PI, mills, ndtr, ndtri};

/// Bound on the relative rounding error of δ; added, so that δ is an upper bound.
const SLACK: f64 = 1e-12;

/// δ(ε) = Φ(−a) − e^ε Φ(−b) with a = ε/μ − μ/2, b = ε/μ + μ/2.
///
/// e^ε φ(b) = φ(a), so with Mills' ratio R = Φ(−·)/φ it is φ(a)(R(a) − R(b)) = φ(a) ∫ (1 − xR(x))
/// dx from a to b: no difference of large numbers, and for small μ none of small ones.
pub(crate) fn delta(mu: f64, epsilon: f64) -> f64 {
    if mu == 0.0 {
        return if epsilon >= 0.0 { 0.0 } else { -epsilon.exp_m1() };
    }
    let (a, b) = (epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu);
    if !(mu.is_finite() && a.is_finite() && b.is_finite()) {
        // Overflow: δ(∞) is 0; everything else gets the trivial bound 1.
        return if mu.is_finite() && a == f64::INFINITY { 0.0 } else { 1.0 };
    }
    let density = (-0.5 * a * a - LN_SQRT_2PI).exp();
    let value = if mu < 0.5 {
        let (middle, half) = (epsilon / mu, 0.5 * mu);
        let fall = |x: f64| mills(x).1;
        density
            * GAUSS_8
                .iter()
                .map(|(x, w)| w * half * (fall(middle - half * x) + fall(middle + half * x)))
                .sum::<f64>()
    } else if a <= 0.0 {
        ndtr(-a) - density * mills(b).0
    } else {
        density * (mills(a).0 - mills(b).0)
    };
    (value * (1.0 + SLACK)).clamp(0.0, 1.0)
}

/// The smallest ε ≥ 0 with δ(ε) ≤ `target`; infinite if it overflows.
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

/// The μ for which δ(ε) is `target`: the Gaussian mechanism with the same guarantee at this ε.
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
    fn epsilon_and_delta_match_mpmath() {
        assert!(
            (epsilon(1.0, 1e-5) - 4.377_178_095_681_225).abs() < 1e-9,
            "{}",
            epsilon(1.0, 1e-5)
        );
        assert!((delta(1.0, 1.0) - 0.126_936_737_506_643_9).abs() < 1e-12, "{}", delta(1.0, 1.0));
    }

    /// (μ, δ, ε): mpmath at 80 digits, μ from tiny to huge.
    const GOLDEN: [(f64, f64, f64); 9] = [
        (1e-14, 1e-15, 9.023_463_475_100_37e-15),
        (1e-10, 1e-12, 1.9383563073269674e-10),
        (1e-6, 1e-15, 5.6990738319431404e-6),
        (1e-3, 1e-8, 0.003_924_011_098_957_865),
        (0.1, 1e-6, 0.396_857_377_644_083_6),
        (0.6, 1e-30, 6.901_141_294_874_845),
        (5.0, 1e-10, 43.662_903_869_019_91),
        (300.0, 1e-5, 46_278.474_283_239_39),
        (1e9, 1e-5, 5.000_000_042_648_908e17),
    ];

    #[test]
    fn epsilon_is_close_to_and_not_below_the_exact_value() {
        for (mu, delta, want) in GOLDEN {
            let got = epsilon(mu, delta);
            assert!(
                got >= want * (1.0 - 1e-15) && got <= want * (1.0 + 1e-9),
                "μ = {mu}, δ = {delta}: {got} != {want}"
            );
        }
    }

    #[test]
    fn extreme_arguments_give_upper_bounds() {
        assert_eq!(epsilon(f64::INFINITY, 1e-5), f64::INFINITY);
        assert_eq!(epsilon(0.0, 1e-5), 0.0);
        assert!(epsilon(1e150, 1e-5) >= 1e299);
        assert!(epsilon(1e-9, 1e-300) > 0.0);
        assert_eq!(delta(f64::INFINITY, 5.0), 1.0);
        assert!((mu_at(epsilon(0.7, 1e-6), 1e-6) - 0.7).abs() < 1e-9);
    }
}
