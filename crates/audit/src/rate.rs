//! Clopper–Pearson bounds on probabilities.

/// Computes the upper Clopper–Pearson bound on a probability after `seen` successes in `trials`.
///
/// It fails with probability at most `alpha`.
pub fn clopper_pearson_upper(seen: u64, trials: u64, alpha: f64) -> f64 {
    if seen >= trials {
        return 1.0;
    }
    // P(Bin(n, p) ≤ k) = 1 − I_p(k + 1, n − k), which falls in p.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if 1.0 - beta(middle, seen as f64 + 1.0, (trials - seen) as f64) > alpha {
            low = middle
        } else {
            high = middle
        }
    }
    high
}

/// Computes the regularised incomplete beta function I_x(a, b) (DLMF 8.17.22).
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if !(x > 0.0) {
        return 0.0;
    }
    if !(x < 1.0) {
        return 1.0;
    }
    // The continued fraction converges quickly below the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(1.0 - x, b, a);
    }
    let front =
        (a * x.ln() + b * (-x).ln_1p() + libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b))
            .exp()
            / a;
    let nonzero = |y: f64| if y.abs() < 1e-300 { 1e-300 } else { y };
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let (mut c, mut value) = (1.0, d);
    for m in 1..20_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / nonzero(1.0 + even * d);
        c = nonzero(1.0 + even / c);
        value *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / nonzero(1.0 + odd * d);
        c = nonzero(1.0 + odd / c);
        value *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * value
}

/// Computes P(Bin(n, p) = k).
pub(crate) fn binomial(k: u64, n: u64, p: f64) -> f64 {
    let (k, n) = (k as f64, n as f64);
    let term = |count: f64, ln: f64| if count == 0.0 { 0.0 } else { count * ln };
    let choose = libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0);
    (choose + term(k, p.ln()) + term(n - k, (-p).ln_1p())).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: mpmath 1.3, `betainc(a, b, 0, x, regularized=True)` and its inverse.
    #[test]
    fn upper_bounds_invert_the_binomial_tail() {
        // Nothing seen: 1 − α^{1/n}.
        for (trials, alpha) in [(10u64, 0.05f64), (100_000, 0.01)] {
            let truth = 1.0 - alpha.powf(1.0 / trials as f64);
            assert!(
                (clopper_pearson_upper(0, trials, alpha) / truth - 1.0).abs() < 1e-9,
                "{trials} {alpha}"
            );
        }
        assert_eq!(
            (clopper_pearson_upper(7, 7, 0.05), clopper_pearson_upper(0, 0, 0.05)),
            (1.0, 1.0)
        );
        // At the bound the lower binomial tail is α.
        for (seen, trials, alpha) in [
            (3u64, 50u64, 0.025f64),
            (40, 50, 0.001),
            (500, 1000, 0.05),
            (31_000, 100_000, 0.001),
            (2, 100_000, 0.01),
        ] {
            let p = clopper_pearson_upper(seen, trials, alpha);
            let tail: f64 = (0..=seen).map(|k| binomial(k, trials, p)).sum();
            assert!((tail / alpha - 1.0).abs() < 1e-6, "{seen} of {trials}: {p} {tail}");
        }
    }

    #[test]
    fn binomial_probabilities_sum_to_one() {
        for p in [0.0, 1e-9, 0.3, 1.0] {
            let sum: f64 = (0..=40).map(|k| binomial(k, 40, p)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{p}: {sum}");
        }
        assert!((binomial(2, 5, 0.5) - 10.0 / 32.0).abs() < 1e-15);
    }
}
