//! Attention with a key-value cache, for generation token by token.

use crate::attention::Heads;
use crate::matmul::{OutputMode, Threads, View, ViewMut, matmul};
use crate::parallel::packed;
use crate::simd::{softmax, vectorized};
use rayon::prelude::*;

/// Cached keys and values of a text. `Debug` does not print them.
#[derive(Clone, Default)]
pub struct KeyValueCache {
    rows: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl std::fmt::Debug for KeyValueCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyValueCache(…)")
    }
}

impl KeyValueCache {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Computes causal attention of new rows to the cache and each other, and caches the new rows.
///
/// Text i has the new rows `offsets[i]..offsets[i + 1]`.
///
/// # Panics
/// If there is not one cache for each text, or the shapes do not match.
pub fn extend(
    heads: Heads,
    offsets: &[usize],
    qkv: &[f32],
    cache: &mut [KeyValueCache],
    out: &mut [f32],
) {
    let (texts, total) = packed(offsets);
    let (width, wide) = (heads.width(), heads.queries * heads.dim);
    assert!(
        heads.keys > 0 && heads.queries.is_multiple_of(heads.keys),
        "{} query heads on {} key heads",
        heads.queries,
        heads.keys
    );
    assert_eq!(
        (cache.len(), qkv.len(), out.len()),
        (texts, total * width, total * wide),
        "texts, rows and outputs"
    );
    let (mut rest, mut each) = (out, Vec::with_capacity(texts));
    for (pair, cache) in offsets.windows(2).zip(cache) {
        let (mine, others) = rest.split_at_mut((pair[1] - pair[0]) * wide);
        each.push((&qkv[pair[0] * width..pair[1] * width], cache, mine));
        rest = others;
    }
    each.into_par_iter().for_each(|(qkv, cache, out)| one(heads, qkv, cache, out));
}

fn one(heads: Heads, qkv: &[f32], cache: &mut KeyValueCache, out: &mut [f32]) {
    let (width, wide, dim) = (heads.width(), heads.queries * heads.dim, heads.dim);
    let (rows, key_width, before) = (qkv.len() / width, heads.keys * dim, cache.rows);
    for row in qkv.chunks_exact(width) {
        cache.keys.extend_from_slice(&row[wide..wide + key_width]);
        cache.values.extend_from_slice(&row[wide + key_width..]);
    }
    cache.rows += rows;
    let all = cache.rows;
    let (mut scores, mut result) = (vec![0.0; rows * all], vec![0.0; rows * dim]);
    for head in 0..heads.queries {
        let key_head = head / (heads.queries / heads.keys);
        let queries = View::columns(qkv, rows, width, head * dim, dim);
        let keys = View::columns(&cache.keys, all, key_width, key_head * dim, dim);
        let values = View::columns(&cache.values, all, key_width, key_head * dim, dim);
        matmul(
            ViewMut::new(&mut scores, rows, all),
            OutputMode::Overwrite,
            heads.scale(),
            queries,
            keys.t(),
            Threads::One,
        );
        for (i, row) in scores.chunks_exact_mut(all).enumerate() {
            let sees = before + i + 1;
            vectorized(
                #[inline(always)]
                || softmax(&mut row[..sees]),
            );
            row[sees..].fill(0.0);
        }
        matmul(
            ViewMut::new(&mut result, rows, dim),
            OutputMode::Overwrite,
            1.0,
            View::new(&scores, rows, all),
            values,
            Threads::One,
        );
        for (row, result) in out.chunks_exact_mut(wide).zip(result.chunks_exact(dim)) {
            row[head * dim..(head + 1) * dim].copy_from_slice(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{self, AttentionMask};

    /// The outputs do not depend on how a text is divided into calls.
    #[test]
    fn parts_of_a_text_give_the_same_outputs() {
        for (queries, keys) in [(1, 1), (4, 4), (4, 2), (6, 1)] {
            let heads = Heads { queries, keys, dim: 5, mask: AttentionMask::Causal };
            let lengths = [7usize, 1, 4];
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |sum, n| {
                    Some({
                        *sum += n;
                        *sum
                    })
                }))
                .collect();
            let qkv: Vec<f32> =
                (0..12 * heads.width()).map(|i| 2.0 * (1.7 * (i * i) as f32).sin()).collect();
            let (mut whole, mut sums) = (vec![0.0; 12 * queries * 5], vec![0.0; 12 * queries]);
            attention::forward(heads, &offsets, &qkv, &mut whole, &mut sums);
            for piece in [1usize, 2, 3, 10] {
                let mut cache = vec![KeyValueCache::default(); 3];
                let mut done = [0usize; 3];
                while done.iter().zip(lengths).any(|(done, length)| *done < length) {
                    let take: Vec<usize> = done
                        .iter()
                        .zip(lengths)
                        .map(|(done, length)| piece.min(length - done))
                        .collect();
                    let (mut part, mut ends) = (Vec::new(), vec![0]);
                    for i in 0..3 {
                        let start = offsets[i] + done[i];
                        part.extend_from_slice(
                            &qkv[start * heads.width()..(start + take[i]) * heads.width()],
                        );
                        ends.push(ends[i] + take[i]);
                    }
                    let mut out = vec![0.0; ends[3] * queries * 5];
                    extend(heads, &ends, &part, &mut cache, &mut out);
                    for i in 0..3 {
                        let start = offsets[i] + done[i];
                        let expected = &whole[start * queries * 5..(start + take[i]) * queries * 5];
                        let got = &out[ends[i] * queries * 5..ends[i + 1] * queries * 5];
                        assert!(
                            expected.iter().zip(got).all(|(a, b)| (a - b).abs() < 1e-5),
                            "{queries} {keys} {piece}"
                        );
                        done[i] += take[i];
                        assert_eq!(cache[i].rows(), done[i]);
                    }
                }
            }
        }
    }
}
