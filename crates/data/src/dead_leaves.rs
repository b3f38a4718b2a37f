//! Synthetic images with edges and a power spectrum like natural ones: the dead leaves model.
//!
//! Opaque discs of random sizes and colours cover each other. With a density of radii
//! proportional to r⁻³, the images have about the same statistics at every scale, as photographs
//! have (Ruderman 1997; Lee, Mumford and Huang 2001). They contain no objects, come from no data
//! set, and are the same on every machine.

/// Height and width of the images.
pub(crate) const SIDE: usize = 32;
/// Samples of each pixel along an axis, whose average is the pixel.
const SAMPLES: usize = 4;
/// Radii of the discs, in pixels.
const RADII: [f64; 2] = [0.5, SIDE as f64];
/// The largest number of discs of an image: some 6500 cover all samples.
const DISCS: usize = 20_000;
/// The range of a channel around the brightness of its disc.
const COLOR: f64 = 0.3;

/// Draws an image of one channel or of three, row by row, channels last, with values from 0 to 1.
pub(crate) fn image(number: u64, channels: usize) -> Vec<f32> {
    let mut uniform = Uniform::new(number);
    let side = SIDE * SAMPLES;
    let mut covered = vec![false; side * side];
    let mut sums = vec![0.0; SIDE * SIDE * channels];
    let mut left = covered.len();
    // From front to back: a sample belongs to the first disc that covers it.
    for _ in 0..DISCS {
        if left == 0 {
            break;
        }
        let disc = Disc::draw(&mut uniform, channels);
        for (y, x) in disc.samples() {
            let sample = &mut covered[y * side + x];
            if !std::mem::replace(sample, true) {
                left -= 1;
                let pixel = y / SAMPLES * SIDE + x / SAMPLES;
                let values = &mut sums[pixel * channels..][..channels];
                values.iter_mut().zip(&disc.color).for_each(|(sum, value)| *sum += value);
            }
        }
    }
    let samples = (SAMPLES * SAMPLES) as f64;
    sums.iter().map(|sum| (sum / samples) as f32).collect()
}

/// A disc, in pixels.
struct Disc {
    y: f64,
    x: f64,
    radius: f64,
    /// The value of each channel.
    color: Vec<f64>,
}

impl Disc {
    fn draw(uniform: &mut Uniform, channels: usize) -> Self {
        // The inverse of the distribution of radii with density r⁻³ between the two.
        let [least, most] = RADII;
        let u = uniform.next();
        let radius = ((1.0 - u) / (least * least) + u / (most * most)).sqrt().recip();
        let mut center = || (uniform.next() * 2.0 - 0.5) * SIDE as f64;
        let (y, x) = (center(), center());
        let brightness = uniform.next();
        let channel = |uniform: &mut Uniform| {
            let offset = if channels == 1 { 0.0 } else { COLOR * (uniform.next() - 0.5) };
            (brightness + offset).clamp(0.0, 1.0)
        };
        Self { y, x, radius, color: (0..channels).map(|_| channel(uniform)).collect() }
    }

    /// The row and column of each sample within the disc.
    fn samples(&self) -> impl Iterator<Item = (usize, usize)> {
        let side = SIDE * SAMPLES;
        let range = |center: f64| {
            let bound = |at: f64| (at * SAMPLES as f64).clamp(0.0, side as f64) as usize;
            bound(center - self.radius)..(bound(center + self.radius) + 1).min(side)
        };
        let (rows, cols) = (range(self.y), range(self.x));
        let distance = |at: usize, center: f64| (at as f64 + 0.5) / SAMPLES as f64 - center;
        rows.flat_map(move |y| cols.clone().map(move |x| (y, x))).filter(move |&(y, x)| {
            let (down, right) = (distance(y, self.y), distance(x, self.x));
            down * down + right * right <= self.radius * self.radius
        })
    }
}

/// Uniform numbers in [0, 1), the same on every machine: SplitMix64 (Steele, Lea and Flood 2014).
struct Uniform(u64);

impl Uniform {
    fn new(number: u64) -> Self {
        Self(number.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_covered_and_differ() {
        for channels in [1, 3] {
            let first = image(0, channels);
            assert_eq!(first.len(), SIDE * SIDE * channels);
            // A sample that is not covered is 0; a disc is exactly 0 in colours only.
            let least = if channels == 1 { f32::MIN_POSITIVE } else { 0.0 };
            assert!(first.iter().all(|x| (least..=1.0).contains(x)));
            assert!(first == image(0, channels) && first != image(1, channels));
        }
    }

    /// With a power spectrum of about f⁻², halving the resolution changes the squared differences of
    /// neighbours little. White noise would have a quarter of them.
    #[test]
    fn statistics_are_similar_at_two_scales() {
        let (mut fine, mut coarse) = (0.0, 0.0);
        let square = |a: f32, b: f32| f64::from(a - b) * f64::from(a - b);
        for number in 0..200 {
            let fine_image = image(number, 1);
            let at = |y: usize, x: usize| fine_image[y * SIDE + x];
            let half = |y: usize, x: usize| {
                let row = |y: usize| at(y, 2 * x) + at(y, 2 * x + 1);
                (row(2 * y) + row(2 * y + 1)) / 4.0
            };
            for (y, x) in (0..SIDE).flat_map(|y| (1..SIDE).map(move |x| (y, x))) {
                fine += square(at(y, x), at(y, x - 1)) / (SIDE * (SIDE - 1)) as f64;
            }
            let side = SIDE / 2;
            for (y, x) in (0..side).flat_map(|y| (1..side).map(move |x| (y, x))) {
                coarse += square(half(y, x), half(y, x - 1)) / (side * (side - 1)) as f64;
            }
        }
        let ratio = coarse / fine;
        assert!((0.9..2.2).contains(&ratio), "{ratio}");
    }
}
