//! Sigmoid cross-entropy of several labels; the gradient overwrites the logits.

use crate::simd::{exp, sigmoid};
use rayon::prelude::*;

/// Replaces logits by `weight/labels · (sigmoid − target)`; `losses` gets the mean over the labels.
///
/// Targets are 0 or 1, one for each logit.
///
/// # Panics
/// If the lengths do not match.
pub fn backward(
    labels: usize,
    logits: &mut [f32],
    targets: &[f32],
    weights: &[f32],
    losses: &mut [f32],
) {
    forward(labels, logits, targets, losses);
    assert_eq!(weights.len(), losses.len(), "rows of logits");
    if labels == 0 {
        return;
    }
    let rows = logits.par_chunks_exact_mut(labels).zip(targets.par_chunks_exact(labels));
    rows.zip(weights).for_each(|((row, targets), weight)| {
        let factor = weight / labels as f32;
        for (x, target) in row.iter_mut().zip(targets) {
            *x = factor * (sigmoid(*x) - target);
        }
    });
}

/// Writes the mean over the labels of −ln p(target) of each row to `losses`.
///
/// # Panics
/// If the lengths do not match.
pub fn forward(labels: usize, logits: &[f32], targets: &[f32], losses: &mut [f32]) {
    assert_eq!(
        (targets.len(), losses.len() * labels),
        (logits.len(), logits.len()),
        "rows of logits"
    );
    if labels == 0 {
        return;
    }
    let rows = logits.par_chunks_exact(labels).zip(targets.par_chunks_exact(labels));
    rows.zip(losses).for_each(|((row, targets), loss)| {
        let sum: f64 = row.iter().zip(targets).map(|(&x, &target)| one(x, target)).sum();
        *loss = (sum / labels as f64) as f32;
    });
}

/// Computes ln(1 + e^x) − target · x without overflow.
fn one(x: f32, target: f32) -> f64 {
    // Written for numbers above 0, so that NaN stays NaN.
    let positive = if x < 0.0 { 0.0 } else { f64::from(x) };
    let product = if target == 0.0 { 0.0 } else { f64::from(target) * f64::from(x) };
    positive - product + f64::from(exp(-x.abs())).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_gradients_match_the_definition() {
        for labels in [1, 3, 17] {
            let logits: Vec<f32> = (0..3 * labels).map(|i| (i as f32 * 1.7).sin() * 9.0).collect();
            let targets: Vec<f32> = (0..3 * labels).map(|i| (i % 2) as f32).collect();
            let weights = [1.0, 0.5, 0.0];
            let (mut grad, mut losses, mut again) = (logits.clone(), [0.0; 3], [0.0; 3]);
            backward(labels, &mut grad, &targets, &weights, &mut losses);
            forward(labels, &logits, &targets, &mut again);
            assert_eq!(losses, again);
            for row in 0..3 {
                let mut loss = 0.0;
                for i in row * labels..(row + 1) * labels {
                    let p = 1.0 / (1.0 + (-f64::from(logits[i])).exp());
                    let target = f64::from(targets[i]);
                    loss -= target * p.ln() + (1.0 - target) * (1.0 - p).ln();
                    let expected = f64::from(weights[row]) / labels as f64 * (p - target);
                    assert!((expected - f64::from(grad[i])).abs() < 1e-6);
                }
                assert!((loss / labels as f64 - f64::from(losses[row])).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut losses = [0.0; 4];
        let mut logits = [1e4, -1e4, 1e4, -1e4];
        backward(1, &mut logits, &[1.0, 0.0, 0.0, 1.0], &[1.0; 4], &mut losses);
        assert!(losses[..2].iter().all(|loss| *loss < 1e-30));
        assert_eq!(losses[2..], [1e4, 1e4]);
        assert!((logits[2] - 1.0).abs() < 1e-6 && (logits[3] + 1.0).abs() < 1e-6);
    }

    #[test]
    fn nan_in_one_row_does_not_reach_others() {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.5; 6];
            logits[3] = poison;
            let mut losses = [0.0; 3];
            backward(2, &mut logits, &[0.0; 6], &[1.0; 3], &mut losses);
            assert!(losses[0].is_finite() && !losses[1].is_finite() && losses[2] == losses[0]);
            assert!(logits[..2].iter().chain(&logits[4..]).all(|x| x.is_finite()));
        }
    }
}
