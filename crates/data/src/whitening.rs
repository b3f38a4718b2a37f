//! Whitening of features with public statistics.
//!
//! Coefficients of wavelets differ in size by orders of magnitude and are strongly correlated. A
//! model learns directions of small variance slowly, and the noise of private training is the same
//! in all of them. Whitening brings the variances of all directions together:
//! y = s (R + λI)^(−½) D⁻¹ (x − m), where m are the means, D the standard deviations and R the
//! correlations of public samples, and the scale s makes the mean square of y 1. The root is
//! symmetric, so each feature keeps its meaning (ZCA: Bell and Sejnowski 1997).

/// λ, relative to the mean variance of a direction: it limits the amplification to λ^(−½).
const SHRINKAGE: f64 = 0.1;
/// A feature that varies by less than this fraction of its mean is constant, up to rounding.
const LEAST_VARIATION: f64 = 1e-6;
/// The largest number of iterations of the inverse square root.
const ITERATIONS: usize = 100;

/// The affine map of one group of features.
#[derive(Clone, Debug)]
pub(crate) struct Whitening {
    means: Vec<f32>,
    /// Row j has the contributions of input j to all outputs.
    matrix: Vec<f32>,
}

impl Whitening {
    /// Estimates the statistics of samples of `width` features each.
    pub(crate) fn of_samples(samples: &[f32], width: usize) -> Self {
        let count = (samples.len() / width) as f64;
        let rows = || samples.chunks_exact(width);
        let mut means = vec![0.0; width];
        for row in rows() {
            means.iter_mut().zip(row).for_each(|(mean, &x)| *mean += f64::from(x) / count);
        }
        let mut covariance = vec![0.0; width * width];
        let mut centered = vec![0.0; width];
        for row in rows() {
            centered.iter_mut().zip(row).zip(&means).for_each(|((c, &x), m)| *c = f64::from(x) - m);
            for (line, a) in covariance.chunks_exact_mut(width).zip(&centered) {
                line.iter_mut().zip(&centered).for_each(|(sum, b)| *sum += a * b / count);
            }
        }
        // A constant feature has no scale, and becomes 0.
        let inverse = |x: f64, least: f64| if x > least { x.recip() } else { 0.0 };
        let scale =
            |i: usize| inverse(covariance[i * width + i].sqrt(), LEAST_VARIATION * means[i].abs());
        let scales: Vec<f64> = (0..width).map(scale).collect();
        let places = || (0..width).flat_map(|i| (0..width).map(move |j| (i, j)));
        let mut correlation: Vec<f64> =
            places().map(|(i, j)| covariance[i * width + j] * scales[i] * scales[j]).collect();
        (0..width).for_each(|i| correlation[i * width + i] += SHRINKAGE);
        let root = inverse_square_root(&correlation, width);
        // The mean square of the outputs is the trace of root · R · root.
        (0..width).for_each(|i| correlation[i * width + i] -= SHRINKAGE);
        let white = product(&product(&root, &correlation, width), &root, width);
        let mean_square = (0..width).map(|i| white[i * width + i]).sum::<f64>() / width as f64;
        let scale = inverse(mean_square.sqrt(), 0.0);
        let matrix = places().map(|(i, j)| (scale * scales[i] * root[i * width + j]) as f32);
        Self { matrix: matrix.collect(), means: means.iter().map(|&m| m as f32).collect() }
    }

    /// Replaces features by whitened ones.
    pub(crate) fn apply(&self, features: &mut [f32]) {
        let mut out = vec![0.0; features.len()];
        for ((&x, mean), line) in
            features.iter().zip(&self.means).zip(self.matrix.chunks_exact(self.means.len()))
        {
            let centered = x - mean;
            out.iter_mut().zip(line).for_each(|(sum, weight)| *sum += centered * weight);
        }
        features.copy_from_slice(&out);
    }
}

/// Computes A^(−½) of a symmetric positive definite matrix by the coupled Newton–Schulz iteration.
///
/// Z → (A/c)^(−½) and Y → (A/c)^½ where c is at least the largest eigenvalue (Higham 1997). Plain
/// loops: the bits depend on those of the matrix alone.
fn inverse_square_root(matrix: &[f64], width: usize) -> Vec<f64> {
    let largest =
        matrix.chunks_exact(width).map(|row| row.iter().map(|x| x.abs()).sum()).fold(0.0, f64::max);
    let mut y: Vec<f64> = matrix.iter().map(|x| x / largest).collect();
    let mut z = identity(width);
    for _ in 0..ITERATIONS {
        // ½ (3 I − Z Y)
        let mut step = product(&z, &y, width);
        let error =
            step.iter().zip(&identity(width)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        step.iter_mut().zip(&identity(width)).for_each(|(x, one)| *x = 1.5 * one - 0.5 * *x);
        y = product(&y, &step, width);
        z = product(&step, &z, width);
        if error < 1e-9 {
            break;
        }
    }
    let root = largest.sqrt();
    z.iter().map(|x| x / root).collect()
}

fn identity(width: usize) -> Vec<f64> {
    (0..width * width).map(|at| if at % (width + 1) == 0 { 1.0 } else { 0.0 }).collect()
}

fn product(a: &[f64], b: &[f64], width: usize) -> Vec<f64> {
    let mut out = vec![0.0; a.len()];
    for (row, out) in a.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for (x, line) in row.iter().zip(b.chunks_exact(width)) {
            out.iter_mut().zip(line).for_each(|(sum, y)| *sum += x * y);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of three features: two correlated ones of very different sizes, and a constant.
    fn samples() -> Vec<f32> {
        let number = |i: usize| {
            ((i * 7919 % 1009) as f32 / 1009.0 - 0.5, (i * 104_729 % 997) as f32 / 997.0 - 0.5)
        };
        (0..4000)
            .flat_map(|i| {
                let (a, b) = number(i);
                [100.0 * a + 5.0, 0.01 * (a + 0.1 * b), 3.0]
            })
            .collect()
    }

    fn moments(rows: &[f32], i: usize, j: usize) -> f64 {
        let count = (rows.len() / 3) as f64;
        rows.chunks_exact(3).map(|row| f64::from(row[i]) * f64::from(row[j])).sum::<f64>() / count
    }

    #[test]
    fn samples_become_white() {
        let mut rows = samples();
        let whitening = Whitening::of_samples(&rows, 3);
        rows.chunks_exact_mut(3).for_each(|row| whitening.apply(row));
        let count = (rows.len() / 3) as f64;
        for i in 0..3 {
            let mean = rows.chunks_exact(3).map(|row| f64::from(row[i])).sum::<f64>() / count;
            assert!(mean.abs() < 1e-3, "{mean}");
        }
        assert!(moments(&rows, 2, 2) < 1e-10, "a constant feature is 0");
        let mean_square = (0..3).map(|i| moments(&rows, i, i)).sum::<f64>() / 3.0;
        assert!((mean_square - 1.0).abs() < 1e-3, "{mean_square}");
        // The correlation was 0.995; the direction of small variance is amplified, up to λ.
        let correlation =
            moments(&rows, 0, 1) / (moments(&rows, 0, 0) * moments(&rows, 1, 1)).sqrt();
        assert!((0.5..0.95).contains(&correlation), "{correlation}");
    }

    /// Z A Z = I, and Z is symmetric.
    #[test]
    fn the_root_is_the_inverse_square_root() {
        let width = 12;
        let factor: Vec<f64> =
            (0..width * width).map(|i| (i * 37 % 23) as f64 / 23.0 - 0.4).collect();
        let transposed: Vec<f64> =
            (0..width * width).map(|at| factor[at % width * width + at / width]).collect();
        let mut matrix = product(&factor, &transposed, width);
        (0..width).for_each(|i| matrix[i * width + i] += SHRINKAGE);
        let root = inverse_square_root(&matrix, width);
        assert!(root.iter().all(|x| x.is_finite()));
        let found = product(&product(&root, &matrix, width), &root, width);
        let error =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error(&found, &identity(width)) < 1e-6);
        let mirrored: Vec<f64> =
            (0..width * width).map(|at| root[at % width * width + at / width]).collect();
        assert!(error(&root, &mirrored) < 1e-6);
    }
}
