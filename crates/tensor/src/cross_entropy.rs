//! Softmax cross-entropy over a large vocabulary; the gradient overwrites the logits.

use crate::simd::{LANES, exp, fold, max, scale, vectorized};
use rayon::prelude::*;

/// Number of columns summed in f32 before they are added to a sum in f64.
const F32_COLUMNS: usize = 4096;

/// Replaces logits by `weight · (softmax − target)` and writes −ln p(target) to `losses`.
///
/// # Panics
/// If a target is outside the vocabulary.
pub fn backward(
    vocab: usize,
    logits: &mut [f32],
    targets: &[u32],
    weights: &[f32],
    losses: &mut [f32],
) {
    assert_eq!(
        (targets.len() * vocab, weights.len(), losses.len()),
        (logits.len(), targets.len(), targets.len()),
        "rows of logits"
    );
    if vocab == 0 {
        return;
    }
    let rows = logits.par_chunks_exact_mut(vocab).zip(targets).zip(weights).zip(losses);
    rows.for_each(|(((row, &target), &weight), loss)| {
        let chosen = row[target as usize];
        let top = vectorized(
            #[inline(always)]
            || max(row),
        );
        let total: f64 = vectorized(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for part in row.chunks_mut(F32_COLUMNS) {
                    total += f64::from(exponentials(part, top));
                }
                total
            },
        );
        *loss = (total.ln() + f64::from(top) - f64::from(chosen)) as f32;
        let factor = (f64::from(weight) / total) as f32;
        vectorized(
            #[inline(always)]
            || scale(row, factor),
        );
        row[target as usize] -= weight;
    });
}

/// Writes −ln p(target) of each row to `losses`.
pub fn forward(vocab: usize, logits: &[f32], targets: &[u32], losses: &mut [f32]) {
    assert_eq!(
        (targets.len() * vocab, losses.len()),
        (logits.len(), targets.len()),
        "rows of logits"
    );
    if vocab == 0 {
        return;
    }
    logits.par_chunks_exact(vocab).zip(targets).zip(losses).for_each(|((row, &target), loss)| {
        let top = vectorized(
            #[inline(always)]
            || max(row),
        );
        let total: f64 = vectorized(
            #[inline(always)]
            || {
                let mut total = 0.0;
                for part in row.chunks(F32_COLUMNS) {
                    total += f64::from(sum_of_exponentials(part, top));
                }
                total
            },
        );
        *loss = (total.ln() + f64::from(top) - f64::from(row[target as usize])) as f32;
    });
}

/// Computes x ← e^(x − top) and returns the sum.
#[inline(always)]
fn exponentials(part: &mut [f32], top: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = part.chunks_exact_mut(LANES);
    for chunk in chunks.by_ref() {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] - top);
            lanes[i] += chunk[i];
        }
    }
    for (x, lane) in chunks.into_remainder().iter_mut().zip(&mut lanes) {
        *x = exp(*x - top);
        *lane += *x;
    }
    fold(lanes)
}

#[inline(always)]
fn sum_of_exponentials(part: &[f32], top: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let chunks = part.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += exp(chunk[i] - top);
        }
    }
    for (x, lane) in rest.iter().zip(&mut lanes) {
        *lane += exp(*x - top);
    }
    fold(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_gradients_match_the_definition() {
        for vocab in [1, 3, 17, 40, 5000] {
            let logits: Vec<f32> = (0..3 * vocab).map(|i| (i as f32 * 1.7).sin() * 4.0).collect();
            let targets = [0, vocab as u32 - 1, vocab as u32 / 2];
            let weights = [1.0, 0.5, 0.0];
            let (mut grad, mut losses, mut again) = (logits.clone(), [0.0; 3], [0.0; 3]);
            backward(vocab, &mut grad, &targets, &weights, &mut losses);
            forward(vocab, &logits, &targets, &mut again);
            assert_eq!(losses, again);
            for row in 0..3 {
                let x: Vec<f64> =
                    logits[row * vocab..(row + 1) * vocab].iter().map(|&x| f64::from(x)).collect();
                let total: f64 = x.iter().map(|x| x.exp()).sum();
                let target = targets[row] as usize;
                assert!((total.ln() - x[target] - f64::from(losses[row])).abs() < 1e-5);
                for j in 0..vocab {
                    let expected = f64::from(weights[row])
                        * (x[j].exp() / total - f64::from(u8::from(j == target)));
                    assert!((expected - f64::from(grad[row * vocab + j])).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn nan_in_one_row_does_not_reach_others() {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.5; 12];
            logits[5] = poison;
            let mut losses = [0.0; 3];
            backward(4, &mut logits, &[0, 0, 0], &[1.0; 3], &mut losses);
            assert!(losses[0].is_finite() && !losses[1].is_finite() && losses[2] == losses[0]);
            assert!(logits[..4].iter().chain(&logits[8..]).all(|x| x.is_finite()));
        }
    }
}
