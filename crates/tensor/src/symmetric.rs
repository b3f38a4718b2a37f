//! Matrix products with a symmetric result: one half is computed and mirrored.

use crate::matmul::{OutputMode, Threads, View, ViewMut, matmul};

/// Number of rows in a block: fewer waste less beyond the diagonal, more are faster.
const ROWS: usize = 128;

/// Computes `dst = alpha · lhs · rhs` for a result that is known to be symmetric.
///
/// With many rows it takes little more than half of the operations.
///
/// # Panics
/// If the shapes do not match.
pub fn symmetric_product(
    dst: &mut [f32],
    alpha: f32,
    lhs: View<'_>,
    rhs: View<'_>,
    threads: Threads,
) {
    let n = lhs.rows();
    assert_eq!((rhs.cols(), dst.len()), (n, n * n), "shapes of a symmetric product");
    for start in (0..n).step_by(ROWS) {
        let end = (start + ROWS).min(n);
        let stripe = ViewMut::columns(&mut dst[start * n..end * n], end - start, n, 0, end);
        matmul(
            stripe,
            OutputMode::Overwrite,
            alpha,
            lhs.some_rows(start, end),
            rhs.some_cols(0, end),
            threads,
        );
    }
    mirror(dst, n);
}

/// Copies the lower half onto the upper one, tile by tile for cache locality.
fn mirror(a: &mut [f32], n: usize) {
    const TILE: usize = 32;
    for top in (0..n).step_by(TILE) {
        for left in (0..=top).step_by(TILE) {
            for i in top..(top + TILE).min(n) {
                for j in left..(left + TILE).min(i) {
                    a[j * n + i] = a[i * n + j];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_product_matches_matmul() {
        for (n, k) in [(0, 3), (1, 1), (5, 7), (31, 4), (128, 9), (129, 20), (300, 17)] {
            let a: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 201) as f32 / 100.0 - 1.0).collect();
            let view = View::new(&a, n, k);
            let (mut whole, mut half) = (vec![0.0; n * n], vec![f32::NAN; n * n]);
            matmul(
                ViewMut::new(&mut whole, n, n),
                OutputMode::Overwrite,
                -1.0,
                view,
                view.t(),
                Threads::One,
            );
            symmetric_product(&mut half, -1.0, view, view.t(), Threads::One);
            assert!(whole.iter().zip(&half).all(|(a, b)| (a - b).abs() < 1e-5), "{n} {k}");
            assert!((0..n).all(|i| (0..n).all(|j| half[i * n + j] == half[j * n + i])));
        }
    }
}
