//! Validation of a geometry and its blocks against the parameters.

use crate::{Blocks, Frame, Geometry, Params, Refused};
use tensor::Array;
use tensor::matmul::product;

/// Largest difference between an element of a frame and its definition.
///
/// Rounding in f32 stays well below it, even at the worst condition that [`Frame::new`] accepts.
const TOLERANCE: f32 = 1e-3;

impl Geometry {
    /// Validates shapes, values and frames against the blocks and the parameters.
    ///
    /// `pairs` are the low-rank pairs of the model. Only these have a tangent space.
    ///
    /// # Errors
    /// If one of them is invalid; the message says which.
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
                let same_shapes = |other: &Params| {
                    other.len() == at.len()
                        && other.iter().zip(at.iter()).all(|(a, b)| a.shape() == b.shape())
                };
                if !same_shapes(center) || !same_shapes(scale) {
                    return refuse(
                        "center and scale: shapes differ from those of the parameters".into(),
                    );
                }
                // Tests for the valid case, so that NaN is refused.
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
                    // Engines compute the norm of a pair together with its left factor. Only in a
                    // pair of the model is the gradient of the right factor complete by then.
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
                    if !is_basis_of(&frame.left_basis, &frame.left_inverse, &at[left])
                        || !is_basis_of(&frame.right_basis, &frame.right_inverse, &at[right])
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

    /// Recomputes the frames from the parameters and refuses any that differ.
    ///
    /// The sensitivity of a sum depends on the frames, so the curator does not rely on the query.
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

/// Whether the basis Q has orthonormal columns and is A R⁻¹ for the factor A, up to rounding.
fn is_basis_of(basis: &Array, inverse: &Array, factor: &Array) -> bool {
    let rank = basis.cols();
    let gram = product(basis.view().t(), basis.view());
    let recomputed = product(factor.view(), inverse.view());
    // Tests for the valid case, so that NaN is refused.
    let near = |a: f32, b: f32| (a - b).abs() < TOLERANCE;
    gram.data()
        .iter()
        .enumerate()
        .all(|(i, &x)| near(x, if i % (rank + 1) == 0 { 1.0 } else { 0.0 }))
        && recomputed.data().iter().zip(basis.data()).all(|(&a, &b)| near(a, b))
}
