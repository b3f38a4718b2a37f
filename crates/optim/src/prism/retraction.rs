//! A step on the manifold of matrices of rank r.
//!
//! It is a straight step, followed by the best approximation of rank r. No m×n matrix is formed.

use protocol::Refused;
use tensor::matmul::product;
use tensor::{Array, linalg};

/// Singular values whose squares are at most this share of the largest square are lost.
const LOST_SHARE: f64 = 1e-6;

/// The value that replaces lost singular values, as a share of the largest.
const REPLACEMENT_SHARE: f32 = 2e-3;

/// The value that replaces the singular values if all of them are lost.
const REPLACEMENT: f32 = 4e-4;

/// Returns the factors of Z − η (U_A Bᵀ + A U_Bᵀ), truncated to rank r.
///
/// The matrix is [A − ηU_A, −ηA] [B, U_B]ᵀ. See [`balance`] for the factors that are returned.
///
/// # Errors
/// If a value is not finite, or r exceeds the number of rows of a factor.
pub fn retract(
    (a, b): (&Array, &Array),
    (ua, ub): (&Array, &Array),
    rate: f64,
    fresh: impl Fn(usize, &mut [f32]),
) -> Result<(Array, Array, usize), Refused> {
    let rate = rate as f32;
    let left = beside(a, ua, |a, u| (rate.mul_add(-u, a), -rate * a));
    let right = beside(b, ub, |b, u| (b, u));
    truncate((&left, &right), (a, b), fresh)
}

/// Returns balanced factors of Z = A Bᵀ.
///
/// With the singular value decomposition Z = U S Vᵀ they are U S^½ O and V S^½ O, so AᵀA = BᵀB. All
/// factors (A R, B R⁻ᵀ) of Z have the same balanced factors, up to the orthogonal matrix O. O makes
/// them as close as possible to the given factors, so that moments by column stay valid.
///
/// Singular values whose squares are at most 1e-6 of the largest square are lost. They are
/// replaced, in public random directions that `fresh(side, out)` writes; their number is the last
/// value returned.
///
/// # Errors
/// If a value is not finite, or r exceeds the number of rows of a factor.
pub fn balance(
    (a, b): (&Array, &Array),
    fresh: impl Fn(usize, &mut [f32]),
) -> Result<(Array, Array, usize), Refused> {
    truncate((a, b), (a, b), fresh)
}

/// Returns balanced factors of the best approximation of L Rᵀ that has the rank of (A, B).
fn truncate(
    (left, right): (&Array, &Array),
    (a, b): (&Array, &Array),
    fresh: impl Fn(usize, &mut [f32]),
) -> Result<(Array, Array, usize), Refused> {
    let rank = a.cols();
    let (u, s, v) = linalg::product_svd(left, right)?;
    let Some(mut s) = s.get(..rank).map(<[f32]>::to_vec) else {
        return Err(tensor::Error::Rank { rows: a.rows().min(b.rows()), cols: rank }.into());
    };
    let top = |vectors: &Array| {
        Array::from_fn([vectors.rows(), rank], |i| {
            vectors.data()[i / rank * vectors.cols() + i % rank]
        })
    };
    let (mut left, mut right) = (top(&u), top(&v));
    let kept = s
        .iter()
        .filter(|&&value| f64::from(value).powi(2) > LOST_SHARE * f64::from(s[0]).powi(2))
        .count();
    if kept < rank {
        let value = if kept == 0 { REPLACEMENT } else { REPLACEMENT_SHARE * s[0] };
        s[kept..].fill(value);
        left = completed(&left, kept, |out| fresh(0, out))?;
        right = completed(&right, kept, |out| fresh(1, out))?;
    }
    for factor in [&mut left, &mut right] {
        factor
            .data_mut()
            .chunks_exact_mut(rank)
            .for_each(|row| row.iter_mut().zip(&s).for_each(|(x, s)| *x *= s.sqrt()));
    }
    let mut overlap = product(left.view().t(), a.view());
    let other = product(right.view().t(), b.view());
    overlap.data_mut().iter_mut().zip(other.data()).for_each(|(sum, x)| *sum += x);
    let (u, _, v) = linalg::svd(&overlap)?;
    let turn = product(u.view(), v.view().t());
    Ok((product(left.view(), turn.view()), product(right.view(), turn.view()), rank - kept))
}

/// Returns two matrices of the shape of A and U beside each other, computed element by element.
fn beside(a: &Array, u: &Array, f: impl Fn(f32, f32) -> (f32, f32)) -> Array {
    let rank = a.cols();
    Array::from_fn([a.rows(), 2 * rank], |i| {
        let (row, col) = (i / (2 * rank), i % (2 * rank));
        let at = row * rank + col % rank;
        let (first, second) = f(a.data()[at], u.data()[at]);
        if col < rank { first } else { second }
    })
}

/// Replaces all columns after the first `kept` ones by random columns, all orthonormal.
fn completed(columns: &Array, kept: usize, fresh: impl Fn(&mut [f32])) -> Result<Array, Refused> {
    let rank = columns.cols();
    let mut random = Array::zeros(columns.shape());
    fresh(random.data_mut());
    for (random, columns) in
        random.data_mut().chunks_exact_mut(rank).zip(columns.data().chunks_exact(rank))
    {
        random[..kept].copy_from_slice(&columns[..kept]);
    }
    Ok(linalg::thin_qr(&random)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::PublicRandom;

    fn normal(rows: usize, cols: usize, seed: u64) -> Array {
        let mut array = Array::zeros([rows, cols]);
        PublicRandom::from_seed(seed).normals(0, array.data_mut());
        array
    }

    fn fresh(side: usize, out: &mut [f32]) {
        PublicRandom::from_seed(99).derive(side as u64).normals(0, out);
    }

    fn outer(a: &Array, b: &Array) -> Array {
        product(a.view(), b.view().t())
    }

    #[test]
    fn it_is_the_truncated_decomposition() {
        for (m, n, rank, rate) in
            [(9, 7, 3, 0.3), (12, 12, 1, 2.0), (4, 9, 3, 0.5), (5, 5, 5, 0.1), (30, 20, 4, 0.0)]
        {
            let (a, b) = (normal(m, rank, 1), normal(n, rank, 2));
            let (ua, ub) = (normal(m, rank, 3), normal(n, rank, 4));
            let (a1, b1, lost) = retract((&a, &b), (&ua, &ub), rate, fresh).unwrap();
            assert_eq!(lost, 0);
            let mut z = outer(&a, &b);
            for (delta, sign) in [(outer(&ua, &b), -rate as f32), (outer(&a, &ub), -rate as f32)] {
                z.data_mut().iter_mut().zip(delta.data()).for_each(|(z, d)| *z += sign * d);
            }
            let (u, s, v) = linalg::svd(&z).unwrap();
            let k = s.len();
            let best = Array::from_fn([m, n], |i| {
                (0..rank.min(k))
                    .map(|l| u.data()[i / n * k + l] * s[l] * v.data()[i % n * k + l])
                    .sum::<f32>()
            });
            let got = outer(&a1, &b1);
            assert!(
                got.data().iter().zip(best.data()).all(|(a, b)| (a - b).abs() < 2e-4),
                "{m} {n} {rank}"
            );
            // Balanced.
            let (left, right) =
                (product(a1.view().t(), a1.view()), product(b1.view().t(), b1.view()));
            assert!(left.data().iter().zip(right.data()).all(|(a, b)| (a - b).abs() < 2e-4));
        }
    }

    #[test]
    fn balanced_factors_stay_where_they_are() {
        let (a, b, _) = retract(
            (&normal(8, 3, 1), &normal(6, 3, 2)),
            (&normal(8, 3, 3), &normal(6, 3, 4)),
            0.1,
            fresh,
        )
        .unwrap();
        let (a1, b1, _) =
            retract((&a, &b), (&normal(8, 3, 5), &normal(6, 3, 6)), 0.0, fresh).unwrap();
        for (x, y) in [(a, a1), (b, b1)] {
            assert!(x.data().iter().zip(y.data()).all(|(x, y)| (x - y).abs() < 1e-4));
        }
    }

    #[test]
    fn a_lost_rank_is_started_afresh() {
        // Column 2 of both factors is all but gone.
        let thin = |rows: usize, seed| {
            let mut array = normal(rows, 3, seed);
            array.data_mut().iter_mut().skip(2).step_by(3).for_each(|x| *x *= 1e-5);
            array
        };
        let (a, b) = (thin(8, 1), thin(6, 2));
        let zero = (Array::zeros([8, 3]), Array::zeros([6, 3]));
        let (a1, b1, lost) = retract((&a, &b), (&zero.0, &zero.1), 0.1, fresh).unwrap();
        assert_eq!(lost, 1);
        let (_, s, _) = linalg::svd(&outer(&a1, &b1)).unwrap();
        assert!(f64::from(s[2] / s[0]).powi(2) > LOST_SHARE);
        let change = outer(&a, &b)
            .data()
            .iter()
            .zip(outer(&a1, &b1).data())
            .map(|(x, y)| (x - y).abs())
            .fold(0.0, f32::max);
        assert!(change < 3.0 * REPLACEMENT_SHARE * s[0]);
        // Nothing left at all.
        let (a2, b2, lost) = retract((&zero.0, &zero.1), (&zero.0, &zero.1), 0.1, fresh).unwrap();
        assert_eq!(lost, 3);
        assert!(linalg::svd(&outer(&a2, &b2)).unwrap().1[2] > 1e-4);
        assert!(
            retract(
                (&zero.0, &zero.1),
                (&Array::from_fn([8, 3], |_| f32::NAN), &zero.1),
                0.1,
                fresh
            )
            .is_err()
        );
    }
}
