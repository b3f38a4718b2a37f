//! Whether a geometry and a partition into blocks fit the parameters.

use crate::Error;
use protocol::{Blocks, Geometry, Params};

/// Refuses what does not fit.
pub(crate) fn check(geometry: &Geometry, blocks: &Blocks, at: &Params) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::Model(what));
    if blocks.tensors() != at.len() {
        return refuse(format!("blocks of {} tensors for {} parameters", blocks.tensors(), at.len()));
    }
    match geometry {
        Geometry::Identity => Ok(()),
        Geometry::Affine { center, scale } => {
            let same = |other: &Params| other.len() == at.len() && other.iter().zip(at.iter()).all(|(a, b)| a.shape() == b.shape());
            if !same(center) || !same(scale) {
                return refuse("center and scale of other shapes than the parameters".into());
            }
            // Tests for the good case: NaN fails.
            if !scale.iter().all(|tensor| tensor.data().iter().all(|&s| s > 0.0 && s.is_finite())) {
                return refuse("a scale that is not positive".into());
            }
            if !center.iter().all(|tensor| tensor.data().iter().all(|c| c.is_finite())) {
                return refuse("a center that is not finite".into());
            }
            Ok(())
        }
        Geometry::Tangent { frames } => {
            let mut seen = vec![false; at.len()];
            for frame in frames {
                let (left, right) = (frame.left, frame.right);
                if left >= at.len() || right >= at.len() || left == right || seen[left] || seen[right] {
                    return refuse(format!("the pair ({left}, {right}) is not a pair of its own"));
                }
                (seen[left], seen[right]) = (true, true);
                let rank = at[left].cols();
                let square = [rank, rank];
                let fits = at[right].cols() == rank
                    && frame.left_basis.shape() == at[left].shape()
                    && frame.right_basis.shape() == at[right].shape()
                    && frame.left_inverse.shape() == square
                    && frame.right_inverse.shape() == square;
                if !fits {
                    return refuse(format!("the frame of the pair ({left}, {right}) has other sides"));
                }
                if blocks.of(left) != blocks.of(right) {
                    return refuse(format!("the pair ({left}, {right}) must be in one block"));
                }
            }
            Ok(())
        }
    }
}
