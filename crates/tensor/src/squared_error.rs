//! Squared error of a number; the gradient overwrites the output.

/// Replaces outputs by `2 · weight · (output − target)` and writes (output − target)² to `losses`.
///
/// # Panics
/// If the lengths do not match.
pub fn backward(outputs: &mut [f32], targets: &[f32], weights: &[f32], losses: &mut [f32]) {
    forward(outputs, targets, losses);
    assert_eq!(weights.len(), outputs.len(), "rows of outputs");
    for ((output, target), weight) in outputs.iter_mut().zip(targets).zip(weights) {
        *output = 2.0 * weight * (*output - target);
    }
}

/// Writes (output − target)² of each row to `losses`.
///
/// # Panics
/// If the lengths do not match.
pub fn forward(outputs: &[f32], targets: &[f32], losses: &mut [f32]) {
    assert_eq!((targets.len(), losses.len()), (outputs.len(), outputs.len()), "rows of outputs");
    for ((output, target), loss) in outputs.iter().zip(targets).zip(losses) {
        let difference = output - target;
        *loss = difference * difference;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_gradients_match_the_definition() {
        let (mut outputs, mut losses, mut again) = ([1.0, -2.0, 0.5], [0.0; 3], [0.0; 3]);
        let targets = [0.5, 1.0, 0.5];
        forward(&outputs, &targets, &mut again);
        backward(&mut outputs, &targets, &[1.0, 0.5, 1.0], &mut losses);
        assert_eq!((losses, again), ([0.25, 9.0, 0.0], [0.25, 9.0, 0.0]));
        assert_eq!(outputs, [1.0, -3.0, 0.0]);
    }
}
