//! The likelihood ratio of a normal mixture, Σ w_j N(j s, 1), to N(0, 1).
//!
//! Under sampling, j is the number of a unit's rows that are in the lot.

use crate::special::ln_choose;

/// Weights of the shifts 0, s, 2s, … of the mixture.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mixture {
    /// s, in units of the noise.
    pub(crate) shift: f64,
    /// The probability that a given row is in the lot.
    pub(crate) rate: f64,
    /// ln of the weight of each number of rows; empty for a single row, which has closed forms.
    pub(crate) ln_weights: Vec<f64>,
}

impl Mixture {
    pub(crate) fn new(shift: f64, rate: f64, rows: u64) -> Self {
        let k = rows as f64;
        let ln_weights = if rows == 1 {
            vec![]
        } else {
            let (ln_in, ln_out) = (rate.ln(), (-rate).ln_1p());
            (0..=rows)
                .map(|j| j as f64)
                .map(|j| ln_choose(k, j) + j * ln_in + (k - j) * ln_out)
                .collect()
        };
        Self { shift, rate, ln_weights }
    }

    /// The largest slope of ln_ratio, which is the largest shift.
    pub(crate) fn steepness(&self) -> f64 {
        self.rows() * self.shift
    }

    /// The largest number of rows that can be in the lot.
    pub(crate) fn rows(&self) -> f64 {
        self.ln_weights.len().saturating_sub(1).max(1) as f64
    }

    /// ln of the likelihood ratio Σ_j w_j exp(j s z − j²s²/2).
    #[inline]
    pub(crate) fn ln_ratio(&self, z: f64) -> f64 {
        let s = self.shift;
        if self.ln_weights.is_empty() {
            let y = s * (z - 0.5 * s);
            let q = self.rate;
            return if q == 1.0 {
                y
            } else if y > 30.0 {
                y + q.ln() + ((1.0 - q) / q * (-y).exp()).ln_1p()
            } else if y > -1.0 || q <= 0.5 {
                (q * y.exp_m1()).ln_1p()
            } else {
                ((1.0 - q) + q * y.exp()).ln()
            };
        }
        let term = |(j, w): (usize, &f64)| w + j as f64 * s * (z - 0.5 * j as f64 * s);
        let top = self.ln_weights.iter().enumerate().map(term).fold(f64::NEG_INFINITY, f64::max);
        top + self.ln_weights.iter().enumerate().map(|t| (term(t) - top).exp()).sum::<f64>().ln()
    }

    /// The likelihood ratio itself, where it does not overflow.
    #[inline]
    pub(crate) fn ratio(&self, z: f64) -> f64 {
        if !self.ln_weights.is_empty() {
            return self.ln_ratio(z).exp();
        }
        let (y, q) = (self.shift * (z - 0.5 * self.shift), self.rate);
        (1.0 - q) + q * y.exp()
    }

    /// The derivative of ln_ratio, between 0 and rows × shift.
    pub(crate) fn slope(&self, z: f64) -> f64 {
        let s = self.shift;
        let ln_ratio = self.ln_ratio(z);
        let part = |j: f64, ln_weight: f64| {
            j * s * (ln_weight + j * s * (z - 0.5 * j * s) - ln_ratio).exp()
        };
        if self.ln_weights.is_empty() {
            return part(1.0, self.rate.ln());
        }
        self.ln_weights.iter().enumerate().map(|(j, w)| part(j as f64, *w)).sum()
    }

    /// The z at which ln_ratio is `l`; −∞ where it never is that small.
    pub(crate) fn invert(&self, l: f64) -> f64 {
        let (s, q) = (self.shift, self.rate);
        if self.ln_weights.is_empty() {
            // e^l − (1−q), without cancellation for small and without overflow for large l.
            let ln_excess = if l < 30.0 {
                (l.exp_m1() + q).max(0.0).ln()
            } else {
                l + (-(1.0 - q) * (-l).exp()).ln_1p()
            };
            return (ln_excess - q.ln()) / s + 0.5 * s;
        }
        if l <= self.ln_weights[0] {
            return f64::NEG_INFINITY;
        }
        bisect(l, |z| self.ln_ratio(z))
    }
}

/// The z with increasing(z) = target, by widening and halving a bracket.
pub(crate) fn bisect(target: f64, increasing: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-1.0, 1.0);
    while increasing(high) < target && high < 1e6 {
        high *= 2.0;
    }
    while increasing(low) > target && low > -1e6 {
        low *= 2.0;
    }
    bisect_in(low, high, |z| increasing(z) - target)
}

/// The root of an increasing function between two points.
pub(crate) fn bisect_in(mut low: f64, mut high: f64, increasing: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if increasing(middle) < 0.0 { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}
