//! Norms of a low-rank pair in tangent coordinates, from the gradients gA and gB of its factors.
//!
//! X = gA R_B⁻¹, Y = gB R_A⁻¹, Y⊥ = Y − Q_B Q_Bᵀ Y; the squared norm is ‖X‖² + ‖Y⊥‖². This is the
//! norm of the result of [`protocol::Geometry::encode_sum`], computed in the same steps. No m×n
//! matrix is needed.

use super::{Intermediates, UNIT, add_margin, direct};
use protocol::Frame;
use std::cell::RefCell;
use tensor::embedding;
use tensor::matmul::{DEPTH, OutputMode, Threads, View, ViewMut, matmul};

thread_local! {
    /// gA, gB, X, Y and Q_Bᵀ Y, reused between calls.
    static SCRATCH: RefCell<[Vec<f32>; 5]> = const { RefCell::new([const { Vec::new() }; 5]) };
}

/// The largest accepted squared ratio of the gradients of the factors to their coordinates.
///
/// Frames with a condition number above 1000 are refused, so at rank 16 the ratio is at most 2¹⁴.
const MAX_SQUARED_RATIO: f64 = (1u64 << 40) as f64;

/// Bounds the error of a product with this many terms, relative to the norms of its factors.
fn product_error(terms: usize) -> f64 {
    (terms.min(DEPTH) + terms.div_ceil(DEPTH) + 2) as f64 * UNIT
}

/// Computes the squared norm of an example's gradient in tangent coordinates.
pub(crate) fn square(intermediates: &Intermediates<'_>, frame: &Frame, example: usize) -> f64 {
    let (m, r) = (frame.left_basis.rows(), frame.left_basis.cols());
    let n = frame.right_basis.rows();
    SCRATCH.with_borrow_mut(|[left, right, x, y, k]| {
        for (param, buffer, rows) in [(frame.left, &mut *left, m), (frame.right, &mut *right, n)] {
            buffer.resize(rows * r, 0.0);
            direct::gradient(intermediates, param, example, |first, part| {
                buffer[first * r..][..part.len()].copy_from_slice(part)
            });
        }
        x.resize(m * r, 0.0);
        y.resize(n * r, 0.0);
        k.resize(r * r, 0.0);
        let (left_inverse, right_inverse) = (frame.left_inverse.data(), frame.right_inverse.data());
        matmul(
            ViewMut::new(x, m, r),
            OutputMode::Overwrite,
            1.0,
            View::new(left, m, r),
            View::new(right_inverse, r, r),
            Threads::One,
        );
        matmul(
            ViewMut::new(y, n, r),
            OutputMode::Overwrite,
            1.0,
            View::new(right, n, r),
            View::new(left_inverse, r, r),
            Threads::One,
        );
        let basis = View::new(frame.right_basis.data(), n, r);
        matmul(
            ViewMut::new(k, r, r),
            OutputMode::Overwrite,
            1.0,
            basis.t(),
            View::new(y, n, r),
            Threads::One,
        );
        matmul(
            ViewMut::new(y, n, r),
            OutputMode::Accumulate,
            -1.0,
            basis,
            View::new(k, r, r),
            Threads::One,
        );
        let norm = |x: &[f32]| embedding::squared_norm(x).sqrt();
        // Errors of the factors' gradients and of the products above: products with r terms, and
        // with n terms and a basis of norm √r.
        let factor = |param: usize, gradient: &[f32], inverse: &[f32]| {
            let rounding = intermediates.rounding(param, example);
            (rounding + product_error(r) * norm(gradient)) * norm(inverse)
        };
        let projection = 2.0
            * (product_error(n) + product_error(r))
            * (r as f64).sqrt()
            * norm(left_inverse)
            * norm(right);
        let margin = factor(frame.left, left, right_inverse)
            + factor(frame.right, right, left_inverse)
            + projection;
        let square = add_margin(embedding::squared_norm(x) + embedding::squared_norm(y), margin);
        // Both gradients come from the gradient of one matrix, so neither is much larger than its
        // coordinates. If that is violated because of underflow, the example is not sound.
        let largest = (norm(left) * norm(right_inverse)).max(norm(right) * norm(left_inverse));
        if largest * largest <= MAX_SQUARED_RATIO * square { square } else { f64::INFINITY }
    })
}
