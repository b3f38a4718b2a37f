//! Special functions of the normal distribution, with small relative error far into the tails.

use std::f64::consts::{PI, SQRT_2};

/// ln √(2π).
pub(crate) const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// Φ(x).
pub(crate) fn ndtr(x: f64) -> f64 {
    0.5 * libm::erfc(-x / SQRT_2)
}

/// ln Φ(x) for any x; below −30 by the asymptotic series of Mills' ratio, exact to rounding there.
pub(crate) fn ln_ndtr(x: f64) -> f64 {
    if x > 6.0 {
        (-ndtr(-x)).ln_1p()
    } else if x > -30.0 {
        ndtr(x).ln()
    } else {
        let t = 1.0 / (x * x);
        let series =
            1.0 - t * (1.0 - 3.0 * t * (1.0 - 5.0 * t * (1.0 - 7.0 * t * (1.0 - 9.0 * t))));
        -0.5 * x * x - LN_SQRT_2PI - (-x).ln() + series.ln()
    }
}

/// Mills' ratio R(x) = Φ(−x)/φ(x), and 1 − xR(x) = −R′(x). For x > −38.
pub(crate) fn mills(x: f64) -> (f64, f64) {
    if x < 12.0 {
        let ratio = ndtr(-x) * (0.5 * x * x + LN_SQRT_2PI).exp();
        return (ratio, 1.0 - x * ratio);
    }
    // R(x) = (1/x)·(1 − s) and −R′ = s with s = t − 3t² + 15t³ − …, t = 1/x²: an alternating
    // asymptotic series, exact to rounding here.
    let t = 1.0 / (x * x);
    let mut s = 0.0;
    for k in (0..24).rev() {
        s = (2 * k + 1) as f64 * t * (1.0 - s);
    }
    ((1.0 - s) / x, s)
}

/// Nodes and weights of the 8-point Gauss–Legendre rule on [−1, 1], the positive half.
pub(crate) const GAUSS_8: [(f64, f64); 4] = [
    (0.183_434_642_495_649_8, 0.362_683_783_378_362),
    (0.525_532_409_916_329, 0.313_706_645_877_887_3),
    (0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
    (0.960_289_856_497_536_3, 0.101_228_536_290_376_26),
];

/// The standard normal quantile Φ⁻¹(p).
pub(crate) fn ndtri(p: f64) -> f64 {
    if !(p > 0.0 && p < 1.0) {
        return if p <= 0.0 {
            f64::NEG_INFINITY
        } else if p >= 1.0 {
            f64::INFINITY
        } else {
            f64::NAN
        };
    }
    if p > 0.5 {
        return -ndtri(1.0 - p);
    }
    // Newton in ln Φ, which is concave: it converges monotonically from the left, where this start
    // lies.
    let target = p.ln();
    let mut x = if p < 0.1 { -(-2.0 * (p * (2.0 * PI).sqrt()).ln()).max(0.0).sqrt() } else { -1.5 };
    for _ in 0..60 {
        let ln_cdf = ln_ndtr(x);
        let ln_pdf = -0.5 * x * x - LN_SQRT_2PI;
        let step = (ln_cdf - target) * (ln_cdf - ln_pdf).exp();
        x -= step;
        if step.abs() <= 1e-15 * x.abs().max(1e-3) {
            break;
        }
    }
    x
}

/// ln C(n, k).
pub(crate) fn ln_choose(n: f64, k: f64) -> f64 {
    libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0)
}

/// ln(eᵃ + eᵇ).
pub(crate) fn ln_add(a: f64, b: f64) -> f64 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if high == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: mpmath 1.4.1, `log(ncdf(x))` with 40 digits.
    #[test]
    fn ln_ndtr_is_accurate_everywhere() {
        for (x, want) in [
            (-100.0, -5005.524208694205),
            (-30.0, -454.321_243_956_343_2),
            (-29.9, -451.322_912_458_528_7),
            (-5.0, -15.064_998_393_988_73),
            (0.0, -std::f64::consts::LN_2),
            (3.0, -0.001_350_809_964_748_194),
            (8.0, -6.220_960_574_271_785e-16),
        ] {
            let got = ln_ndtr(x);
            assert!((got - want).abs() <= 2e-14 * f64::abs(want), "{x}: {got} != {want}");
        }
    }

    #[test]
    fn quantile_inverts() {
        for p in [1e-300, 1e-20, 1e-5, 0.01, 0.3, 0.5, 0.77, 1.0 - 1e-9] {
            let x = ndtri(p);
            assert!((ln_ndtr(x) - f64::ln(p)).abs() < 1e-11 * (1.0 + f64::ln(p).abs()), "{p}: {x}");
        }
    }
}
