//! Matrix products, behind views that cannot point outside their data.
//!
//! # Claim
//! An element of a product depends only on its row of the left side, its column of the right side
//! and `alpha`. Its bits do not depend on the content, number or order of other rows and columns,
//! on the number of threads, or on the instruction set.
//!
//! # Why
//! An element is a sum over blocks of [`DEPTH`] terms, in increasing order, each of them a chain in
//! a register (`tile.rs`). Where blocks begin depends only on the length of the sum. Everything
//! else (the tile of an element, whether the right side is copied first, the thread) determines
//! when an element is computed, not how.
//!
//! Other libraries choose the kernel, and with it the order of a sum, by the number of rows, so
//! that the presence of a record changes the rounding of other records' activations. Hence this
//! implementation.
//!
//! # Checked by
//! `tests::a_row_does_not_depend_on_the_others`, `tests::threads_do_not_matter`,
//! `tests::an_element_is_a_sum_over_blocks_of_chains`

// Loops are spelled out by index: an adaptor of iterators may be compiled apart, without vectors.
#![allow(clippy::needless_range_loop)]

use crate::Array;
use crate::parallel::Shared;
use crate::tile::{self, Instructions, Kernel, MAX_COLUMNS, Strides, VECTORS, dispatch};
use pulp::Simd;
use rayon::prelude::*;
use std::cell::RefCell;

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
    /// Creates a view of a whole slice, in row-major order.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "a {rows}×{cols} matrix");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// Creates a view of `cols` columns, starting at `first`, of rows that are `stride` apart.
    pub fn columns(data: &'a [f32], rows: usize, stride: usize, first: usize, cols: usize) -> Self {
        assert!(
            first.checked_add(cols).is_some_and(|end| end <= stride),
            "{cols} columns from {first} on of {stride}"
        );
        assert!(
            rows.checked_mul(stride).is_some_and(|end| end <= data.len()),
            "{rows} rows of {stride} in {} elements",
            data.len()
        );
        Self {
            data: data.get(first..).unwrap_or(&[]),
            rows,
            cols,
            row_stride: stride,
            col_stride: 1,
        }
    }

    /// Returns the transpose.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Returns the first `rows` rows.
    pub fn first_rows(self, rows: usize) -> Self {
        assert!(rows <= self.rows, "{rows} rows of {}", self.rows);
        Self { rows, ..self }
    }

    /// Returns the rows from `start` up to `end`.
    pub fn some_rows(self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.rows, "rows {start}..{end} of {}", self.rows);
        Self {
            data: self.data.get(start * self.row_stride..).unwrap_or(&[]),
            rows: end - start,
            ..self
        }
    }

    /// Returns the columns from `start` up to `end`.
    pub fn some_cols(self, start: usize, end: usize) -> Self {
        self.t().some_rows(start, end).t()
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the first element and the strides, for kernels of this crate.
    pub(crate) fn raw(&self) -> (*const f32, Strides) {
        assert!(self.fits(), "a view inside its data");
        (self.data.as_ptr(), Strides { row: self.row_stride, col: self.col_stride })
    }

    fn fits(&self) -> bool {
        lies_inside((self.rows, self.row_stride), (self.cols, self.col_stride), self.data.len())
    }
}

/// Returns whether a matrix of this shape and these strides fits into `len` elements.
///
/// Returns false if a product of the shape overflows.
fn lies_inside(
    (rows, row_stride): (usize, usize),
    (cols, col_stride): (usize, usize),
    len: usize,
) -> bool {
    if rows == 0 || cols == 0 {
        return true;
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((cols - 1).checked_mul(col_stride))
        .and_then(|(down, right)| down.checked_add(right));
    last.is_some_and(|last| last < len)
}

/// A mutable matrix inside a slice.
///
/// Rows are contiguous, so no two elements alias.
#[derive(Debug)]
pub struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> ViewMut<'a> {
    /// Creates a view of a whole slice, in row-major order.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(cols), "a {rows}×{cols} matrix");
        Self { data, rows, cols, stride: cols }
    }

    /// Creates a view of `cols` columns, starting at `first`, of rows that are `stride` apart.
    pub fn columns(
        data: &'a mut [f32],
        rows: usize,
        stride: usize,
        first: usize,
        cols: usize,
    ) -> Self {
        assert!(
            first.checked_add(cols).is_some_and(|end| end <= stride),
            "{cols} columns from {first} on of {stride}"
        );
        assert!(
            rows.checked_mul(stride).is_some_and(|end| end <= data.len()),
            "{rows} rows of {stride} in {} elements",
            data.len()
        );
        Self { data: data.get_mut(first..).unwrap_or(&mut []), rows, cols, stride }
    }
}

/// Whether a product overwrites its destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// The destination is overwritten and not read.
    Overwrite,
    /// The product is added to the destination.
    Accumulate,
}

/// The threads that compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// All threads of the pool.
    All,
    /// The calling thread, for products inside a parallel task.
    One,
}

/// Computes `lhs · rhs` in a new array.
pub fn product(lhs: View<'_>, rhs: View<'_>) -> Array {
    let mut out = Array::zeros([lhs.rows, rhs.cols]);
    matmul(
        ViewMut::new(out.data_mut(), lhs.rows, rhs.cols),
        OutputMode::Overwrite,
        1.0,
        lhs,
        rhs,
        Threads::All,
    );
    out
}

/// Smallest number of multiplications that is worth several threads.
const MIN_PARALLEL_WORK: usize = 1 << 18;

/// Computes `dst = alpha · lhs · rhs`, or adds the product to `dst`.
pub fn matmul(
    dst: ViewMut<'_>,
    onto: OutputMode,
    alpha: f32,
    lhs: View<'_>,
    rhs: View<'_>,
    threads: Threads,
) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    assert_eq!((lhs.rows, rhs.rows, rhs.cols), (m, k, n), "shapes of a product");
    assert!(lhs.fits() && rhs.fits(), "operands inside their data");
    assert!(lies_inside((m, dst.stride), (n, 1), dst.data.len()), "destination inside its data");
    assert!(dst.stride >= n, "rows of the destination apart");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if onto == OutputMode::Overwrite {
            dst.data.chunks_mut(dst.stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    let instructions = Instructions::best();
    let job = Job {
        to: Shared::new(dst.data),
        stride: dst.stride,
        onto,
        alpha,
        a: Source(lhs.data.as_ptr()),
        a_at: Strides { row: lhs.row_stride, col: lhs.col_stride },
        b: Source(rhs.data.as_ptr()),
        b_at: Strides { row: rhs.row_stride, col: rhs.col_stride },
        k,
    };
    let shared = threads == Threads::All
        && m.saturating_mul(n).saturating_mul(k) >= MIN_PARALLEL_WORK
        && rayon::current_num_threads() > 1;
    if !shared {
        for left in (0..n).step_by(GROUP) {
            job.compute(instructions, (0, m), (left, (left + GROUP).min(n)));
        }
        return;
    }
    let tasks = Tasks::new(m, n, rayon::current_num_threads());
    (0..tasks.count()).into_par_iter().with_max_len(1).for_each(|task| {
        let (rows, columns) = tasks.task(task);
        job.compute(instructions, rows, columns);
    });
}

/// Number of terms of a sum that are added in one chain.
///
/// The same number of rows of the right side is copied at a time, so that a tile's share of them
/// fits into the first-level cache.
pub const DEPTH: usize = 256;

/// Number of columns of the right side that are copied together.
///
/// With [`DEPTH`] rows, they fit into the second-level cache while all rows of the left side are
/// processed.
const GROUP: usize = 128;

/// Division of the result into tasks.
struct Tasks {
    rows: usize,
    columns: usize,
    m: usize,
    n: usize,
}

impl Tasks {
    /// Divides a result into a few tasks for each thread.
    ///
    /// Columns are divided first, because a task with some rows of a column copies the whole
    /// column.
    fn new(m: usize, n: usize, threads: usize) -> Self {
        let tasks = 3 * threads;
        let columns = if n >= GROUP * tasks {
            GROUP
        } else {
            n.div_ceil(tasks).next_multiple_of(MAX_COLUMNS).clamp(MAX_COLUMNS, GROUP)
        };
        let across = n.div_ceil(columns);
        let rows = m.div_ceil(tasks.div_ceil(across)).max(MIN_ROWS).next_multiple_of(MIN_ROWS / 2);
        Self { rows, columns, m, n }
    }

    fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns)
    }

    fn task(&self, task: usize) -> ((usize, usize), (usize, usize)) {
        let across = self.n.div_ceil(self.columns);
        let (top, left) = (task / across * self.rows, task % across * self.columns);
        ((top, (top + self.rows).min(self.m)), (left, (left + self.columns).min(self.n)))
    }
}

/// Smallest number of rows for which copying the right side is worthwhile.
///
/// A multiple of the heights of all tiles.
const MIN_ROWS: usize = 48;

/// A pointer to an operand, shared between tasks.
#[derive(Clone, Copy)]
struct Source(*const f32);

// SAFETY: it is only read, and the slice it was made from is borrowed as long as the product is
// computed.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// A product whose shapes have been checked.
#[derive(Clone, Copy)]
struct Job {
    to: Shared,
    stride: usize,
    onto: OutputMode,
    alpha: f32,
    a: Source,
    a_at: Strides,
    b: Source,
    b_at: Strides,
    k: usize,
}

thread_local! {
    /// The copied part of the right side, reused between calls.
    static COPY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Job {
    /// Computes some rows and at most [`GROUP`] columns, which belong to this task.
    fn compute(self, instructions: Instructions, rows: (usize, usize), columns: (usize, usize)) {
        COPY.with_borrow_mut(|copy| {
            if copy.len() < DEPTH * (GROUP + MAX_COLUMNS) {
                copy.resize(DEPTH * (GROUP + MAX_COLUMNS), 0.0);
            }
            dispatch(instructions, Part { job: self, rows, columns, copy });
        });
    }
}

/// Some rows and columns of a product.
struct Part<'a> {
    job: Job,
    rows: (usize, usize),
    columns: (usize, usize),
    copy: &'a mut [f32],
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize>(self, simd: S, _: impl Fn(S, S::f32s) -> S::i32s + Copy) {
        let Self { job, rows, columns, copy } = self;
        let width = VECTORS * S::F32_LANES;
        let panels = (columns.1 - columns.0).div_ceil(width);
        // With few rows, each column of the right side is used only a few times.
        let direct = job.b_at.col == 1 && rows.1 - rows.0 <= 2 * ROWS;
        for depth in (0..job.k).step_by(DEPTH) {
            let k = DEPTH.min(job.k - depth);
            let onto = if depth == 0 { job.onto } else { OutputMode::Accumulate };
            let panel = |index: usize| {
                let left = columns.0 + index * width;
                (
                    left,
                    width.min(columns.1 - left),
                    job.b.0.wrapping_add(depth * job.b_at.row + left * job.b_at.col),
                )
            };
            for index in 0..panels {
                let (_, wide, b) = panel(index);
                if !(direct && wide == width) {
                    // SAFETY: rows depth .. depth + k and these columns are inside the right side,
                    // by the assertions of `matmul`.
                    unsafe {
                        tile::pack(b, job.b_at, k, wide, width, &mut copy[index * DEPTH * width..])
                    };
                }
            }
            let mut top = rows.0;
            while top < rows.1 {
                let tall = ROWS.min(rows.1 - top);
                let a = job.a.0.wrapping_add(top * job.a_at.row + depth * job.a_at.col);
                for index in 0..panels {
                    let (left, wide, b) = panel(index);
                    let (b, stride) = if direct && wide == width {
                        (b, job.b_at.row)
                    } else {
                        (copy[index * DEPTH * width..].as_ptr(), width)
                    };
                    // SAFETY: `tall` rows of the left side from `top` on, and the columns that were
                    // just copied, or lie whole in the right side; `wide` columns of `tall` rows of
                    // the result, which belong to this task.
                    unsafe {
                        let to = |i: usize| job.to.part((top + i) * job.stride + left, wide);
                        match tall {
                            1 => store_tile::<S, 1>(
                                simd, k, a, job.a_at, tall, b, stride, onto, job.alpha, to,
                            ),
                            2 => store_tile::<S, 2>(
                                simd, k, a, job.a_at, tall, b, stride, onto, job.alpha, to,
                            ),
                            3 | 4 => store_tile::<S, 4>(
                                simd, k, a, job.a_at, tall, b, stride, onto, job.alpha, to,
                            ),
                            _ => store_tile::<S, ROWS>(
                                simd, k, a, job.a_at, tall, b, stride, onto, job.alpha, to,
                            ),
                        }
                    }
                }
                top += tall;
            }
        }
    }
}

/// Computes a tile of a product, times `alpha`, and stores it or adds it to the rows `to(i)`.
///
/// # Safety
/// As [`tile::product`]; `to(i)` is row i of the tile for i < rows.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn store_tile<'a, S: Simd, const ROWS: usize>(
    simd: S,
    k: usize,
    a: *const f32,
    at: Strides,
    rows: usize,
    b: *const f32,
    stride: usize,
    onto: OutputMode,
    alpha: f32,
    to: impl Fn(usize) -> &'a mut [f32],
) {
    // SAFETY: guaranteed by the caller.
    let sums = unsafe { tile::product::<S, ROWS, VECTORS>(simd, k, a, at, rows, b, stride) };
    let alpha = simd.splat_f32s(alpha);
    for (i, sums) in sums.iter().enumerate().take(rows) {
        let row = to(i);
        let lanes = S::F32_LANES;
        for (v, &sum) in sums.iter().enumerate() {
            let part = row.get_mut(v * lanes..).unwrap_or(&mut []);
            if part.len() >= lanes {
                let target = part.as_mut_ptr().cast::<S::f32s>();
                // SAFETY: a whole vector lies there.
                unsafe {
                    let new = match onto {
                        OutputMode::Overwrite => simd.mul_f32s(alpha, sum),
                        OutputMode::Accumulate => {
                            simd.mul_add_e_f32s(alpha, sum, target.read_unaligned())
                        }
                    };
                    target.write_unaligned(new);
                }
            } else {
                let new = match onto {
                    OutputMode::Overwrite => simd.mul_f32s(alpha, sum),
                    OutputMode::Accumulate => {
                        simd.mul_add_e_f32s(alpha, sum, simd.partial_load_f32s(part))
                    }
                };
                simd.partial_store_f32s(part, new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 8) % 2001) as f32
                    / 1000.0
                    - 1.0
            })
            .collect()
    }

    proptest! {
        #[test]
        fn matmul_matches_the_definition(
            m in 0usize..40,
            n in 0usize..40,
            k in 0usize..40,
            lt: bool,
            rt: bool,
            old: bool,
            threads: bool,
        ) {
            let (a, b, c) = (values(m * k, 1), values(k * n, 2), values(m * (n + 3), 3));
            let lhs = if lt { View::new(&a, k, m).t() } else { View::new(&a, m, k) };
            let rhs = if rt { View::new(&b, n, k).t() } else { View::new(&b, k, n) };
            let at = |v: &View<'_>, i: usize, j: usize| v.data[i * v.row_stride + j * v.col_stride];
            let mut got = c.clone();
            let onto = if old { OutputMode::Accumulate } else { OutputMode::Overwrite };
            matmul(
                ViewMut::columns(&mut got, m, n + 3, 2, n),
                onto,
                0.5,
                lhs,
                rhs,
                if threads { Threads::All } else { Threads::One },
            );
            for i in 0..m {
                for j in 0..n + 3 {
                    let kept = c[i * (n + 3) + j];
                    let expected = if (2..n + 2).contains(&j) {
                        let product: f32 =
                            (0..k).map(|l| at(&lhs, i, l) * at(&rhs, l, j - 2)).sum();
                        0.5 * product + if old { kept } else { 0.0 }
                    } else {
                        kept
                    };
                    prop_assert!((got[i * (n + 3) + j] - expected).abs() < 1e-4);
                }
            }
        }
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// Returns values of very different magnitudes, which reveal the order of additions.
    fn varied(n: usize, seed: u32) -> Vec<f32> {
        values(n, seed)
            .iter()
            .enumerate()
            .map(|(i, x)| x * 10f32.powi((i * 7919 % 13) as i32 - 6))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// A row of a product has the same bits alone and among others, in any layout.
        #[test]
        fn a_row_does_not_depend_on_the_others(
            m in 1usize..150,
            n in 1usize..150,
            k in 1usize..700,
            lt: bool,
            rt: bool,
            old: bool,
            threads: bool,
            row in 0usize..150,
        ) {
            let row = row % m;
            let (a, b, c) = (varied(m * k, 1), varied(k * n, 2), varied(m * n, 3));
            let turned = |x: &[f32], rows: usize, cols: usize| {
                (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect::<Vec<_>>()
            };
            let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
            let onto = if old { OutputMode::Accumulate } else { OutputMode::Overwrite };
            let threads = if threads { Threads::All } else { Threads::One };
            let lhs = if lt { View::new(&at, k, m).t() } else { View::new(&a, m, k) };
            let rhs = if rt { View::new(&bt, n, k).t() } else { View::new(&b, k, n) };
            let mut all = c.clone();
            matmul(ViewMut::new(&mut all, m, n), onto, 0.7, lhs, rhs, threads);
            let mut alone = c[row * n..][..n].to_vec();
            matmul(
                ViewMut::new(&mut alone, 1, n),
                onto,
                0.7,
                View::new(&a[row * k..][..k], 1, k),
                View::new(&b, k, n),
                Threads::One,
            );
            prop_assert_eq!(bits(&all[row * n..][..n]), bits(&alone));
            // And so is a column.
            let column = row % n;
            let mut narrow: Vec<f32> = (0..m).map(|i| c[i * n + column]).collect();
            matmul(
                ViewMut::new(&mut narrow, m, 1),
                onto,
                0.7,
                lhs,
                rhs.some_cols(column, column + 1),
                Threads::One,
            );
            prop_assert_eq!(
                bits(&narrow),
                bits(&(0..m).map(|i| all[i * n + column]).collect::<Vec<_>>())
            );
        }
    }

    #[test]
    fn threads_do_not_matter() {
        let (m, n, k) = (300, 500, 600);
        let (a, b) = (varied(m * k, 1), varied(k * n, 2));
        let products: Vec<Vec<u32>> = [1, 2, 3, 7]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                bits(pool.install(|| product(View::new(&a, m, k), View::new(&b, k, n))).data())
            })
            .into();
        assert!(products.windows(2).all(|pair| pair[0] == pair[1]));
    }

    /// The claimed order of operations, spelled out.
    #[test]
    fn an_element_is_a_sum_over_blocks_of_chains() {
        let (m, n, k) = (9, 70, 2 * DEPTH + 77);
        let (a, b) = (varied(m * k, 1), varied(k * n, 2));
        for instructions in
            [Instructions::Avx512, Instructions::Avx2, Instructions::Neon, Instructions::Portable]
        {
            if !instructions.available() {
                continue;
            }
            let mut got = vec![0.0; m * n];
            let job = Job {
                to: Shared::new(&mut got),
                stride: n,
                onto: OutputMode::Overwrite,
                alpha: 1.0,
                a: Source(a.as_ptr()),
                a_at: Strides { row: k, col: 1 },
                b: Source(b.as_ptr()),
                b_at: Strides { row: n, col: 1 },
                k,
            };
            job.compute(instructions, (0, m), (0, n));
            for i in 0..m {
                for j in 0..n {
                    let chain = |from: usize| {
                        (from..(from + DEPTH).min(k))
                            .fold(0.0f32, |sum, l| a[i * k + l].mul_add(b[l * n + j], sum))
                    };
                    let expected = (0..k)
                        .step_by(DEPTH)
                        .skip(1)
                        .fold(chain(0), |sum, from| 1f32.mul_add(chain(from), sum));
                    assert_eq!(
                        got[i * n + j].to_bits(),
                        expected.to_bits(),
                        "{instructions:?} {i} {j}"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "shapes of a product")]
    fn shapes_must_match() {
        let mut c = [0.0; 4];
        matmul(
            ViewMut::new(&mut c, 2, 2),
            OutputMode::Overwrite,
            1.0,
            View::new(&[0.0; 6], 2, 3),
            View::new(&[0.0; 4], 2, 2),
            Threads::One,
        );
    }

    /// Shapes whose product overflows to the length of the data must be refused.
    #[test]
    fn overflowing_shapes_are_refused() {
        // Overflow panics in tests, but not in a release build: the check must be explicit.
        let refuses = |view: &dyn Fn() -> usize| {
            let refusal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(view)).unwrap_err();
            !refusal
                .downcast_ref::<String>()
                .map_or("attempt", String::as_str)
                .starts_with("attempt")
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
    fn an_empty_inner_dimension_gives_zero() {
        let mut c = [1.0; 4];
        matmul(
            ViewMut::new(&mut c, 2, 2),
            OutputMode::Overwrite,
            1.0,
            View::new(&[], 2, 0),
            View::new(&[], 0, 2),
            Threads::One,
        );
        assert_eq!(c, [0.0; 4]);
    }
}
