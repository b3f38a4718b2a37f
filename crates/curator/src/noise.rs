//! The one function that adds noise.

use crate::Private;
use crate::sums::Sums;
use protocol::{Blocks, Bound, Noisy, Params};
use rayon::prelude::*;
use tensor::Array;
use tensor::normal::{CHUNK, Key};

/// clip → sum → **noise → divide**: adds N(0, (σ C)²) to every number of every tensor, each with its block's σ and C, and divides by the public lot size.
///
/// # Claim
/// (PROOFS.md, 5.) Given the sums, the released numbers are independent normal with the standard deviation that is handed out with them.
/// # Why
/// Number i of tensor k is drawn from the key of this release and of k, at place i; keys of different tensors and releases are independent. Rounding the noisy number to
/// f32 and dividing it by a public number is post-processing.
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`
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
        out.data_mut().par_chunks_mut(CHUNK).zip(sum.par_chunks(CHUNK)).enumerate().for_each(|(chunk, (out, sum))| {
            key.normals((chunk * CHUNK) as u64, out);
            for (out, sum) in out.iter_mut().zip(sum) {
                *out = ((sum + deviation * f64::from(*out)) / lot_size) as f32;
            }
        });
        out
    });
    Noisy { value: Params::new(tensors.collect()), std: (0..blocks.count()).map(|block| deviation(block) / lot_size).collect() }
}
