//! Layer norm and RMS norm of rows.

use crate::matmul::OutputMode;
use crate::parallel::{packed, rows_per_piece};
use crate::simd::{LANES, dot, fold, sum, sum2, update, vectorized};
use rayon::prelude::*;

/// The kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// (x − mean)/√(variance + ε)
    Layer,
    /// x/√(mean square + ε)
    Rms,
}

/// Number of statistics of a row: its mean (0 for RMS) and the inverse of its spread.
pub const STATS: usize = 2;

/// Computes `out = x̂ · gain + bias` and writes [`STATS`] values per row to `stats`.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    norm: Norm,
    width: usize,
    epsilon: f32,
    x: &[f32],
    gain: &[f32],
    bias: Option<&[f32]>,
    stats: &mut [f32],
    out: &mut [f32],
) {
    assert_eq!(
        (x.len(), gain.len(), stats.len() * width),
        (out.len(), width, STATS * out.len()),
        "shapes of a norm"
    );
    if x.is_empty() {
        return;
    }
    let rows = rows_per_piece(x.len() / width, width);
    out.par_chunks_mut(rows * width)
        .zip(x.par_chunks(rows * width))
        .zip(stats.par_chunks_mut(rows * STATS))
        .for_each(|((out, x), stats)| {
            vectorized(
                #[inline(always)]
                || {
                    for ((out, x), stats) in out
                        .chunks_exact_mut(width)
                        .zip(x.chunks_exact(width))
                        .zip(stats.chunks_exact_mut(STATS))
                    {
                        let mean = if norm == Norm::Layer { sum(x) / width as f32 } else { 0.0 };
                        let variance = sum2(x, x, |x, _, sum| (x - mean).mul_add(x - mean, sum))
                            / width as f32;
                        let inverse = 1.0 / (variance + epsilon).sqrt();
                        stats[0] = mean;
                        stats[1] = inverse;
                        match bias {
                            Some(bias) => {
                                for i in 0..width {
                                    out[i] = ((x[i] - mean) * inverse).mul_add(gain[i], bias[i]);
                                }
                            }
                            None => {
                                for i in 0..width {
                                    out[i] = (x[i] - mean) * inverse * gain[i];
                                }
                            }
                        }
                    }
                },
            );
        });
}

/// Writes or adds the gradient with respect to `x` to `dx`.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    norm: Norm,
    width: usize,
    x: &[f32],
    stats: &[f32],
    gain: &[f32],
    dout: &[f32],
    onto: OutputMode,
    dx: &mut [f32],
) {
    assert_eq!((x.len(), gain.len(), dout.len()), (dx.len(), width, dx.len()), "shapes of a norm");
    if x.is_empty() {
        return;
    }
    let rows = rows_per_piece(x.len() / width, width);
    let pieces = dx.par_chunks_mut(rows * width).zip(x.par_chunks(rows * width));
    pieces.zip(dout.par_chunks(rows * width)).zip(stats.par_chunks(rows * STATS)).for_each(
        |(((dx, x), d), stats)| {
            vectorized(
                #[inline(always)]
                || {
                    let each = dx
                        .chunks_exact_mut(width)
                        .zip(x.chunks_exact(width))
                        .zip(d.chunks_exact(width))
                        .zip(stats.chunks_exact(STATS));
                    for (((dx, x), d), stats) in each {
                        // With e = d·gain: dx = (e − mean e − x̂ · mean(e·x̂)) / spread; no mean e
                        // for RMS.
                        let (mean, inverse) = (stats[0], stats[1]);
                        let level =
                            if norm == Norm::Layer { dot(d, gain) / width as f32 } else { 0.0 };
                        let slope = correlation(d, gain, x, mean) * inverse / width as f32;
                        for i in 0..width {
                            let value = (d[i].mul_add(gain[i], -level)
                                - (x[i] - mean) * inverse * slope)
                                * inverse;
                            dx[i] =
                                if onto == OutputMode::Accumulate { dx[i] + value } else { value };
                        }
                    }
                },
            );
        },
    );
}

/// Returns Σ d·gain·(x − mean).
#[inline(always)]
fn correlation(d: &[f32], gain: &[f32], x: &[f32], mean: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = x.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let (d, gain, x) =
            (&d[start..start + LANES], &gain[start..start + LANES], &x[start..start + LANES]);
        for i in 0..LANES {
            lanes[i] = (d[i] * gain[i]).mul_add(x[i] - mean, lanes[i]);
        }
    }
    for i in whole..x.len() {
        lanes[i - whole] = (d[i] * gain[i]).mul_add(x[i] - mean, lanes[i - whole]);
    }
    fold(lanes)
}

/// Writes per-example gradients of gain and bias to the rows of `dgain` and `dbias`.
pub fn parameter_gradients(
    offsets: &[usize],
    width: usize,
    x: &[f32],
    stats: &[f32],
    dout: &[f32],
    dgain: &mut [f32],
    dbias: Option<&mut [f32]>,
) {
    let (examples, _) = packed(offsets);
    assert_eq!(dgain.len(), examples * width, "a gain for each example");
    let one = |example: usize, dgain: &mut [f32]| {
        dgain.fill(0.0);
        vectorized(
            #[inline(always)]
            || {
                for row in offsets[example]..offsets[example + 1] {
                    let (x, d) =
                        (&x[row * width..(row + 1) * width], &dout[row * width..(row + 1) * width]);
                    let (mean, inverse) = (stats[row * STATS], stats[row * STATS + 1]);
                    for i in 0..width {
                        dgain[i] += d[i] * ((x[i] - mean) * inverse);
                    }
                }
            },
        );
    };
    if width > 0 {
        dgain.par_chunks_mut(width).enumerate().for_each(|(example, dgain)| one(example, dgain));
    }
    if let Some(dbias) = dbias {
        row_sums(offsets, dout, width, 0, width, dbias);
    }
}

/// Sums the rows of each example: the per-example gradient of a bias.
///
/// It uses the columns `first .. first + width` of rows that are `stride` wide.
pub fn row_sums(
    offsets: &[usize],
    dout: &[f32],
    stride: usize,
    first: usize,
    width: usize,
    out: &mut [f32],
) {
    assert_eq!(out.len(), packed(offsets).0 * width, "a bias for each example");
    if width == 0 {
        return;
    }
    out.par_chunks_mut(width).enumerate().for_each(|(example, out)| {
        out.fill(0.0);
        vectorized(
            #[inline(always)]
            || {
                for row in offsets[example]..offsets[example + 1] {
                    let d = &dout[row * stride + first..row * stride + first + width];
                    update(out, d, |out, d| out + d);
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 21;

    fn case() -> (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>) {
        let f =
            |n: usize, k: f32| (0..n).map(|i| ((i as f32 + 1.0) * k).sin()).collect::<Vec<f32>>();
        (f(3 * WIDTH, 0.7), f(WIDTH, 1.3), f(WIDTH, 2.1), f(3 * WIDTH, 0.37))
    }

    fn value(norm: Norm, x: &[f32], gain: &[f32], bias: &[f32], d: &[f32]) -> f64 {
        let (mut stats, mut out) = (vec![0.0; 6], vec![0.0; x.len()]);
        forward(norm, WIDTH, 1e-5, x, gain, Some(bias), &mut stats, &mut out);
        out.iter().zip(d).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    #[test]
    fn gradients_match_differences() {
        let (x, gain, bias, d) = case();
        for norm in [Norm::Layer, Norm::Rms] {
            let (mut stats, mut out) = (vec![0.0; 6], vec![0.0; x.len()]);
            forward(norm, WIDTH, 1e-5, &x, &gain, Some(&bias), &mut stats, &mut out);
            let mut dx = vec![1.0; x.len()];
            backward(norm, WIDTH, &x, &stats, &gain, &d, OutputMode::Accumulate, &mut dx);
            let offsets = [0, 1, 1, 3];
            let (mut dgain, mut dbias) = (vec![9.0; 3 * WIDTH], vec![9.0; 3 * WIDTH]);
            parameter_gradients(&offsets, WIDTH, &x, &stats, &d, &mut dgain, Some(&mut dbias));
            let difference = |change: &dyn Fn(f32) -> f64| (change(1e-2) - change(-1e-2)) / 2e-2;
            let moved = |v: &[f32], i: usize, h: f32| {
                let mut v = v.to_vec();
                v[i] += h;
                v
            };
            for (i, dx) in dx.iter().enumerate() {
                let slope = difference(&|h| value(norm, &moved(&x, i, h), &gain, &bias, &d));
                assert!(
                    (slope - f64::from(dx - 1.0)).abs() < 1e-3,
                    "{norm:?} {i}: {slope} {}",
                    dx - 1.0
                );
            }
            for i in 0..WIDTH {
                let total = |g: &[f32]| f64::from(g[i] + g[WIDTH + i] + g[2 * WIDTH + i]);
                assert!(
                    (difference(&|h| value(norm, &x, &moved(&gain, i, h), &bias, &d))
                        - total(&dgain))
                    .abs()
                        < 1e-3
                );
                assert!(
                    (difference(&|h| value(norm, &x, &gain, &moved(&bias, i, h), &d))
                        - total(&dbias))
                    .abs()
                        < 1e-3
                );
                assert_eq!((dgain[WIDTH + i], dbias[WIDTH + i]), (0.0, 0.0));
            }
        }
    }

    #[test]
    fn layer_norm_has_mean_zero_and_variance_one() {
        let (x, ..) = case();
        let (mut stats, mut out) = (vec![0.0; 6], vec![0.0; x.len()]);
        forward(Norm::Layer, WIDTH, 0.0, &x, &[1.0; WIDTH], None, &mut stats, &mut out);
        for row in out.chunks(WIDTH) {
            assert!(row.iter().sum::<f32>().abs() < 1e-4);
            assert!((row.iter().map(|x| x * x).sum::<f32>() / WIDTH as f32 - 1.0).abs() < 1e-4);
        }
    }
}
