//! Bias of the Newton–Schulz output by simulation, and the error of its probes (C.6).

use super::spectrum::norm;
use super::{Spectrum, counted, not_negative};
use crate::newton_schulz::{Config, Polynomial, Scratch, orthogonalise};
use noise::PublicRandom;
use protocol::Refused;
use tensor::matmul::Threads;

/// C.6: a bound on the root mean square of the probe error ‖ζ‖_F with J pairs of probes, K_Q/√J.
///
/// The paper leaves K_Q ≥ ‖Q‖_F open. With p_κ no singular value of the output is above 1, so K_Q =
/// √r; the quintic polynomial stays below 1.21. At J = 1 the bound is as large as the output can
/// be: it says nothing. The actual error is of the order ρ², since a pair of probes cancels what is
/// of first order; [`simulate`] measures it.
pub fn probe_error_bound(
    polynomial: Polynomial,
    (rows, cols): (usize, usize),
    probes: usize,
) -> Result<f64, Refused> {
    let rank = counted("the rows", rows)?.min(counted("the columns", cols)?) as f64;
    let largest = match polynomial {
        Polynomial::Newton { .. } => 1.0,
        Polynomial::Quintic => 1.21,
    };
    Ok(largest * (rank / counted("the probes", probes)? as f64).sqrt())
}

/// What a simulation found, as Frobenius norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedBias {
    /// ‖E Q(X + ρE) − Q(X)‖: the bias without correction.
    pub bias: f64,
    /// The standard error of `bias`; a smaller bias is not resolved.
    pub bias_error: f64,
    /// The bias of the corrected direction of Theorem 4.1.
    pub corrected: f64,
    /// The standard error of `corrected`.
    pub corrected_error: f64,
    /// The root mean square of ‖ζ‖ with one pair of probes (C.6).
    pub probe_error: f64,
    /// ‖Q(X)‖
    pub output: f64,
}

/// Simulates the bias of the iteration on a matrix of the given shape, in the arithmetic of a run.
///
/// The mean output has the singular vectors of the clean matrix X, and equal values where X has
/// equal ones. So X may be diagonal, and the mean is taken over the diagonal as well as over the
/// samples. Each sample is one noise matrix with both signs and two pairs of probes: 8
/// orthogonalisations.
pub fn simulate(
    iteration: &Config,
    clean: &Spectrum,
    noise: f64,
    samples: usize,
    random: &PublicRandom,
) -> Result<SimulatedBias, Refused> {
    let noise = not_negative("the noise", noise)? as f32;
    let samples = counted("the samples", samples)?;
    let (rows, cols) = clean.shape();
    let mut groups = Vec::new();
    for (group, &(value, count)) in clean.values().iter().enumerate() {
        groups.extend(std::iter::repeat_n((group, value), count));
    }
    let mut x = vec![0.0f32; rows * cols];
    groups.iter().enumerate().for_each(|(i, (_, value))| x[i * cols + i] = *value as f32);
    let mut scratch = Scratch::default();
    let mut q = |mut point: Vec<f32>| {
        orthogonalise(iteration, &mut point, rows, cols, &mut scratch, Threads::All);
        point
    };
    let moved = |from: &[f32], by: f32, along: &[f32]| -> Vec<f32> {
        from.iter().zip(along).map(|(x, z)| by.mul_add(*z, *x)).collect()
    };
    // The mean of the diagonal of each group.
    let means = |matrix: &dyn Fn(usize) -> f64| {
        let mut sums = vec![0.0; clean.values().len()];
        groups.iter().enumerate().for_each(|(i, (group, _))| sums[*group] += matrix(i * cols + i));
        let counted = sums.iter().zip(clean.values());
        counted.map(|(sum, (_, count))| sum / *count as f64).collect::<Vec<f64>>()
    };
    let exact = q(x.clone());
    let truth = means(&|k| f64::from(exact[k]));
    let (mut plain, mut corrected) = (Estimate::default(), Estimate::default());
    let mut probe_square = 0.0;
    for sample in 0..samples {
        let normals = |label: u64| {
            let mut values = vec![0.0; rows * cols];
            random.derive(sample as u64).derive(label).normals(0, &mut values);
            values
        };
        let (error, probes) = (normals(0), [normals(1), normals(2)]);
        let (mut of_plain, mut of_corrected) = (vec![0.0; truth.len()], vec![0.0; truth.len()]);
        for sign in [noise, -noise] {
            let noisy = moved(&x, sign, &error);
            let middle = q(noisy.clone());
            let mut pair = |probe: &[f32]| -> Vec<f64> {
                let (above, below) =
                    (q(moved(&noisy, noise, probe)), q(moved(&noisy, -noise, probe)));
                above.iter().zip(below).map(|(a, b)| 0.5 * (f64::from(*a) + f64::from(b))).collect()
            };
            let first = pair(&probes[0]);
            if sign > 0.0 {
                let second = pair(&probes[1]);
                let square = first.iter().zip(&second).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                probe_square += 0.5 * square / samples as f64;
            }
            let add = |to: &mut [f64], matrix: &dyn Fn(usize) -> f64| {
                let off = means(matrix).into_iter().zip(&truth).map(|(mean, truth)| mean - truth);
                to.iter_mut().zip(off).for_each(|(to, off)| *to += 0.5 * off);
            };
            add(&mut of_plain, &|k| f64::from(middle[k]));
            add(&mut of_corrected, &|k| 2.0 * f64::from(middle[k]) - first[k]);
        }
        plain.add(&of_plain);
        corrected.add(&of_corrected);
    }
    let (bias, bias_error) = plain.norms(clean);
    let (corrected, corrected_error) = corrected.norms(clean);
    Ok(SimulatedBias {
        bias,
        bias_error,
        corrected,
        corrected_error,
        probe_error: probe_square.sqrt(),
        output: norm(&truth, clean.values()),
    })
}

/// Mean and standard error of a vector.
#[derive(Default)]
struct Estimate {
    count: f64,
    sums: Vec<f64>,
    squares: Vec<f64>,
}

impl Estimate {
    fn add(&mut self, values: &[f64]) {
        self.sums.resize(values.len(), 0.0);
        self.squares.resize(values.len(), 0.0);
        self.count += 1.0;
        for (k, value) in values.iter().enumerate() {
            self.sums[k] += value;
            self.squares[k] += value * value;
        }
    }

    /// Frobenius norms of the mean and of its standard error, which is infinite for one sample.
    fn norms(&self, like: &Spectrum) -> (f64, f64) {
        let means: Vec<f64> = self.sums.iter().map(|sum| sum / self.count).collect();
        let error = |(mean, square): (&f64, &f64)| {
            let variance = (square / self.count - mean * mean).max(0.0);
            (variance / (self.count - 1.0)).sqrt()
        };
        let errors: Vec<f64> = means.iter().zip(&self.squares).map(error).collect();
        let error = if self.count > 1.0 { norm(&errors, like.values()) } else { f64::INFINITY };
        (norm(&means, like.values()), error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::HeatExpansion;
    use super::*;

    /// The leading terms of §4 and Theorem 4.1 against simulated matrices.
    #[test]
    fn leading_terms_are_the_simulated_bias() {
        let iteration = Config { steps: 3, ..Config::default() };
        for (rows, cols, values, noise) in [
            (8, 12, vec![(1.0, 8)], 0.06),
            (6, 6, vec![(1.0, 3), (0.6, 3)], 0.04),
            (10, 5, vec![(1.0, 1), (0.8, 2)], 0.04),
        ] {
            let clean = Spectrum::new(rows, cols, &values).unwrap();
            let heat = HeatExpansion::new(&iteration, &clean).unwrap();
            let seen =
                simulate(&iteration, &clean, noise, 1500, &PublicRandom::from_seed(7)).unwrap();
            let (leading, next, left) = (
                heat.leading_bias(noise).unwrap(),
                heat.next_bias(noise).unwrap(),
                heat.remainder(noise).unwrap(),
            );
            assert!(heat.is_usable(noise), "{leading} {next}");
            let tolerance = 5.0 * seen.bias_error + 1.5 * next + 1e-5;
            assert!((seen.bias - leading).abs() < tolerance, "{seen:?} {leading} ± {tolerance}");
            assert!(leading > 4.0 * seen.bias_error, "{seen:?}: not resolved");
            let tolerance = 5.0 * seen.corrected_error + left + 1e-5;
            assert!((seen.corrected - left).abs() < tolerance, "{seen:?} {left} ± {tolerance}");
            assert!(seen.corrected < 0.5 * seen.bias, "{seen:?}");
            let bound = probe_error_bound(iteration.polynomial, (rows, cols), 1).unwrap();
            assert!(seen.probe_error < bound, "{seen:?} {bound}");
        }
    }

    /// At small noise the correction takes the whole leading term off, not a part of it.
    #[test]
    fn correction_takes_the_leading_term_off() {
        let iteration = Config { steps: 3, ..Config::default() };
        let clean = Spectrum::flat(16, 16, 16, 1.0).unwrap();
        let seen = simulate(&iteration, &clean, 3e-3, 3000, &PublicRandom::from_seed(9)).unwrap();
        assert!(4.0 * seen.corrected_error < 0.05 * seen.bias, "{seen:?}: not resolved");
        assert!(seen.corrected < 0.05 * seen.bias, "{seen:?}");
    }

    /// C.6: the error is at most the bound, falls with ρ², and the bound with √J.
    #[test]
    fn probe_errors_are_of_second_order() {
        let iteration = Config::default();
        let clean = Spectrum::flat(8, 8, 8, 1.0).unwrap();
        let error = |noise: f64| {
            let random = PublicRandom::from_seed(3);
            simulate(&iteration, &clean, noise, 60, &random).unwrap().probe_error
        };
        let ratio = error(0.02) / error(0.01);
        assert!((3.0..5.0).contains(&ratio), "{ratio}");
        for polynomial in [iteration.polynomial, Polynomial::Quintic] {
            let bound = |probes| probe_error_bound(polynomial, (8, 8), probes).unwrap();
            assert!((bound(1) / bound(4) - 2.0).abs() < 1e-12);
            // Noise only: the largest error there is.
            let config = Config { polynomial, ..iteration };
            let noisy = simulate(&config, &clean, 10.0, 20, &PublicRandom::from_seed(4)).unwrap();
            assert!(noisy.probe_error < bound(1), "{noisy:?}");
        }
        assert!(probe_error_bound(iteration.polynomial, (8, 8), 0).is_err());
        assert!(simulate(&iteration, &clean, -1.0, 5, &PublicRandom::from_seed(1)).is_err());
    }

    /// The quintic polynomial takes no singular value above 1.21, however often it is applied.
    #[test]
    fn the_quintic_stays_bounded() {
        let step = |s: f64| s * (3.4445 - 4.7750 * s * s + 2.0315 * s.powi(4));
        let most = (0..=100_000).fold(0.0f64, |most, k| {
            let mut s = f64::from(k) * 1e-5;
            let mut peak = 0.0f64;
            for _ in 0..12 {
                s = step(s);
                peak = peak.max(s.abs());
            }
            most.max(peak)
        });
        assert!(most < 1.21 && most > 1.2, "{most}");
    }
}
