//! How far the momentum is from the gradient, and the descent that is left: (7) and Lemma B.4.

use super::{Quality, counted, gradient_noise, mean_weight_norm, not_negative};
use protocol::Refused;

/// The terms of equation (7), which bound (1/T) Σ_t E‖M̄_t − g_t‖_* (Lemma B.5).
///
/// Clipped means have nuclear norms of at most √r C. A total beyond that says nothing: a momentum
/// that ignores the data keeps the bound as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tracking {
    /// 𝔅_T(C), the clipping residual.
    pub clipping: f64,
    /// √r v_C Γ_T(β), from sampling and from privacy.
    pub noise: f64,
    /// Lηβ/(1−β): the momentum contains gradients of earlier parameters.
    pub drift: f64,
}

impl Tracking {
    /// Their sum: the bound (7).
    pub fn total(&self) -> f64 {
        self.clipping + self.noise + self.drift
    }
}

/// √r v_C Γ_T(β), the noise term of (7), for a matrix of `rows` × `cols`.
pub fn tracking_noise(
    (rows, cols): (usize, usize),
    (clip, lot, noise_multiplier): (f64, f64, f64),
    momentum: f64,
    steps: u64,
) -> Result<f64, Refused> {
    let rank = counted("the rows", rows)?.min(counted("the columns", cols)?) as f64;
    let left = mean_weight_norm(momentum, steps)?;
    let noise = gradient_noise(clip, lot, noise_multiplier, rows.saturating_mul(cols))?;
    Ok(rank.sqrt() * noise * left)
}

impl Quality {
    /// Lemma B.4: ⟨g, O⟩ ≥ (1 − ε)‖g‖_* − (2 − ε)‖M̄ − g‖_*, from both nuclear norms.
    ///
    /// ```
    /// use optim::theory::{InitialError, Iteration};
    ///
    /// let exact = Iteration::new(2, 5)?.quality(InitialError::from_delta(0.0)?);
    /// assert_eq!(exact.descent(3.0, 1.0)?, 1.0);
    /// # Ok::<(), protocol::Refused>(())
    /// ```
    pub fn descent(self, gradient: f64, tracking: f64) -> Result<f64, Refused> {
        let gradient = not_negative("the nuclear norm of the gradient", gradient)?;
        let tracking = not_negative("the error of the momentum", tracking)?;
        Ok((1.0 - self.epsilon) * gradient - (2.0 - self.epsilon) * tracking)
    }

    /// The least ‖g‖_* for which Lemma B.4 promises descent: χ (2 − ε)‖M̄ − g‖_*.
    pub fn least_gradient(self, tracking: f64) -> Result<f64, Refused> {
        let tracking = not_negative("the error of the momentum", tracking)?;
        Ok(self.chi * (2.0 - self.epsilon) * tracking)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Matrix, close, normals};
    use super::super::{GradientTail, InitialError, Iteration};
    use super::*;
    use crate::newton_schulz::Normaliser;
    use tensor::{Array, linalg};

    fn array(x: &Matrix) -> Array {
        Array::new([x.0, x.1], x.2.iter().map(|&x| x as f32).collect()).unwrap()
    }

    fn nuclear(x: &Matrix) -> f64 {
        linalg::svd(&array(x)).unwrap().1.into_iter().map(f64::from).sum()
    }

    fn frobenius(x: &Matrix) -> f64 {
        x.2.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    fn random(seed: u64, rows: usize, cols: usize, scale: f64) -> Matrix {
        let data = normals(seed, rows * cols).into_iter().map(|x| scale * f64::from(x)).collect();
        Matrix(rows, cols, data)
    }

    fn inner(x: &Matrix, y: &Matrix) -> f64 {
        x.2.iter().zip(&y.2).map(|(x, y)| x * y).sum()
    }

    /// Lemma B.4 for random gradients and momenta, with the worst and with the mean error.
    #[test]
    fn the_inner_product_is_bounded() {
        let iteration = Iteration::new(2, 3).unwrap();
        for seed in 0..200u64 {
            let gradient = random(seed, 4, 6, 1.0);
            // From hardly any error to nothing but error.
            let momentum =
                gradient.plus(0.02 * (seed % 50) as f64, &random(1000 + seed, 4, 6, 1.0));
            let size = frobenius(&momentum);
            let y = Matrix(4, 6, momentum.2.iter().map(|x| x / size).collect());
            let output = y.newton_schulz(2, 3);
            let start = InitialError::of_momentum(&array(&y), Normaliser::Frobenius).unwrap();
            let values = linalg::svd(&array(&y)).unwrap().1;
            let shares: Vec<(f64, f64)> = values.iter().map(|&s| (f64::from(s), 1.0)).collect();
            let error = nuclear(&momentum.plus(-1.0, &gradient));
            let got = inner(&gradient, &output);
            let (worst, mean) = (iteration.quality(start), iteration.mean_quality(&shares));
            assert!(mean.epsilon() <= worst.epsilon() + 1e-6);
            for quality in [worst, iteration.exact_quality(start), mean] {
                let bound = quality.descent(nuclear(&gradient), error).unwrap();
                assert!(got >= bound - 1e-4, "{seed}: {got} < {bound}");
            }
            // For the momentum itself the mean error is exact.
            let own = mean.descent(nuclear(&momentum), 0.0).unwrap();
            assert!(close(inner(&momentum, &output), own, 1e-4), "{seed}");
            // The least gradient is where the bound is 0.
            let least = worst.least_gradient(error).unwrap();
            assert!(worst.descent(least, error).unwrap().abs() < 1e-9 * (1.0 + least));
        }
    }

    /// A private run on a finite data set: f(W) = mean ⟨A_i, W⟩ + λ/2 ‖W‖², clipped, noised, with
    /// Newton–Schulz directions. Equation (7) bounds how far the momentum is from the gradient.
    #[test]
    fn the_momentum_tracks_the_gradient_as_bounded() {
        let (rows, cols, data, lot, steps) = (3, 4, 40u64, 8u64, 40u64);
        let (clip, sigma, beta, eta, lambda) = (2.5, 1.0, 0.8, 0.02, 0.3);
        let parts: Vec<Matrix> = (0..data).map(|i| random(i, rows, cols, 0.8)).collect();
        let zero = Matrix(rows, cols, vec![0.0; rows * cols]);
        let (runs, mut mean, mut excess) = (60u64, 0.0, 0.0f64);
        for run in 0..runs {
            let (mut w, mut m, mut scale) = (zero.clone(), zero.clone(), 0.0);
            for step in 0..steps {
                let gradients: Vec<Matrix> = parts.iter().map(|a| a.plus(lambda, &w)).collect();
                let gradient =
                    gradients.iter().fold(zero.clone(), |sum, g| sum.plus(1.0 / data as f64, g));
                let over = |g: &Matrix| (frobenius(g) - clip).max(0.0);
                excess = excess.max(gradients.iter().map(over).sum::<f64>() / data as f64);
                let draws = normals(10_000 + 100 * run + step, lot as usize);
                let mut released =
                    random(20_000 + 100 * run + step, rows, cols, sigma * clip / lot as f64);
                for draw in draws {
                    // Independent and uniform: the middle digits of a normal number.
                    let g = &gradients[(f64::from(draw).abs() * 1e4) as usize % data as usize];
                    let factor = (clip / frobenius(g)).min(1.0);
                    released = released.plus(factor / lot as f64, g);
                }
                m = released.plus(beta, &m);
                scale = beta * scale + 1.0;
                let averaged = zero.plus(1.0 / scale, &m);
                mean += nuclear(&averaged.plus(-1.0, &gradient)) / (runs * steps) as f64;
                let y = zero.plus(1.0 / frobenius(&m), &m);
                w = w.plus(-eta, &y.newton_schulz(2, 4));
            }
        }
        assert!(excess > 0.05, "something is clipped");
        // ‖λ(X − Y)‖_* ≤ λ r ‖X − Y‖_op.
        let drift = lambda * 3.0 * eta * beta / (1.0 - beta);
        let settings = (clip, lot as f64, sigma);
        let bound = Tracking {
            clipping: GradientTail::Excess(excess).residual(rows.min(cols), clip).unwrap(),
            noise: tracking_noise((rows, cols), settings, beta, steps).unwrap(),
            drift,
        };
        assert!(mean <= bound.total() && mean > 0.3 * bound.total(), "{mean} {bound:?}");
    }

    /// Without sampling noise the term is √r ρ √d on average, which is above E‖noise‖_*.
    #[test]
    fn the_noise_term_is_close_for_pure_noise() {
        let (rows, cols, steps) = (6, 6, 12u64);
        let settings = (1.0, 4.0, 50.0);
        let bound = tracking_noise((rows, cols), settings, 0.7, steps).unwrap();
        let (runs, mut mean) = (200, 0.0);
        for run in 0..runs {
            let (mut m, mut scale) = (Matrix(rows, cols, vec![0.0; 36]), 0.0);
            for step in 0..steps {
                m = random(100 * run + step, rows, cols, 50.0 / 4.0).plus(0.7, &m);
                scale = 0.7 * scale + 1.0;
                mean += nuclear(&m) / scale / (runs * steps) as f64;
            }
        }
        assert!(mean < bound && mean > 0.8 * bound, "{mean} {bound}");
    }
}
