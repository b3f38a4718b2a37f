//! Tangent coordinates of a low-rank pair: from the gradients by its factors alone, never an m×n
//! matrix.
//!
//! X = gA R_B⁻¹, Y = gB R_A⁻¹, Y⊥ = Y − Q_B Q_Bᵀ Y; the squared norm is ‖X‖² + ‖Y⊥‖². That is the
//! norm of what [`protocol::Geometry::encode_sum`] makes, step by step.

use super::{Traces, UNIT, direct, enlarged};
use protocol::Frame;
use std::cell::RefCell;
use tensor::embedding;
use tensor::matmul::{DEPTH, OutputMode, Threads, View, ViewMut, matmul};

thread_local! {
    /// gA, gB, X, Y, Q_Bᵀ Y: kept between calls.
    static SCRATCH: RefCell<[Vec<f32>; 5]> = const { RefCell::new([const { Vec::new() }; 5]) };
}

/// How much longer than the coordinates, squared, the gradients by the factors may be: frames of a
/// condition beyond a thousand are refused, so that 2¹⁴ times is the most, at rank 16.
const STRANGERS: f64 = (1u64 << 40) as f64;

/// How far a product of so many terms is off, relative to the norms of its sides.
fn chain(terms: usize) -> f64 {
    (terms.min(DEPTH) + terms.div_ceil(DEPTH) + 2) as f64 * UNIT
}

/// The squared norm of an example's tangent coordinates.
pub(crate) fn square(traces: &Traces<'_>, frame: &Frame, example: usize) -> f64 {
    let (m, r) = (frame.left_basis.rows(), frame.left_basis.cols());
    let n = frame.right_basis.rows();
    SCRATCH.with_borrow_mut(|[left, right, x, y, k]| {
        for (which, buffer, rows) in [(frame.left, &mut *left, m), (frame.right, &mut *right, n)] {
            buffer.resize(rows * r, 0.0);
            direct::gradient(traces, which, example, |first, part| {
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
        // What the factors' gradients are off by, and what the products above round: chains of r
        // terms, and of n terms against a basis of norm √r.
        let factor = |which: usize, gradient: &[f32], inverse: &[f32]| {
            (traces.rounding(which, example) + chain(r) * norm(gradient)) * norm(inverse)
        };
        let project =
            2.0 * (chain(n) + chain(r)) * (r as f64).sqrt() * norm(left_inverse) * norm(right);
        let room = factor(frame.left, left, right_inverse)
            + factor(frame.right, right, left_inverse)
            + project;
        let square = enlarged(embedding::squared_norm(x) + embedding::squared_norm(y), room);
        // Gradients by the factors belong to one matrix, so neither is much longer than its
        // coordinates. If underflow has made them strangers, the example is not sound.
        let longest = (norm(left) * norm(right_inverse)).max(norm(right) * norm(left_inverse));
        if longest * longest <= STRANGERS * square { square } else { f64::INFINITY }
    })
}
