//! Norms of outer products from inner products of rows: ‖Σ_t x_t ⊗ d_t‖² = Σ_{s,t}
//! (x_s·x_t)(d_s·d_t).
//!
//! # Claim
//! A norm that is found this way is not smaller than the true one by more than about a part in a
//! thousand. Where that is not certain, there is none, and the example's gradient must be made.
//! # Why
//! With a_st = x_s·x_t and b_st = d_s·d_t let S = Σ_t √(a_tt b_tt), which needs the diagonals only.
//! A computed a_st is off by at most γ√(a_ss a_tt), where γ = 4.1e-6 ([`tensor::gram`]), and so is
//! b_st. Hence the computed square is off by at most 2γ Σ_{s,t} √(a_ss a_tt b_ss b_tt) = 2γ S², and
//! where it is at least θ S², the true one is at most 1 + 2γ/θ times as large, the norm 1 + γ/θ
//! times: with θ = 4e-3 that is 1.001. Rows that are orthogonal leave S² over their number, so
//! texts of up to 250 tokens pass whatever is in them, unless tokens cancel each other, and longer
//! ones if tokens have something in common.
//!
//! Products that leave the range of f32 are a second source: each loses up to 1.4e-45, so an entry
//! loses less than γ·1e-33 for widths up to 2,000,000. That is γ√(a_ss a_tt) again if 1e-33 is
//! added to each entry of the diagonals, and so it is. What is too large is not finite, and is not
//! certain either.
//!
//! A table that is also a head has the gradient L + G, of which ⟨L, G⟩ = Σ_v Σ_s d_sv (x_s·r_v) is
//! found row by row of L. The dot products are off by γ|x_s||r_v|, so the product is, by Cauchy and
//! Schwarz, off by at most γ S ‖L‖; with S + ‖L‖ for S the same holds.
//! # Checked by
//! `tests/cancellation.rs`

use std::cell::RefCell;
use tensor::gram::{Rows, contract, gram};

thread_local! {
    /// Two Gram matrices: kept between calls.
    static SCRATCH: RefCell<[Vec<f64>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// θ: the share of S² below which too much may have cancelled.
const CERTAIN: f64 = 4e-3;
/// What is added to the entries of a diagonal: see above.
const FLOOR: f64 = 1e-33;

/// A squared norm, and S, by which its error is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ghost {
    square: f64,
    size: f64,
}

/// An example's outer product.
pub(crate) fn measure(x: Rows<'_>, d: Rows<'_>) -> Ghost {
    let rows = d.rows;
    // No rows, or no gradient came.
    if rows == 0 {
        return Ghost { square: 0.0, size: 0.0 };
    }
    assert_eq!(x.rows, rows, "inputs and gradients of the same rows");
    SCRATCH.with_borrow_mut(|[left, right]| {
        left.resize(rows * rows, 0.0);
        right.resize(rows * rows, 0.0);
        gram(x, left);
        gram(d, right);
        let square = contract(left, right, rows);
        let diagonals = left.iter().zip(right.iter()).step_by(rows + 1);
        let size = diagonals.map(|(a, b)| ((a + FLOOR) * (b + FLOOR)).sqrt()).sum();
        // Nothing came, or it is too small for squares.
        if square == 0.0 && (x.all_zero() || d.all_zero()) {
            Ghost { square, size: 0.0 }
        } else {
            Ghost { square, size }
        }
    })
}

impl Ghost {
    /// The same table's lookups added, given their squared norm and the inner product of both.
    pub(crate) fn and_lookups(self, square: f64, product: f64) -> Self {
        Self { square: self.square + square + 2.0 * product, size: self.size + square.sqrt() }
    }

    /// The squared norm, if it is certain.
    pub(crate) fn certain(self) -> Option<f64> {
        // Tests for the good case: NaN fails.
        (self.square >= CERTAIN * self.size * self.size && self.size <= super::LARGEST)
            .then_some(self.square)
    }
}

/// Work, in multiplications: half of both squares.
pub(crate) fn cost(rows: usize, a: usize, b: usize) -> f64 {
    0.5 * rows as f64 * (rows + 4) as f64 * (a + b) as f64
}
