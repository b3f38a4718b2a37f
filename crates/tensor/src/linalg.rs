//! Decompositions of small matrices, on the `faer` crate.
//!
//! They run in f64 on one thread: the matrices have at most a few hundred rows or columns, and the
//! results must be accurate and independent of the number of threads. Only the results are rounded
//! to f32. An array is used as a matrix of `rows()` × `cols()`.

use faer::diag::DiagRef;
use faer::linalg::triangular_inverse::invert_upper_triangular;
use faer::{Mat, MatRef, Par, Side};

use crate::{Array, Error};

/// Computes the thin QR decomposition `(Q, R)` of an m×n matrix with m ≥ n.
///
/// Q is m×n with orthonormal columns, R is n×n, upper triangular, with a diagonal ≥ 0.
///
/// # Errors
/// If an element is not finite, or a result is too large for f32.
///
/// # Panics
/// If there are more columns than rows.
pub fn thin_qr(a: &Array) -> Result<(Array, Array), Error> {
    let operation = "the QR decomposition";
    let (m, n) = (a.rows(), a.cols());
    assert!(m >= n, "a thin QR needs a tall matrix, not {m}×{n}");
    let matrix = widen(operation, a)?;
    if n == 0 {
        return Ok((Array::zeros([m, 0]), Array::zeros([0, 0])));
    }
    let qr = matrix.qr();
    let (mut q, mut r) = (qr.compute_thin_Q(), qr.thin_R().to_owned());
    for i in 0..n {
        if r[(i, i)].is_sign_negative() {
            q.col_mut(i).iter_mut().for_each(|x| *x = -*x);
            r.row_mut(i).subcols_mut(i, n - i).iter_mut().for_each(|x| *x = -*x);
        }
    }
    Ok((narrow(operation, a, q.as_ref())?, narrow(operation, a, r.as_ref())?))
}

/// Computes the singular value decomposition `(U, s, V)` of an m×n matrix U·diag(s)·Vᵀ.
///
/// U is m×k, V is n×k, k = min(m, n), both with orthonormal columns; s decreases. The signs of the
/// columns are arbitrary, but the same for equal inputs.
///
/// # Errors
/// If an element is not finite, the iteration does not converge, or a result is too large for f32.
pub fn svd(a: &Array) -> Result<(Array, Vec<f32>, Array), Error> {
    let operation = "the singular value decomposition";
    let (m, n) = (a.rows(), a.cols());
    let matrix = widen(operation, a)?;
    if m.min(n) == 0 {
        return Ok((Array::zeros([m, 0]), Vec::new(), Array::zeros([n, 0])));
    }
    let (u, s, v) = sorted_svd(&matrix).ok_or_else(|| failed(operation, a))?;
    Ok((
        narrow(operation, a, u.as_ref())?,
        narrow(operation, a, s.as_ref())?.into_data(),
        narrow(operation, a, v.as_ref())?,
    ))
}

/// Computes the singular value decomposition `(U, s, V)` of A·Bᵀ, without forming the product.
///
/// A is m×k, B is n×k, U is m×l, V is n×l, l = min(m, n, k); otherwise as [`svd`]. The product of
/// the triangles of two thin QR decompositions is decomposed. No intermediate result is rounded to
/// f32, so a large A and a small B lose no digits of their product.
///
/// # Errors
/// If an element is not finite, the iteration does not converge, or a result is too large for f32.
///
/// # Panics
/// If the numbers of columns differ.
pub fn product_svd(a: &Array, b: &Array) -> Result<(Array, Vec<f32>, Array), Error> {
    let operation = "the singular value decomposition of a product";
    assert_eq!(a.cols(), b.cols(), "the factors of A·Bᵀ differ in their number of columns");
    let (left, right) = (widen(operation, a)?, widen(operation, b)?);
    if a.cols().min(a.rows()).min(b.rows()) == 0 {
        return Ok((Array::zeros([a.rows(), 0]), Vec::new(), Array::zeros([b.rows(), 0])));
    }
    let (left, right) = (left.qr(), right.qr());
    let core = left.thin_R() * right.thin_R().transpose();
    let (u, s, v) = sorted_svd(&core).ok_or_else(|| failed(operation, a))?;
    Ok((
        narrow(operation, a, (left.compute_thin_Q() * u).as_ref())?,
        narrow(operation, a, s.as_ref())?.into_data(),
        narrow(operation, b, (right.compute_thin_Q() * v).as_ref())?,
    ))
}

/// Decomposes a matrix; the singular values decrease. `None` if the iteration does not converge.
fn sorted_svd(matrix: &Mat<f64>) -> Option<(Mat<f64>, Mat<f64>, Mat<f64>)> {
    let svd = matrix.thin_svd().ok()?;
    let mut order = ascending(svd.S());
    order.reverse();
    let s = Mat::from_fn(order.len(), 1, |i, _| svd.S()[order[i]]);
    Some((columns(svd.U(), &order), s, columns(svd.V(), &order)))
}

/// Computes the eigendecomposition `(values, vectors)` of a symmetric matrix.
///
/// The values increase; the vectors are orthonormal columns, with signs as in [`svd`]. Rounding may
/// have made the two triangles differ a little; their mean is decomposed.
///
/// # Errors
/// If an element is not finite, the iteration does not converge, or a result is too large for f32.
///
/// # Panics
/// If the matrix is not square.
pub fn symmetric_eigen(a: &Array) -> Result<(Vec<f32>, Array), Error> {
    let operation = "the eigendecomposition";
    let n = square(a);
    let matrix = widen(operation, a)?;
    if n == 0 {
        return Ok((Vec::new(), Array::zeros([0, 0])));
    }
    let mean = Mat::from_fn(n, n, |i, j| 0.5 * (matrix[(i, j)] + matrix[(j, i)]));
    let eigen = mean.self_adjoint_eigen(Side::Lower).map_err(|_| failed(operation, a))?;
    let order = ascending(eigen.S());
    let values = Mat::from_fn(n, 1, |i, _| eigen.S()[order[i]]);
    Ok((
        narrow(operation, a, values.as_ref())?.into_data(),
        narrow(operation, a, columns(eigen.U(), &order).as_ref())?,
    ))
}

/// Computes the inverse of an upper triangular matrix.
///
/// Finite elements below the diagonal are ignored.
///
/// # Errors
/// If an element is not finite, the matrix is singular, or a result is too large for f32.
///
/// # Panics
/// If the matrix is not square.
pub fn inverse_upper(r: &Array) -> Result<Array, Error> {
    let operation = "the triangular inverse";
    let n = square(r);
    let matrix = widen(operation, r)?;
    if n == 0 {
        return Ok(Array::zeros([0, 0]));
    }
    if (0..n).any(|i| matrix[(i, i)] == 0.0) {
        return Err(failed(operation, r));
    }
    let mut inverse = Mat::zeros(n, n);
    invert_upper_triangular(inverse.as_mut(), matrix.as_ref(), Par::Seq);
    narrow(operation, r, inverse.as_ref())
}

/// Returns the indices of the values in increasing order.
///
/// The library sorts them, too, except for those that are rounding errors.
fn ascending(values: DiagRef<'_, f64>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.dim()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    order
}

fn columns(matrix: MatRef<'_, f64>, order: &[usize]) -> Mat<f64> {
    Mat::from_fn(matrix.nrows(), order.len(), |i, j| matrix[(i, order[j])])
}

fn square(a: &Array) -> usize {
    let (m, n) = (a.rows(), a.cols());
    assert_eq!(m, n, "a {m}×{n} matrix is not square");
    n
}

fn failed(operation: &'static str, a: &Array) -> Error {
    Error::Decomposition { operation, rows: a.rows(), cols: a.cols() }
}

/// Converts to f64; refuses elements that are not finite, on which iterations may not converge.
fn widen(operation: &'static str, a: &Array) -> Result<Mat<f64>, Error> {
    if !a.data().iter().all(|x| x.is_finite()) {
        return Err(failed(operation, a));
    }
    let n = a.cols();
    Ok(Mat::from_fn(a.rows(), n, |i, j| f64::from(a.data()[i * n + j])))
}

/// Converts to f32; refuses elements that are not finite there.
fn narrow(operation: &'static str, a: &Array, result: MatRef<'_, f64>) -> Result<Array, Error> {
    let n = result.ncols();
    let array = Array::from_fn([result.nrows(), n], |i| result[(i / n, i % n)] as f32);
    if array.data().iter().all(|x| x.is_finite()) { Ok(array) } else { Err(failed(operation, a)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(m: usize, n: usize, seed: u32) -> Array {
        let number = |i: usize| {
            (((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 8)
                % 2001) as f32
                / 1000.0
                - 1.0
        };
        Array::from_fn([m, n], number)
    }

    fn at(a: &Array, i: usize, j: usize) -> f64 {
        f64::from(a.data()[i * a.cols() + j])
    }

    fn product(a: &Array, b: &Array) -> Array {
        let n = b.cols();
        assert_eq!(a.cols(), b.rows());
        Array::from_fn([a.rows(), n], |i| {
            (0..a.cols()).map(|l| at(a, i / n, l) * at(b, l, i % n)).sum::<f64>() as f32
        })
    }

    fn transpose(a: &Array) -> Array {
        Array::from_fn([a.cols(), a.rows()], |i| at(a, i % a.rows(), i / a.rows()) as f32)
    }

    fn diagonal(s: &[f32]) -> Array {
        Array::from_fn([s.len(), s.len()], |i| {
            if i / s.len() == i % s.len() { s[i / s.len()] } else { 0.0 }
        })
    }

    fn assert_close(a: &Array, b: &Array, tolerance: f32) {
        assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()));
        let worst = a.data().iter().zip(b.data()).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance, "{worst} apart");
    }

    fn assert_orthonormal(q: &Array) {
        assert_close(&product(&transpose(q), q), &diagonal(&vec![1.0; q.cols()]), 1e-6);
    }

    /// Returns the largest magnitude, at least 1e-30, as a scale of errors.
    fn scale(a: &Array) -> f32 {
        a.data().iter().fold(1e-30, |max, x| max.max(x.abs()))
    }

    fn check_qr(a: &Array) {
        let (q, r) = thin_qr(a).unwrap();
        assert_eq!((q.shape(), r.shape()), (&[a.rows(), a.cols()][..], &[a.cols(), a.cols()][..]));
        assert_orthonormal(&q);
        assert_close(&product(&q, &r), a, 4e-6 * scale(a));
        for i in 0..a.cols() {
            assert!(at(&r, i, i).is_sign_positive());
            assert!((0..i).all(|j| at(&r, i, j) == 0.0));
        }
    }

    fn check_svd(a: &Array) {
        let (u, s, v) = svd(a).unwrap();
        let k = a.rows().min(a.cols());
        assert_eq!((u.shape(), s.len(), v.shape()), (&[a.rows(), k][..], k, &[a.cols(), k][..]));
        assert_orthonormal(&u);
        assert_orthonormal(&v);
        assert!(s.windows(2).all(|w| w[0] >= w[1]) && s.iter().all(|&x| x >= 0.0), "{s:?}");
        assert_close(&product(&product(&u, &diagonal(&s)), &transpose(&v)), a, 4e-6 * scale(a));
    }

    fn check_product_svd(a: &Array, b: &Array) {
        let (u, s, v) = product_svd(a, b).unwrap();
        let l = a.rows().min(b.rows()).min(a.cols());
        assert_eq!((u.shape(), s.len(), v.shape()), (&[a.rows(), l][..], l, &[b.rows(), l][..]));
        assert_orthonormal(&u);
        assert_orthonormal(&v);
        assert!(s.windows(2).all(|w| w[0] >= w[1]) && s.iter().all(|&x| x >= 0.0), "{s:?}");
        let whole = product(a, &transpose(b));
        assert_close(
            &product(&product(&u, &diagonal(&s)), &transpose(&v)),
            &whole,
            4e-6 * scale(&whole),
        );
    }

    fn check_eigen(a: &Array) {
        let (values, vectors) = symmetric_eigen(a).unwrap();
        assert_eq!((values.len(), vectors.shape()), (a.rows(), &[a.rows(), a.rows()][..]));
        assert_orthonormal(&vectors);
        assert!(values.windows(2).all(|w| w[0] <= w[1]));
        let back = product(&product(&vectors, &diagonal(&values)), &transpose(&vectors));
        assert_close(&back, a, 4e-6 * scale(a) * a.rows() as f32);
    }

    proptest! {
        #[test]
        fn factors_multiply_to_the_matrix(
            m in 0usize..20,
            n in 0usize..20,
            seed in 0u32..1000,
        ) {
            check_svd(&matrix(m, n, seed));
            check_qr(&matrix(m.max(n), n, seed));
            check_product_svd(&matrix(m, n % 7, seed), &matrix(n, n % 7, seed + 1));
            let a = matrix(n, n, seed);
            check_eigen(&product(&transpose(&a), &a));
        }

        #[test]
        fn low_rank_matrices_are_decomposed(
            m in 1usize..30,
            n in 1usize..30,
            rank in 0usize..5,
            seed in 0u32..1000,
        ) {
            let a = product(&matrix(m, rank, seed), &matrix(rank, n, seed + 1));
            check_svd(&a);
            check_eigen(&product(&a, &transpose(&a)));
            check_qr(&if m >= n { a } else { transpose(&a) });
        }

        #[test]
        fn inverse_times_matrix_is_identity(n in 0usize..40, seed in 0u32..1000) {
            // Elements below the diagonal must not be read.
            let noise = matrix(n, n, seed);
            let r = Array::from_fn([n, n], |i| {
                if i / n == i % n { 2.0 + noise.data()[i] } else { noise.data()[i] }
            });
            let upper = Array::from_fn([n, n], |i| if i / n > i % n { 0.0 } else { r.data()[i] });
            let inverse = inverse_upper(&r).unwrap();
            prop_assert!((0..n * n).all(|i| i / n <= i % n || inverse.data()[i] == 0.0));
            assert_close(
                &product(&upper, &inverse),
                &diagonal(&vec![1.0; n]),
                1e-5 * scale(&inverse),
            );
        }
    }

    #[test]
    fn large_matrices_and_equal_values_are_decomposed() {
        for (m, n) in [(700, 8), (8, 700), (150, 150), (1, 1), (1, 9), (9, 1)] {
            check_svd(&matrix(m, n, 5));
        }
        check_qr(&matrix(700, 64, 5));
        check_qr(&matrix(1, 1, 5));
        let a = matrix(150, 150, 6);
        check_eigen(&Array::from_fn([150, 150], |i| {
            0.5 * (a.data()[i] + a.data()[i % 150 * 150 + i / 150])
        }));
        for n in [1, 2, 50, 130] {
            for equal in
                [diagonal(&vec![1.0; n]), Array::zeros([n, n]), Array::from_fn([n, n], |_| 1.0)]
            {
                check_svd(&equal);
                check_eigen(&equal);
                check_qr(&equal);
            }
        }
    }

    #[test]
    fn decompositions_match_known_values() {
        let a = Array::new([2, 2], vec![2.0, 1.0, 1.0, 2.0]).unwrap();
        let (values, _) = symmetric_eigen(&a).unwrap();
        assert_close(
            &Array::new([2], values).unwrap(),
            &Array::new([2], vec![1.0, 3.0]).unwrap(),
            1e-6,
        );
        let (_, s, _) =
            svd(&Array::new([2, 3], vec![0.0, 3.0, 0.0, -4.0, 0.0, 0.0]).unwrap()).unwrap();
        assert_close(&Array::new([2], s).unwrap(), &Array::new([2], vec![4.0, 3.0]).unwrap(), 1e-6);
        // A 1×1 matrix.
        let one = Array::new([1, 1], vec![-5.0]).unwrap();
        assert_eq!(
            thin_qr(&one).unwrap(),
            (Array::new([1, 1], vec![-1.0]).unwrap(), Array::new([1, 1], vec![5.0]).unwrap())
        );
        assert_eq!(symmetric_eigen(&one).unwrap().0, [-5.0]);
        assert_eq!(inverse_upper(&one).unwrap().data(), [-0.2]);
        // The two triangles are averaged.
        let (values, _) =
            symmetric_eigen(&Array::new([2, 2], vec![2.0, 0.0, 2.0, 2.0]).unwrap()).unwrap();
        assert_close(
            &Array::new([2], values).unwrap(),
            &Array::new([2], vec![1.0, 3.0]).unwrap(),
            1e-6,
        );
    }

    /// A·R and B·R⁻ᵀ have the product of A and B. Here all three are exact in f32, and so is R⁻¹.
    #[test]
    fn the_decomposition_of_a_product_does_not_depend_on_the_scale_of_its_factors() {
        let whole =
            |seed| Array::from_fn([9, 2], |i| (matrix(9, 2, seed).data()[i] * 64.0).round());
        let (a, b) = (whole(1), whole(2));
        let r = Array::new([2, 2], vec![64.0, 192.0, 0.0, 1.0 / 64.0]).unwrap();
        let inverse = Array::new([2, 2], vec![1.0 / 64.0, -192.0, 0.0, 64.0]).unwrap();
        let values = [
            product_svd(&a, &b).unwrap().1,
            product_svd(&product(&a, &r), &product(&b, &transpose(&inverse))).unwrap().1,
        ];
        // With triangles rounded to f32 they are 5e-5 apart.
        assert!((0..2).all(|i| (values[0][i] / values[1][i] - 1.0).abs() < 2e-7), "{values:?}");
    }

    #[test]
    fn triangular_factor_is_unique() {
        let (q, _) = thin_qr(&matrix(30, 12, 1)).unwrap();
        let noise = matrix(12, 12, 2);
        let r = Array::from_fn([12, 12], |i| match i / 12 {
            row if row == i % 12 => 2.0 + noise.data()[i],
            row if row < i % 12 => noise.data()[i],
            _ => 0.0,
        });
        let (q_again, r_again) = thin_qr(&product(&q, &r)).unwrap();
        assert_close(&q_again, &q, 1e-5);
        assert_close(&r_again, &r, 1e-5);
    }

    #[test]
    fn values_at_the_limits_of_f32_are_decomposed() {
        for scale in [1e-44, 1e-30, 1e30] {
            let a = Array::from_fn([6, 6], |i| matrix(6, 6, 3).data()[i] * scale);
            let (u, s, v) = svd(&a).unwrap();
            assert_orthonormal(&u);
            assert_orthonormal(&v);
            assert!(s[0] > 0.5 * scale && s[0] < 10.0 * scale);
            assert_orthonormal(&thin_qr(&a).unwrap().0);
            assert_orthonormal(&symmetric_eigen(&a).unwrap().1);
        }
    }

    #[test]
    fn elements_that_are_not_finite_are_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut a = matrix(5, 5, 1);
            a.data_mut()[13] = bad;
            let refused = |operation: &str, error: Error| {
                let Error::Decomposition { operation: got, rows: 5, cols: 5 } = error else {
                    return false;
                };
                got.contains(operation)
            };
            assert!(refused("QR", thin_qr(&a).unwrap_err()));
            assert!(refused("singular", svd(&a).unwrap_err()));
            assert!(refused("product", product_svd(&a, &matrix(5, 5, 2)).unwrap_err()));
            assert!(refused("product", product_svd(&matrix(5, 5, 2), &a).unwrap_err()));
            assert!(refused("eigen", symmetric_eigen(&a).unwrap_err()));
            assert!(refused("inverse", inverse_upper(&a).unwrap_err()));
            // 1/∞ would be finite, and elements below the diagonal do not affect the result.
            assert!(inverse_upper(&diagonal(&[1.0, bad])).is_err());
            assert!(inverse_upper(&Array::new([2, 2], vec![1.0, 0.0, bad, 1.0]).unwrap()).is_err());
        }
        // Finite inputs with results beyond f32: large norms, and inverses of 0.
        let huge = Array::from_fn([3, 3], |_| 3e38);
        assert!(svd(&huge).is_err() && thin_qr(&huge).is_err() && symmetric_eigen(&huge).is_err());
        for d in [0.0, -0.0, 1e-44] {
            assert!(inverse_upper(&diagonal(&[1.0, d, 1.0])).is_err());
        }
    }

    #[test]
    fn empty_matrices_are_decomposed() {
        let (q, r) = thin_qr(&Array::zeros([4, 0])).unwrap();
        assert_eq!((q.shape(), r.shape()), (&[4, 0][..], &[0, 0][..]));
        let (u, s, v) = svd(&Array::zeros([0, 3])).unwrap();
        assert_eq!((u.shape(), s.len(), v.shape()), (&[0, 0][..], 0, &[3, 0][..]));
        assert!(symmetric_eigen(&Array::zeros([0, 0])).unwrap().0.is_empty());
        assert!(inverse_upper(&Array::zeros([0, 0])).unwrap().is_empty());
    }

    #[test]
    #[should_panic(expected = "tall")]
    fn thin_qr_of_a_wide_matrix_panics() {
        let _ = thin_qr(&Array::zeros([2, 3]));
    }
}
