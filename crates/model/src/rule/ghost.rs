//! Norms of outer products from inner products of rows: ‖Σ_t x_t ⊗ d_t‖² = Σ_{s,t} (x_s·x_t)(d_s·d_t).

use std::cell::RefCell;
use tensor::gram::{Rows, contract, gram};

thread_local! {
    /// Two Gram matrices: kept between calls.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// The squared norm of an example's outer product.
pub(crate) fn square(x: Rows<'_>, d: Rows<'_>) -> f64 {
    // No rows, or no gradient came.
    let rows = d.rows;
    if rows == 0 {
        return 0.0;
    }
    assert_eq!(x.rows, rows, "inputs and gradients of the same rows");
    SCRATCH.with_borrow_mut(|[left, right]| {
        left.resize(rows * rows, 0.0);
        right.resize(rows * rows, 0.0);
        gram(Rows { rows, ..x }, left);
        gram(Rows { rows, ..d }, right);
        contract(left, right, rows)
    })
}

/// Work, in multiplications: half of both squares.
pub(crate) fn cost(rows: usize, a: usize, b: usize) -> f64 {
    0.5 * rows as f64 * (rows + 4) as f64 * (a + b) as f64
}
