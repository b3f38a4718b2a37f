//! Coordinates in which per-example gradients are clipped.
//!
//! A gradient is encoded into coordinates and clipped there in L2; the sum gets isotropic noise and
//! is decoded. The clip bound is the sensitivity for every encoding. All encodings are affine, so
//! the weighted sum of encoded gradients can be computed from the weighted sum of gradients, and an
//! engine computes encoded norms only.

use crate::{Blocks, Params, TensorMap};
use tensor::{Array, Error, linalg};

/// An encoding of gradients into coordinates, made of public values.
#[derive(Clone, Debug, PartialEq)]
pub enum Geometry {
    /// x = g
    Identity,
    /// x = (g − center)/scale, element by element.
    Affine {
        /// The value subtracted.
        center: Params,
        /// The divisor; every element is positive.
        scale: Params,
    },
    /// Low-rank pairs in the tangent space of their product; x = g for other tensors.
    Tangent {
        /// The tangent space of each pair.
        frames: Vec<Frame>,
    },
}

/// The kind of an encoding, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryKind {
    /// [`Geometry::Identity`]
    Identity,
    /// [`Geometry::Affine`]
    Affine,
    /// [`Geometry::Tangent`]
    Tangent,
}

/// Coordinates of the tangent space at Z = A Bᵀ of the matrices of rank r.
///
/// A is m×r and B is n×r, with the thin QR factorisations A = Q_A R_A and B = Q_B R_B. The
/// gradients gA and gB with respect to A and B have the coordinates X = gA R_B⁻¹ and Y⊥ = (I − Q_B
/// Q_Bᵀ) gB R_A⁻¹. They are an isometry: ‖X‖² + ‖Y⊥‖² = ‖P(G)‖² for the projection P(G) of the
/// gradient with respect to Z. This norm is the same for all factors (A R, B R⁻ᵀ) of Z.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Index of the tensor A.
    pub left: usize,
    /// Index of the tensor B.
    pub right: usize,
    /// Q_A, m×r.
    pub left_basis: Array,
    /// Q_B, n×r.
    pub right_basis: Array,
    /// R_A⁻¹, r×r.
    pub left_inverse: Array,
    /// R_B⁻¹, r×r.
    pub right_inverse: Array,
}

impl Geometry {
    /// Returns the kind of the encoding.
    pub fn kind(&self) -> GeometryKind {
        match self {
            Self::Identity => GeometryKind::Identity,
            Self::Affine { .. } => GeometryKind::Affine,
            Self::Tangent { .. } => GeometryKind::Tangent,
        }
    }

    /// Turns Σ c g, a weighted sum of gradients, into Σ c x, that of encoded gradients.
    ///
    /// `weight_sums` has Σ c of each block. Each tensor is encoded by itself, so `sums` may have
    /// some of the tensors only. Sums are in f64, because an affine encoding subtracts values that
    /// are nearly equal.
    pub fn encode_sum(&self, blocks: &Blocks, weight_sums: &[f64], sums: &mut TensorMap<Vec<f64>>) {
        match self {
            Self::Identity => {}
            Self::Affine { center, scale } => {
                for (k, sum) in sums.iter_mut() {
                    let weight_sum = weight_sums[blocks.of(k)];
                    for ((x, &center), &scale) in
                        sum.iter_mut().zip(center[k].data()).zip(scale[k].data())
                    {
                        *x = (*x - weight_sum * f64::from(center)) / f64::from(scale);
                    }
                }
            }
            Self::Tangent { frames } => {
                for frame in frames {
                    if let Some(left) = sums.get_mut(frame.left) {
                        multiply(left, &frame.right_inverse);
                    }
                    if let Some(right) = sums.get_mut(frame.right) {
                        multiply(right, &frame.left_inverse);
                        project_out(right, &frame.right_basis);
                    }
                }
            }
        }
    }

    /// Encodes the gradient of one example, given for all tensors.
    pub fn encode(&self, blocks: &Blocks, gradient: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let mut encoded: TensorMap<Vec<f64>> = gradient.into_iter().enumerate().collect();
        self.encode_sum(blocks, &vec![1.0; blocks.count()], &mut encoded);
        encoded.into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Decodes a released mean: into an estimate of the mean gradient if the encoding is affine.
    ///
    /// Tangent coordinates remain tangent coordinates; only the noise orthogonal to the tangent
    /// space is removed.
    pub fn decode(&self, release: &mut TensorMap) {
        match self {
            Self::Identity => {}
            Self::Affine { center, scale } => {
                for (k, release) in release.iter_mut() {
                    for ((x, &center), &scale) in
                        release.data_mut().iter_mut().zip(center[k].data()).zip(scale[k].data())
                    {
                        *x = scale.mul_add(*x, center);
                    }
                }
            }
            Self::Tangent { frames } => {
                for frame in frames {
                    let Some(right) = release.get_mut(frame.right) else { continue };
                    let mut values: Vec<f64> = right.data().iter().map(|&x| f64::from(x)).collect();
                    project_out(&mut values, &frame.right_basis);
                    right.data_mut().iter_mut().zip(values).for_each(|(x, y)| *x = y as f32);
                }
            }
        }
    }
}

/// Y ← Y R, for a small square R.
fn multiply(y: &mut [f64], r: &Array) {
    let rank = r.cols();
    let mut row = vec![0.0; rank];
    for y in y.chunks_exact_mut(rank.max(1)) {
        row.fill(0.0);
        for (&y, r) in y.iter().zip(r.data().chunks_exact(rank)) {
            row.iter_mut().zip(r).for_each(|(sum, &r)| *sum += y * f64::from(r));
        }
        y.copy_from_slice(&row);
    }
}

/// Y ← (I − Q Qᵀ) Y
fn project_out(y: &mut [f64], q: &Array) {
    let rank = q.cols();
    let mut inner = vec![0.0; rank * rank];
    for (y, q) in y.chunks_exact(rank.max(1)).zip(q.data().chunks_exact(rank.max(1))) {
        for (inner, &q) in inner.chunks_exact_mut(rank).zip(q) {
            inner.iter_mut().zip(y).for_each(|(sum, &y)| *sum += f64::from(q) * y);
        }
    }
    for (y, q) in y.chunks_exact_mut(rank.max(1)).zip(q.data().chunks_exact(rank.max(1))) {
        for (inner, &q) in inner.chunks_exact(rank).zip(q) {
            y.iter_mut().zip(inner).for_each(|(y, &inner)| *y -= f64::from(q) * inner);
        }
    }
}

/// The smallest accepted (s_min/s_max)² of a factor's singular values.
///
/// Below it, rounding dominates the inverses.
const MIN_SQUARED_RATIO: f64 = 1e-6;

impl Frame {
    /// Computes the frame at the factors `params[left]` and `params[right]`.
    ///
    /// # Errors
    /// If a factor is not finite, or does not have full column rank: (s_min/s_max)² ≤ 1e-6 for its
    /// singular values.
    pub fn new(params: &Params, left: usize, right: usize) -> Result<Self, Error> {
        let (left_basis, left_inverse) = factorise(&params[left])?;
        let (right_basis, right_inverse) = factorise(&params[right])?;
        Ok(Self { left, right, left_basis, right_basis, left_inverse, right_inverse })
    }
}

/// Returns Q and R⁻¹ of the thin QR factorisation.
fn factorise(factor: &Array) -> Result<(Array, Array), Error> {
    let rank_error = Error::Rank { rows: factor.rows(), cols: factor.cols() };
    if factor.cols() > factor.rows() {
        return Err(rank_error);
    }
    let (basis, triangle) = linalg::thin_qr(factor)?;
    let (_, values, _) = linalg::svd(&triangle)?;
    let squared_ratio = values
        .first()
        .zip(values.last())
        .map(|(&max, &min)| (f64::from(min) / f64::from(max)).powi(2));
    // Tests for the valid case, so that 0/0 is refused.
    if !squared_ratio.is_none_or(|ratio| ratio > MIN_SQUARED_RATIO) {
        return Err(rank_error);
    }
    Ok((basis, linalg::inverse_upper(&triangle)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: [usize; 2], f: impl Fn(f32, f32) -> f32) -> Array {
        Array::from_fn(shape, |i| f((i / shape[1]) as f32, (i % shape[1]) as f32))
    }

    #[test]
    fn a_frame_needs_full_rank() {
        let good = || array([6, 2], |i, j| (3.0 * i + 7.0 * j + 1.0).sin());
        let nearly =
            |apart: f32| array([8, 2], |i, j| (2.0 * i + 1.0).sin() + apart * j * (5.0 * i).cos());
        let refused = |bad: Array| {
            let params = Params::new(vec![good(), bad]);
            [Frame::new(&params, 0, 1), Frame::new(&params, 1, 0)]
                .iter()
                .all(|frame| matches!(frame, Err(Error::Rank { .. })))
        };
        assert!(Frame::new(&Params::new(vec![good(), nearly(0.1)]), 0, 1).is_ok());
        assert!(
            refused(nearly(0.0)) && refused(nearly(1e-7)) && refused(nearly(5e-4)),
            "columns that are nearly the same"
        );
        assert!(
            refused(array([8, 2], |i, j| 1e-4f32.powf(j) * (3.0 * i + 7.0 * j + 1.0).sin())),
            "columns of very different size"
        );
        assert!(refused(Array::zeros([8, 2])));
        assert!(
            refused(array([2, 3], |i, j| (3.0 * i + 7.0 * j + 1.0).sin())),
            "more columns than rows"
        );
        assert!(
            Frame::new(&Params::new(vec![good(), array([8, 2], |_, _| f32::NAN)]), 0, 1).is_err()
        );
    }
}
