//! Noise in the momentum of one matrix, against the largest signal that clipping lets through.

use super::{InitialError, counted, in_unit, momentum_noise, not_negative, positive, weight_norm};
use crate::newton_schulz::Normaliser;
use protocol::Refused;

/// The momentum of one matrix: its shape, and how its gradients are clipped, noised and averaged.
///
/// Norms are those of M̂_t = M_t/s_t, s_t = Σ_{j<t} β^j, as in §4. The clipped mean of a lot of at
/// most B examples has a Frobenius norm of at most C, and so has every average of such means.
///
/// ```
/// let momentum = optim::theory::PrivateMomentum {
///     rows: 768,
///     cols: 768,
///     clip: 1.0,
///     lot: 1024.0,
///     noise_multiplier: 1.0,
///     momentum: 0.95,
/// };
/// assert_eq!(momentum.frobenius(1)?, 768.0 / 1024.0);
/// # Ok::<(), protocol::Refused>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivateMomentum {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// C: the clip bound of one example.
    pub clip: f64,
    /// B: what the sum over a lot is divided by.
    pub lot: f64,
    /// σ of this matrix: the noise of one element of a sum is σC.
    pub noise_multiplier: f64,
    /// β
    pub momentum: f64,
}

impl PrivateMomentum {
    /// ν = σC/B: the standard deviation of the noise in each element of a released gradient.
    pub fn gradient_std(&self) -> Result<f64, Refused> {
        let multiplier = not_negative("the noise multiplier", self.noise_multiplier)?;
        Ok(multiplier * positive("the clip bound", self.clip)? / positive("the lot", self.lot)?)
    }

    /// ρ_t: the standard deviation of the noise in each element of M̂_t (Lemma C.1).
    pub fn std(&self, step: u64) -> Result<f64, Refused> {
        momentum_noise(self.gradient_std()?, self.momentum, step)
    }

    /// ρ_t √(mn): the root mean square of the noise's Frobenius norm.
    pub fn frobenius(&self, step: u64) -> Result<f64, Refused> {
        let (rows, cols) = self.sides()?;
        Ok(self.std(step)? * (rows * cols).sqrt())
    }

    /// ρ_t (√m + √n): a bound on the noise's mean spectral norm, sharp for large matrices.
    pub fn spectral(&self, step: u64) -> Result<f64, Refused> {
        let (rows, cols) = self.sides()?;
        Ok(self.std(step)? * (rows.sqrt() + cols.sqrt()))
    }

    /// s_t = Σ_{j<t} β^j: the scale of the momentum buffer, M_t = s_t M̂_t.
    pub fn scale(&self, step: u64) -> Result<f64, Refused> {
        // Refuses what is out of range.
        weight_norm(self.momentum, step)?;
        let log = self.momentum.ln() * step as f64;
        Ok(if self.momentum > 0.0 { -log.exp_m1() / (1.0 - self.momentum) } else { 1.0 })
    }

    /// A bound on δ_{0,T} of Lemma 3.3 that fails with at most this probability.
    ///
    /// The paper takes δ_{0,T} < 1 for granted; this is what can be said without knowing the
    /// gradients.
    ///
    /// # Why
    /// Let r = min(m, n) and p the probability of failure. Given the past and the lot of step t,
    /// M_t is a fixed matrix plus noise of standard deviation ν. A square r × r part of it has no
    /// singular value below νε/√r, except with probability 2.35 ε (Sankar, Spielman and Teng 2006,
    /// Theorem 3.3), and more columns only raise the smallest one. With ε = p/(4.7 T) that holds at
    /// all T steps except with probability p/2. The noise in M_t has a Frobenius norm of at most
    /// s_t ρ_t (√(mn) + √(2 ln(2T/p))) at all steps except with probability p/2, and the rest of
    /// M_t one of at most s_t C, for lots of at most B examples. The quotient is a lower bound on
    /// the smallest normalised singular value. s_t ρ_t and s_t grow with t, so step T decides.
    pub fn initial_error(
        &self,
        steps: u64,
        failure: f64,
        normaliser: Normaliser,
    ) -> Result<InitialError, Refused> {
        let failure = in_unit("the probability of failure", failure)?;
        let (rows, cols) = self.sides()?;
        let (count, scale) = (counted("the steps", steps)? as f64, self.scale(steps)?);
        let smallest = self.gradient_std()? * failure / (4.7 * count) / rows.min(cols).sqrt();
        let noise = (rows * cols).sqrt() + (2.0 * (2.0 * count / failure).ln()).sqrt();
        let norm = scale * (self.clip + self.std(steps)? * noise);
        let largest = match normaliser {
            Normaliser::Frobenius => norm,
            Normaliser::AtLeastOne => norm.max(1.0),
        };
        InitialError::from_gap((smallest / largest).min(1.0).powi(2))
    }

    fn sides(&self) -> Result<(f64, f64), Refused> {
        Ok((counted("the rows", self.rows)? as f64, counted("the columns", self.cols)? as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Matrix, close, normals};
    use super::*;
    use tensor::{Array, linalg};

    const MOMENTUM: PrivateMomentum = PrivateMomentum {
        rows: 12,
        cols: 20,
        clip: 0.5,
        lot: 16.0,
        noise_multiplier: 2.0,
        momentum: 0.8,
    };

    /// Norms of noise through the recursion, against the formulas.
    #[test]
    fn norms_are_those_of_simulated_noise() {
        let (steps, runs) = (6, 400);
        let (mut squares, mut spectral) = (0.0, 0.0);
        for run in 0..runs {
            let mut buffer = Matrix(12, 20, vec![0.0; 240]);
            for step in 0..steps {
                let noise = normals(1000 * run + step, 240);
                let nu = MOMENTUM.gradient_std().unwrap();
                buffer.2.iter_mut().zip(noise).for_each(|(m, z)| *m = 0.8 * *m + nu * f64::from(z));
            }
            let scale = MOMENTUM.scale(steps).unwrap();
            squares += buffer.2.iter().map(|m| (m / scale).powi(2)).sum::<f64>() / runs as f64;
            spectral += buffer.operator_norm() / scale / runs as f64;
        }
        let sum: f64 = (0..6).map(|k| 0.8f64.powi(k)).sum();
        assert!(close(MOMENTUM.scale(6).unwrap(), sum, 1e-12));
        // The mean square of 96 000 normal numbers: a standard deviation of 0.0046.
        assert!(close(squares.sqrt(), MOMENTUM.frobenius(6).unwrap(), 0.012), "{squares}");
        let bound = MOMENTUM.spectral(6).unwrap();
        assert!(spectral < bound && spectral > 0.85 * bound, "{spectral} {bound}");
        assert_eq!(PrivateMomentum { momentum: 0.0, ..MOMENTUM }.scale(9).unwrap(), 1.0);
    }

    /// The theorem that is cited: no shift makes small singular values likelier than 2.35 ε.
    #[test]
    fn noise_keeps_singular_values_from_zero() {
        let (side, runs) = (5usize, 4000u64);
        for shift in [0.0f32, 1.0, 30.0] {
            for epsilon in [0.05, 0.2] {
                let small = (0..runs).filter(|&run| {
                    let noise = normals(run, side * side);
                    // A singular shift.
                    let x = Array::from_fn([side, side], |k| noise[k] + shift * (k % 3) as f32);
                    let smallest = linalg::svd(&x).unwrap().1[side - 1];
                    f64::from(smallest) <= epsilon / (side as f64).sqrt()
                });
                let share = small.count() as f64 / runs as f64;
                assert!(share < 2.35 * epsilon, "shift {shift}, ε = {epsilon}: {share}");
                // Without a shift it is nearly ε.
                assert!(shift > 0.0 || share > 0.6 * epsilon, "ε = {epsilon}: {share}");
            }
        }
    }

    #[test]
    fn the_initial_error_holds_at_every_step() {
        let square = PrivateMomentum { rows: 4, cols: 4, ..MOMENTUM };
        for normaliser in [Normaliser::Frobenius, Normaliser::AtLeastOne] {
            let bound = square.initial_error(8, 0.5, normaliser).unwrap();
            let runs = 300;
            let broken = (0..runs).filter(|&run| {
                let mut buffer = vec![0.0f32; 16];
                (0..8).any(|step| {
                    let noise = normals(50 * run + step, 16);
                    for (k, m) in buffer.iter_mut().enumerate() {
                        // A signal of rank 1 and norm C.
                        let signal = if k < 4 { 0.25 } else { 0.0 };
                        *m = 0.8 * *m + signal + noise[k] * 2.0 * 0.5 / 16.0;
                    }
                    let array = Array::new([4, 4], buffer.clone()).unwrap();
                    let actual = InitialError::of_momentum(&array, normaliser).unwrap();
                    actual.gap() < bound.gap()
                })
            });
            let share = broken.count() as f64 / runs as f64;
            assert!(share < 0.5, "{normaliser:?}: {share}");
        }
        // More steps, more rows, less failure: worse.
        let gap = |m: PrivateMomentum, steps, failure| {
            m.initial_error(steps, failure, Normaliser::Frobenius).unwrap().gap()
        };
        let base = gap(square, 8, 0.5);
        assert!(gap(square, 9, 0.5) < base && gap(square, 8, 0.4) < base);
        assert!(gap(PrivateMomentum { rows: 5, cols: 5, ..square }, 8, 0.5) < base);
        assert!(square.initial_error(0, 0.5, Normaliser::Frobenius).is_err());
        assert!(square.initial_error(3, 1.0, Normaliser::Frobenius).is_err());
    }
}
