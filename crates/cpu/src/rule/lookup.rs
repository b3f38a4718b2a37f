//! Norms of per-example gradients of an embedding table, of which few rows are nonzero.

use std::cell::RefCell;
use tensor::gram::Rows;
use tensor::{Array, embedding};

thread_local! {
    /// Order of the rows and a row of sums, reused between calls.
    static SCRATCH: RefCell<(Vec<u32>, Vec<f32>)> =
        const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Calls `each(id, gradient)` for every row of the table that an example uses.
fn for_each_row(ids: &[u32], d: Rows<'_>, mut each: impl FnMut(u32, &[f32])) {
    SCRATCH.with_borrow_mut(|(order, row)| {
        embedding::by_index(d.width, ids, d.data, order, row, &mut each)
    });
}

/// Returns Σ g² over the rows that an example uses.
///
/// In an affine geometry, returns the difference to the squared norm of a zero gradient.
pub(crate) fn square(ids: &[u32], d: Rows<'_>, affine: Option<(&Array, &Array)>) -> f64 {
    let mut total = 0.0;
    for_each_row(ids, d, |id, g| {
        total += match affine {
            None => embedding::squared_norm(g),
            Some((center, scale)) => {
                let start = id as usize * d.width;
                let pairs = center.data()[start..].iter().zip(&scale.data()[start..]);
                let difference = |(g, (c, s)): (&f32, (&f32, &f32))| {
                    let (g, c, s) = (f64::from(*g), f64::from(*c), f64::from(*s));
                    (g - 2.0 * c) * g / (s * s)
                };
                g.iter().zip(pairs).map(difference).sum()
            }
        };
    });
    total
}

/// Returns ⟨Σ_t e(id_t) ⊗ r_t, Σ_s d_s ⊗ x_s⟩, the inner product of both uses of a tied table.
pub(crate) fn product_with_outer(ids: &[u32], rows: Rows<'_>, x: Rows<'_>, d: Rows<'_>) -> f64 {
    if d.rows == 0 {
        return 0.0;
    }
    let mut total = 0.0;
    for_each_row(ids, rows, |id, r| {
        for s in 0..d.rows {
            let weight = d.data[s * d.stride + d.first + id as usize];
            let x = &x.data[s * x.stride..][..x.width];
            total += f64::from(weight) * embedding::dot(x, r);
        }
    });
    total
}
