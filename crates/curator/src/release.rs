//! The one function that turns private sums into released values.

use crate::Private;
use crate::sums::Sums;
use noise::{Key, Mechanism, Release, ReleaseKind, TensorNoise};
use protocol::{Blocks, Bound, Noisy, Refused, TensorMap};
use tensor::Array;

/// A release that was announced, charged and not yet made.
pub(crate) struct PaidRelease {
    /// Number of the draw of the lot.
    pub(crate) draw: u64,
    /// Key of the noise of this release alone.
    pub(crate) key: Key,
    /// Which sums are released.
    pub(crate) kind: ReleaseKind,
}

/// Adds noise to private sums and divides them by the public lot size.
///
/// The noise of block k has the standard deviation σ_k·C_k before the division.
///
/// # Claim
/// (PROOFS.md, 5.) It is the only function that calls [`Mechanism::add_noise`], and private sums
/// leave the crate through it only.
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`, and the audits
/// of planted errors in `tests/mutants.rs`
pub(crate) fn release(
    mechanism: &mut dyn Mechanism,
    paid: &PaidRelease,
    sums: Private<Sums>,
    shape: impl Fn(usize) -> Vec<usize>,
    (blocks, bounds): (&Blocks, &[Bound]),
    lot_size: f64,
) -> Result<Noisy<TensorMap>, Refused> {
    let deviation = |block: usize| bounds[block].sigma.get() * bounds[block].clip.get();
    let std = (0..blocks.count())
        .map(|block| mechanism.released_deviation(paid.draw, deviation(block)) / lot_size)
        .collect();
    let (indices, sums): (Vec<usize>, Vec<Vec<f64>>) =
        sums.into_inner().tensors.into_iter().unzip();
    let noise_of = |&k: &usize| TensorNoise { index: k as u64, deviation: deviation(blocks.of(k)) };
    let tensors: Vec<TensorNoise> = indices.iter().map(noise_of).collect();
    let PaidRelease { draw, ref key, kind } = *paid;
    let release = Release { draw, kind, key, tensors: &tensors, lot_size };
    let values = indices.into_iter().zip(mechanism.add_noise(&release, sums));
    let arrays = values.map(|(k, values)| Ok((k, Array::new(shape(k), values)?)));
    Ok(Noisy { value: arrays.collect::<Result<_, Refused>>()?, std })
}
