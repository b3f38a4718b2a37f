//! The scattering transform against Kymatio, and as a function of one image alone.
#![allow(clippy::unwrap_used)]

use data::Scattering;
use serde::Deserialize;

/// Written by `peers/golden_scattering.py`.
const GOLDEN: &str = include_str!("golden/scattering.json");

#[derive(Deserialize)]
struct Case {
    image: [usize; 3],
    shape: [usize; 3],
    pixels: Vec<u8>,
    coefficients: Vec<f32>,
    first_features: Vec<f32>,
}

impl Case {
    fn pixels(&self) -> Vec<f32> {
        self.pixels.iter().map(|byte| f32::from(*byte) / 255.0).collect()
    }

    fn scattering(&self) -> Scattering {
        let [height, width, channels] = self.image;
        Scattering::new(height, width, channels).unwrap()
    }
}

fn cases() -> Vec<Case> {
    serde_json::from_str(GOLDEN).unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn coefficients_are_those_of_kymatio() {
    for case in cases() {
        let scattering = case.scattering();
        assert_eq!((scattering.shape(), scattering.image_shape()), (case.shape, case.image));
        let coefficients = scattering.coefficients(&case.pixels());
        let difference = largest_difference(&coefficients, &case.coefficients);
        assert!(difference < 2e-6, "{:?}: {difference}", case.image);
    }
}

#[test]
fn features_are_normalized_coefficients() {
    for case in cases() {
        let features = case.scattering().features(&case.pixels());
        let first = &features[..case.shape[2]];
        let difference = largest_difference(first, &case.first_features);
        assert!(difference < 1e-4, "{:?}: {difference}", case.image);
        // Each of the 27 groups has mean 0, and variance 1 up to the ε of the normalization.
        let width = case.shape[2] / 27;
        for group in 0..27 {
            let values: Vec<f64> = features
                .chunks_exact(case.shape[2])
                .flat_map(|row| &row[group * width..(group + 1) * width])
                .map(|x| f64::from(*x))
                .collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
            assert!(mean.abs() < 1e-5 && (0.1..=1.0001).contains(&square), "{mean} {square}");
        }
    }
}

/// The bits are the same whatever image was transformed before.
#[test]
fn features_do_not_depend_on_earlier_images() {
    let case = &cases()[0];
    let scattering = case.scattering();
    let alone = scattering.features(&case.pixels());
    for other in [0.0, 1.0, 1e30, f32::NAN] {
        scattering.features(&[other; 28 * 28]);
        assert!(scattering.features(&case.pixels()) == alone);
    }
    // A flat image has no variance, and its features are finite.
    assert!(scattering.features(&[0.0; 28 * 28]).iter().all(|x| *x == 0.0));
}

#[test]
fn shapes_out_of_range_are_refused() {
    for (shape, accepted) in [
        ([8, 8, 1], true),
        ([7, 28, 1], false),
        ([28, 7, 1], false),
        ([257, 28, 1], false),
        ([28, 28, 0], false),
        ([28, 28, 16], true),
        ([28, 28, 17], false),
    ] {
        let [height, width, channels] = shape;
        assert_eq!(Scattering::new(height, width, channels).is_ok(), accepted, "{shape:?}");
    }
    assert_eq!(
        Scattering::new(7, 28, 1).unwrap_err().to_string(),
        "scattering features: expected images of 8 to 256 rows and columns and 1 to 16 channels, \
         got 7 × 28 × 1"
    );
}
