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
    // The maximum below would leave NaN out.
    assert!(a.iter().chain(b).all(|x| x.is_finite()));
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

/// The second implementation draws the synthetic images and whitens by eigenvectors.
#[test]
fn features_are_those_of_a_second_implementation() {
    for case in cases() {
        let features = case.scattering().features(&case.pixels());
        let difference = largest_difference(&features[..case.shape[2]], &case.first_features);
        assert!(difference < 1e-3, "{:?}: {difference}", case.image);
    }
}

/// Contrast and, up to the statistics of random pixels, the scales of coefficients are removed.
#[test]
fn contrast_and_scales_are_removed() {
    for case in cases() {
        let scattering = case.scattering();
        let features = scattering.features(&case.pixels());
        assert_eq!(features.len(), case.shape.iter().product::<usize>());
        let darker: Vec<f32> = case.pixels().iter().map(|x| 0.9 * x + 0.05).collect();
        let difference = largest_difference(&features, &scattering.features(&darker));
        let largest = features.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(difference < 0.05 * largest, "{:?}: {difference} of {largest}", case.image);
        // Coefficients of order 2 are a hundred times smaller than those of order 0. Random pixels
        // have more of high frequencies than natural images, so features are not of unit size.
        let size = |of: &dyn Fn(usize) -> bool, values: &[f32]| {
            let picked = values.iter().enumerate().filter(|(at, _)| of(at % 81));
            let (count, sum) = picked.fold((0.0, 0.0), |(n, sum), (_, x)| (n + 1.0, sum + x * x));
            (sum / count).sqrt()
        };
        let ratio = |values: &[f32]| size(&|at| at > 16, values) / size(&|at| at == 0, values);
        let coefficients = scattering.coefficients(&case.pixels());
        assert!(ratio(&coefficients) < 0.05, "{}", ratio(&coefficients));
        assert!((0.2..10.0).contains(&ratio(&features)), "{}", ratio(&features));
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
    // A flat image has no variance; its features are finite and do not depend on its brightness.
    let flat = |value: f32| scattering.features(&[value; 28 * 28]);
    assert!(flat(0.0).iter().all(|x| x.is_finite()));
    assert!(flat(0.0) == flat(0.5) && flat(0.5) == flat(1.0));
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
