//! The one function that adds noise.
//!
//! Floating-point numbers are a grid with holes: the low bits of signal + noise can tell which signals were possible (Mironov 2012). Two things are done about it. A normal
//! number is put together from a coarse and a fine one, z + 2⁻¹² z′, so that it has some 40 bits and no holes where it matters; and the noisy sum is rounded to a grid of 2⁻²⁰ standard
//! deviations, which is public: every point of the grid is possible for every signal, and what is divided and narrowed afterwards is a function of the grid point.

use crate::Private;
use crate::sums::Sums;
use protocol::{Blocks, Bound, Noisy, Params};
use rayon::prelude::*;
use tensor::Array;
use tensor::normal::{CHUNK, Key};

/// Steps of the grid in a standard deviation.
const STEPS: f64 = (1u32 << 20) as f64;

/// The size of the fine part of a normal number. It makes the noise larger by 3e-8 of itself.
const FINE: f64 = 1.0 / (1u32 << 12) as f64;

/// clip → sum → **noise → divide**: adds N(0, (σ C)²) to every number of every tensor, each with its block's σ and C, and divides by the public lot size.
///
/// # Claim
/// (PROOFS.md, 5.) Given the sums, the released numbers are independent normal with the standard deviation that is handed out with them.
/// # Why
/// Number i of tensor k is drawn from the key of this release and of k, at place i; keys of different tensors and releases are independent. Rounding the noisy number to
/// the grid and to f32 and dividing it by a public number is post-processing.
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`, `released_numbers_lie_on_a_public_grid`
pub(crate) fn add(
    sums: Private<Sums>,
    shapes: &[Vec<usize>],
    blocks: &Blocks,
    bounds: &[Bound],
    lot_size: f64,
    key: &Key,
) -> Noisy<Params> {
    let deviation = |block: usize| bounds[block].sigma.get() * bounds[block].clip.get();
    let tensors = sums.out().tensors.into_iter().zip(shapes).enumerate().map(|(k, (sum, shape))| {
        let (key, deviation) = (key.derive(k as u64), deviation(blocks.of(k)));
        let mut out = Array::zeros(shape.clone());
        let fine = key.derive(0);
        out.data_mut().par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each_init(
            || vec![0.0; CHUNK],
            |small, (chunk, (out, sum))| {
                let small = &mut small[..out.len()];
                key.normals((chunk * CHUNK) as u64, out);
                fine.normals((chunk * CHUNK) as u64, small);
                for ((out, small), sum) in out.iter_mut().zip(small).zip(sum) {
                    // In units of the grid.
                    let noise = f64::from(*out) * STEPS + f64::from(*small) * FINE * STEPS;
                    *out = ((sum / deviation * STEPS + noise).round() / STEPS * (deviation / lot_size)) as f32;
                }
            },
        );
        out
    });
    Noisy { value: Params::new(tensors.collect()), std: (0..blocks.count()).map(|block| deviation(block) / lot_size).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the sums are, released numbers are whole steps of the same grid, and all residues occur alike.
    #[test]
    fn released_numbers_lie_on_a_public_grid() {
        let (deviation, lot_size, count) = (0.75, 8.0, 1 << 16);
        let bound = Bound::new(0.5, 1.5).unwrap_or_else(|refused| panic!("{refused}"));
        for signal in [0.0, 1e-7, 0.123_456_789, 1.0 / 3.0] {
            let sums = Private::new(Sums { tensors: vec![vec![signal; count]], taken: Vec::new() });
            let released = add(sums, &[vec![count]], &Blocks::flat(1), &[bound], lot_size, &Key::from_seed(1));
            let step = deviation / STEPS / lot_size;
            let mut residues = [0u32; 16];
            for &x in released.value[0].data() {
                let steps = f64::from(x) / step;
                // Numbers below 2 standard deviations have at most 21 bits of grid: f32 holds them exactly, up to the rounding of the step itself.
                if steps.abs() < 2.0 * STEPS {
                    assert!((steps - steps.round()).abs() < 0.26, "{x} {steps}");
                    residues[steps.round().rem_euclid(16.0) as usize] += 1;
                }
            }
            let mean = residues.iter().sum::<u32>() as f64 / 16.0;
            assert!(residues.iter().all(|&n| (f64::from(n) - mean).abs() < 6.0 * mean.sqrt()), "{signal}: {residues:?}");
        }
    }
}
