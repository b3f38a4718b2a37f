//! Products that are known to be symmetric: the lower half is computed, the upper half copied.

use crate::matmul::{OutputMode, Threads, View, ViewMut, matmul};

/// Rows that are computed at a time. Fewer waste less beyond the diagonal, more let the product run
/// at full speed.
const ROWS: usize = 128;

/// `dst = alpha · lhs · rhs`, where the caller knows the result to be symmetric. With many rows it
/// takes little more than half of the operations.
///
/// # Panics
/// If the sides do not fit.
pub fn symmetric_product(
    dst: &mut [f32],
    alpha: f32,
    lhs: View<'_>,
    rhs: View<'_>,
    threads: Threads,
) {
    let n = lhs.rows();
    assert_eq!((rhs.cols(), dst.len()), (n, n * n), "the sides of a symmetric product");
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

/// Copies the lower half onto the upper one, tile by tile so that both stay near.
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
    fn it_is_the_product() {
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
