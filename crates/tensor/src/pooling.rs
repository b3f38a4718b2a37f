//! Max and mean pooling of images, and the mean over the rows of an example.
//!
//! Images have the layout of [`crate::patches`]. Windows are not padded, and incomplete windows at
//! the right and lower edges are skipped.

use rayon::prelude::*;

use crate::parallel::{packed, rows_per_piece};
use crate::patches::{ImageShape, Window};
use crate::simd::{LANES, load, store, vectorized};

/// The kind of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The maximum of each channel; NaN if there is one.
    Max,
    /// The mean of each channel.
    Mean,
}

/// Pools `n` images: `out` `[n·h'·w', channels]` from `x` `[n·h·w, channels]`.
pub fn pool(pool: Pool, window: &Window, shape: &ImageShape, n: usize, x: &[f32], out: &mut [f32]) {
    let (height, width) = pooled_size(window, shape, n, out);
    assert_eq!(x.len(), n * shape.len(), "pixels of {n} images");
    if out.is_empty() {
        return;
    }
    let line = width * shape.channels;
    let lines = rows_per_piece(n * height, line * window.area());
    out.par_chunks_mut(lines * line).enumerate().for_each(|(piece, out)| {
        vectorized(
            #[inline(always)]
            || {
                for (i, out) in out.chunks_exact_mut(line).enumerate() {
                    let (example, at_y) =
                        ((piece * lines + i) / height, (piece * lines + i) % height);
                    let image = &x[example * shape.len()..][..shape.len()];
                    for (at_x, pixel) in out.chunks_exact_mut(shape.channels).enumerate() {
                        let first = corner(window, shape, at_y, at_x);
                        for (first, block) in (first..).step_by(LANES).zip(pixel.chunks_mut(LANES))
                        {
                            let pooled = match pool {
                                Pool::Max => maxima(window, shape, image, first).0,
                                Pool::Mean => means(window, shape, image, first),
                            };
                            store(pooled, block);
                        }
                    }
                }
            },
        );
    });
}

/// Overwrites `dx` with the gradient with respect to `x`, from `dout`.
///
/// A maximum passes its gradient to the first pixel with the maximum; a mean passes equal parts to
/// all. Only max pooling reads `x`; for the mean it may be empty.
pub fn pool_backward(
    pool: Pool,
    window: &Window,
    shape: &ImageShape,
    n: usize,
    x: &[f32],
    dout: &[f32],
    dx: &mut [f32],
) {
    let (height, width) = pooled_size(window, shape, n, dout);
    assert_eq!(dx.len(), n * shape.len(), "pixels of {n} images");
    assert!(pool == Pool::Mean || x.len() == dx.len(), "pixels of {n} images");
    if dx.is_empty() {
        return;
    }
    let pooled = height * width * shape.channels;
    let examples = rows_per_piece(n, shape.len());
    // Windows may overlap, so an example is one task.
    dx.par_chunks_mut(examples * shape.len()).enumerate().for_each(|(piece, dx)| {
        vectorized(
            #[inline(always)]
            || {
                for (example, dx) in (piece * examples..).zip(dx.chunks_exact_mut(shape.len())) {
                    dx.fill(0.0);
                    for (position, gradient) in
                        dout[example * pooled..][..pooled].chunks_exact(shape.channels).enumerate()
                    {
                        let first = corner(window, shape, position / width, position % width);
                        for (first, gradient) in
                            (first..).step_by(LANES).zip(gradient.chunks(LANES))
                        {
                            match pool {
                                Pool::Max => backward_max(
                                    window,
                                    shape,
                                    &x[example * shape.len()..][..shape.len()],
                                    first,
                                    gradient,
                                    dx,
                                ),
                                Pool::Mean => backward_mean(window, shape, first, gradient, dx),
                            }
                        }
                    }
                }
            },
        );
    });
}

/// Computes the mean of each example's rows: `out` `[n, channels]` from `x` `[rows, channels]`.
///
/// Example i has the rows `offsets[i]..offsets[i + 1]`; the mean of no rows is 0.
pub fn mean_rows(offsets: &[usize], channels: usize, x: &[f32], out: &mut [f32]) {
    let (n, rows) = packed(offsets);
    assert_eq!(x.len(), rows * channels, "{rows} rows of {channels}");
    assert_eq!(out.len(), n * channels, "means of {n} examples");
    if out.is_empty() {
        return;
    }
    let examples = rows_per_piece(n, x.len() / n);
    out.par_chunks_mut(examples * channels).enumerate().for_each(|(piece, out)| {
        vectorized(
            #[inline(always)]
            || {
                for (i, mean) in out.chunks_exact_mut(channels).enumerate() {
                    let (start, end) =
                        (offsets[piece * examples + i], offsets[piece * examples + i + 1]);
                    let count = (end - start).max(1) as f64;
                    for from in (0..channels).step_by(LANES) {
                        let mut sums = [0.0f64; LANES];
                        for at in (start * channels + from..end * channels).step_by(channels) {
                            let row = load(&x[at..end * channels]);
                            for l in 0..LANES {
                                sums[l] += f64::from(row[l]);
                            }
                        }
                        store(
                            sums.map(|sum| (sum / count) as f32),
                            &mut mean[from..channels.min(from + LANES)],
                        );
                    }
                }
            },
        );
    });
}

/// Overwrites `dx` `[rows, channels]` with the gradient of [`mean_rows`], from `dout`.
pub fn mean_rows_backward(offsets: &[usize], channels: usize, dout: &[f32], dx: &mut [f32]) {
    let (n, rows) = packed(offsets);
    assert_eq!(dout.len(), n * channels, "means of {n} examples");
    assert_eq!(dx.len(), rows * channels, "{rows} rows of {channels}");
    if dx.is_empty() {
        return;
    }
    let lines = rows_per_piece(rows, channels);
    dx.par_chunks_mut(lines * channels).enumerate().for_each(|(piece, dx)| {
        vectorized(
            #[inline(always)]
            || {
                // The last example that begins at or before the row, which skips empty examples.
                let mut example = offsets.partition_point(|&start| start <= piece * lines) - 1;
                for (row, dx) in (piece * lines..).zip(dx.chunks_exact_mut(channels)) {
                    while offsets[example + 1] <= row {
                        example += 1;
                    }
                    let count = (offsets[example + 1] - offsets[example]) as f32;
                    for (dx, &gradient) in dx.iter_mut().zip(&dout[example * channels..]) {
                        *dx = gradient / count;
                    }
                }
            },
        );
    });
}

/// Returns height and width of the pooled images.
fn pooled_size(window: &Window, shape: &ImageShape, n: usize, pooled: &[f32]) -> (usize, usize) {
    assert_eq!(window.padding, [0, 0], "pooling does not pad");
    let (height, width) = window.expect_output(shape);
    assert_eq!(pooled.len(), n * height * width * shape.channels, "pooled pixels of {n} images");
    (height, width)
}

/// Returns the index of the first pixel under a window in its image.
#[inline(always)]
fn corner(window: &Window, shape: &ImageShape, at_y: usize, at_x: usize) -> usize {
    (at_y * window.stride[0] * shape.width + at_x * window.stride[1]) * shape.channels
}

/// Returns the index of a block of channels in another pixel under the window.
///
/// `first` is its index in the first pixel.
#[inline(always)]
fn tap(shape: &ImageShape, first: usize, ky: usize, kx: usize) -> usize {
    first + (ky * shape.width + kx) * shape.channels
}

/// Returns the maxima of a block of channels under a window, and their pixels.
#[inline(always)]
fn maxima(
    window: &Window,
    shape: &ImageShape,
    image: &[f32],
    first: usize,
) -> ([f32; LANES], [u32; LANES]) {
    let (mut max, mut winner, mut number) = ([f32::NEG_INFINITY; LANES], [0; LANES], 0u32);
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            let x = load(&image[tap(shape, first, ky, kx)..]);
            for l in 0..LANES {
                // NaN replaces every value and is never replaced. Without a branch, so that the
                // loop is vectorized.
                let better = !(x[l] <= max[l]) & !max[l].is_nan();
                max[l] = if better { x[l] } else { max[l] };
                winner[l] = if better { number } else { winner[l] };
            }
            number += 1;
        }
    }
    (max, winner)
}

#[inline(always)]
fn means(window: &Window, shape: &ImageShape, image: &[f32], first: usize) -> [f32; LANES] {
    let mut sum = [0.0; LANES];
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            let x = load(&image[tap(shape, first, ky, kx)..]);
            for l in 0..LANES {
                sum[l] += x[l];
            }
        }
    }
    let area = window.area() as f32;
    sum.map(|sum| sum / area)
}

#[inline(always)]
fn backward_max(
    window: &Window,
    shape: &ImageShape,
    image: &[f32],
    first: usize,
    gradient: &[f32],
    dx: &mut [f32],
) {
    let (_, winner) = maxima(window, shape, image, first);
    let (width, gradient, mut number) = (gradient.len(), load(gradient), 0);
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            let at = tap(shape, first, ky, kx);
            let mut sum = load(&dx[at..]);
            for l in 0..LANES {
                sum[l] += if winner[l] == number { gradient[l] } else { 0.0 };
            }
            store(sum, &mut dx[at..at + width]);
            number += 1;
        }
    }
}

#[inline(always)]
fn backward_mean(
    window: &Window,
    shape: &ImageShape,
    first: usize,
    gradient: &[f32],
    dx: &mut [f32],
) {
    let area = window.area() as f32;
    let (width, share) = (gradient.len(), load(gradient).map(|gradient| gradient / area));
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            let at = tap(shape, first, ky, kx);
            let mut sum = load(&dx[at..]);
            for l in 0..LANES {
                sum[l] += share[l];
            }
            store(sum, &mut dx[at..at + width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns distinct values in pseudo-random order, for n up to 4099.
    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 617 + seed * 101) % 4099) as f32 / 2048.0 - 1.0).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    /// Computes the definition, in f64.
    fn naive(pool: Pool, window: &Window, shape: &ImageShape, n: usize, x: &[f64]) -> Vec<f64> {
        let (height, width) = window.expect_output(shape);
        let mut out = Vec::new();
        for b in 0..n {
            for (at_y, at_x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                for c in 0..shape.channels {
                    let taps = (0..window.kernel[0])
                        .flat_map(|ky| (0..window.kernel[1]).map(move |kx| (ky, kx)))
                        .map(|(ky, kx)| {
                            let (y, col) =
                                (at_y * window.stride[0] + ky, at_x * window.stride[1] + kx);
                            x[((b * shape.height + y) * shape.width + col) * shape.channels + c]
                        });
                    out.push(match pool {
                        Pool::Max => taps.fold(f64::NEG_INFINITY, f64::max),
                        Pool::Mean => taps.sum::<f64>() / window.area() as f64,
                    });
                }
            }
        }
        out
    }

    prop_compose! {
        fn cases()(
            kernel in [1usize..4, 1usize..4],
            stride in [1usize..4, 1usize..4],
            extra in [0usize..5, 0usize..5],
            channels in prop::sample::select(vec![0usize, 1, 3, 16, 19, 33]),
            n in 0usize..3,
        ) -> (Window, ImageShape, usize) {
            let (height, width) = (kernel[0] + extra[0], kernel[1] + extra[1]);
            let window = Window { kernel, stride, padding: [0, 0] };
            (window, ImageShape { height, width, channels }, n)
        }
    }

    proptest! {
        #[test]
        fn pooling_and_its_gradient_match_the_definition(
            pool in prop::sample::select(vec![Pool::Max, Pool::Mean]),
            (window, shape, n) in cases(),
        ) {
            let x = values(n * shape.len(), 1);
            let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let expected = naive(pool, &window, &shape, n, &exact);
            let mut out = vec![f32::NAN; expected.len()];
            super::pool(pool, &window, &shape, n, &x, &mut out);
            for (got, expected) in out.iter().zip(&expected) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-6);
            }

            let dout = values(out.len(), 2);
            let mut dx = vec![f32::NAN; x.len()];
            pool_backward(pool, &window, &shape, n, &x, &dout, &mut dx);
            // About a hundred elements.
            for i in (0..x.len()).step_by(x.len() / 100 + 1) {
                let loss = |step: f64| -> f64 {
                    let mut moved = exact.clone();
                    moved[i] += step;
                    naive(pool, &window, &shape, n, &moved)
                        .iter()
                        .zip(&dout)
                        .map(|(y, &d)| y * f64::from(d))
                        .sum()
                };
                // Smaller than half the distance of any two values, so the maximum stays the same.
                let slope = (loss(1e-4) - loss(-1e-4)) / 2e-4;
                prop_assert!((f64::from(dx[i]) - slope).abs() < 1e-5, "{} {}", dx[i], slope);
            }
        }

        #[test]
        fn means_of_rows_and_their_gradient_match_the_definition(
            counts in prop::collection::vec(0usize..6, 0..6),
            channels in 0usize..40,
        ) {
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(counts.iter().scan(0, |at, n| {
                    *at += n;
                    Some(*at)
                }))
                .collect();
            let (n, rows) = (counts.len(), offsets[counts.len()]);
            let (x, dout) = (values(rows * channels, 1), values(n * channels, 2));
            let (mut out, mut dx) = (vec![f32::NAN; n * channels], vec![f32::NAN; rows * channels]);
            mean_rows(&offsets, channels, &x, &mut out);
            mean_rows_backward(&offsets, channels, &dout, &mut dx);
            for (i, &count) in counts.iter().enumerate() {
                for c in 0..channels {
                    let sum: f64 = (offsets[i]..offsets[i + 1])
                        .map(|row| f64::from(x[row * channels + c]))
                        .sum();
                    prop_assert!(
                        (f64::from(out[i * channels + c]) - sum / count.max(1) as f64).abs() < 1e-6
                    );
                    for row in offsets[i]..offsets[i + 1] {
                        prop_assert_eq!(
                            dx[row * channels + c],
                            dout[i * channels + c] / count as f32
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_maximum_gets_the_gradient() {
        let shape = ImageShape { height: 2, width: 3, channels: 1 };
        let window = Window { kernel: [2, 2], stride: [1, 1], padding: [0, 0] };
        let mut dx = [9.0; 6];
        pool_backward(
            Pool::Max,
            &window,
            &shape,
            1,
            &[1.0, 2.0, 2.0, 0.0, 2.0, 2.0],
            &[3.0, 5.0],
            &mut dx,
        );
        assert_eq!(dx, [0.0, 8.0, 0.0, 0.0, 0.0, 0.0]);
        pool_backward(Pool::Max, &window, &shape, 1, &[f32::NEG_INFINITY; 6], &[3.0, 5.0], &mut dx);
        assert_eq!(dx, [3.0, 5.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_maximum_with_nan_is_nan() {
        let shape = ImageShape { height: 1, width: 3, channels: 1 };
        let window = Window { kernel: [1, 3], stride: [1, 1], padding: [0, 0] };
        for at in 0..3 {
            for other in [-1.0, 7.0, f32::INFINITY, f32::NEG_INFINITY] {
                let (mut x, mut out, mut dx) = ([other; 3], [0.0], [9.0; 3]);
                x[at] = f32::NAN;
                pool(Pool::Max, &window, &shape, 1, &x, &mut out);
                assert!(out[0].is_nan());
                pool(Pool::Mean, &window, &shape, 1, &x, &mut out);
                assert!(out[0].is_nan());
                pool_backward(Pool::Max, &window, &shape, 1, &x, &[2.0], &mut dx);
                assert_eq!((dx[at], dx.iter().sum::<f32>()), (2.0, 2.0));
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_other_examples_or_threads() {
        let (shape, n) = (ImageShape { height: 9, width: 10, channels: 19 }, 40);
        let window = Window { kernel: [3, 2], stride: [2, 2], padding: [0, 0] };
        let (height, width) = window.expect_output(&shape);
        let (image, small) = (shape.len(), height * width * shape.channels);
        let offsets: Vec<usize> = (0..=n).map(|i| i * shape.pixels()).collect();
        let run = |x: &[f32], dout: &[f32], threads: usize| {
            let (mut out, mut dx) = (vec![vec![0.5; n * small]; 2], vec![vec![0.5; x.len()]; 3]);
            let mut means = vec![0.5; n * shape.channels];
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                for (i, kind) in [Pool::Max, Pool::Mean].into_iter().enumerate() {
                    pool(kind, &window, &shape, n, x, &mut out[i]);
                    pool_backward(kind, &window, &shape, n, x, dout, &mut dx[i]);
                }
                mean_rows(&offsets, shape.channels, x, &mut means);
                mean_rows_backward(&offsets, shape.channels, &means, &mut dx[2]);
            });
            out.extend(dx);
            out.push(means);
            out
        };
        let (mut x, mut dout) = (values(n * image, 3), values(n * small, 4));
        let before = run(&x, &dout, 1);
        x[image..2 * image].fill(f32::NAN);
        dout[small..2 * small].fill(f32::NAN);
        let after = run(&x, &dout, 3);
        for (before, after) in before.iter().zip(&after) {
            let each = before.len() / n;
            for i in (0..n).filter(|&i| i != 1) {
                assert_eq!(bits(&before[i * each..][..each]), bits(&after[i * each..][..each]));
            }
            assert!(after[each..2 * each].iter().any(|x| x.is_nan()));
        }
    }

    #[test]
    #[should_panic(expected = "pooling does not pad")]
    fn padding_is_refused() {
        let window = Window { kernel: [1, 1], stride: [1, 1], padding: [1, 0] };
        pool(
            Pool::Max,
            &window,
            &ImageShape { height: 1, width: 1, channels: 1 },
            1,
            &[0.0],
            &mut [0.0; 3],
        );
    }
}
