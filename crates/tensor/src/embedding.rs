//! Embedding lookup and its gradients.

use crate::outer::{Scale, Totals, to_steps};
use crate::parallel::{Shared, packed, rows_per_piece};
use crate::simd::{long_dot, vectorized};
use rayon::prelude::*;

/// Computes `out[t] = table[ids[t]]`.
pub fn gather(table: &[f32], width: usize, ids: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), ids.len() * width, "a row for each index");
    if width == 0 {
        return;
    }
    let rows = rows_per_piece(ids.len(), width);
    out.par_chunks_mut(rows * width).zip(ids.par_chunks(rows)).for_each(|(out, ids)| {
        for (out, &id) in out.chunks_exact_mut(width).zip(ids) {
            out.copy_from_slice(&table[id as usize * width..][..width]);
        }
    });
}

/// Computes `dtable[ids[t]] += d[t]`.
///
/// The rows of one index are summed in f64 first. `order` is scratch.
pub fn scatter(width: usize, ids: &[u32], d: &[f32], dtable: &mut [f32], order: &mut Vec<u32>) {
    let by_index = sorted(width, ids, d, dtable.len(), |_| true, order);
    let table = Shared::new(dtable);
    by_columns(width, |first, last| {
        for same in by_index.chunk_by(|&a, &b| ids[a as usize] == ids[b as usize]) {
            let sums = sum_rows(width, same, d, first, last);
            // SAFETY: inside the table, as `sorted` asserts, and no other task touches these
            // columns.
            let row =
                unsafe { table.part(ids[same[0] as usize] as usize * width + first, last - first) };
            row.iter_mut().zip(&sums).for_each(|(row, &sum)| *row += sum as f32);
        }
    });
}

/// Adds the weighted sum of per-record embedding gradients to `totals`.
///
/// The sum is Σ_r w_r · Σ_{t ∈ r} e(id_t) ⊗ d_t. `totals` is a table with `width` columns; record r
/// has the rows `offsets[r] .. offsets[r + 1]`. A record of weight 0 is not read. `order` is
/// scratch.
///
/// # Claim
/// In integer steps, the result is exactly a sum of terms, each of which depends only on its
/// record.
///
/// # Why
/// The rows of one record that share an index are added in f64, in their order, weighted, and
/// rounded to the grid; then integers are added.
///
/// # Checked by
/// `tests::records_do_not_reach_each_other`
pub fn scatter_records(
    width: usize,
    ids: &[u32],
    offsets: &[usize],
    weights: &[f32],
    d: &[f32],
    mut totals: Totals<'_>,
    order: &mut Vec<u32>,
) {
    let (records, rows) = packed(offsets);
    assert_eq!((ids.len(), weights.len()), (rows, records), "rows and weights of all records");
    let len = match &totals {
        Totals::Steps(totals, _) => totals.len(),
        Totals::Float(totals) => totals.len(),
    };
    let record = |t: u32| offsets.partition_point(|&offset| offset <= t as usize) - 1;
    let by_index = sorted(width, ids, d, len, |t| weights[record(t)] != 0.0, order);
    let destination = match &mut totals {
        Totals::Steps(totals, scale) => {
            if let Scale::Each(scales) = scale {
                assert_eq!(scales.len(), totals.len(), "a scale for each element");
            }
            TotalsPtr::Steps(totals.as_mut_ptr(), *scale)
        }
        Totals::Float(totals) => TotalsPtr::Float(totals.as_mut_ptr()),
    };
    by_columns(width, |first, last| {
        for same in
            by_index.chunk_by(|&a, &b| ids[a as usize] == ids[b as usize] && record(a) == record(b))
        {
            let sums = sum_rows(width, same, d, first, last);
            let weight = f64::from(weights[record(same[0])]);
            let at = ids[same[0] as usize] as usize * width + first;
            // SAFETY: inside the totals, as `sorted` asserts, and no other task touches these
            // columns.
            unsafe { destination.add(at, last - first, weight, &sums) };
        }
    });
}

/// A pointer to the totals.
#[derive(Clone, Copy)]
enum TotalsPtr<'a> {
    Steps(*mut i64, Scale<'a>),
    Float(*mut f64),
}

// SAFETY: by itself it does nothing; `add` states which elements may be written.
unsafe impl Send for TotalsPtr<'_> {}
// SAFETY: as above.
unsafe impl Sync for TotalsPtr<'_> {}

impl TotalsPtr<'_> {
    /// Adds weighted sums to the elements `at .. at + len` of the totals.
    ///
    /// # Safety
    /// These elements lie inside the totals, which are borrowed, and no other task uses them at the
    /// same time.
    unsafe fn add(self, at: usize, len: usize, weight: f64, sums: &[f64; COLUMNS]) {
        match self {
            Self::Float(to) => {
                // SAFETY: guaranteed by the caller.
                let row = unsafe { std::slice::from_raw_parts_mut(to.add(at), len) };
                row.iter_mut().zip(sums).for_each(|(row, &sum)| *row += weight * sum);
            }
            Self::Steps(to, scale) => {
                // SAFETY: guaranteed by the caller.
                let row = unsafe { std::slice::from_raw_parts_mut(to.add(at), len) };
                for (i, (row, &sum)) in row.iter_mut().zip(sums).enumerate() {
                    let scale = match scale {
                        Scale::Narrow(scale) | Scale::Wide(scale) => scale,
                        Scale::Each(scales) => scales[at + i],
                    };
                    *row = row.wrapping_add(to_steps(weight * sum * f64::from(scale)));
                }
            }
        }
    }
}

/// Returns the selected rows, sorted by index and position.
///
/// So the order of additions is fixed.
///
/// Asserts that the table has all indices.
fn sorted<'a>(
    width: usize,
    ids: &[u32],
    d: &[f32],
    table: usize,
    wanted: impl Fn(u32) -> bool,
    order: &'a mut Vec<u32>,
) -> &'a [u32] {
    assert_eq!(d.len(), ids.len() * width, "a row for each index");
    let rows = table / width.max(1);
    assert!(ids.iter().all(|&id| (id as usize) < rows), "indices inside the table");
    order.clear();
    order.extend((0..ids.len() as u32).filter(|&t| wanted(t)));
    order.sort_unstable_by_key(|&t| (ids[t as usize], t));
    order
}

/// Calls `work(first, last)` for blocks of columns, each in its own task.
fn by_columns(width: usize, work: impl Fn(usize, usize) + Sync) {
    (0..width.div_ceil(COLUMNS)).into_par_iter().for_each(|task| {
        vectorized(
            #[inline(always)]
            || work(task * COLUMNS, ((task + 1) * COLUMNS).min(width)),
        );
    });
}

/// Sums the columns `first .. last` of some rows.
#[inline(always)]
fn sum_rows(width: usize, rows: &[u32], d: &[f32], first: usize, last: usize) -> [f64; COLUMNS] {
    let mut sums = [0.0f64; COLUMNS];
    for &t in rows {
        let d = &d[t as usize * width + first..][..last - first];
        sums.iter_mut().zip(d).for_each(|(sum, &d)| *sum += f64::from(d));
    }
    sums
}

/// Number of columns of a task.
const COLUMNS: usize = 64;

/// Sums the rows of `d` by index: calls `each(index, sum)` for each index, in increasing order.
///
/// Sums are computed in f64 and rounded once: the relative error of the result is 2⁻²⁴, for any
/// cancellation and any number of rows. `order` and `row` are scratch.
pub fn by_index(
    width: usize,
    ids: &[u32],
    d: &[f32],
    order: &mut Vec<u32>,
    row: &mut Vec<f32>,
    mut each: impl FnMut(u32, &[f32]),
) {
    order.clear();
    order.extend(0..ids.len() as u32);
    // The position breaks ties, so that the order of additions is fixed.
    order.sort_unstable_by_key(|&t| (ids[t as usize], t));
    let mut start = 0;
    while start < order.len() {
        let id = ids[order[start] as usize];
        let end = start + order[start..].partition_point(|&t| ids[t as usize] == id);
        let at = |t: u32| &d[t as usize * width..][..width];
        if end == start + 1 {
            each(id, at(order[start]));
        } else {
            row.clear();
            for first in (0..width).step_by(COLUMNS) {
                let last = (first + COLUMNS).min(width);
                let sums = vectorized(
                    #[inline(always)]
                    || sum_rows(width, &order[start..end], d, first, last),
                );
                row.extend(sums[..last - first].iter().map(|&sum| sum as f32));
            }
            each(id, row);
        }
        start = end;
    }
}

/// Returns Σ a·b.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    vectorized(
        #[inline(always)]
        || long_dot(a, b),
    )
}

/// Returns Σ x², to a few units in the last place of f32.
///
/// Squares beyond the range of f32 use f64.
pub fn squared_norm(x: &[f32]) -> f64 {
    vectorized(
        #[inline(always)]
        || {
            let square = long_dot(x, x);
            // Each of up to 2³⁰ elements lost less than 1e-45.
            if square > 1e-30 && square < f64::INFINITY { square } else { wide_square(x) }
        },
    )
}

#[inline(always)]
fn wide_square(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let chunks = x.chunks_exact(8);
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f64::from(x) * f64::from(x);
    }
    for x in chunks {
        for i in 0..8 {
            lanes[i] += f64::from(x[i]) * f64::from(x[i]);
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scatter_is_the_adjoint_of_gather(
            rows in 1usize..9,
            width in 1usize..80,
            ids in prop::collection::vec(0u32..9, 0..20),
        ) {
            let ids: Vec<u32> = ids.into_iter().map(|id| id % rows as u32).collect();
            let table: Vec<f32> = (0..rows * width).map(|i| (i as f32).sin()).collect();
            let d: Vec<f32> = (0..ids.len() * width).map(|i| (i as f32 * 0.3).cos()).collect();
            let (mut out, mut dtable) = (vec![0.0; d.len()], vec![0.0; table.len()]);
            gather(&table, width, &ids, &mut out);
            scatter(width, &ids, &d, &mut dtable, &mut Vec::new());
            let left: f32 = (0..d.len()).map(|i| out[i] * d[i]).sum();
            let right: f32 = table.iter().zip(&dtable).map(|(a, b)| a * b).sum();
            prop_assert!((left - right).abs() < 1e-3);

            // The sums by index are the rows of the table's gradient.
            let (mut order, mut row, mut rebuilt) =
                (Vec::new(), Vec::new(), vec![0.0; table.len()]);
            by_index(width, &ids, &d, &mut order, &mut row, |id, sum| {
                rebuilt[id as usize * width..][..width].copy_from_slice(sum)
            });
            prop_assert!(rebuilt.iter().zip(&dtable).all(|(a, b)| (a - b).abs() < 1e-5));
        }

        /// A record adds the same integers alone and among others; weight 0 is not read.
        #[test]
        fn records_do_not_reach_each_other(
            width in 1usize..80,
            lengths in prop::collection::vec(0usize..7, 1..6),
            seed in 0u32..99,
            each: bool,
        ) {
            let mut offsets = vec![0];
            lengths.iter().for_each(|length| offsets.push(offsets.last().unwrap() + length));
            let total = *offsets.last().unwrap();
            let ids: Vec<u32> = (0..total as u32).map(|t| (t * 7 + seed) % 5).collect();
            let mut d: Vec<f32> =
                (0..total * width).map(|i| ((i as f32 + seed as f32) * 0.7).sin() * 3.0).collect();
            let weights: Vec<f32> =
                (0..lengths.len()).map(|r| if r == 1 { 0.0 } else { 0.3 + r as f32 }).collect();
            if lengths.len() > 1 {
                d[offsets[1] * width..offsets[2] * width].fill(f32::NAN);
            }
            let scales: Vec<f32> = (0..5 * width).map(|i| 100.0 + i as f32).collect();
            let scale = if each { Scale::Each(&scales) } else { Scale::Narrow(1024.0) };
            let sum = |from: usize, to: usize| {
                let mut totals = vec![0i64; 5 * width];
                let (first, last) = (offsets[from], offsets[to]);
                let own: Vec<usize> =
                    offsets[from..=to].iter().map(|offset| offset - first).collect();
                let d = &d[first * width..last * width];
                scatter_records(
                    width,
                    &ids[first..last],
                    &own,
                    &weights[from..to],
                    d,
                    Totals::Steps(&mut totals, scale),
                    &mut Vec::new(),
                );
                totals
            };
            let all = sum(0, lengths.len());
            let mut parts = vec![0i64; all.len()];
            for record in 0..lengths.len() {
                parts.iter_mut().zip(sum(record, record + 1)).for_each(|(sum, part)| *sum += part);
            }
            prop_assert_eq!(&all, &parts);
            let mut float = vec![0.0; all.len()];
            scatter_records(
                width,
                &ids,
                &offsets,
                &weights,
                &d,
                Totals::Float(&mut float),
                &mut Vec::new(),
            );
            for (i, (&steps, &float)) in all.iter().zip(&float).enumerate() {
                let scale = if each { f64::from(scales[i]) } else { 1024.0 };
                prop_assert!(
                    (steps as f64 - float * scale).abs() <= 0.5 * lengths.len() as f64 + 1e-6
                );
            }
        }
    }

    #[test]
    fn squares_beyond_the_range_of_f32() {
        for (x, n) in [(1e-30f32, 9), (1e-22, 3000), (1e30, 17), (0.5, 1), (1e-44, 4), (0.0, 20)] {
            let expected = n as f64 * f64::from(x) * f64::from(x);
            assert!((squared_norm(&vec![x; n]) - expected).abs() <= 1e-6 * expected, "{x}");
        }
        assert!(
            squared_norm(&[1.0, f32::NAN]).is_nan()
                && squared_norm(&[f32::INFINITY]) == f64::INFINITY
        );
    }

    /// One more row among thousands with the same index changes the sum by that row only.
    #[test]
    fn many_rows_of_one_index_are_rounded_once() {
        // Values that are all rounded the same way once the sum has passed a power of two.
        let row = 1.0 - 3.0 * 2f32.powi(-24) * 4096.0;
        let sum = |count: usize| {
            let mut table = [0.0f32];
            scatter(1, &vec![0; count], &vec![row; count], &mut table, &mut Vec::new());
            f64::from(table[0])
        };
        for count in [100, 1000, 8191, 8192] {
            let moved = sum(count + 1) - sum(count);
            assert!(
                (moved - f64::from(row)).abs() <= 2.0 * f64::from(2f32.powi(-24)) * sum(count + 1),
                "{count}: {moved}"
            );
        }
    }
}
