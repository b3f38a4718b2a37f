//! Ghost norms: norms of sums of outer products from inner products of rows.
//!
//! ‖Σ_t x_t ⊗ d_t‖² = Σ_{s,t} (x_s·x_t)(d_s·d_t).
//!
//! # Claim
//! A ghost norm is not smaller than the true norm by more than about a part in a thousand. Where
//! this cannot be guaranteed, there is no result, and the gradient must be computed for its norm.
//!
//! # Why
//! With a_st = x_s·x_t and b_st = d_s·d_t let S = Σ_t √(a_tt b_tt), which needs the diagonals only.
//! The error of a computed a_st is at most γ√(a_ss a_tt), where γ = 4.1e-6 ([`tensor::gram`]), and
//! likewise for b_st. Hence the error of the computed square is at most 2γ Σ_{s,t} √(a_ss a_tt b_ss
//! b_tt) = 2γ S². If the computed square is at least θ S², the true one is at most 1 + 2γ/θ times
//! as large, and the norm 1 + γ/θ times: with θ = 4e-3 that is 1.001. For orthogonal rows,
//! the square is at least S² divided by the number of rows. So texts of up to 250 tokens pass
//! unless rows cancel each other, and longer texts pass if rows are correlated.
//!
//! Underflow of f32 products is a second source of errors: each product loses up to 1.4e-45, so an
//! entry loses less than γ·1e-33 for widths up to 2,000,000. Adding 1e-33 to each entry of the
//! diagonals covers this in γ√(a_ss a_tt). Overflow gives values that are not finite, for which
//! there is no result.
//!
//! A table that is also a head has the gradient L + G, of which ⟨L, G⟩ = Σ_v Σ_s d_sv (x_s·r_v) is
//! computed by rows of L. The errors of the dot products are at most γ|x_s||r_v|, so by the
//! Cauchy–Schwarz inequality the error of ⟨L, G⟩ is at most γ S ‖L‖. The claim holds with S + ‖L‖
//! in place of S.
//!
//! # Checked by
//! `tests/cancellation.rs`

use std::cell::RefCell;
use tensor::gram::{Rows, contract, gram};

thread_local! {
    /// Two Gram matrices, reused between calls.
    static SCRATCH: RefCell<[Vec<f64>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// θ: the smallest accepted share of S². Below it, cancellation could make the norm inaccurate.
const MIN_SHARE: f64 = 4e-3;
/// Addend of the entries of a diagonal, which covers underflow.
const UNDERFLOW: f64 = 1e-33;

/// A squared norm with S, which bounds its error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GhostNorm {
    square: f64,
    /// S.
    size: f64,
}

/// Computes the ghost norm of an example's sum of outer products.
pub(crate) fn ghost_norm(x: Rows<'_>, d: Rows<'_>) -> GhostNorm {
    let rows = d.rows;
    // The example has no rows, or no gradient reaches them.
    if rows == 0 {
        return GhostNorm { square: 0.0, size: 0.0 };
    }
    assert_eq!(x.rows, rows, "number of rows of inputs and gradients");
    SCRATCH.with_borrow_mut(|[left, right]| {
        left.resize(rows * rows, 0.0);
        right.resize(rows * rows, 0.0);
        gram(x, left);
        gram(d, right);
        let square = contract(left, right, rows);
        let diagonals = left.iter().zip(right.iter()).step_by(rows + 1);
        let size = diagonals.map(|(a, b)| ((a + UNDERFLOW) * (b + UNDERFLOW)).sqrt()).sum();
        // If a factor is zero, the norm is exactly 0. Otherwise a square of 0 may be an underflow.
        if square == 0.0 && (x.all_zero() || d.all_zero()) {
            GhostNorm { square, size: 0.0 }
        } else {
            GhostNorm { square, size }
        }
    })
}

impl GhostNorm {
    /// Adds the lookups of a tied table, given their squared norm and the inner product of both
    /// uses.
    pub(crate) fn add_lookups(self, square: f64, product: f64) -> Self {
        Self { square: self.square + square + 2.0 * product, size: self.size + square.sqrt() }
    }

    /// Returns the squared norm if it is accurate.
    pub(crate) fn accurate_square(self) -> Option<f64> {
        // Written for the valid case, so that NaN gives `None`.
        (self.square >= MIN_SHARE * self.size * self.size && self.size <= super::MAX_SIZE)
            .then_some(self.square)
    }
}

/// Estimates the cost in multiplications: half of two Gram matrices.
pub(crate) fn cost(rows: usize, a: usize, b: usize) -> f64 {
    0.5 * rows as f64 * (rows + 4) as f64 * (a + b) as f64
}
