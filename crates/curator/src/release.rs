//! The one function that turns private sums into released values.

use crate::Private;
use crate::sums::Sums;
use noise::{Key, Mechanism, Release, ReleaseKind, TensorNoise};
use protocol::{Blocks, Bound, Noisy, Params, Refused};
use tensor::Array;

/// A release that was announced, charged and not yet made.
pub(crate) struct Paid {
    /// Number of the draw of the lot.
    pub(crate) draw: u64,
    /// Key of the noise of this release alone.
    pub(crate) key: Key,
    /// What was asked.
    pub(crate) kind: ReleaseKind,
}

/// clip → sum → **noise → divide**: the mechanism adds noise of σ·C to the sums of each block and
/// divides by the public lot size.
///
/// # Claim
/// (PROOFS.md, 5.) It is the only function that calls the mechanism, and sums have no other exit.
/// # Checked by
/// `the_noise_has_the_declared_law`, `noise_is_independent_of_tensors_and_releases`, and the audits
/// of planted errors in `tests/mutants.rs`
pub(crate) fn release(
    mechanism: &mut dyn Mechanism,
    paid: &Paid,
    sums: Private<Sums>,
    shapes: &[Vec<usize>],
    (blocks, bounds): (&Blocks, &[Bound]),
    lot_size: f64,
) -> Result<Noisy<Params>, Refused> {
    let deviation = |block: usize| bounds[block].sigma.get() * bounds[block].clip.get();
    let tensors: Vec<TensorNoise> = (0..blocks.tensors())
        .map(|k| TensorNoise { index: k as u64, deviation: deviation(blocks.of(k)) })
        .collect();
    let std = (0..blocks.count())
        .map(|block| mechanism.released_deviation(paid.draw, deviation(block)) / lot_size)
        .collect();
    let Paid { draw, ref key, kind } = *paid;
    let release = Release { draw, kind, key, tensors: &tensors, lot_size };
    let values = mechanism.add_noise(&release, sums.out().tensors);
    let arrays = shapes.iter().zip(values).map(|(shape, values)| Array::new(shape.clone(), values));
    Ok(Noisy { value: Params::new(arrays.collect::<Result<_, _>>()?), std })
}
