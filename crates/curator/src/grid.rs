//! Public grids on which sums are exact.
//!
//! Each record's contribution is rounded to the grid by itself, and integers are added.
//!
//! # Claim
//! (PROOFS.md, 3.) For one record, rounding to the grid moves the encoded contribution to block k
//! by at most [`MAX_ROUNDING`]·C_k, and no sum over all places leaves 64 bits.
//! # Checked by
//! `tests::steps_are_fine_enough_and_sums_fit`, `neighbours_are_within_the_declared_sensitivity`

use crate::answers::within;
use engine::StepScale;
use protocol::{Geometry, GradientQuery, Params, Refused};

/// The largest change of a record's contribution by rounding to the grid, in clip bounds.
pub(crate) const MAX_ROUNDING: f64 = 1.0 / 2048.0;

/// On a narrow grid, a clip bound has more than 2²⁴ and at most 2²⁵ steps.
///
/// The fastest kernels round to it through 32-bit integers.
const NARROW_BITS: f64 = 25.0;

/// On a wide grid, used where a narrow one is too coarse, a clip bound has at most 2³⁰ steps.
const WIDE_BITS: f64 = 30.0;

/// Steps per unit of the grid of weights in an affine geometry.
///
/// Weights are rounded down to it, so that their sum is exact.
pub(crate) const WEIGHT_STEPS: f64 = (1u64 << 30) as f64;

/// Returns the grid of each tensor, which depends on public values only.
///
/// `roundings[k]` is how often the engine rounds a record's contribution to tensor k. `places` is
/// the number of places of the data set. `center_distance` is the distance of the center of an
/// affine geometry, in clip bounds.
///
/// # Errors
/// If rounding to the grid could change a contribution by more than [`MAX_ROUNDING`].
pub(crate) fn scales(
    query: &GradientQuery<'_>,
    roundings: &[usize],
    places: usize,
    center_distance: f64,
) -> Result<Vec<StepScale>, Refused> {
    // The center is subtracted after summing, so contributions are larger by its distance.
    let center_bits = (1.0 + center_distance).log2().ceil();
    let place_bits = (places.max(1) as f64).log2().ceil();
    let wide_bits = WIDE_BITS.min(61.0 - center_bits - place_bits);
    let mut scales: Vec<StepScale> = (0..query.at.len()).map(|k| narrow_scale(query, k)).collect();
    match query.geometry {
        Geometry::Identity => {}
        Geometry::Affine { scale, .. } => {
            for (k, scales) in scales.iter_mut().enumerate() {
                let steps = wide_bits.exp2() / clip_of(query, k);
                *scales = StepScale::Each(
                    scale[k]
                        .data()
                        .iter()
                        .map(|&scale| (steps / f64::from(scale)) as f32)
                        .collect(),
                );
            }
        }
        Geometry::Tangent { frames } => {
            for frame in frames {
                // ‖c·gA‖ = ‖c·X R_B‖ ≤ C‖B‖, and correspondingly for the other factor.
                scales[frame.left] = StepScale::Wide(power_of_two(
                    wide_bits,
                    clip_of(query, frame.left) * norm(&query.at[frame.right]),
                ));
                scales[frame.right] = StepScale::Wide(power_of_two(
                    wide_bits,
                    clip_of(query, frame.right) * norm(&query.at[frame.left]),
                ));
            }
        }
    }
    if let Geometry::Tangent { frames } = query.geometry {
        for frame in frames {
            within(
                "rounding of tangent coordinates, in clip bounds,",
                encoding_error(query.at, frame, places),
                0.0..=MAX_ROUNDING,
            )?;
        }
    }
    for (block, bound) in query.bounds.iter().enumerate() {
        let clip = bound.clip.get();
        let in_block = |k: &usize| query.blocks.of(*k) == block;
        if !(rounding_error(query, &scales, roundings, block) <= MAX_ROUNDING * clip) {
            for k in (0..query.at.len()).filter(in_block) {
                if matches!(scales[k], StepScale::Narrow(_)) {
                    scales[k] = StepScale::Wide(power_of_two(wide_bits, clip));
                }
            }
        }
        within(
            "rounding of sums, in clip bounds,",
            rounding_error(query, &scales, roundings, block) / clip,
            0.0..=MAX_ROUNDING,
        )?;
    }
    Ok(scales)
}

/// Returns the clip bound of a tensor's block.
fn clip_of(query: &GradientQuery<'_>, tensor: usize) -> f64 {
    query.bounds[query.blocks.of(tensor)].clip.get()
}

fn narrow_scale(query: &GradientQuery<'_>, tensor: usize) -> StepScale {
    StepScale::Narrow(power_of_two(NARROW_BITS, clip_of(query, tensor)))
}

/// Returns the largest power of two, in steps per unit, for which `size` has at most 2^`bits`
/// steps.
fn power_of_two(bits: f64, size: f64) -> f32 {
    (bits - size.log2()).floor().clamp(-120.0, 120.0).exp2() as f32
}

/// Returns the Frobenius norm.
fn norm(array: &tensor::Array) -> f64 {
    array.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Bounds the rounding error of encoding a sum in tangent coordinates, in clip bounds.
///
/// Products are computed in f64 by chains of r and of n terms, from sums of at most `places`·C‖B‖,
/// and are multiplied by R⁻¹.
fn encoding_error(at: &Params, frame: &protocol::Frame, places: usize) -> f64 {
    let (rows, rank) = (frame.right_basis.rows() as f64, frame.right_basis.cols() as f64);
    let condition = norm(&at[frame.right]) * norm(&frame.right_inverse)
        + norm(&at[frame.left]) * norm(&frame.left_inverse);
    (rows + 2.0 * rank + 8.0) * rank.sqrt() * f64::EPSILON * places as f64 * condition
}

/// Bounds the change of one record's encoded contribution to a block by rounding to the grid.
///
/// Each rounding changes each element by half a step at most. The encoding multiplies that by its
/// gain.
fn rounding_error(
    query: &GradientQuery<'_>,
    scales: &[StepScale],
    roundings: &[usize],
    block: usize,
) -> f64 {
    let mut total = 0.0;
    for k in (0..query.at.len()).filter(|&k| query.blocks.of(k) == block) {
        let half_steps = 0.5 * roundings[k] as f64;
        total += match (&scales[k], query.geometry) {
            (StepScale::Each(scales), Geometry::Affine { scale, .. }) => scales
                .iter()
                .zip(scale[k].data())
                .map(|(&steps, &scale)| {
                    (half_steps / (f64::from(steps) * f64::from(scale))).powi(2)
                })
                .sum::<f64>(),
            (scales, geometry) => {
                query.at[k].len() as f64
                    * (half_steps / f64::from(scales.of(0)) * gain(geometry, k)).powi(2)
            }
        };
    }
    total.sqrt()
}

/// Returns a bound on the factor by which a tangent encoding increases the norm of a tensor.
fn gain(geometry: &Geometry, tensor: usize) -> f64 {
    let Geometry::Tangent { frames } = geometry else { return 1.0 };
    let gain_of = |frame: &protocol::Frame| {
        if frame.left == tensor {
            Some(norm(&frame.right_inverse))
        } else if frame.right == tensor {
            Some(norm(&frame.left_inverse))
        } else {
            None
        }
    };
    frames.iter().find_map(gain_of).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Blocks, Bound, Clipping};
    use tensor::Array;

    fn params(shapes: &[&[usize]], value: f32) -> Params {
        let tensor = |shape: &&[usize]| {
            let mut tensor = Array::zeros(shape.to_vec());
            tensor.fill(value);
            tensor
        };
        Params::new(shapes.iter().map(tensor).collect())
    }

    #[test]
    fn steps_are_fine_enough_and_sums_fit() {
        let at = params(&[&[40, 30], &[7]], 0.5);
        let blocks = Blocks::flat(2);
        let affine = |scale: f32| Geometry::Affine {
            center: at.clone(),
            scale: params(&[&[40, 30], &[7]], scale),
        };
        for clip in [1e-15, 0.1, 1.0, 3.0, 1e15] {
            for geometry in [Geometry::Identity, affine(1.0), affine(1e-3), affine(1e3)] {
                let bounds = [Bound::new(clip, 1.0).unwrap()];
                let query = GradientQuery {
                    at: &at,
                    geometry: &geometry,
                    blocks: &blocks,
                    bounds: &bounds,
                    clipping: Clipping::Cut,
                };
                for (places, far) in [(1, 0.0), (1000, 999.0), (1_000_000_000, 999.0)] {
                    let scales = scales(&query, &[2, 1], places, far).unwrap();
                    assert!(rounding_error(&query, &scales, &[2, 1], 0) <= MAX_ROUNDING * clip);
                    for scale in &scales {
                        // The largest contribution of one record to an element, in steps.
                        let unit = if let Geometry::Affine { scale, .. } = &geometry {
                            f64::from(scale[0].data()[0])
                        } else {
                            1.0
                        };
                        let most = clip * (1.0 + far) * unit * f64::from(scale.of(0));
                        match scale {
                            StepScale::Narrow(_) => {
                                assert!(clip * f64::from(scale.of(0)) <= 2f64.powi(25))
                            }
                            _ => assert!(most * places as f64 <= 2f64.powi(62)),
                        }
                        assert!(most <= 2f64.powi(50));
                    }
                }
            }
        }
        // Many roundings of a contribution need the wide grid; for still more, no grid is fine
        // enough.
        let bounds = [Bound::new(1.0, 1.0).unwrap()];
        let query = GradientQuery {
            at: &at,
            geometry: &Geometry::Identity,
            blocks: &blocks,
            bounds: &bounds,
            clipping: Clipping::Cut,
        };
        let wide = scales(&query, &[20_000, 1], 1, 0.0).unwrap();
        assert!(wide.iter().all(|scale| matches!(scale, StepScale::Wide(_))));
        assert!(scales(&query, &[2_000_000, 1], 1, 0.0).is_err());
    }
}
