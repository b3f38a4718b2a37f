//! The one function that adds noise.

use crate::Private;
use crate::sums::Sums;
use protocol::{Blocks, Bound, Noisy, Params};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tensor::Array;
use tensor::discrete::LOG_SCALE;
use tensor::normal::{CHUNK, Key};

/// What numbers the noise is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Noise {
    /// Integers. The sum is rounded onto a grid of 2⁻⁴⁰ standard deviations, and an exact discrete
    /// Gaussian is added to that, in integers.
    #[default]
    Grid,
    /// Floating-point numbers: a normal number of some 40 bits is added, and the result is rounded
    /// to a grid of 2⁻²⁰ standard deviations. That nothing can be read off its low bits is argued,
    /// not proved.
    Float,
}

/// The parameter of the discrete law, in steps of its grid; and the multiplier that is charged for,
/// in the same steps: √(s² − 16) would do (PROOFS.md, 5).
const SCALE: f64 = (1u64 << LOG_SCALE) as f64;
const CHARGED: f64 = SCALE - 1.0;

/// The largest σ·√d of a block of d numbers: beyond it rounding onto the grid could move a sum by
/// more than 2⁻¹¹ C. (PROOFS.md, 3.)
pub(crate) const COARSEST: f64 = CHARGED / 2048.0;

/// Steps of the public grid of [`Noise::Float`] in a standard deviation.
const STEPS: f64 = (1u32 << 20) as f64;

/// The size of the fine part of a normal number. It makes the noise larger by 3e-8 of itself.
const FINE: f64 = 1.0 / (1u32 << 12) as f64;

/// clip → sum → **noise → divide**: adds N(0, (σ C)²) to every number of every tensor, each with
/// its block's σ and C, and divides by the public lot size.
///
/// # Claim
/// (PROOFS.md, 5.) Given the sums, the released numbers are independent, and tell no more than
/// normal ones with the standard deviation that is handed out with them.
/// # Why
/// Number i of tensor k is drawn from the key of this release and of k, at place i; keys of
/// different tensors and releases are independent. What is done after the noise is added, rounding
/// to f32 and dividing by a public number, is post-processing.
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`,
/// `released_numbers_lie_on_a_public_grid`, `grid_noise_is_the_exact_law_on_a_rounded_sum`, and the
/// audits in `mutants.rs`
pub(crate) fn add(
    noise: Noise,
    sums: Private<Sums>,
    shapes: &[Vec<usize>],
    blocks: &Blocks,
    bounds: &[Bound],
    lot_size: f64,
    key: &Key,
) -> Noisy<Params> {
    let deviation = |block: usize| bounds[block].sigma.get() * bounds[block].clip.get();
    let tensors =
        sums.out().tensors.into_iter().zip(shapes).enumerate().map(|(k, (sum, shape))| {
            let (own, deviation) = (key.derive(k as u64), deviation(blocks.of(k)));
            #[cfg(test)]
            let own = if crate::mutants::is(crate::mutants::Mutant::SharedNoise) {
                key.derive(0)
            } else {
                own
            };
            let mut out = Array::zeros(shape.clone());
            match noise {
                Noise::Grid => grid(&own, &sum, deviation, lot_size, k, out.data_mut()),
                Noise::Float => float(&own, &sum, deviation, lot_size, out.data_mut()),
            }
            out
        });
    Noisy {
        value: Params::new(tensors.collect()),
        std: (0..blocks.count()).map(|block| deviation(block) / lot_size).collect(),
    }
}

/// Integers all the way from the rounded sum to the noisy one.
fn grid(key: &Key, sum: &[f64], deviation: f64, lot_size: f64, _tensor: usize, out: &mut [f32]) {
    let (steps, step) = (CHARGED / deviation, deviation / CHARGED);
    #[cfg(test)]
    let planted = crate::mutants::Planted::now();
    out.par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each_init(
        || vec![0i64; sum.len().min(CHUNK)],
        |noise, (chunk, (out, sum))| {
            let noise = &mut noise[..out.len()];
            key.discrete_gaussians((chunk * CHUNK) as u64, noise);
            #[cfg(test)]
            planted.spoil(_tensor, noise);
            for ((out, noise), sum) in out.iter_mut().zip(noise).zip(sum) {
                // The conversion stays within i64, and so does the sum: both move no two numbers
                // further apart.
                let noisy = ((sum * steps).round_ties_even() as i64).saturating_add(*noise);
                *out = (noisy as f64 * (step / lot_size)) as f32;
            }
        },
    );
}

/// Floating-point numbers are a grid with holes: the low bits of signal + noise can tell which
/// signals were possible (Mironov 2012). Two things are done about it. A normal number is put
/// together from a coarse and a fine one, z + 2⁻¹² z′, so that it has some 40 bits and no holes
/// where it matters; and the noisy sum is rounded to a grid of 2⁻²⁰ standard deviations, which is
/// public: every point of the grid is possible for every signal.
fn float(key: &Key, sum: &[f64], deviation: f64, lot_size: f64, out: &mut [f32]) {
    let fine = key.derive(0);
    out.par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each_init(
        || vec![0.0; sum.len().min(CHUNK)],
        |small, (chunk, (out, sum))| {
            let small = &mut small[..out.len()];
            key.normals((chunk * CHUNK) as u64, out);
            fine.normals((chunk * CHUNK) as u64, small);
            for ((out, small), sum) in out.iter_mut().zip(small).zip(sum) {
                // In units of the grid.
                let noise = f64::from(*out) * STEPS + f64::from(*small) * FINE * STEPS;
                *out = ((sum / deviation * STEPS + noise).round() / STEPS * (deviation / lot_size))
                    as f32;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(noise: Noise, sums: Vec<f64>, lot_size: f64, seed: u64) -> Vec<f32> {
        let bound = Bound::new(0.5, 1.5).unwrap_or_else(|refused| panic!("{refused}"));
        let shapes = [vec![sums.len()]];
        let sums = Private::new(Sums { tensors: vec![sums] });
        add(noise, sums, &shapes, &Blocks::flat(1), &[bound], lot_size, &Key::from_seed(seed)).value
            [0]
        .data()
        .to_vec()
    }

    /// Whatever the sums are, released numbers are whole steps of the same grid, and all residues
    /// occur alike.
    #[test]
    fn released_numbers_lie_on_a_public_grid() {
        let (deviation, lot_size, count) = (0.75, 8.0, 1 << 16);
        for signal in [0.0, 1e-7, 0.123_456_789, 1.0 / 3.0] {
            let step = deviation / STEPS / lot_size;
            let mut residues = [0u32; 16];
            for x in released(Noise::Float, vec![signal; count], lot_size, 1) {
                let steps = f64::from(x) / step;
                // Numbers below 2 standard deviations have at most 21 bits of grid: f32 holds them
                // exactly, up to the rounding of the step itself.
                if steps.abs() < 2.0 * STEPS {
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

    /// What is released is the image of one integer: the rounded sum plus the number that the key
    /// gives for its place. Sums that round to the same point of the grid release the same; one
    /// step further is one step more.
    #[test]
    fn grid_noise_is_the_exact_law_on_a_rounded_sum() {
        let (deviation, lot_size, count) = (0.75, 8.0, 3 * CHUNK + 5);
        let step = deviation / CHARGED;
        let mut noise = vec![0i64; count];
        Key::from_seed(9).derive(0).discrete_gaussians(0, &mut noise);
        for point in [0i64, 1, -7, 123_456_789_012, 1 << 50] {
            for within in [0.0, 0.3, -0.45] {
                let sum = (point as f64 + within) * step;
                let expected: Vec<f32> =
                    noise.iter().map(|z| ((point + z) as f64 * (step / lot_size)) as f32).collect();
                assert_eq!(
                    released(Noise::Grid, vec![sum; count], lot_size, 9),
                    expected,
                    "{point} {within}"
                );
            }
        }
        // What is beyond all integers, or no number at all, stays within them.
        for wild in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e300] {
            assert!(
                released(Noise::Grid, vec![wild; 10], lot_size, 9).iter().all(|x| x.is_finite()),
                "{wild}"
            );
        }
    }

    /// The bound on rounding in PROOFS.md: two sums at most a distance apart are, rounded, at most
    /// that and √d steps apart.
    #[test]
    fn rounding_moves_sums_apart_by_little() {
        let steps = CHARGED / 0.75;
        let mut numbers = vec![0.0f32; 20_000];
        Key::from_seed(5).fill_normals(&mut numbers);
        let rounded = |x: f64| (x * steps).round_ties_even() as i64;
        let (mut apart, mut after, mut same) = (0.0, 0.0, 0);
        for pair in numbers.chunks_exact(2) {
            // Differences of about a step, where rounding does most.
            let (a, b) = (f64::from(pair[0]), f64::from(pair[0]) + f64::from(pair[1]) / steps);
            let moved = (rounded(a) - rounded(b)) as f64;
            assert!((moved - (a - b) * steps).abs() <= 1.0 + 1e-3);
            same += u64::from(moved == 0.0);
            apart += ((a - b) * steps).powi(2);
            after += moved.powi(2);
        }
        assert!(
            f64::sqrt(after) <= f64::sqrt(apart) + f64::sqrt(10_000.0) && same > 100,
            "{after} {apart} {same}"
        );
    }

    /// PROOFS.md, 5: a discrete Gaussian around any real number has nearly the same sum. By direct
    /// summation at τ = 1, where the deviation 2·e^{−2π²τ²} can be seen in f64; at τ = 4 it cannot.
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
        assert!((SCALE * SCALE - 16.0).sqrt() > CHARGED);
    }
}
