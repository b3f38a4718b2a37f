//! Standardized images: without brightness and contrast, in colours that are nearly uncorrelated.
//!
//! An image of standard deviation s gets mean 0 and standard deviation s/(s + 0.05) over all its
//! values, so that brightness and contrast of a picture hardly decide how large its features are.
//! Red, green and blue become brightness and two differences of colours.

/// Added to the standard deviation: an image of less contrast is not amplified to unit variance.
const LEAST_DEVIATION: f64 = 0.05;

/// Returns a standardized image; three channels are separated into opponent colours.
pub(crate) fn standardize(pixels: &[f32], channels: usize) -> Vec<f32> {
    let values = || pixels.iter().map(|&x| f64::from(x));
    let count = pixels.len() as f64;
    let mean = values().sum::<f64>() / count;
    let variance = values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let scale = 1.0 / (variance.sqrt() + LEAST_DEVIATION);
    let mut out: Vec<f32> = values().map(|x| ((x - mean) * scale) as f32).collect();
    if channels == 3 {
        out.as_chunks_mut::<3>().0.iter_mut().for_each(|color| *color = opponent(*color));
    }
    out
}

/// An orthonormal basis of colours: brightness, red against blue, green against both.
fn opponent([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let root = |x: f32| x.sqrt().recip();
    [
        (red + green + blue) * root(3.0),
        (red - blue) * root(2.0),
        (2.0 * green - red - blue) * root(6.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Brightness and contrast are removed, up to the term that protects flat images.
    #[test]
    fn brightness_and_contrast_do_not_matter() {
        let image: Vec<f32> = (0..300).map(|i| (i * i % 17) as f32).collect();
        for channels in [1, 3] {
            let expected = standardize(&image, channels);
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            let mean_square = expected.iter().map(square).sum::<f64>() / 300.0;
            assert!((0.95..1.0).contains(&mean_square), "{mean_square}");
            let brighter: Vec<f32> = image.iter().map(|x| 20.0 * x + 7.0).collect();
            let found = standardize(&brighter, channels);
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.03));
        }
        // A standard deviation of 0.05 becomes ½.
        let faint: Vec<f32> = (0..300).map(|i| if i % 2 == 0 { 0.45 } else { 0.55 }).collect();
        assert!(standardize(&faint, 1).iter().all(|x| (x.abs() - 0.5).abs() < 1e-4));
    }

    #[test]
    fn a_flat_image_is_zero() {
        assert!(standardize(&[0.7; 30], 3).iter().all(|x| x.abs() < 1e-5));
        assert!(standardize(&[], 1).is_empty());
    }

    /// The basis keeps lengths, and grey has brightness alone.
    #[test]
    fn colors_are_an_orthonormal_basis() {
        let length = |x: [f32; 3]| x.iter().map(|x| x * x).sum::<f32>();
        for color in [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.3, -0.8, 2.0]] {
            assert!((length(opponent(color)) - length(color)).abs() < 1e-5);
        }
        let [brightness, first, second] = opponent([0.5; 3]);
        assert!((brightness - 0.75f32.sqrt()).abs() < 1e-6 && first == 0.0 && second.abs() < 1e-6);
    }
}
