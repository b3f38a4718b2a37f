//! Independent Gaussian noise for every value: on an integer grid, or in floating point.

use crate::discrete::LOG_SCALE;
use crate::{CHUNK, Error, Key, Mechanism, Release};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Representation of Gaussian noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GaussianKind {
    /// Integers: an exact discrete Gaussian is added to the sum, rounded to a grid.
    ///
    /// The step of the grid is 2⁻⁴⁰ standard deviations.
    #[default]
    Grid,
    /// Floating point: a normal value of about 40 bits is added, and the result is rounded to a
    /// grid.
    ///
    /// The step of the grid is 2⁻²⁰ standard deviations. That low bits reveal nothing is argued,
    /// not proved.
    Float,
}

/// The parameter of the discrete Gaussian, in steps of its grid.
const SCALE: f64 = (1u64 << LOG_SCALE) as f64;

/// The standard deviation that is charged, in steps. √(s² − 16) would suffice (PROOFS.md).
const CHARGED_DEVIATION: f64 = SCALE - 1.0;

/// The largest σ·√d of a block of d elements.
///
/// Beyond it, rounding to the grid could move a sum by more than 2⁻¹¹ C (claim 3 of the curator).
const MAX_BLOCK_NOISE: f64 = CHARGED_DEVIATION / 2048.0;

/// Steps per standard deviation of the public grid of [`GaussianKind::Float`].
const FLOAT_STEPS: f64 = (1u32 << 20) as f64;

/// The factor of the fine part of a normal value. It increases the standard deviation by 3e-8.
const FINE_FACTOR: f64 = 1.0 / (1u32 << 12) as f64;

/// Adds independent noise N(0, (σC)²) to every value of every release.
///
/// # Claim
/// (PROOFS.md.) Given the sums, the released values are independent, and reveal no more than normal
/// values with the standard deviation that is reported with them.
///
/// # Why
/// Value i of tensor k is drawn at index i from a key that is derived from the key of this release
/// and from k; keys of different tensors and releases are independent. Rounding to f32 and dividing
/// by a public number after the noise was added are post-processing.
///
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`,
/// `released_values_are_on_a_public_grid`, `grid_noise_is_an_exact_sample_on_a_rounded_sum`, and
/// the audits of planted errors in the tests of the curator.
///
/// ```
/// use noise::{GaussianKind, IndependentGaussian, Key};
/// use noise::{Mechanism, Release, ReleaseKind, TensorNoise};
///
/// let release = Release {
///     draw: 0,
///     kind: ReleaseKind::Gradient,
///     key: &Key::from_seed(1),
///     tensors: &[TensorNoise { index: 0, deviation: 1e-3 }],
///     lot_size: 10.0,
/// };
/// let mut mechanism = IndependentGaussian::new(GaussianKind::Grid);
/// let means = mechanism.add_noise(&release, vec![vec![20.0, -30.0]]);
/// assert!((means[0][0] - 2.0).abs() < 1e-2 && means[0][0] != 2.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndependentGaussian {
    kind: GaussianKind,
}

impl IndependentGaussian {
    /// Creates the mechanism for a representation of noise.
    pub fn new(kind: GaussianKind) -> Self {
        Self { kind }
    }
}

impl Mechanism for IndependentGaussian {
    fn name(&self) -> &'static str {
        "independent-gaussian"
    }

    fn validate(&self, multiplier: f64, elements: usize) -> Result<(), Error> {
        let got = multiplier * (elements as f64).sqrt();
        // Written for the valid case, so that NaN is refused.
        if (0.0..=MAX_BLOCK_NOISE).contains(&got) {
            Ok(())
        } else {
            Err(Error::NoiseTooLarge { max: MAX_BLOCK_NOISE, got })
        }
    }

    fn charged_multiplier(&self, _draw: u64, multiplier: f64) -> f64 {
        multiplier
    }

    fn released_deviation(&self, _draw: u64, deviation: f64) -> f64 {
        deviation
    }

    fn add_noise(&mut self, release: &Release<'_>, sums: Vec<Vec<f64>>) -> Vec<Vec<f32>> {
        assert_eq!(sums.len(), release.tensors.len(), "number of sums");
        let add = match self.kind {
            GaussianKind::Grid => add_grid_noise,
            GaussianKind::Float => add_float_noise,
        };
        let tensor = |(sum, tensor): (Vec<f64>, &crate::TensorNoise)| {
            let mut out = vec![0.0; sum.len()];
            let key = release.key.derive(tensor.index);
            add(&key, &sum, tensor.deviation, release.lot_size, &mut out);
            out
        };
        sums.into_iter().zip(release.tensors).map(tensor).collect()
    }
}

/// Adds grid noise: all steps from the rounded sum to the noisy sum are in integers.
fn add_grid_noise(key: &Key, sum: &[f64], deviation: f64, lot_size: f64, out: &mut [f32]) {
    let (steps, step) = (CHARGED_DEVIATION / deviation, deviation / CHARGED_DEVIATION);
    out.par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each_init(
        || vec![0i64; sum.len().min(CHUNK)],
        |noise, (chunk, (out, sum))| {
            let noise = &mut noise[..out.len()];
            key.discrete_gaussians((chunk * CHUNK) as u64, noise);
            for ((out, noise), sum) in out.iter_mut().zip(noise).zip(sum) {
                // Conversion and addition saturate at the bounds of i64, which does not increase
                // the distance of two sums.
                let noisy = ((sum * steps).round_ties_even() as i64).saturating_add(*noise);
                *out = (noisy as f64 * (step / lot_size)) as f32;
            }
        },
    );
}

/// Adds floating-point noise and rounds to a public grid.
///
/// The set of floating-point values has gaps, so the low bits of signal + noise can reveal which
/// signals were possible (Mironov 2012). Two measures prevent this. A normal value is the sum of a
/// coarse and a fine one, z + 2⁻¹² z′, so that it has about 40 bits and no gaps at the scale of the
/// grid. And the noisy sum is rounded to a public grid of 2⁻²⁰ standard deviations, of which every
/// point is possible for every signal.
fn add_float_noise(key: &Key, sum: &[f64], deviation: f64, lot_size: f64, out: &mut [f32]) {
    let fine_key = key.derive(0);
    out.par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each_init(
        || vec![0.0; sum.len().min(CHUNK)],
        |fine, (chunk, (out, sum))| {
            let fine = &mut fine[..out.len()];
            key.normals((chunk * CHUNK) as u64, out);
            fine_key.normals((chunk * CHUNK) as u64, fine);
            for ((out, fine), sum) in out.iter_mut().zip(fine).zip(sum) {
                // In steps of the grid.
                let noise =
                    f64::from(*out) * FLOAT_STEPS + f64::from(*fine) * FINE_FACTOR * FLOAT_STEPS;
                *out = ((sum / deviation * FLOAT_STEPS + noise).round() / FLOAT_STEPS
                    * (deviation / lot_size)) as f32;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReleaseKind, TensorNoise};

    /// Releases one tensor with C = 0.5 and σ = 1.5.
    fn released(kind: GaussianKind, sum: Vec<f64>, lot_size: f64, seed: u64) -> Vec<f32> {
        release(kind, sum, 0.75, lot_size, &Key::from_seed(seed))
    }

    fn release(
        kind: GaussianKind,
        sum: Vec<f64>,
        deviation: f64,
        lot_size: f64,
        key: &Key,
    ) -> Vec<f32> {
        let release = Release {
            draw: 0,
            kind: ReleaseKind::Gradient,
            key,
            tensors: &[TensorNoise { index: 0, deviation }],
            lot_size,
        };
        IndependentGaussian::new(kind).add_noise(&release, vec![sum]).remove(0)
    }

    /// For all sums, released values are on the same grid, and residues modulo 16 steps are
    /// uniform.
    #[test]
    fn released_values_are_on_a_public_grid() {
        let (deviation, lot_size, count) = (0.75, 8.0, 1 << 16);
        for signal in [0.0, 1e-7, 0.123_456_789, 1.0 / 3.0] {
            let step = deviation / FLOAT_STEPS / lot_size;
            let mut residues = [0u32; 16];
            for x in released(GaussianKind::Float, vec![signal; count], lot_size, 1) {
                let steps = f64::from(x) / step;
                // A value below 2 standard deviations is at most 2²¹ steps, so f32 represents it
                // exactly, except for the rounding of the step itself.
                if steps.abs() < 2.0 * FLOAT_STEPS {
                    assert!((steps - steps.round()).abs() < 0.26, "{x} {steps}");
                    residues[steps.round().rem_euclid(16.0) as usize] += 1;
                }
            }
            let mean = residues.iter().sum::<u32>() as f64 / 16.0;
            assert!(
                residues.iter().all(|&n| (f64::from(n) - mean).abs() < 6.0 * mean.sqrt()),
                "{signal}: {residues:?}"
            );
        }
    }

    /// A released value is a function of one integer: the rounded sum plus the sample at its index.
    /// Sums that are rounded to the same grid point give the same value.
    #[test]
    fn grid_noise_is_an_exact_sample_on_a_rounded_sum() {
        let (deviation, lot_size, count) = (0.75, 8.0, 3 * CHUNK + 5);
        let step = deviation / CHARGED_DEVIATION;
        let mut noise = vec![0i64; count];
        Key::from_seed(9).derive(0).discrete_gaussians(0, &mut noise);
        for point in [0i64, 1, -7, 123_456_789_012, 1 << 50] {
            for within in [0.0, 0.3, -0.45] {
                let sum = (point as f64 + within) * step;
                let expected: Vec<f32> =
                    noise.iter().map(|z| ((point + z) as f64 * (step / lot_size)) as f32).collect();
                assert_eq!(
                    released(GaussianKind::Grid, vec![sum; count], lot_size, 9),
                    expected,
                    "{point} {within}"
                );
            }
        }
        // Sums beyond the range of i64, and NaN, give finite values.
        for extreme in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e300] {
            assert!(
                released(GaussianKind::Grid, vec![extreme; 10], lot_size, 9)
                    .iter()
                    .all(|x| x.is_finite()),
                "{extreme}"
            );
        }
    }

    /// Rounding increases the distance of two sums of d elements by at most √d steps (claim 3 of
    /// the curator).
    #[test]
    fn rounding_moves_sums_apart_by_at_most_a_step_per_element() {
        let steps = CHARGED_DEVIATION / 0.75;
        let mut normals = vec![0.0f32; 20_000];
        Key::from_seed(5).fill_normals(&mut normals);
        let rounded = |x: f64| (x * steps).round_ties_even() as i64;
        let (mut before, mut after, mut same) = (0.0, 0.0, 0);
        for pair in normals.chunks_exact(2) {
            // Differences of about a step, where the effect of rounding is largest.
            let (a, b) = (f64::from(pair[0]), f64::from(pair[0]) + f64::from(pair[1]) / steps);
            let moved = (rounded(a) - rounded(b)) as f64;
            assert!((moved - (a - b) * steps).abs() <= 1.0 + 1e-3);
            same += u64::from(moved == 0.0);
            before += ((a - b) * steps).powi(2);
            after += moved.powi(2);
        }
        assert!(
            f64::sqrt(after) <= f64::sqrt(before) + f64::sqrt(10_000.0) && same > 100,
            "{after} {before} {same}"
        );
    }

    /// PROOFS.md, grid noise: ρ(y) is nearly constant. Direct summation confirms the deviation
    /// 2·e^{−2π²τ²} at τ = 0.7 and τ = 1, where it is visible in f64; at τ = 4 it is not.
    #[test]
    fn smoothing_is_as_small_as_claimed() {
        let deviation = |tau: f64, y: f64| {
            let sum: f64 =
                (-60..=60).map(|z| (-(f64::from(z) - y).powi(2) / (2.0 * tau * tau)).exp()).sum();
            sum / (tau * (2.0 * std::f64::consts::PI).sqrt()) - 1.0
        };
        let predicted = |tau: f64, y: f64| {
            let pi = std::f64::consts::PI;
            2.0 * (-2.0 * pi * pi * tau * tau).exp() * (2.0 * pi * y).cos()
        };
        for y in [0.0, 0.1, 0.25, 0.5, 0.9] {
            assert!(
                (deviation(0.7, y) - predicted(0.7, y)).abs() < 1e-14 + 1e-3 * predicted(0.7, 0.0),
                "{y}"
            );
            assert!((deviation(1.0, y) - predicted(1.0, y)).abs() < 1e-14, "{y}");
            assert!(deviation(4.0, y).abs() < 1e-14, "{y}");
        }
        assert!(predicted(4.0, 0.0) < 1e-136 && predicted(0.7, 0.0) > 1e-5);
        // √(s² − τ²) > s − 1.
        assert!((SCALE * SCALE - 16.0).sqrt() > CHARGED_DEVIATION);
    }

    /// Floating-point noise is z + 2⁻¹² z′. Given z, the test recovers z′ with 8 bits and checks
    /// that it is normal and independent of z, each within 5.5 standard errors. A new seed would
    /// exceed that once in 26 million.
    #[test]
    fn the_fine_part_is_independent_of_the_coarse_part() {
        let (count, key) = (1 << 15, Key::from_seed(9));
        let released = release(GaussianKind::Float, vec![0.0; count], 1.0, 1.0, &key);
        let mut coarse = vec![0.0; count];
        key.derive(0).normals(0, &mut coarse);
        let pairs = released
            .iter()
            .zip(&coarse)
            .map(|(&x, &z)| (f64::from(z), (f64::from(x) - f64::from(z)) * 4096.0));
        // Only |z| < 1: for larger values the rounding of the released f32 would be visible in z′.
        let pairs: Vec<(f64, f64)> = pairs.filter(|(z, _)| z.abs() < 1.0).collect();
        let n = pairs.len() as f64;
        let mean = |f: &dyn Fn(f64, f64) -> f64| {
            pairs.iter().map(|&(z, fine)| f(z, fine)).sum::<f64>() / n
        };
        assert!(mean(&|_, fine| fine).abs() < 5.5 / n.sqrt());
        assert!((mean(&|_, fine| fine * fine) - 1.0).abs() < 5.5 * (2.0 / n).sqrt());
        let variance = mean(&|z, _| z * z);
        assert!(mean(&|z, fine| z * fine).abs() < 5.5 * (variance / n).sqrt());
    }

    #[test]
    fn noise_too_large_for_the_grid_is_refused() {
        let mechanism = IndependentGaussian::default();
        // For a block of 10⁹ elements, σ = 16,000 is accepted.
        assert!(mechanism.validate(16_000.0, 1_000_000_000).is_ok());
        for (multiplier, elements) in
            [(17_000.0, 1_000_000_000), (MAX_BLOCK_NOISE * 1.001, 1), (f64::NAN, 1), (-1.0, 1)]
        {
            assert!(mechanism.validate(multiplier, elements).is_err(), "{multiplier} {elements}");
        }
    }

    #[test]
    fn a_foreign_state_is_refused() {
        let mut mechanism = IndependentGaussian::default();
        assert!(mechanism.save().is_empty() && mechanism.restore(&[]).is_ok());
        assert!(mechanism.restore(&[1]).is_err());
    }
}
