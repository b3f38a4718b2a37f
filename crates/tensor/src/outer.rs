//! Weighted sums of per-record outer products, Σ_r w_r · Σ_{t ∈ r} x_t ⊗ d_t.
//!
//! # Claim
//! In integer steps of a grid, the result is *exactly* a sum over records of terms, each of which
//! depends only on that record's rows and weight. The integers do not depend on the content, number
//! or order of other records in the batch, on the number of threads, or on the instruction set.
//!
//! # Why
//! A record's rows are multiplied and added in registers (`tile.rs`), in chains of at most
//! [`MAX_CHAIN`] rows, counted from the record's first row; the chains of longer records are added
//! in f64. Then the term is multiplied by its weight and rounded to the grid. Sums of integers do
//! not depend on the order. A record of weight 0 is not read.
//!
//! # Checked by
//! `tests::records_do_not_reach_each_other`, `tests::it_is_the_sum`,
//! `tests::every_instruction_set_gives_the_same_steps`

// Loops are spelled out by index: an adaptor of iterators may be compiled apart, without vectors.
#![allow(clippy::needless_range_loop)]

use crate::matmul::View;
use crate::tile::{self, Instructions, Kernel, MAX_COLUMNS, Strides, VECTORS, dispatch};
use pulp::Simd;
use rayon::prelude::*;
use std::cell::RefCell;

/// Number of rows of one record that are added in one chain of f32 operations.
///
/// The rounding error of a record's gradient is at most this many units of 2⁻²⁴ of Σ_t ‖x_t‖‖d_t‖.
pub const MAX_CHAIN: usize = 512;

/// Terms of fewer steps than this are rounded to 32-bit integers; larger ones in f64.
pub const NARROW: f64 = (1u32 << 26) as f64;
/// Number of records whose 32-bit steps are added before they are widened.
const NARROW_RECORDS: usize = 31;

/// The destination of the sum: a row-major matrix.
pub enum Totals<'a> {
    /// Integer steps.
    Steps(&'a mut [i64], Scale<'a>),
    /// Floating point, for which the claim does not hold.
    Float(&'a mut [f64]),
}

/// The number of steps per unit.
#[derive(Clone, Copy, Debug)]
pub enum Scale<'a> {
    /// One scale, for terms that usually have fewer than [`NARROW`] steps: the fastest.
    Narrow(f32),
    /// One scale, for terms of any size.
    Wide(f32),
    /// One scale for each element.
    Each(&'a [f32]),
}

/// Rounds to the nearest integer, ties to even.
///
/// The result is clamped to ±2⁵⁰; values that are not finite give 0.
#[inline(always)]
pub fn to_steps(x: f64) -> i64 {
    const MAX_STEPS: f64 = (1u64 << 50) as f64;
    // 1.5 · 2⁵²: added to a smaller number, it leaves no bits for a fraction, and the integer in
    // the low bits. Compilers vectorize this form.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    // Written for the valid case, so that NaN gives 0.
    let x = if x.abs() <= f64::MAX { x } else { 0.0 };
    let x = if x > MAX_STEPS { MAX_STEPS } else { x };
    let x = if x < -MAX_STEPS { -MAX_STEPS } else { x };
    ((x + MAGIC).to_bits() as i64).wrapping_sub(MAGIC.to_bits() as i64)
}

/// Adds Σ_r w_r · Σ_{t ∈ r} x_t ⊗ d_t to `totals`.
///
/// `totals` has a row for each column of `x` and a column for each column of `d`. Record r has the
/// rows `offsets[r] .. offsets[r + 1]` and the weight `weights[r]`.
///
/// # Panics
/// If the shapes do not match.
pub fn add_outer(totals: Totals<'_>, x: View<'_>, d: View<'_>, offsets: &[usize], weights: &[f32]) {
    add_outer_with(Instructions::best(), totals, x, d, offsets, weights);
}

fn add_outer_with(
    instructions: Instructions,
    totals: Totals<'_>,
    x: View<'_>,
    d: View<'_>,
    offsets: &[usize],
    weights: &[f32],
) {
    let (records, rows) = crate::parallel::packed(offsets);
    let (tall, wide) = (x.cols(), d.cols());
    assert_eq!(
        (x.rows(), d.rows(), weights.len()),
        (rows, rows, records),
        "rows and weights of all records"
    );
    let elements = tall.checked_mul(wide);
    let (to, scale, len) = match totals {
        Totals::Steps(totals, scale) => {
            if let Scale::Each(each) = scale {
                assert_eq!(each.len(), totals.len(), "a scale for each element");
            }
            (TotalsPtr::Steps(totals.as_mut_ptr()), Some(scale), totals.len())
        }
        Totals::Float(totals) => (TotalsPtr::Float(totals.as_mut_ptr()), None, totals.len()),
    };
    assert_eq!(elements, Some(len), "a total for each element");
    if len == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    let across = wide.div_ceil(GROUP);
    let rows_of_task =
        tall.div_ceil((3 * threads).div_ceil(across)).max(MIN_ROWS).next_multiple_of(MIN_ROWS);
    let down = tall.div_ceil(rows_of_task);
    // A few records at a time, so that their rows fit into the cache. The division does not change
    // the result.
    let mut first = 0;
    while first < records {
        let mut last = first + 1;
        while last < records && offsets[last + 1] - offsets[first] <= BATCH_ROWS {
            last += 1;
        }
        let job = Job {
            to,
            scale,
            stride: wide,
            x,
            d,
            offsets: &offsets[first..=last],
            weights: &weights[first..last],
        };
        let compute = |task: usize| {
            let (top, left) = (task / across * rows_of_task, task % across * GROUP);
            let part = ((top, (top + rows_of_task).min(tall)), (left, (left + GROUP).min(wide)));
            SCRATCH.with_borrow_mut(|scratch| {
                dispatch(instructions, Part { job, rows: part.0, columns: part.1, scratch })
            });
        };
        if tall.saturating_mul(wide).saturating_mul(offsets[last] - offsets[first])
            < MIN_PARALLEL_WORK
        {
            (0..down * across).for_each(compute);
        } else {
            (0..down * across).into_par_iter().with_max_len(1).for_each(compute);
        }
        first = last;
    }
}

/// Number of columns of a task.
const GROUP: usize = 128;
/// Smallest number of rows of a task: a multiple of the heights of all tiles.
const MIN_ROWS: usize = 48;
/// Number of rows of records that are processed together.
const BATCH_ROWS: usize = 1024;
/// Smallest number of multiplications that is worth several threads.
const MIN_PARALLEL_WORK: usize = 1 << 18;

thread_local! {
    /// Copies of some columns of both operands, reused between calls.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// A pointer to the totals.
#[derive(Clone, Copy)]
enum TotalsPtr {
    Steps(*mut i64),
    Float(*mut f64),
}

/// The contribution of some records to a sum.
#[derive(Clone, Copy)]
struct Job<'a> {
    to: TotalsPtr,
    scale: Option<Scale<'a>>,
    stride: usize,
    x: View<'a>,
    d: View<'a>,
    offsets: &'a [usize],
    weights: &'a [f32],
}

// SAFETY: the totals are borrowed mutably as long as a job exists, and every task writes to rows
// and columns of its own.
unsafe impl Send for Job<'_> {}
// SAFETY: as above.
unsafe impl Sync for Job<'_> {}

/// Some rows and columns of a job.
struct Part<'a> {
    job: Job<'a>,
    rows: (usize, usize),
    columns: (usize, usize),
    scratch: &'a mut [Vec<f32>; 2],
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<S: Simd, const ROWS: usize>(
        self,
        simd: S,
        to_int: impl Fn(S, S::f32s) -> S::i32s + Copy,
    ) {
        let Self { job, rows, columns, scratch: [left, right] } = self;
        let width = VECTORS * S::F32_LANES;
        let (first, last) = (job.offsets[0], job.offsets[job.offsets.len() - 1]);
        let count = last - first;
        let panels = (columns.1 - columns.0).div_ceil(width);
        left.resize(left.len().max(count * ROWS), 0.0);
        right.resize(right.len().max(count * width * panels), 0.0);
        for panel in 0..panels {
            let column = columns.0 + panel * width;
            let wide = width.min(columns.1 - column);
            copy_columns(
                job.d,
                (first, last),
                (column, wide),
                width,
                &mut right[panel * count * width..],
            );
        }
        let mut top = rows.0;
        while top < rows.1 {
            let tall = ROWS.min(rows.1 - top);
            copy_columns(job.x, (first, last), (top, tall), ROWS, left);
            for panel in 0..panels {
                let column = columns.0 + panel * width;
                let wide = width.min(columns.1 - column);
                let right = &right[panel * count * width..][..count * width];
                let tile = Tile {
                    job: &job,
                    left: &left[..count * ROWS],
                    right,
                    origin: (top, column),
                    sides: (tall, wide),
                };
                match job.scale {
                    Some(Scale::Narrow(scale)) => tile.narrow::<S, ROWS>(simd, scale, to_int),
                    _ => tile.wide::<S, ROWS>(simd),
                }
            }
            top += tall;
        }
    }
}

/// Copies the columns `from .. from + count` of some rows to rows of `width` elements.
#[inline(always)]
fn copy_columns(
    view: View<'_>,
    (first, last): (usize, usize),
    (from, count): (usize, usize),
    width: usize,
    to: &mut [f32],
) {
    let part = view.some_rows(first, last).some_cols(from, from + count);
    let (data, at) = part.raw();
    // SAFETY: a view lies inside its data.
    unsafe { tile::pack(data, at, last - first, count, width, to) };
}

/// Returns the lanes of a tile's vectors, in row-major order.
///
/// The small loop is unrolled as a whole, so that the array stays in registers.
#[inline(always)]
fn to_lanes<V: pulp::bytemuck::Pod, T: pulp::bytemuck::Pod, const ROWS: usize>(
    tile: [[V; VECTORS]; ROWS],
) -> [[T; MAX_COLUMNS]; ROWS] {
    let length = size_of::<V>() / size_of::<T>();
    assert!(VECTORS * length <= MAX_COLUMNS);
    let mut lanes = [[T::zeroed(); MAX_COLUMNS]; ROWS];
    for i in 0..ROWS {
        for v in 0..VECTORS {
            // SAFETY: so many lanes of this size are a vector, and by the assertion they are inside
            // the row.
            unsafe {
                lanes[i].as_mut_ptr().add(v * length).cast::<V>().write_unaligned(tile[i][v])
            };
        }
    }
    lanes
}

/// Returns whether all lanes are below a limit.
#[inline(always)]
fn all_below<V: pulp::bytemuck::Pod>(vector: V, limit: u32) -> bool {
    let lanes: &[u32] = pulp::bytemuck::cast_slice(std::slice::from_ref(&vector));
    let mut largest = 0;
    for i in 0..lanes.len() {
        largest = largest.max(lanes[i]);
    }
    largest < limit
}

/// One tile of the sum.
struct Tile<'a> {
    job: &'a Job<'a>,
    left: &'a [f32],
    right: &'a [f32],
    origin: (usize, usize),
    sides: (usize, usize),
}

impl Tile<'_> {
    /// Computes Σ_t x_t ⊗ d_t over some rows, counted from the first of the job.
    #[inline(always)]
    fn product<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        from: usize,
        to: usize,
    ) -> [[S::f32s; VECTORS]; ROWS] {
        let width = VECTORS * S::F32_LANES;
        let (left, right) =
            (&self.left[from * ROWS..to * ROWS], &self.right[from * width..to * width]);
        let at = Strides { row: 1, col: ROWS };
        // SAFETY: both copies have these rows, of `ROWS` and of `width` elements.
        unsafe {
            tile::product::<S, ROWS, VECTORS>(
                simd,
                to - from,
                left.as_ptr(),
                at,
                ROWS,
                right.as_ptr(),
                width,
            )
        }
    }

    /// Returns the weight and the rows of a record, or no rows for weight 0.
    ///
    /// Rows are counted from the first of the job.
    #[inline(always)]
    fn record(&self, index: usize) -> (f32, usize, usize) {
        let (weight, offsets) = (self.job.weights[index], self.job.offsets);
        let from = offsets[index] - offsets[0];
        (weight, from, if weight == 0.0 { from } else { offsets[index + 1] - offsets[0] })
    }

    /// Returns the part of row i of the totals that the tile covers.
    ///
    /// # Safety
    /// `to` are the totals of this job, and no other slice of this row is in use.
    #[inline(always)]
    unsafe fn row<'t, T>(&self, to: *mut T, i: usize) -> &'t mut [T] {
        assert!(i < self.sides.0);
        // SAFETY: rows and columns of a tile are inside the totals and belong to this task.
        unsafe { std::slice::from_raw_parts_mut(to.add(self.at(i)), self.sides.1) }
    }

    /// Returns the index of row i of the tile in the totals.
    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        (self.origin.0 + i) * self.job.stride + self.origin.1
    }

    /// Adds all records, rounded through 32-bit integers.
    #[inline(always)]
    fn narrow<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        scale: f32,
        to_int: impl Fn(S, S::f32s) -> S::i32s + Copy,
    ) {
        let zero = simd.splat_i32s(0);
        let mut steps = [[zero; VECTORS]; ROWS];
        let mut count = 0;
        for index in 0..self.job.weights.len() {
            let (weight, from, to) = self.record(index);
            if to - from > MAX_CHAIN {
                self.long::<S, ROWS>(simd, weight, from, to);
            } else if to > from {
                let mut terms = self.product::<S, ROWS>(simd, from, to);
                let factor = simd.splat_f32s(weight * scale);
                // The bits of magnitudes, as integers, have the same order, and values that are not
                // finite are larger than all others.
                let (size, mut largest) = (simd.splat_u32s(0x7fff_ffff), simd.splat_u32s(0));
                for i in 0..ROWS {
                    for v in 0..VECTORS {
                        terms[i][v] = simd.mul_f32s(factor, terms[i][v]);
                        largest = simd.max_u32s(
                            largest,
                            simd.and_u32s(simd.transmute_u32s_f32s(terms[i][v]), size),
                        );
                    }
                }
                if !all_below(largest, (NARROW as f32).to_bits()) {
                    // A large term of a tensor with several uses, or a term that is not finite
                    // (which adds nothing), is handled in f64. That depends on this record alone.
                    self.long::<S, ROWS>(simd, weight, from, to);
                    continue;
                }
                for i in 0..ROWS {
                    for v in 0..VECTORS {
                        steps[i][v] = simd.add_i32s(steps[i][v], to_int(simd, terms[i][v]));
                    }
                }
                count += 1;
            }
            if count == NARROW_RECORDS {
                self.widen(steps);
                steps = [[zero; VECTORS]; ROWS];
                count = 0;
            }
        }
        if count > 0 {
            self.widen(steps);
        }
    }

    /// Adds 32-bit steps to the totals.
    #[inline(always)]
    fn widen<V: pulp::bytemuck::Pod, const ROWS: usize>(&self, steps: [[V; VECTORS]; ROWS]) {
        let TotalsPtr::Steps(to) = self.job.to else { return };
        let steps: [[i32; MAX_COLUMNS]; ROWS] = to_lanes(steps);
        for i in 0..ROWS.min(self.sides.0) {
            // SAFETY: the totals of this job; one slice at a time.
            let row = unsafe { self.row(to, i) };
            for j in 0..row.len().min(MAX_COLUMNS) {
                row[j] = row[j].wrapping_add(i64::from(steps[i][j]));
            }
        }
    }

    /// Adds all records, in f64.
    #[inline(always)]
    fn wide<S: Simd, const ROWS: usize>(&self, simd: S) {
        for index in 0..self.job.weights.len() {
            let (weight, from, to) = self.record(index);
            self.long::<S, ROWS>(simd, weight, from, to);
        }
    }

    /// Adds one record, in f64 from chain to chain.
    #[inline(always)]
    fn long<S: Simd, const ROWS: usize>(&self, simd: S, weight: f32, from: usize, to: usize) {
        let mut total = [[0.0f64; MAX_COLUMNS]; ROWS];
        let mut start = from;
        while start < to {
            let end = (start + MAX_CHAIN).min(to);
            let sums: [[f32; MAX_COLUMNS]; ROWS] =
                to_lanes(self.product::<S, ROWS>(simd, start, end));
            for i in 0..ROWS {
                for j in 0..MAX_COLUMNS {
                    total[i][j] += f64::from(sums[i][j]);
                }
            }
            start = end;
        }
        if from < to {
            let weight = f64::from(weight);
            for i in 0..ROWS.min(self.sides.0) {
                self.add(i, weight, &total[i]);
            }
        }
    }

    /// Adds a row of a record's term to the totals, rounded to steps if they are integers.
    #[inline(always)]
    fn add(&self, i: usize, weight: f64, term: &[f64; MAX_COLUMNS]) {
        match (self.job.to, self.job.scale) {
            (TotalsPtr::Float(to), _) => {
                // SAFETY: the totals of this job; one slice at a time.
                let row = unsafe { self.row(to, i) };
                for j in 0..row.len().min(MAX_COLUMNS) {
                    row[j] += weight * term[j];
                }
            }
            (TotalsPtr::Steps(to), Some(Scale::Narrow(scale) | Scale::Wide(scale))) => {
                // SAFETY: the totals of this job; one slice at a time.
                let row = unsafe { self.row(to, i) };
                let weight = weight * f64::from(scale);
                for j in 0..row.len().min(MAX_COLUMNS) {
                    row[j] = row[j].wrapping_add(to_steps(weight * term[j]));
                }
            }
            (TotalsPtr::Steps(to), Some(Scale::Each(each))) => {
                // SAFETY: the totals of this job; one slice at a time.
                let row = unsafe { self.row(to, i) };
                let each = &each[self.at(i)..][..row.len()];
                for j in 0..row.len().min(MAX_COLUMNS) {
                    row[j] = row[j].wrapping_add(to_steps(weight * term[j] * f64::from(each[j])));
                }
            }
            (TotalsPtr::Steps(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let one = |i: u32| {
            ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 8) % 2001) as f32 / 1000.0
                - 1.0
        };
        (0..n as u32).map(|i| one(i) * 10f32.powi((i * 7919 % 7) as i32 - 5)).collect()
    }

    fn offsets(lengths: &[usize]) -> Vec<usize> {
        std::iter::once(0)
            .chain(lengths.iter().scan(0, |sum, length| {
                *sum += length;
                Some(*sum)
            }))
            .collect()
    }

    /// Returns the steps of some records.
    fn steps(
        instructions: Instructions,
        x: View<'_>,
        d: View<'_>,
        offsets: &[usize],
        weights: &[f32],
        scale: Scale<'_>,
    ) -> Vec<i64> {
        let mut totals = vec![0; x.cols() * d.cols()];
        add_outer_with(instructions, Totals::Steps(&mut totals, scale), x, d, offsets, weights);
        totals
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// A record adds the same integers alone and among others; weight 0 is not read.
        #[test]
        fn records_do_not_reach_each_other(
            a in 1usize..70,
            b in 1usize..150,
            lengths in prop::collection::vec(0usize..40, 1..50),
            long in 500usize..1100,
            seed in 0u32..99,
        ) {
            let mut lengths = lengths;
            lengths.push(long);
            let offsets = offsets(&lengths);
            let rows = *offsets.last().unwrap();
            let (mut x, d) = (values(rows * a, seed), values(rows * b, seed + 1));
            let weights: Vec<f32> = (0..lengths.len())
                .map(|r| if r == 1 { 0.0 } else { 0.1 + (r % 5) as f32 })
                .collect();
            x[offsets[1] * a..offsets[2] * a].fill(f32::NAN);
            let each: Vec<f32> = (0..a * b).map(|i| 1000.0 + i as f32).collect();
            for scale in [Scale::Narrow(4096.0), Scale::Wide(1e6), Scale::Each(&each)] {
                let all = steps(
                    Instructions::best(),
                    View::new(&x, rows, a),
                    View::new(&d, rows, b),
                    &offsets,
                    &weights,
                    scale,
                );
                let mut parts = vec![0; a * b];
                for (r, &length) in lengths.iter().enumerate() {
                    let (from, to) = (offsets[r], offsets[r + 1]);
                    let (x, d) = (
                        View::new(&x[from * a..to * a], length, a),
                        View::new(&d[from * b..to * b], length, b),
                    );
                    let part =
                        steps(Instructions::best(), x, d, &[0, length], &weights[r..=r], scale);
                    parts.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                }
                prop_assert_eq!(&all, &parts);
            }
        }

        #[test]
        fn it_is_the_sum(
            a in 1usize..40,
            b in 1usize..70,
            lengths in prop::collection::vec(0usize..9, 1..40),
            seed in 0u32..99,
        ) {
            let offsets = offsets(&lengths);
            let rows = *offsets.last().unwrap();
            let (x, d) = (values(rows * a, seed), values(rows * b, seed + 1));
            let weights: Vec<f32> = (0..lengths.len()).map(|r| r as f32 * 0.1).collect();
            let (xv, dv) = (View::new(&x, rows, a), View::new(&d, rows, b));
            let mut float = vec![0.0; a * b];
            add_outer(Totals::Float(&mut float), xv, dv, &offsets, &weights);
            let (narrow, wide) = (Scale::Narrow(4096.0), Scale::Wide(4096.0));
            let [narrow, wide] = [narrow, wide]
                .map(|scale| steps(Instructions::best(), xv, dv, &offsets, &weights, scale));
            for i in 0..a {
                for j in 0..b {
                    let mut expected = 0.0;
                    for r in 0..lengths.len() {
                        for t in offsets[r]..offsets[r + 1] {
                            expected += f64::from(weights[r])
                                * f64::from(x[t * a + i])
                                * f64::from(d[t * b + j]);
                        }
                    }
                    prop_assert!((float[i * b + j] - expected).abs() < 1e-4);
                    for steps in [&narrow, &wide] {
                        prop_assert!(
                            (steps[i * b + j] as f64 - expected * 4096.0).abs()
                                <= 0.51 * lengths.len() as f64 + 0.5
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_steps() {
        let lengths = [3, 1, 0, 64, 700, 1, 1, 20];
        let offsets = offsets(&lengths);
        let (rows, a, b) = (*offsets.last().unwrap(), 61, 77);
        let (x, d) = (values(rows * a, 1), values(rows * b, 2));
        let each: Vec<f32> = (0..a * b).map(|i| 1000.0 + i as f32).collect();
        for scale in [Scale::Narrow(65536.0), Scale::Wide(1e8), Scale::Each(&each)] {
            let all = [
                Instructions::Avx512,
                Instructions::Avx2,
                Instructions::Neon,
                Instructions::Portable,
            ]
            .into_iter()
            .filter(|instructions| instructions.available())
            .map(|instructions| {
                steps(
                    instructions,
                    View::new(&x, rows, a),
                    View::new(&d, rows, b),
                    &offsets,
                    &[0.7; 8],
                    scale,
                )
            })
            .collect::<Vec<_>>();
            assert!(
                all.windows(2).all(|pair| pair[0] == pair[1])
                    && all[0].iter().any(|&steps| steps != 0)
            );
        }
    }

    /// The largest possible 32-bit sums do not overflow; larger terms use f64.
    #[test]
    fn sums_of_large_terms_do_not_overflow() {
        for (x, records) in [(8191.0f32, 100), (8192.0, 100), (1e6, 70), (-8191.0, 200)] {
            let offsets: Vec<usize> = (0..=records).collect();
            let (xs, d) = (vec![x; records], vec![8192.0; records]);
            let totals = steps(
                Instructions::best(),
                View::new(&xs, records, 1),
                View::new(&d, records, 1),
                &offsets,
                &vec![1.0; records],
                Scale::Narrow(1.0),
            );
            assert_eq!(totals, [records as i64 * (f64::from(x) * 8192.0) as i64], "{x}");
        }
        // Terms that are not finite add nothing.
        let totals = steps(
            Instructions::best(),
            View::new(&[1e30], 1, 1),
            View::new(&[1e30], 1, 1),
            &[0, 1],
            &[1.0],
            Scale::Narrow(1.0),
        );
        assert_eq!(totals, [0]);
    }

    /// 2²⁴ and then ones: ones in the same chain are lost, those in the next chain are not.
    #[test]
    fn chains_have_a_fixed_number_of_rows() {
        for before in [0, 5] {
            let rows = 2000;
            let mut x = vec![1.0f32; before + rows];
            x[before] = 16_777_216.0;
            let d = vec![1.0; before + rows];
            let offsets = if before > 0 { vec![0, before, before + rows] } else { vec![0, rows] };
            let weights = if before > 0 { vec![0.0, 1.0] } else { vec![1.0] };
            let (xv, dv) = (View::new(&x, before + rows, 1), View::new(&d, before + rows, 1));
            for scale in [Scale::Narrow(1.0), Scale::Wide(1.0)] {
                assert_eq!(
                    steps(Instructions::best(), xv, dv, &offsets, &weights, scale),
                    [(16_777_216 + rows - MAX_CHAIN) as i64]
                );
            }
        }
    }

    #[test]
    fn to_steps_rounds_to_the_nearest_integer() {
        for (x, expected) in [
            (0.4, 0),
            (0.5, 0),
            (1.5, 2),
            (-2.5, -2),
            (-7.6, -8),
            (1e9 + 0.7, 1_000_000_001),
            (f64::NAN, 0),
        ] {
            assert_eq!(to_steps(x), expected, "{x}");
        }
        assert_eq!((to_steps(1e300), to_steps(-1e300)), (1 << 50, -(1 << 50)));
        assert_eq!((to_steps(f64::INFINITY), to_steps(f64::NEG_INFINITY)), (0, 0));
    }
}
