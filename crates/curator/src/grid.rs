//! The public grids of sums, which make them exact: each record's contribution is rounded to the grid
//! by itself, and integers are added.
//!
//! # Claim
//! (PROOFS.md, 3.) For one record, rounding to the grid moves the encoded contribution to block k
//! by at most [`COARSEST`]·C_k, and no sum over all places leaves 64 bits.
//! # Checked by
//! `tests::steps_are_fine_enough_and_sums_fit`, `neighbours_are_within_the_declared_sensitivity`

use crate::answers::within;
use engine::StepScale;
use protocol::{Geometry, GradientQuery, Params, Refused};

/// The largest change of a contribution by rounding to the grid, in clip bounds.
pub(crate) const COARSEST: f64 = 1.0 / 2048.0;

/// A clip bound has more than 2²⁴ and at most 2²⁵ steps: the fastest kernels round through 32 bits.
const NARROW: f64 = 25.0;

/// Where that is too coarse, a clip bound has at most 2³⁰ steps.
const WIDE: f64 = 30.0;

/// Steps per unit to which a record's weight is rounded down in an affine geometry, so that the sum
/// of weights is exact too.
pub(crate) const WEIGHT_STEPS: f64 = (1u64 << 30) as f64;

/// Returns the grid of each tensor, which depends on public values only.
///
/// `uses[k]` is how often the engine rounds a contribution to tensor k, `places` the number of places
/// of the data set, and `far` the distance of the center of an affine geometry in clip bounds.
///
/// # Errors
/// If rounding to the grid could change a contribution by more than [`COARSEST`].
pub(crate) fn scales(
    query: &GradientQuery<'_>,
    uses: &[usize],
    places: usize,
    far: f64,
) -> Result<Vec<StepScale>, Refused> {
    // The center is subtracted after summing, so sums contain it.
    let range = (1.0 + far).log2().ceil();
    let wide = WIDE.min(61.0 - range - (places.max(1) as f64).log2().ceil());
    let mut scales: Vec<StepScale> = (0..query.at.len()).map(|k| narrow(query, k)).collect();
    match query.geometry {
        Geometry::Identity => {}
        Geometry::Affine { scale, .. } => {
            for (k, scales) in scales.iter_mut().enumerate() {
                let steps = wide.exp2() / clip(query, k);
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
                // ‖c·gA‖ = ‖c·X R_B‖ ≤ C‖B‖, and likewise the other factor.
                scales[frame.left] = StepScale::Wide(power_of_two(
                    wide,
                    clip(query, frame.left) * norm(query.at, frame.right),
                ));
                scales[frame.right] = StepScale::Wide(power_of_two(
                    wide,
                    clip(query, frame.right) * norm(query.at, frame.left),
                ));
            }
        }
    }
    if let Geometry::Tangent { frames } = query.geometry {
        for frame in frames {
            within(
                "rounding of tangent coordinates, in clip bounds,",
                encoding(query.at, frame, places),
                0.0..=COARSEST,
            )?;
        }
    }
    for (block, bound) in query.bounds.iter().enumerate() {
        let clip = bound.clip.get();
        let own = |k: &usize| query.blocks.of(*k) == block;
        if !(rounding(query, &scales, uses, block) <= COARSEST * clip) {
            for k in (0..query.at.len()).filter(own) {
                if matches!(scales[k], StepScale::Narrow(_)) {
                    scales[k] = StepScale::Wide(power_of_two(wide, clip));
                }
            }
        }
        within(
            "rounding of sums, in clip bounds,",
            rounding(query, &scales, uses, block) / clip,
            0.0..=COARSEST,
        )?;
    }
    Ok(scales)
}

fn clip(query: &GradientQuery<'_>, tensor: usize) -> f64 {
    query.bounds[query.blocks.of(tensor)].clip.get()
}

fn narrow(query: &GradientQuery<'_>, tensor: usize) -> StepScale {
    StepScale::Narrow(power_of_two(NARROW, clip(query, tensor)))
}

/// The largest power of two by which `size` has at most 2^`bits` steps.
fn power_of_two(bits: f64, size: f64) -> f32 {
    (bits - size.log2()).floor().clamp(-120.0, 120.0).exp2() as f32
}

fn norm(params: &Params, tensor: usize) -> f64 {
    params[tensor].data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Bounds the rounding of the encoding of a whole sum, in f64, in tangent coordinates and clip bounds:
/// chains of rank and of n terms, on sums of at most `places`·C‖B‖, times ‖R⁻¹‖.
fn encoding(at: &Params, frame: &protocol::Frame, places: usize) -> f64 {
    let (rows, rank) = (frame.right_basis.rows() as f64, frame.right_basis.cols() as f64);
    let condition = norm(at, frame.right) * size(&frame.right_inverse)
        + norm(at, frame.left) * size(&frame.left_inverse);
    (rows + 2.0 * rank + 8.0) * rank.sqrt() * f64::EPSILON * places as f64 * condition
}

fn size(array: &tensor::Array) -> f64 {
    array.data().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Bounds the change of one record's encoded contribution to a block by rounding: half a step for
/// each element and rounding, times the gain of the encoding.
fn rounding(query: &GradientQuery<'_>, scales: &[StepScale], uses: &[usize], block: usize) -> f64 {
    let mut total = 0.0;
    for k in (0..query.at.len()).filter(|&k| query.blocks.of(k) == block) {
        let half_steps = 0.5 * uses[k] as f64;
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

/// The largest factor by which an encoding lengthens a tensor.
fn gain(geometry: &Geometry, tensor: usize) -> f64 {
    let Geometry::Tangent { frames } = geometry else { return 1.0 };
    let of = |frame: &protocol::Frame| {
        if frame.left == tensor {
            Some(size(&frame.right_inverse))
        } else if frame.right == tensor {
            Some(size(&frame.left_inverse))
        } else {
            None
        }
    };
    frames.iter().find_map(of).unwrap_or(1.0)
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
                    assert!(rounding(&query, &scales, &[2, 1], 0) <= COARSEST * clip);
                    for scale in &scales {
                        // What one record can add to an element, in steps, and what all of them
                        // can.
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
        // Billions of elements would be rounded too far on the narrow grid, and so would a few on
        // none that f32 has.
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
