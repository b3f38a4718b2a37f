//! Rows of a table by index, and their gradients.

use crate::parallel::{Shared, rows_per_piece};
use crate::simd::{long_dot, update, vectorised};
use rayon::prelude::*;

/// `out[t] = table[ids[t]]`
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

/// `dtable[ids[t]] += weights[t] · d[t]`. A row of weight 0 is not read.
///
/// The rows of one index are added up in f64 and rounded once: how some rows are rounded hardly depends on which others are there, however often an index occurs. `order` is scratch.
pub fn scatter(width: usize, ids: &[u32], weights: &[f32], d: &[f32], dtable: &mut [f32], order: &mut Vec<u32>) {
    assert_eq!((d.len(), weights.len()), (ids.len() * width, ids.len()), "a row for each index");
    let rows = dtable.len() / width.max(1);
    assert!(ids.iter().all(|&id| (id as usize) < rows), "indices inside the table");
    order.clear();
    order.extend((0..ids.len() as u32).filter(|&t| weights[t as usize] != 0.0));
    // The place breaks ties, so that the order of additions is fixed.
    order.sort_unstable_by_key(|&t| (ids[t as usize], t));
    // Each task owns a stretch of columns.
    let table = Shared::new(dtable);
    (0..width.div_ceil(COLUMNS)).into_par_iter().for_each(|task| {
        let (first, last) = (task * COLUMNS, ((task + 1) * COLUMNS).min(width));
        vectorised(
            #[inline(always)]
            || {
                for same in order.chunk_by(|&a, &b| ids[a as usize] == ids[b as usize]) {
                    let id = ids[same[0] as usize] as usize;
                    // SAFETY: inside the table by the assertion, and no other task touches these columns.
                    let row = unsafe { table.part(id * width + first, last - first) };
                    let mut sums = [0.0f64; COLUMNS];
                    sums.iter_mut().zip(&*row).for_each(|(sum, &old)| *sum = f64::from(old));
                    for &t in same {
                        let weight = f64::from(weights[t as usize]);
                        let d = &d[t as usize * width + first..][..last - first];
                        sums.iter_mut().zip(d).for_each(|(sum, &d)| *sum += weight * f64::from(d));
                    }
                    row.iter_mut().zip(&sums).for_each(|(row, &sum)| *row = sum as f32);
                }
            },
        );
    });
}

/// Columns of a task.
const COLUMNS: usize = 64;

/// Sums the rows of `d` that share an index: calls `each(index, sum)` once for each index that occurs, in rising order.
///
/// `order` and `row` are scratch.
pub fn by_index(width: usize, ids: &[u32], d: &[f32], order: &mut Vec<u32>, row: &mut Vec<f32>, mut each: impl FnMut(u32, &[f32])) {
    order.clear();
    order.extend(0..ids.len() as u32);
    // The place breaks ties, so that the order of additions is fixed.
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
            row.extend_from_slice(at(order[start]));
            vectorised(
                #[inline(always)]
                || {
                    for &t in &order[start + 1..end] {
                        update(row, at(t), |row, d| row + d);
                    }
                },
            );
            each(id, row);
        }
        start = end;
    }
}

/// Σ a·b
pub fn product(a: &[f32], b: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || long_dot(a, b),
    )
}

/// Σ x², to a few units in the last place of f32. Squares that f32 cannot hold are made in f64.
pub fn square(x: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let square = long_dot(x, x);
            // Each of up to 2³⁰ numbers lost less than 1e-45.
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
        fn scatter_is_the_adjoint_of_gather(rows in 1usize..9, width in 1usize..40, ids in prop::collection::vec(0u32..9, 0..20)) {
            let ids: Vec<u32> = ids.into_iter().map(|id| id % rows as u32).collect();
            let table: Vec<f32> = (0..rows * width).map(|i| (i as f32).sin()).collect();
            let d: Vec<f32> = (0..ids.len() * width).map(|i| (i as f32 * 0.3).cos()).collect();
            let weights: Vec<f32> = (0..ids.len()).map(|i| (i % 3) as f32 * 0.5).collect();
            let (mut out, mut dtable) = (vec![0.0; d.len()], vec![0.0; table.len()]);
            gather(&table, width, &ids, &mut out);
            scatter(width, &ids, &weights, &d, &mut dtable, &mut Vec::new());
            let left: f32 = (0..d.len()).map(|i| out[i] * d[i] * weights[i / width]).sum();
            let right: f32 = table.iter().zip(&dtable).map(|(a, b)| a * b).sum();
            prop_assert!((left - right).abs() < 1e-3);

            // The sums by index are the rows of the table's gradient.
            let (mut order, mut row, mut rebuilt) = (Vec::new(), Vec::new(), vec![0.0; table.len()]);
            by_index(width, &ids, &d, &mut order, &mut row, |id, sum| rebuilt[id as usize * width..][..width].copy_from_slice(sum));
            let mut plain = vec![0.0; table.len()];
            scatter(width, &ids, &vec![1.0; ids.len()], &d, &mut plain, &mut Vec::new());
            prop_assert!(rebuilt.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn squares_beyond_the_range_of_f32() {
        for (x, n) in [(1e-30f32, 9), (1e-22, 3000), (1e30, 17), (0.5, 1), (1e-44, 4), (0.0, 20)] {
            let expected = n as f64 * f64::from(x) * f64::from(x);
            assert!((square(&vec![x; n]) - expected).abs() <= 1e-6 * expected, "{x}");
        }
        assert!(square(&[1.0, f32::NAN]).is_nan() && square(&[f32::INFINITY]) == f64::INFINITY);
    }

    #[test]
    fn a_row_of_weight_zero_is_not_read() {
        let mut dtable = [0.0; 4];
        scatter(2, &[0, 1], &[0.0, 1.0], &[f32::NAN, f32::NAN, 1.0, 2.0], &mut dtable, &mut Vec::new());
        assert_eq!(dtable, [0.0, 0.0, 1.0, 2.0]);
    }

    /// One row more among thousands with the same index: the sum moves by that row, and the rounding of the others does not add up.
    #[test]
    fn many_rows_of_one_index_are_rounded_once() {
        // Numbers that are all rounded the same way once the sum has passed a power of two.
        let row = 1.0 - 3.0 * 2f32.powi(-24) * 4096.0;
        let sum = |count: usize| {
            let mut table = [0.0f32];
            scatter(1, &vec![0; count], &vec![1.0; count], &vec![row; count], &mut table, &mut Vec::new());
            f64::from(table[0])
        };
        for count in [100, 1000, 8191, 8192] {
            let moved = sum(count + 1) - sum(count);
            assert!((moved - f64::from(row)).abs() <= 2.0 * f64::from(2f32.powi(-24)) * sum(count + 1), "{count}: {moved}");
        }
    }
}
