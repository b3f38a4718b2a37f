//! Gradients equal finite differences of the losses.

#![allow(clippy::unwrap_used)]

mod support;

use engine::{Engine, Example};
use support::{gradients, zoo};

#[test]
fn gradients_equal_finite_differences() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 11);
        let examples = [zoo::example(kind, 1, 9, 3), zoo::example(kind, 2, 2, 0)];
        for example in &examples {
            let example: &Example = example;
            let gradient = &gradients(&mut network, &params, &[example])[0];
            for k in 0..params.len() {
                let direction: Vec<f32> =
                    (0..params[k].len()).map(|i| zoo::noise(77 + k as u64, i)).collect();
                let mut loss = |step: f32| {
                    let mut moved = params.clone();
                    moved[k]
                        .data_mut()
                        .iter_mut()
                        .zip(&direction)
                        .for_each(|(x, d)| *x += step * d);
                    network.load(&moved).unwrap();
                    network.losses(&[example]).unwrap()[0]
                };
                // The five-point formula has an error of fourth order and little rounding. A CNN
                // has kinks (ReLU, max pooling), so its step must be small.
                let h = if kind == zoo::Kind::Cnn { 4e-4 } else { 4e-3 };
                let slope = (8.0 * (loss(h) - loss(-h)) - (loss(2.0 * h) - loss(-2.0 * h)))
                    / (12.0 * f64::from(h));
                let expected: f64 = gradient[k]
                    .data()
                    .iter()
                    .zip(&direction)
                    .map(|(g, d)| f64::from(*g) * f64::from(*d))
                    .sum();
                let scale =
                    gradient[k].data().iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                assert!(
                    (slope - expected).abs() < 2e-3 + 0.02 * scale,
                    "{kind:?} {}: {slope} {expected}",
                    network.trainable()[k].name
                );
            }
        }
    }
}
