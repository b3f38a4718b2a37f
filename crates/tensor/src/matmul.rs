//! Matrix products, on the `gemm` crate, behind views that cannot point outside their data.
//!
//! `faer`'s product was measured beside it on the shapes of a training step: as fast for forward products, slower for the gradients by weights (transposed
//! operands), so one of the two serves for all.

use crate::Array;
use crate::simd::{update, vectorised};
use gemm::Parallelism;
use rayon::prelude::*;

/// A matrix inside a slice.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// The whole slice, row after row.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "a {rows}×{cols} matrix");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// `cols` columns, starting at `first`, of rows that are `stride` apart.
    pub fn columns(data: &'a [f32], rows: usize, stride: usize, first: usize, cols: usize) -> Self {
        assert!(first.checked_add(cols).is_some_and(|end| end <= stride), "{cols} columns from {first} on of {stride}");
        assert!(rows.checked_mul(stride).is_some_and(|end| end <= data.len()), "{rows} rows of {stride} in {} numbers", data.len());
        Self { data: data.get(first..).unwrap_or(&[]), rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// Rows for columns.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// The first `rows` rows.
    pub fn first_rows(self, rows: usize) -> Self {
        assert!(rows <= self.rows, "{rows} rows of {}", self.rows);
        Self { rows, ..self }
    }

    /// The rows from `start` up to `end`.
    pub fn some_rows(self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.rows, "rows {start}..{end} of {}", self.rows);
        Self { data: self.data.get(start * self.row_stride..).unwrap_or(&[]), rows: end - start, ..self }
    }

    /// The columns from `start` up to `end`.
    pub fn some_cols(self, start: usize, end: usize) -> Self {
        self.t().some_rows(start, end).t()
    }

    /// Writes the rows of each example, times its weight, to `out`. A row of weight 0 is not read. Columns must be contiguous.
    pub fn scale_rows_into(&self, offsets: &[usize], weights: &[f32], out: &mut [f32]) {
        assert_eq!((out.len(), self.col_stride), (self.rows * self.cols, 1), "room for the rows");
        if self.cols == 0 {
            return;
        }
        let piece = crate::parallel::rows_per_piece(self.rows, self.cols);
        out.par_chunks_mut(piece * self.cols).enumerate().for_each(|(index, out)| {
            for (i, out) in out.chunks_exact_mut(self.cols).enumerate() {
                let row = index * piece + i;
                let weight = weights[offsets.partition_point(|&offset| offset <= row) - 1];
                if weight == 0.0 {
                    out.fill(0.0);
                } else {
                    let from = &self.data[row * self.row_stride..][..self.cols];
                    vectorised(
                        #[inline(always)]
                        || update(out, from, |_, x| weight * x),
                    );
                }
            }
        });
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn fits(&self) -> bool {
        lies_inside((self.rows, self.row_stride), (self.cols, self.col_stride), self.data.len())
    }
}

/// Whether the last element of a matrix, given how many (rows, columns) there are and how far apart they lie, is one of `len` numbers. Sides whose
/// product no machine can hold do not pass: nothing here wraps.
fn lies_inside((rows, row_stride): (usize, usize), (cols, col_stride): (usize, usize), len: usize) -> bool {
    if rows == 0 || cols == 0 {
        return true;
    }
    let last = (rows - 1).checked_mul(row_stride).zip((cols - 1).checked_mul(col_stride)).and_then(|(down, right)| down.checked_add(right));
    last.is_some_and(|last| last < len)
}

/// A matrix inside a slice, to be written. Rows are contiguous, so no two of its elements share a place.
#[derive(Debug)]
pub struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> ViewMut<'a> {
    /// The whole slice, row after row.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "a {rows}×{cols} matrix");
        Self { data, rows, cols, stride: cols }
    }

    /// `cols` columns, starting at `first`, of rows that are `stride` apart.
    pub fn columns(data: &'a mut [f32], rows: usize, stride: usize, first: usize, cols: usize) -> Self {
        assert!(first.checked_add(cols).is_some_and(|end| end <= stride), "{cols} columns from {first} on of {stride}");
        assert!(rows.checked_mul(stride).is_some_and(|end| end <= data.len()), "{rows} rows of {stride} in {} numbers", data.len());
        Self { data: data.get_mut(first..).unwrap_or(&mut []), rows, cols, stride }
    }
}

/// What happens to what the destination held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// It is overwritten, unread.
    Fresh,
    /// The product is added to it.
    Old,
}

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// All threads of the pool.
    All,
    /// The calling one: for products inside a task that is parallel already.
    One,
}

/// `lhs · rhs` in a new array.
pub fn product(lhs: View<'_>, rhs: View<'_>) -> Array {
    let mut out = Array::zeros([lhs.rows, rhs.cols]);
    matmul(ViewMut::new(out.data_mut(), lhs.rows, rhs.cols), Onto::Fresh, 1.0, lhs, rhs, Threads::All);
    out
}

/// Products smaller than this many multiplications are not worth waking another thread for.
const WORTH_SHARING: usize = 1 << 18;

/// `dst = alpha · lhs · rhs`, or that added to `dst`.
pub fn matmul(dst: ViewMut<'_>, onto: Onto, alpha: f32, lhs: View<'_>, rhs: View<'_>, threads: Threads) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    assert_eq!((lhs.rows, rhs.rows, rhs.cols), (m, k, n), "the sides of a product");
    assert!(lhs.fits() && rhs.fits(), "operands inside their data");
    assert!(lies_inside((m, dst.stride), (n, 1), dst.data.len()), "destination inside its data");
    assert!(dst.stride >= n, "rows of the destination apart");
    if m == 0 || n == 0 {
        return;
    }
    let parallelism = match threads {
        Threads::All if m.saturating_mul(n).saturating_mul(k) >= WORTH_SHARING && rayon::current_num_threads() > 1 => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    // SAFETY: the assertions above place every element that gemm touches inside the three slices; `dst` is borrowed
    // mutably, so it overlaps neither operand, and its rows do not overlap each other (stride ≥ n). Slices of f32 are aligned.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.data.as_mut_ptr(),
            1,
            dst.stride as isize,
            onto == Onto::Old,
            lhs.data.as_ptr(),
            lhs.col_stride as isize,
            lhs.row_stride as isize,
            rhs.data.as_ptr(),
            rhs.col_stride as isize,
            rhs.row_stride as isize,
            1.0,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 8) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    proptest! {
        #[test]
        fn it_is_the_product(m in 0usize..40, n in 0usize..40, k in 0usize..40, lt: bool, rt: bool, old: bool, threads: bool) {
            let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * (n + 3), 3));
            let lhs = if lt { View::new(&a, k, m).t() } else { View::new(&a, m, k) };
            let rhs = if rt { View::new(&b, n, k).t() } else { View::new(&b, k, n) };
            let at = |v: &View<'_>, i: usize, j: usize| v.data[i * v.row_stride + j * v.col_stride];
            let mut got = c.clone();
            let onto = if old { Onto::Old } else { Onto::Fresh };
            matmul(ViewMut::columns(&mut got, m, n + 3, 2, n), onto, 0.5, lhs, rhs, if threads { Threads::All } else { Threads::One });
            for i in 0..m {
                for j in 0..n + 3 {
                    let kept = c[i * (n + 3) + j];
                    let expected = if (2..n + 2).contains(&j) {
                        let product: f32 = (0..k).map(|l| at(&lhs, i, l) * at(&rhs, l, j - 2)).sum();
                        0.5 * product + if old { kept } else { 0.0 }
                    } else {
                        kept
                    };
                    prop_assert!((got[i * (n + 3) + j] - expected).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "the sides of a product")]
    fn sides_must_agree() {
        let mut c = [0.0; 4];
        matmul(ViewMut::new(&mut c, 2, 2), Onto::Fresh, 1.0, View::new(&[0.0; 6], 2, 3), View::new(&[0.0; 4], 2, 2), Threads::One);
    }

    /// Sides whose product wraps around to the length of the data must not pass.
    #[test]
    fn sides_do_not_wrap() {
        // Arithmetic that overflows panics under test, but not in a release: the refusal must be ours.
        let refuses = |view: &dyn Fn() -> usize| {
            let refusal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(view)).unwrap_err();
            !refusal.downcast_ref::<String>().map_or("attempt", String::as_str).starts_with("attempt")
        };
        let many = (1usize << 62) + 1;
        assert!(refuses(&|| View::new(&[1.0; 4], many, 4).rows));
        assert!(refuses(&|| ViewMut::new(&mut [1.0; 4], many, 4).rows));
        assert!(refuses(&|| View::columns(&[1.0; 4], many, 4, 0, 4).rows));
        assert!(refuses(&|| ViewMut::columns(&mut [1.0; 4], many, 4, 0, 4).rows));
        assert!(refuses(&|| View::columns(&[1.0; 4], 1, 4, usize::MAX, 4).rows));
        assert!(refuses(&|| ViewMut::columns(&mut [1.0; 4], 1, 4, usize::MAX, 4).rows));
        assert!(!lies_inside((many, 4), (4, 1), 4));
        assert!(lies_inside((2, 4), (4, 1), 8) && !lies_inside((2, 4), (4, 1), 7));
    }

    #[test]
    fn an_empty_inner_side_gives_zero() {
        let mut c = [1.0; 4];
        matmul(ViewMut::new(&mut c, 2, 2), Onto::Fresh, 1.0, View::new(&[], 2, 0), View::new(&[], 0, 2), Threads::One);
        assert_eq!(c, [0.0; 4]);
    }
}
