//! Gram matrices: inner products of all pairs of an example's rows.
//!
//! The squared norm of an example's weight gradient Σ_t d_t ⊗ x_t is Σ_{s,t} (x_s·x_t)(d_s·d_t)
//! (Goodfellow 2015; Li et al. 2022), so it needs no gradient, only two Gram matrices. Only their
//! upper halves are computed, unlike in a general matrix product.

use crate::simd::vectorized;
use crate::tile::Instructions;
use pulp::{Simd, WithSimd};
use std::cell::RefCell;

/// Rows of a matrix whose rows are `stride` apart: the columns `first .. first + width`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The elements, from the first row on.
    pub data: &'a [f32],
    /// The number of rows.
    pub rows: usize,
    /// Width of a row of the matrix.
    pub stride: usize,
    /// First column.
    pub first: usize,
    /// The number of columns.
    pub width: usize,
}

impl Rows<'_> {
    /// Returns whether all elements are zero.
    pub fn all_zero(&self) -> bool {
        (0..self.rows).all(|row| self.part(row, 0, self.width).iter().all(|&x| x == 0.0))
    }

    /// Returns one row.
    pub fn row(&self, row: usize) -> &[f32] {
        self.part(row, 0, self.width)
    }

    #[inline(always)]
    fn part(&self, row: usize, from: usize, to: usize) -> &[f32] {
        &self.data[row * self.stride + self.first + from..row * self.stride + self.first + to]
    }
}

/// Returns the number of columns that are processed together for all pairs of rows.
///
/// A block is copied first, because rows a power of two apart would evict each other from the
/// caches. Within a block sums are f32; sums of blocks are f64. So, with 64 columns for each lane,
/// no product is rounded more than 64 + 3 times, and the error of an entry is at most 4.1e-6 of
/// √(x_s·x_s · x_t·x_t). Typical errors are a tenth of that, because they have both signs. With
/// blocks half as long, it takes a fifth more time.
fn block_width() -> usize {
    64 * match Instructions::best() {
        // The kernel uses eight lanes on either.
        Instructions::Avx512 | Instructions::Avx2 => 8,
        Instructions::Neon => 4,
        Instructions::Portable => 1,
    }
}

/// Padding between the copies of two rows, for the same reason.
const GAP: usize = 16;

thread_local! {
    /// The copied columns, reused between calls.
    static COLUMNS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Rows of a tile. Twelve sums and four operands fill the sixteen registers of AVX2.
const TILE_ROWS: usize = 3;
/// Columns of a tile.
const TILE_COLUMNS: usize = 4;

/// Computes `out[s, t] = x_s · x_t` for s ≤ t; the rest of `out` is unspecified.
///
/// `out` is `rows` × `rows`.
pub fn gram(x: Rows<'_>, out: &mut [f64]) {
    assert_eq!(out.len(), x.rows * x.rows, "length of the Gram matrix");
    out.fill(0.0);
    COLUMNS.with_borrow_mut(|columns| {
        let block = block_width();
        for from in (0..x.width).step_by(block) {
            let width = block.min(x.width - from);
            let stride = width.next_multiple_of(GAP) + GAP;
            if columns.len() < x.rows * stride {
                columns.resize(x.rows * stride, 0.0);
            }
            for (row, copy) in columns.chunks_exact_mut(stride).take(x.rows).enumerate() {
                copy[..width].copy_from_slice(x.part(row, from, from + width));
            }
            let x = Rows { data: columns, rows: x.rows, stride, first: 0, width };
            dispatch(Upper { x, out });
        }
    });
}

fn dispatch(upper: Upper<'_>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(
            #[inline(always)]
            || upper.run(simd, four_by_halves),
        );
    }
    pulp::Arch::new().dispatch(upper);
}

/// Computes four horizontal sums by pairs, with half the instructions of separate sums.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn four_by_halves(simd: pulp::x86::V3, [a, b, c, d]: [pulp::f32x8; 4]) -> [f32; 4] {
    let avx = simd.avx;
    let ab = avx._mm256_hadd_ps(pulp::cast(a), pulp::cast(b));
    let cd = avx._mm256_hadd_ps(pulp::cast(c), pulp::cast(d));
    let all = avx._mm256_hadd_ps(ab, cd);
    pulp::cast(
        simd.sse._mm_add_ps(avx._mm256_castps256_ps128(all), avx._mm256_extractf128_ps::<1>(all)),
    )
}

#[inline(always)]
fn one_by_one_sum<S: Simd>(simd: S, vectors: [S::f32s; 4]) -> [f32; 4] {
    vectors.map(|vector| simd.reduce_sum_f32s(vector))
}

struct Upper<'a> {
    x: Rows<'a>,
    out: &'a mut [f64],
}

impl WithSimd for Upper<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.run(simd, one_by_one_sum);
    }
}

impl Upper<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, four: impl Fn(S, [S::f32s; 4]) -> [f32; 4] + Copy) {
        let Self { x, out } = self;
        let mut s = 0;
        while s < x.rows {
            let tall = if x.rows - s >= TILE_ROWS { TILE_ROWS } else { 1 };
            let mut t = s;
            while t < x.rows {
                let wide = if x.rows - t >= TILE_COLUMNS { TILE_COLUMNS } else { 1 };
                match (tall, wide) {
                    (TILE_ROWS, TILE_COLUMNS) => three_by_four(simd, x, s, t, four, out),
                    (TILE_ROWS, _) => three_by_one(simd, x, s, t, four, out),
                    (_, TILE_COLUMNS) => one_by_four(simd, x, s, t, four, out),
                    _ => one_by_one(simd, x, s, t, four, out),
                }
                t += wide;
            }
            s += tall;
        }
    }
}

/// A tile of products. Its sums are variables instead of an array, to stay in registers.
macro_rules! tile {
    (
        $name:ident,
        $wide:literal,
        [$($right:ident $j:literal [$($own:ident $of:ident)*])*],
        [$($left:ident $i:literal [$($sum:ident $by:ident)*])*]
    ) => {
        #[inline(always)]
        fn $name<S: Simd>(
            simd: S,
            x: Rows<'_>,
            s: usize,
            t: usize,
            four: impl Fn(S, [S::f32s; 4]) -> [f32; 4],
            out: &mut [f64],
        ) {
            $(let $left = S::as_simd_f32s(x.part(s + $i, 0, x.width));)*
            $(let $right = S::as_simd_f32s(x.part(t + $j, 0, x.width));)*
            let zero = simd.splat_f32s(0.0);
            $($(let mut $sum = zero;)*)*
            {
                let count = x.width / S::F32_LANES;
                // Equal lengths, asserted here to remove bounds checks from the loop.
                $(let $left = &$left.0[..count];)*
                $(let $right = &$right.0[..count];)*
                for k in 0..count {
                    // Three operands of one side and one of the other, with the sums, fill all
                    // registers.
                    $(let $left = $left[k];)*
                    $(
                        let $right = $right[k];
                        $($own = simd.mul_add_f32s($of, $right, $own);)*
                    )*
                }
            }
            $({
                let mut vectors = [zero; 4];
                for (vector, sum) in vectors.iter_mut().zip([$($sum),*]) {
                    *vector = sum;
                }
                let mut sums = four(simd, vectors);
                for (sum, right) in sums.iter_mut().zip([$($by.1),*]) {
                    for (a, b) in $left.1.iter().zip(right) {
                        *sum += a * b;
                    }
                }
                let out = &mut out[(s + $i) * x.rows + t..][..$wide];
                for j in 0..$wide {
                    out[j] += f64::from(sums[j]);
                }
            })*
        }
    };
}

tile!(
    three_by_four,
    4,
    [p 0 [ap a bp b cp c] q 1 [aq a bq b cq c] r 2 [ar a br b cr c] u 3 [au a bu b cu c]],
    [a 0 [ap p aq q ar r au u] b 1 [bp p bq q br r bu u] c 2 [cp p cq q cr r cu u]]
);
tile!(three_by_one, 1, [p 0 [ap a bp b cp c]], [a 0 [ap p] b 1 [bp p] c 2 [cp p]]);
tile!(one_by_four, 4, [p 0 [ap a] q 1 [aq a] r 2 [ar a] u 3 [au a]], [a 0 [ap p aq q ar r au u]]);
tile!(one_by_one, 1, [p 0 [ap a]], [a 0 [ap p]]);

/// Returns `Σ a[s, t] · b[s, t]` of two symmetric matrices, given by their upper halves.
pub fn contract(a: &[f64], b: &[f64], rows: usize) -> f64 {
    vectorized(
        #[inline(always)]
        || {
            let (mut diagonal, mut above) = (0.0, [0.0f64; 8]);
            for s in 0..rows {
                let (a, b) = (&a[s * rows + s..(s + 1) * rows], &b[s * rows + s..(s + 1) * rows]);
                diagonal += a[0] * b[0];
                let (a, b) = (a[1..].chunks_exact(8), b[1..].chunks_exact(8));
                for (lane, (a, b)) in a.remainder().iter().zip(b.remainder()).enumerate() {
                    above[lane] += a * b;
                }
                for (a, b) in a.zip(b) {
                    for lane in 0..8 {
                        above[lane] = a[lane].mul_add(b[lane], above[lane]);
                    }
                }
            }
            let mut sum = 0.0;
            for lane in above {
                sum += lane;
            }
            diagonal + 2.0 * sum
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gram_matches_the_definition(
            rows in 0usize..14,
            width in 0usize..1700,
            first in 0usize..3,
        ) {
            let stride = first + width + 1;
            let data: Vec<f32> = (0..rows * stride).map(|i| (i as f32 * 0.77).sin()).collect();
            let x = Rows { data: &data, rows, stride, first, width };
            let mut out = vec![f64::NAN; rows * rows];
            gram(x, &mut out);
            for s in 0..rows {
                for t in s..rows {
                    let expected: f64 = x
                        .part(s, 0, width)
                        .iter()
                        .zip(x.part(t, 0, width))
                        .map(|(a, b)| f64::from(*a) * f64::from(*b))
                        .sum();
                    prop_assert!(
                        (expected - out[s * rows + t]).abs() < 1e-3,
                        "{s} {t}: {expected} \
                        {}",
                        out[s * rows + t]
                    );
                }
            }
        }

        #[test]
        fn contraction_is_the_norm_of_the_outer_product(
            rows in 0usize..9,
            a in 1usize..20,
            b in 1usize..20,
        ) {
            let x: Vec<f32> = (0..rows * a).map(|i| (i as f32 * 0.77).sin()).collect();
            let d: Vec<f32> = (0..rows * b).map(|i| (i as f32 * 0.31).cos()).collect();
            let (mut gx, mut gd) = (vec![0.0; rows * rows], vec![0.0; rows * rows]);
            gram(Rows { data: &x, rows, stride: a, first: 0, width: a }, &mut gx);
            gram(Rows { data: &d, rows, stride: b, first: 0, width: b }, &mut gd);
            let mut expected = 0.0;
            for i in 0..a {
                for j in 0..b {
                    let g: f64 =
                        (0..rows).map(|t| f64::from(x[t * a + i]) * f64::from(d[t * b + j])).sum();
                    expected += g * g;
                }
            }
            prop_assert!((contract(&gx, &gd, rows) - expected).abs() < 1e-4 * (1.0 + expected));
        }
    }
}
