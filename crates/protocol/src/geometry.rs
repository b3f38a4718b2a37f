//! Coordinates in which a per-example gradient is clipped.
//!
//! Encode a gradient into coordinates, clip there in L2, sum, add isotropic noise, decode: the clip bound is the sensitivity whatever the encoding. All
//! encodings here are affine, so the sum of encoded gradients is the encoding of the sum, and an engine needs only the norms.

use crate::Params;
use tensor::{Array, Error, linalg};

/// An encoding. It is data, made of public values.
#[derive(Clone, Debug, PartialEq)]
pub enum Geometry {
    /// x = g
    Identity,
    /// x = (g − center)/scale, number by number.
    Affine {
        /// What is taken off.
        center: Params,
        /// What is divided by; every number is positive.
        scale: Params,
    },
    /// Pairs of low-rank factors in the tangent space of their product; all other tensors as they are.
    Tangent {
        /// The pairs.
        frames: Vec<Frame>,
    },
}

/// The tangent space of the matrices of rank r at Z = A Bᵀ, seen from the gradients by A (m×r) and B (n×r).
///
/// With thin factorisations A = Q_A R_A and B = Q_B R_B the coordinates are X = gA R_B⁻¹ and Y⊥ = (I − Q_B Q_Bᵀ) gB R_A⁻¹: an isometry of the tangent
/// space, ‖P(G)‖² = ‖X‖² + ‖Y⊥‖². They do not change when (A, B) is replaced by (A R, B R⁻ᵀ).
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Which tensor A is.
    pub left: usize,
    /// Which tensor B is.
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

impl Frame {
    /// The frame at the factors `params[left]` and `params[right]`.
    ///
    /// # Errors
    /// If a factor has not full column rank, or is not finite.
    pub fn new(params: &Params, left: usize, right: usize) -> Result<Self, Error> {
        let (left_basis, left_triangle) = linalg::thin_qr(&params[left])?;
        let (right_basis, right_triangle) = linalg::thin_qr(&params[right])?;
        Ok(Self {
            left,
            right,
            left_basis,
            right_basis,
            left_inverse: linalg::inverse_upper(&left_triangle)?,
            right_inverse: linalg::inverse_upper(&right_triangle)?,
        })
    }
}
