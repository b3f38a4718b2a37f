//! Gram matrices of a few rows: the inner products of all pairs of an example's tokens.
//!
//! The squared norm of an example's weight gradient Σ_t d_t ⊗ x_t is Σ_{s,t} (x_s·x_t)(d_s·d_t) (Goodfellow 2015; Li et al. 2022), so it needs no
//! gradient, only two Gram matrices. They are symmetric: only the upper half is computed, which no product of the usual kind does.

use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Rows of a matrix whose rows are `stride` apart: the columns `first .. first + width`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The numbers, from the first row on.
    pub data: &'a [f32],
    /// How many rows.
    pub rows: usize,
    /// Width of a row of the matrix.
    pub stride: usize,
    /// First column.
    pub first: usize,
    /// How many columns.
    pub width: usize,
}

impl Rows<'_> {
    #[inline(always)]
    fn part(&self, row: usize, from: usize, to: usize) -> &[f32] {
        &self.data[row * self.stride + self.first + from..row * self.stride + self.first + to]
    }
}

/// Columns that are worked through for all pairs of rows before the next ones, so that they stay in the nearest caches.
const STRETCH: usize = 768;
/// Rows and columns of a tile: twelve sums, three numbers of one side and one of the other fill the sixteen registers of AVX2.
const TALL: usize = 3;
const WIDE: usize = 4;

/// `out[s, t] = x_s · x_t` for s ≤ t; what lies below the diagonal is unspecified. `out` is `rows` × `rows`.
pub fn gram(x: Rows<'_>, out: &mut [f32]) {
    assert_eq!(out.len(), x.rows * x.rows, "a square");
    out.fill(0.0);
    pulp::Arch::new().dispatch(Upper { x, out });
}

struct Upper<'a> {
    x: Rows<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Upper<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, out } = self;
        let mut from = 0;
        while from < x.width {
            let to = (from + STRETCH).min(x.width);
            let mut s = 0;
            while s < x.rows {
                let tall = if x.rows - s >= TALL { TALL } else { 1 };
                let mut t = s;
                while t < x.rows {
                    let wide = if x.rows - t >= WIDE { WIDE } else { 1 };
                    match (tall, wide) {
                        (TALL, WIDE) => three_by_four(simd, x, s, t, from..to, out),
                        (TALL, _) => three_by_one(simd, x, s, t, from..to, out),
                        (_, WIDE) => one_by_four(simd, x, s, t, from..to, out),
                        _ => one_by_one(simd, x, s, t, from..to, out),
                    }
                    t += wide;
                }
                s += tall;
            }
            from = to;
        }
    }
}

/// A tile of products. Its sums are variables, not an array: the compiler keeps them in registers only then.
macro_rules! tile {
    ($name:ident, [$($left:ident $i:literal)*], [$($right:ident $j:literal [$($sum:ident $by:ident $of:literal)*])*]) => {
        #[inline(always)]
        fn $name<S: Simd>(simd: S, x: Rows<'_>, s: usize, t: usize, columns: Range<usize>, out: &mut [f32]) {
            $(let $left = S::as_simd_f32s(x.part(s + $i, columns.start, columns.end));)*
            $(let $right = S::as_simd_f32s(x.part(t + $j, columns.start, columns.end));)*
            $($(let mut $sum = simd.splat_f32s(0.0);)*)*
            {
                let count = columns.len() / S::F32_LANES;
                // All are as long: said once here, so that no index is checked in the loop.
                $(let $left = &$left.0[..count];)*
                $(let $right = &$right.0[..count];)*
                for k in 0..count {
                    $(let $left = $left[k];)*
                    $(
                        let $right = $right[k];
                        $($sum = simd.mul_add_f32s($by, $right, $sum);)*
                    )*
                }
            }
            $($(
                let mut sum = simd.reduce_sum_f32s($sum);
                for (a, b) in $by.1.iter().zip($right.1) {
                    sum += a * b;
                }
                out[(s + $of) * x.rows + t + $j] += sum;
            )*)*
        }
    };
}

tile!(three_by_four, [a 0 b 1 c 2], [
    p 0 [ap a 0 bp b 1 cp c 2]
    q 1 [aq a 0 bq b 1 cq c 2]
    r 2 [ar a 0 br b 1 cr c 2]
    u 3 [au a 0 bu b 1 cu c 2]
]);
tile!(three_by_one, [a 0 b 1 c 2], [p 0 [ap a 0 bp b 1 cp c 2]]);
tile!(one_by_four, [a 0], [p 0 [ap a 0] q 1 [aq a 0] r 2 [ar a 0] u 3 [au a 0]]);
tile!(one_by_one, [a 0], [p 0 [ap a 0]]);

/// Σ_{s,t} a[s,t]·b[s,t] of two symmetric matrices of which the upper halves are given.
pub fn contract(a: &[f32], b: &[f32], rows: usize) -> f64 {
    let (mut diagonal, mut above) = (0.0, 0.0);
    for s in 0..rows {
        let (a, b) = (&a[s * rows + s..(s + 1) * rows], &b[s * rows + s..(s + 1) * rows]);
        diagonal += f64::from(a[0]) * f64::from(b[0]);
        above += a[1..].iter().zip(&b[1..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    }
    diagonal + 2.0 * above
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_upper_half_of_the_products(rows in 0usize..14, width in 0usize..1700, first in 0usize..3) {
            let stride = first + width + 1;
            let data: Vec<f32> = (0..rows * stride).map(|i| (i as f32 * 0.77).sin()).collect();
            let x = Rows { data: &data, rows, stride, first, width };
            let mut out = vec![f32::NAN; rows * rows];
            gram(x, &mut out);
            for s in 0..rows {
                for t in s..rows {
                    let expected: f64 = x.part(s, 0, width).iter().zip(x.part(t, 0, width)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    prop_assert!((expected - f64::from(out[s * rows + t])).abs() < 1e-3, "{s} {t}: {expected} {}", out[s * rows + t]);
                }
            }
        }

        #[test]
        fn contraction_is_the_norm_of_the_outer_product(rows in 0usize..9, a in 1usize..20, b in 1usize..20) {
            let x: Vec<f32> = (0..rows * a).map(|i| (i as f32 * 0.77).sin()).collect();
            let d: Vec<f32> = (0..rows * b).map(|i| (i as f32 * 0.31).cos()).collect();
            let (mut gx, mut gd) = (vec![0.0; rows * rows], vec![0.0; rows * rows]);
            gram(Rows { data: &x, rows, stride: a, first: 0, width: a }, &mut gx);
            gram(Rows { data: &d, rows, stride: b, first: 0, width: b }, &mut gd);
            let mut expected = 0.0;
            for i in 0..a {
                for j in 0..b {
                    let g: f64 = (0..rows).map(|t| f64::from(x[t * a + i]) * f64::from(d[t * b + j])).sum();
                    expected += g * g;
                }
            }
            prop_assert!((contract(&gx, &gd, rows) - expected).abs() < 1e-4 * (1.0 + expected));
        }
    }
}
