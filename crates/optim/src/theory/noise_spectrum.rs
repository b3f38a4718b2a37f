//! Singular values of a matrix of pure noise: the law of Marchenko and Pastur.

use super::{Iteration, Quality, counted};
use protocol::Refused;
use std::f64::consts::PI;

/// Normalised singular values of Gaussian noise with their shares; the shares sum to 1.
///
/// For m ≤ n, c = m/n and λ = 1 + c + 2√c cos φ, a singular value is √(λ/m) of the Frobenius norm,
/// and φ in [0, π] has the density 2 sin²φ/(πλ). It is the limit for large matrices: an estimate.
pub fn noise_singular_values(rows: usize, cols: usize) -> Result<Vec<(f64, f64)>, Refused> {
    const POINTS: usize = 2000;
    let (m, n) = (counted("the rows", rows)?, counted("the columns", cols)?);
    let (short, long) = (m.min(n) as f64, m.max(n) as f64);
    let ratio = short / long;
    let point = |k: usize| {
        let phi = PI * (k as f64 + 0.5) / POINTS as f64;
        // 1 + c + 2√c cos φ = (1 − √c)² + 4√c cos²(φ/2) loses no digits near 0.
        let root = ratio.sqrt();
        let lambda = (1.0 - root).powi(2) + 4.0 * root * (0.5 * phi).cos().powi(2);
        let share = 2.0 * phi.sin().powi(2) / lambda / POINTS as f64;
        ((lambda / short).sqrt().min(1.0), share)
    };
    Ok((0..POINTS).map(point).collect())
}

impl Iteration {
    /// The mean error ε̄ = 1 − ⟨M, O⟩/‖M‖_*, from normalised singular values with their shares.
    ///
    /// Lemma 3.3 has the error of the *worst* direction, which private momentum leaves near 1. The
    /// proof of Lemma B.4 uses the error only in ⟨M̄, O⟩ ≥ (1 − ε)‖M̄‖_*. For M = U S Vᵀ and O =
    /// U f(S) Vᵀ, the inner product is Σ s_i f(s_i). So Lemma B.4 and Theorem 3.4 hold with the
    /// largest ε̄ of all steps in place of ε_q: directions count by their singular values.
    pub fn mean_quality(self, values: &[(f64, f64)]) -> Quality {
        let total: f64 = values.iter().map(|(s, share)| share * s).sum();
        if !(total > 0.0) {
            return Quality { epsilon: 0.0, chi: 1.0 };
        }
        let kept = |(s, share): &(f64, f64)| share * s * self.singular_value(*s);
        let inner = values.iter().map(kept).sum::<f64>() / total;
        Quality { epsilon: 1.0 - inner, chi: 1.0 / inner }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, normals};
    use super::*;
    use tensor::{Array, linalg};

    #[test]
    fn shares_and_moments() {
        for (rows, cols) in [(64, 64), (64, 100), (300, 64), (1, 9)] {
            let values = noise_singular_values(rows, cols).unwrap();
            let moment =
                |power: i32| -> f64 { values.iter().map(|(s, share)| share * s.powi(power)).sum() };
            let short = rows.min(cols) as f64;
            assert!(close(moment(0), 1.0, 1e-3), "{}", moment(0));
            // The squares sum to the squared norm: their mean is 1/m.
            assert!(rows.min(cols) == 1 || close(moment(2), 1.0 / short, 1e-3), "{}", moment(2));
        }
        assert!(noise_singular_values(0, 3).is_err());
    }

    /// The mean quality of pure noise, against singular values of random matrices.
    #[test]
    fn the_mean_quality_of_noise_is_that_of_random_matrices() {
        for (rows, cols) in [(40usize, 40usize), (30, 60)] {
            for (degree, steps) in [(1, 3), (2, 3), (2, 5)] {
                let iteration = Iteration::new(degree, steps).unwrap();
                let runs = 5;
                let mut mean = 0.0;
                for run in 0..runs {
                    let noise = Array::new([rows, cols], normals(run, rows * cols)).unwrap();
                    let values = linalg::svd(&noise).unwrap().1;
                    let norm = values.iter().map(|&s| f64::from(s).powi(2)).sum::<f64>().sqrt();
                    let shares: Vec<(f64, f64)> =
                        values.iter().map(|&s| (f64::from(s) / norm, 1.0)).collect();
                    mean += iteration.mean_quality(&shares).epsilon() / runs as f64;
                }
                let law = noise_singular_values(rows, cols).unwrap();
                let expected = iteration.mean_quality(&law).epsilon();
                assert!((mean - expected).abs() < 0.02, "{rows}×{cols}: {mean} {expected}");
            }
        }
        let iteration = Iteration::new(2, 5).unwrap();
        assert_eq!(iteration.mean_quality(&[(0.0, 1.0)]).epsilon(), 0.0);
    }
}
