//! Attention within each example: causal or in both directions, with grouped queries.
//!
//! Queries, keys and values are columns of one packed matrix: `[q heads | k heads | v heads]`, each
//! head `dim` wide. An example attends to its own rows alone, so there is no padding. The scores
//! are not stored: the backward pass recomputes them from the logarithm of each row's sum.

use crate::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use crate::parallel::{Shared, packed};
use crate::simd::{dot, exp, softmax, vectorized};
use rayon::prelude::*;
use std::cell::RefCell;

/// Numbers of heads, their width and the mask of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Number of query heads.
    pub queries: usize,
    /// Number of key and value heads; each is shared by `queries / keys` query heads.
    pub keys: usize,
    /// Width of a head.
    pub dim: usize,
    /// The mask.
    pub mask: AttentionMask,
}

/// The attention mask inside an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Each row attends to itself and to earlier rows.
    Causal,
    /// Each row attends to all rows.
    Full,
}

/// Number of query rows in a block.
const ROWS: usize = 64;

thread_local! {
    /// Scratch memory for one head of one example, reused between calls.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Heads {
    /// Returns the width of a row of queries, keys and values.
    pub fn width(&self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
    }

    /// Returns the factor of the scores, 1/√dim.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    fn check(&self, rows: usize, qkv: &[f32], out: &[f32], sums: &[f32]) {
        assert!(
            self.keys > 0 && self.queries.is_multiple_of(self.keys),
            "{} query heads on {} key heads",
            self.queries,
            self.keys
        );
        // Writes below are placed by this shape, so its products must not overflow.
        let product = |a: usize, b: usize| a.checked_mul(b);
        let heads = self.keys.checked_mul(2).and_then(|keys| keys.checked_add(self.queries));
        let width = heads.and_then(|heads| product(heads, self.dim));
        assert_eq!(
            Some(qkv.len()),
            width.and_then(|width| product(rows, width)),
            "queries, keys and values"
        );
        let queries = product(rows, self.queries);
        let outputs = queries.and_then(|queries| product(queries, self.dim));
        assert_eq!(
            (Some(out.len()), Some(sums.len())),
            (outputs, queries),
            "an output for each query"
        );
    }

    /// Returns one head of one example: `rows` rows from `first` on, columns from `column` heads
    /// on.
    fn head<'a>(&self, qkv: &'a [f32], first: usize, rows: usize, column: usize) -> View<'a> {
        let width = self.width();
        View::columns(
            &qkv[first * width..(first + rows) * width],
            rows,
            width,
            column * self.dim,
            self.dim,
        )
    }

    /// Returns the number of keys that the rows before `end` of an example attend to.
    fn visible(&self, end: usize, rows: usize) -> usize {
        if self.mask == AttentionMask::Causal { end } else { rows }
    }
}

/// Computes attention, and to `sums` writes the logarithm of each query's sum of exponentials.
pub fn forward(heads: Heads, offsets: &[usize], qkv: &[f32], out: &mut [f32], sums: &mut [f32]) {
    let (examples, rows) = packed(offsets);
    heads.check(rows, qkv, out, sums);
    let (shared_out, shared_sums) = (Shared::new(out), Shared::new(sums));
    (0..examples * heads.queries).into_par_iter().for_each(|task| {
        let (example, head) = (task / heads.queries, task % heads.queries);
        let (first, rows) = (offsets[example], offsets[example + 1] - offsets[example]);
        let dim = heads.dim;
        SCRATCH.with_borrow_mut(|scratch| {
            let [scores, result] = parts(scratch, [ROWS * rows, ROWS * dim]);
            let key_head = head / (heads.queries / heads.keys);
            let keys = heads.head(qkv, first, rows, heads.queries + key_head);
            let values = heads.head(qkv, first, rows, heads.queries + heads.keys + key_head);
            for start in (0..rows).step_by(ROWS) {
                let end = (start + ROWS).min(rows);
                let visible = heads.visible(end, rows);
                let scores = &mut scores[..(end - start) * visible];
                matmul(
                    ViewMut::new(scores, end - start, visible),
                    OutputMode::Overwrite,
                    heads.scale(),
                    heads.head(qkv, first + start, end - start, head),
                    keys.first_rows(visible).t(),
                    Threads::One,
                );
                for (i, row) in scores.chunks_exact_mut(visible).enumerate() {
                    let row_visible = heads.visible(start + i + 1, visible);
                    let sum = vectorized(
                        #[inline(always)]
                        || softmax(&mut row[..row_visible]),
                    );
                    row[row_visible..].fill(0.0);
                    // SAFETY: the element of this example, row and head belongs to this task.
                    unsafe {
                        shared_sums.part((first + start + i) * heads.queries + head, 1)[0] = sum
                    };
                }
                let result = &mut result[..(end - start) * dim];
                matmul(
                    ViewMut::new(result, end - start, dim),
                    OutputMode::Overwrite,
                    1.0,
                    View::new(scores, end - start, visible),
                    values.first_rows(visible),
                    Threads::One,
                );
                for (i, row) in result.chunks_exact(dim).enumerate() {
                    // SAFETY: the columns of this head in the rows of this example belong to this
                    // task.
                    unsafe {
                        shared_out.part(((first + start + i) * heads.queries + head) * dim, dim)
                    }
                    .copy_from_slice(row);
                }
            }
        });
    });
}

/// Writes the gradient with respect to queries, keys and values to `dqkv`.
pub fn backward(
    heads: Heads,
    offsets: &[usize],
    qkv: &[f32],
    out: &[f32],
    sums: &[f32],
    dout: &[f32],
    dqkv: &mut [f32],
) {
    let (examples, rows) = packed(offsets);
    heads.check(rows, qkv, out, sums);
    assert_eq!((dout.len(), dqkv.len()), (out.len(), qkv.len()), "gradients like their values");
    let shared = Shared::new(dqkv);
    (0..examples * heads.keys).into_par_iter().for_each(|task| {
        let (example, key_head) = (task / heads.keys, task % heads.keys);
        let (first, rows) = (offsets[example], offsets[example + 1] - offsets[example]);
        if rows > 0 {
            SCRATCH.with_borrow_mut(|scratch| {
                one_backward(heads, first, rows, key_head, qkv, out, sums, dout, shared, scratch)
            });
        }
    });
}

/// Computes the backward pass of all query heads of one key head of one example.
#[allow(clippy::too_many_arguments)]
fn one_backward(
    heads: Heads,
    first: usize,
    rows: usize,
    key_head: usize,
    qkv: &[f32],
    out: &[f32],
    sums: &[f32],
    dout: &[f32],
    shared: Shared,
    scratch: &mut Vec<f32>,
) {
    let (dim, group, width) = (heads.dim, heads.queries / heads.keys, heads.width());
    let (k, v) = (heads.queries + key_head, heads.queries + heads.keys + key_head);
    let [scores, dscores, dquery, dkey, dvalue] =
        parts(scratch, [ROWS * rows, ROWS * rows, ROWS * dim, rows * dim, rows * dim]);
    let (keys, values) = (heads.head(qkv, first, rows, k), heads.head(qkv, first, rows, v));
    let write = |row: usize, column: usize, from: &[f32]| {
        // SAFETY: these columns in the rows of this example belong to this task: its own query
        // heads, its key head and its value head.
        unsafe { shared.part((first + row) * width + column * dim, dim) }.copy_from_slice(from);
    };
    let mut onto = OutputMode::Overwrite;
    for head in key_head * group..(key_head + 1) * group {
        // The last block attends to every key, so it can overwrite.
        for start in (0..rows).step_by(ROWS).rev() {
            let end = (start + ROWS).min(rows);
            let (count, visible) = (end - start, heads.visible(end, rows));
            let scores = &mut scores[..count * visible];
            let dscores = &mut dscores[..count * visible];
            let queries = heads.head(qkv, first + start, count, head);
            let stride = heads.queries * dim;
            let range = (first + start) * stride..(first + end) * stride;
            let douts = View::columns(&dout[range.clone()], count, stride, head * dim, dim);
            matmul(
                ViewMut::new(scores, count, visible),
                OutputMode::Overwrite,
                heads.scale(),
                queries,
                keys.first_rows(visible).t(),
                Threads::One,
            );
            matmul(
                ViewMut::new(dscores, count, visible),
                OutputMode::Overwrite,
                1.0,
                douts,
                values.first_rows(visible).t(),
                Threads::One,
            );
            for (i, (p, d)) in
                scores.chunks_exact_mut(visible).zip(dscores.chunks_exact_mut(visible)).enumerate()
            {
                let row = first + start + i;
                let at = row * stride + head * dim;
                let row_visible = heads.visible(start + i + 1, visible);
                let sum = sums[row * heads.queries + head];
                vectorized(
                    #[inline(always)]
                    || {
                        // dS = P ∘ (dP − ⟨dO, O⟩)
                        let level = dot(&dout[at..at + dim], &out[at..at + dim]);
                        for (p, d) in p[..row_visible].iter_mut().zip(&mut d[..row_visible]) {
                            *p = exp(*p - sum);
                            *d = *p * (*d - level);
                        }
                    },
                );
                p[row_visible..].fill(0.0);
                d[row_visible..].fill(0.0);
            }
            let (scores, dscores) =
                (View::new(scores, count, visible), View::new(dscores, count, visible));
            let dquery = &mut dquery[..count * dim];
            matmul(
                ViewMut::new(dquery, count, dim),
                OutputMode::Overwrite,
                heads.scale(),
                dscores,
                keys.first_rows(visible),
                Threads::One,
            );
            dquery.chunks_exact(dim).enumerate().for_each(|(i, from)| write(start + i, head, from));
            matmul(
                ViewMut::new(&mut dkey[..visible * dim], visible, dim),
                onto,
                heads.scale(),
                dscores.t(),
                queries,
                Threads::One,
            );
            matmul(
                ViewMut::new(&mut dvalue[..visible * dim], visible, dim),
                onto,
                1.0,
                scores.t(),
                douts,
                Threads::One,
            );
            onto = OutputMode::Accumulate;
        }
    }
    dkey.chunks_exact(dim).enumerate().for_each(|(row, from)| write(row, k, from));
    dvalue.chunks_exact(dim).enumerate().for_each(|(row, from)| write(row, v, from));
}

/// Splits scratch memory into parts of these lengths.
fn parts<const N: usize>(scratch: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    let total: usize = lengths.iter().sum();
    if scratch.len() < total {
        scratch.resize(total, 0.0);
    }
    let mut rest = scratch.as_mut_slice();
    lengths.map(|length| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(length);
        rest = after;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(n: usize, k: f64) -> Vec<f32> {
        (0..n).map(|i| ((i as f64 + 1.0) * k).sin() as f32).collect()
    }

    fn run(heads: Heads, offsets: &[usize], qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let rows = *offsets.last().unwrap();
        let (mut out, mut sums) =
            (vec![0.0; rows * heads.queries * heads.dim], vec![0.0; rows * heads.queries]);
        forward(heads, offsets, qkv, &mut out, &mut sums);
        (out, sums)
    }

    /// Computes attention by its definition, in f64.
    fn naive(heads: Heads, offsets: &[usize], qkv: &[f32]) -> Vec<f64> {
        let (width, dim) = (heads.width(), heads.dim);
        let mut out = Vec::new();
        for pair in offsets.windows(2) {
            for t in pair[0]..pair[1] {
                for head in 0..heads.queries {
                    let at = |row: usize, column: usize| &qkv[row * width + column * dim..][..dim];
                    let group = head / (heads.queries / heads.keys);
                    let last = if heads.mask == AttentionMask::Causal { t + 1 } else { pair[1] };
                    let score = |s: usize| {
                        let product: f64 = at(t, head)
                            .iter()
                            .zip(at(s, heads.queries + group))
                            .map(|(a, b)| f64::from(*a) * f64::from(*b))
                            .sum();
                        (product / (dim as f64).sqrt()).exp()
                    };
                    let total: f64 = (pair[0]..last).map(score).sum();
                    for j in 0..dim {
                        out.push(
                            (pair[0]..last)
                                .map(|s| {
                                    score(s) / total
                                        * f64::from(at(s, heads.queries + heads.keys + group)[j])
                                })
                                .sum(),
                        );
                    }
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn forward_matches_the_definition(
            lengths in prop::collection::vec(0usize..9, 0..4),
            long in 0usize..150,
            keys in 1usize..3,
            group in 1usize..3,
            dim in 1usize..9,
            causal: bool,
        ) {
            let mask = if causal { AttentionMask::Causal } else { AttentionMask::Full };
            let heads = Heads { queries: keys * group, keys, dim, mask };
            let mut offsets = vec![0];
            lengths.iter().chain([&long]).for_each(|l| offsets.push(offsets.last().unwrap() + l));
            let qkv = values(offsets.last().unwrap() * heads.width(), 0.7);
            let (out, _) = run(heads, &offsets, &qkv);
            prop_assert!(
                out.iter()
                    .zip(naive(heads, &offsets, &qkv))
                    .all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5)
            );
        }
    }

    #[test]
    fn gradients_match_differences() {
        for (mask, keys) in
            [(AttentionMask::Causal, 1), (AttentionMask::Full, 2), (AttentionMask::Causal, 2)]
        {
            let heads = Heads { queries: 2, keys, dim: 3, mask };
            // One example is longer than a block of queries.
            let offsets = [0, 3, 3, 4, 4 + 70];
            let qkv = values(74 * heads.width(), 0.7);
            let d = values(74 * 6, 0.3);
            let value = |qkv: &[f32]| {
                naive(heads, &offsets, qkv)
                    .iter()
                    .zip(&d)
                    .map(|(a, b)| a * f64::from(*b))
                    .sum::<f64>()
            };
            let (out, sums) = run(heads, &offsets, &qkv);
            let mut dqkv = vec![f32::NAN; qkv.len()];
            backward(heads, &offsets, &qkv, &out, &sums, &d, &mut dqkv);
            for i in (0..qkv.len()).step_by(if keys == 1 { 7 } else { 41 }) {
                let (mut up, mut down) = (qkv.clone(), qkv.clone());
                up[i] += 1e-3;
                down[i] -= 1e-3;
                let slope = (value(&up) - value(&down)) / f64::from(up[i] - down[i]);
                assert!((slope - f64::from(dqkv[i])).abs() < 1e-4, "{i}: {slope} {}", dqkv[i]);
            }
        }
    }

    /// Writes are placed by the offsets: decreasing ones would place them outside.
    #[test]
    fn decreasing_offsets_are_refused() {
        let heads = Heads { queries: 1, keys: 1, dim: 2, mask: AttentionMask::Causal };
        let refuses = |offsets: &[usize]| {
            let (qkv, out, sums) = (vec![0.0; 12], vec![0.0; 4], vec![0.0; 2]);
            let forward = || forward(heads, offsets, &qkv, &mut out.clone(), &mut sums.clone());
            let backward = || backward(heads, offsets, &qkv, &out, &sums, &out, &mut qkv.clone());
            std::panic::catch_unwind(forward).is_err()
                && std::panic::catch_unwind(backward).is_err()
        };
        assert!(!refuses(&[0, 1, 2]));
        assert!(refuses(&[0, 3, 2]) && refuses(&[1, 2]) && refuses(&[]));
    }

    #[test]
    fn nan_in_one_example_does_not_reach_others() {
        let heads = Heads { queries: 2, keys: 1, dim: 4, mask: AttentionMask::Full };
        let offsets = [0, 5, 9];
        let mut qkv = values(9 * heads.width(), 0.7);
        let (clean, _) = run(heads, &offsets, &qkv);
        qkv[3] = f32::NAN;
        let (out, _) = run(heads, &offsets, &qkv);
        assert_eq!(clean[5 * 8..], out[5 * 8..]);
        assert!(out[..5 * 8].iter().any(|x| x.is_nan()));
    }
}
