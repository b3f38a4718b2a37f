//! Validation of a geometry and its blocks against the parameters.

use crate::{Blocks, Frame, Geometry, Params, Refused};
use tensor::Array;
use tensor::matmul::product;

/// Largest difference between a frame and its definition. Rounding in f32 stays well below it, even
/// at the worst condition that [`Frame::new`] accepts.
const TOLERANCE: f32 = 1e-3;

impl Geometry {
    /// Validates shapes, values and frames. `pairs` are the low-rank pairs of the model; only these
    /// have a tangent space.
    ///
    /// # Errors
    /// Says what is invalid.
    pub fn check(
        &self,
        blocks: &Blocks,
        at: &Params,
        pairs: &[(usize, usize)],
    ) -> Result<(), Refused> {
        let refuse = |what: String| Err(Refused::Query(what));
        if blocks.tensors() != at.len() {
            return refuse(format!(
                "blocks: expected {1} tensors, got {0}",
                blocks.tensors(),
                at.len()
            ));
        }
        match self {
            Geometry::Identity => Ok(()),
            Geometry::Affine { center, scale } => {
                let same = |other: &Params| {
                    other.len() == at.len()
                        && other.iter().zip(at.iter()).all(|(a, b)| a.shape() == b.shape())
                };
                if !same(center) || !same(scale) {
                    return refuse(
                        "center and scale: shapes differ from those of the parameters".into(),
                    );
                }
                // Tests for the good case: NaN fails.
                if !scale
                    .iter()
                    .all(|tensor| tensor.data().iter().all(|&s| s > 0.0 && s.is_finite()))
                {
                    return refuse("scale: expected finite values greater than 0".into());
                }
                if !center.iter().all(|tensor| tensor.data().iter().all(|c| c.is_finite())) {
                    return refuse("center: expected finite values".into());
                }
                Ok(())
            }
            Geometry::Tangent { frames } => {
                let mut seen = vec![false; at.len()];
                for frame in frames {
                    let (left, right) = (frame.left, frame.right);
                    // The norm of a pair is taken when its left factor's traces are complete: only
                    // in a pair of the model are the right one's complete then.
                    if !pairs.contains(&(left, right)) || std::mem::replace(&mut seen[left], true) {
                        return refuse(format!(
                            "({left}, {right}) is not a low-rank pair of the model, or comes twice"
                        ));
                    }
                    let rank = at[left].cols();
                    let square = [rank, rank];
                    let fits = at[right].cols() == rank
                        && frame.left_basis.shape() == at[left].shape()
                        && frame.right_basis.shape() == at[right].shape()
                        && frame.left_inverse.shape() == square
                        && frame.right_inverse.shape() == square;
                    if !fits {
                        return refuse(format!(
                            "the frame of the pair ({left}, {right}) has other shapes"
                        ));
                    }
                    if !belongs(&frame.left_basis, &frame.left_inverse, &at[left])
                        || !belongs(&frame.right_basis, &frame.right_inverse, &at[right])
                    {
                        return refuse(format!(
                            "the frame of the pair ({left}, {right}) does not belong to its factors"
                        ));
                    }
                    if blocks.of(left) != blocks.of(right) {
                        return refuse(format!("the pair ({left}, {right}) must be in one block"));
                    }
                }
                Ok(())
            }
        }
    }

    /// Refuses frames that are not exactly those of the parameters.
    ///
    /// The sensitivity of a sum depends on them, so the curator computes them again.
    ///
    /// # Errors
    /// Names the pair whose frame differs.
    pub fn check_frames(&self, at: &Params) -> Result<(), Refused> {
        let Self::Tangent { frames } = self else { return Ok(()) };
        frames.iter().try_for_each(|frame| match Frame::new(at, frame.left, frame.right) {
            Ok(own) if own == *frame => Ok(()),
            _ => Err(Refused::Query(format!(
                "the frame of the pair ({}, {}) does not belong to its factors",
                frame.left, frame.right
            ))),
        })
    }
}

/// Whether Q has orthonormal columns and is A R⁻¹, up to rounding.
fn belongs(basis: &Array, inverse: &Array, factor: &Array) -> bool {
    let rank = basis.cols();
    let inner = product(basis.view().t(), basis.view());
    let made = product(factor.view(), inverse.view());
    // Tests for the good case: NaN fails.
    let near = |a: f32, b: f32| (a - b).abs() < TOLERANCE;
    inner
        .data()
        .iter()
        .enumerate()
        .all(|(i, &x)| near(x, if i % (rank + 1) == 0 { 1.0 } else { 0.0 }))
        && made.data().iter().zip(basis.data()).all(|(&a, &b)| near(a, b))
}
