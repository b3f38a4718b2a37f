//! Convolution as a matrix product (im2col): every kernel position becomes a row.
//!
//! Images are channels-last: `n` of them are `n·height·width` rows of `channels` elements.
//! [`gather`] copies each patch into a row whose inner order is (channel, y, x), the order of a
//! kernel `[out, in, height, width]`. A convolution is then `patches · kernelᵀ`. [`scatter`] is the
//! adjoint of `gather`.

use std::ops::Range;

use rayon::prelude::*;

use crate::parallel::rows_per_piece;

/// The shape of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// The number of rows.
    pub height: usize,
    /// The number of columns.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
}

impl ImageShape {
    /// Returns the number of pixels.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.pixels() * self.channels
    }

    /// Returns whether an image has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A sliding window: kernel size, stride and padding as [y, x].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The kernel size in pixels.
    pub kernel: [usize; 2],
    /// The stride in pixels.
    pub stride: [usize; 2],
    /// The number of zeros before and after the image.
    pub padding: [usize; 2],
}

impl Window {
    /// Returns height and width of the output.
    ///
    /// `None` if the kernel or the stride is zero, or the padded image is smaller than the kernel.
    pub fn output(&self, shape: &ImageShape) -> Option<(usize, usize)> {
        let along = |axis: usize, len: usize| {
            let padded = self.padding[axis].checked_mul(2)?.checked_add(len)?;
            let kernel = Some(self.kernel[axis]).filter(|&kernel| kernel > 0)?;
            padded.checked_sub(kernel)?.checked_div(self.stride[axis])?.checked_add(1)
        };
        Some((along(0, shape.height)?, along(1, shape.width)?))
    }

    /// Returns the number of pixels under the kernel.
    pub fn area(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Returns height and width of the output; panics if the window does not fit.
    pub(crate) fn expect_output(&self, shape: &ImageShape) -> (usize, usize) {
        match self.output(shape) {
            Some(sides) => sides,
            None => panic!("{self:?} does not fit {shape:?}"),
        }
    }

    /// Returns the part of the kernel that is inside the image, and its first pixel there.
    ///
    /// The kernel is at index `position` of the output.
    fn inside(&self, axis: usize, position: usize, len: usize) -> (Range<usize>, usize) {
        let (start, kernel, padding) =
            (position * self.stride[axis], self.kernel[axis], self.padding[axis]);
        let first = padding.saturating_sub(start).min(kernel);
        let end = (len + padding).saturating_sub(start).clamp(first, kernel);
        (first..end, (start + first).saturating_sub(padding).min(len))
    }
}

/// Copies the patches of `n` images: `[n·h'·w', channels·area]` from `x` `[n·h·w, channels]`.
///
/// Padding is 0.
pub fn gather(window: &Window, shape: &ImageShape, n: usize, x: &[f32], out: &mut [f32]) {
    let (height, width) = window.expect_output(shape);
    let (c, area) = (shape.channels, window.area());
    assert_eq!(x.len(), n * shape.len(), "pixels of {n} images");
    assert_eq!(out.len(), n * height * width * c * area, "patches of {n} images");
    if out.is_empty() {
        return;
    }
    let line = width * c * area;
    let lines = rows_per_piece(n * height, line);
    out.par_chunks_mut(lines * line).enumerate().for_each(|(piece, out)| {
        for (i, out) in out.chunks_exact_mut(line).enumerate() {
            let (example, at_y) = ((piece * lines + i) / height, (piece * lines + i) % height);
            let (kys, y) = window.inside(0, at_y, shape.height);
            for (at_x, patch) in out.chunks_exact_mut(c * area).enumerate() {
                let (kxs, x0) = window.inside(1, at_x, shape.width);
                if kys.len() * kxs.len() < area {
                    patch.fill(0.0);
                }
                for (ky, y) in kys.clone().zip(y..) {
                    let from = ((example * shape.height + y) * shape.width + x0) * c;
                    copy_in(
                        patch,
                        &x[from..from + kxs.len() * c],
                        c,
                        area,
                        ky * window.kernel[1] + kxs.start,
                    );
                }
            }
        }
    });
}

/// Adds every element of the patches to its pixel: the adjoint of [`gather`].
///
/// `dx` `[n·h·w, channels]` is overwritten, from `dpatches` `[n·h'·w', channels·area]`.
pub fn scatter(window: &Window, shape: &ImageShape, n: usize, dpatches: &[f32], dx: &mut [f32]) {
    let (height, width) = window.expect_output(shape);
    let (c, area) = (shape.channels, window.area());
    assert_eq!(dpatches.len(), n * height * width * c * area, "patches of {n} images");
    assert_eq!(dx.len(), n * shape.len(), "pixels of {n} images");
    if dx.is_empty() {
        return;
    }
    let line = shape.width * c;
    let lines = rows_per_piece(n * shape.height, line * area);
    // A task owns whole lines of the images and gathers their terms, so the order of every sum is
    // fixed.
    dx.par_chunks_mut(lines * line).enumerate().for_each(|(piece, dx)| {
        for (i, dx) in dx.chunks_exact_mut(line).enumerate() {
            let (example, y) =
                ((piece * lines + i) / shape.height, (piece * lines + i) % shape.height);
            dx.fill(0.0);
            for ky in 0..window.kernel[0] {
                // The kernel positions whose line `ky` is on line y.
                let Some(start) = (y + window.padding[0])
                    .checked_sub(ky)
                    .filter(|start| start % window.stride[0] == 0)
                else {
                    continue;
                };
                let at_y = start / window.stride[0];
                if at_y >= height {
                    continue;
                }
                let from = (example * height + at_y) * width * c * area;
                for (at_x, patch) in
                    dpatches[from..from + width * c * area].chunks_exact(c * area).enumerate()
                {
                    let (kxs, x0) = window.inside(1, at_x, shape.width);
                    let pixels = &mut dx[x0 * c..(x0 + kxs.len()) * c];
                    add_out(patch, pixels, c, area, ky * window.kernel[1] + kxs.start);
                }
            }
        }
    });
}

/// Copies adjacent pixels of one line into a patch, the first at `tap`.
#[inline(always)]
fn copy_in(patch: &mut [f32], pixels: &[f32], c: usize, area: usize, tap: usize) {
    // With one channel or one tap, both orders are the same.
    if c == 1 || area == 1 {
        return patch[tap..tap + pixels.len()].copy_from_slice(pixels);
    }
    for (tap, pixel) in (tap..area).zip(pixels.chunks_exact(c)) {
        for (taps, &value) in patch.chunks_exact_mut(area).zip(pixel) {
            taps[tap] = value;
        }
    }
}

/// Adds the elements of a patch from `tap` on to adjacent pixels of one line.
#[inline(always)]
fn add_out(patch: &[f32], pixels: &mut [f32], c: usize, area: usize, tap: usize) {
    if c == 1 || area == 1 {
        for (pixel, &value) in pixels.iter_mut().zip(&patch[tap..]) {
            *pixel += value;
        }
        return;
    }
    for (tap, pixel) in (tap..area).zip(pixels.chunks_exact_mut(c)) {
        for (sum, taps) in pixel.iter_mut().zip(patch.chunks_exact(area)) {
            *sum += taps[tap];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::{OutputMode, Threads, View, ViewMut, matmul};
    use proptest::prelude::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 8) % 2001) as f32
                    / 1000.0
                    - 1.0
            })
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    }

    prop_compose! {
        fn cases()(
            kernel in [1usize..5, 1usize..5],
            stride in [1usize..4, 1usize..4],
            padding in [0usize..3, 0usize..3],
            extra in [0usize..7, 0usize..7],
            channels in 0usize..5,
            n in 0usize..4,
        ) -> (Window, ImageShape, usize) {
            // At least as large as the kernel, with its padding.
            let size = |axis: usize| (kernel[axis] + extra[axis]).saturating_sub(2 * padding[axis]);
            let shape = ImageShape { height: size(0), width: size(1), channels };
            (Window { kernel, stride, padding }, shape, n)
        }
    }

    /// Computes a convolution by its definition.
    ///
    /// out[b, y, x, o] = Σ kernel[o, c, ky, kx] · x[b, y·s + ky − p, x·s + kx − p, c].
    fn convolution(
        window: &Window,
        shape: &ImageShape,
        n: usize,
        x: &[f32],
        kernel: &[f32],
        outputs: usize,
    ) -> Vec<f64> {
        let (height, width) = window.expect_output(shape);
        let ([kh, kw], c) = (window.kernel, shape.channels);
        let mut out = Vec::new();
        for b in 0..n {
            for at_y in 0..height {
                for at_x in 0..width {
                    for o in 0..outputs {
                        let mut sum = 0.0;
                        for channel in 0..c {
                            for ky in 0..kh {
                                for kx in 0..kw {
                                    let y = (at_y * window.stride[0] + ky) as isize
                                        - window.padding[0] as isize;
                                    let col = (at_x * window.stride[1] + kx) as isize
                                        - window.padding[1] as isize;
                                    if (0..shape.height as isize).contains(&y)
                                        && (0..shape.width as isize).contains(&col)
                                    {
                                        let pixel = (b * shape.height + y as usize) * shape.width
                                            + col as usize;
                                        let weight =
                                            kernel[((o * c + channel) * kh + ky) * kw + kx];
                                        sum +=
                                            f64::from(weight) * f64::from(x[pixel * c + channel]);
                                    }
                                }
                            }
                        }
                        out.push(sum);
                    }
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn patches_times_kernel_match_the_convolution(
            (window, shape, n) in cases(),
            outputs in 1usize..4,
        ) {
            let (height, width) = window.expect_output(&shape);
            let (rows, inner) = (n * height * width, shape.channels * window.area());
            let (x, kernel) = (values(n * shape.len(), 1), values(outputs * inner, 2));
            let mut patches = vec![f32::NAN; rows * inner];
            gather(&window, &shape, n, &x, &mut patches);
            let mut got = vec![f32::NAN; rows * outputs];
            let kernel_t = View::new(&kernel, outputs, inner).t();
            matmul(
                ViewMut::new(&mut got, rows, outputs),
                OutputMode::Overwrite,
                1.0,
                View::new(&patches, rows, inner),
                kernel_t,
                Threads::One,
            );
            let expected = convolution(&window, &shape, n, &x, &kernel, outputs);
            prop_assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(&expected) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-4, "{} {}", got, expected);
            }
        }

        #[test]
        fn scatter_is_the_adjoint_of_gather((window, shape, n) in cases()) {
            let (height, width) = window.expect_output(&shape);
            let len = n * height * width * shape.channels * window.area();
            let (x, y) = (values(n * shape.len(), 1), values(len, 2));
            let (mut patches, mut dx) = (vec![f32::NAN; len], vec![f32::NAN; x.len()]);
            gather(&window, &shape, n, &x, &mut patches);
            scatter(&window, &shape, n, &y, &mut dx);
            prop_assert!((dot(&patches, &y) - dot(&x, &dx)).abs() < 1e-4);
        }
    }

    #[test]
    fn output_shapes_of_windows() {
        let shape = ImageShape { height: 28, width: 7, channels: 3 };
        let window = Window { kernel: [8, 3], stride: [2, 2], padding: [3, 1] };
        assert_eq!(window.output(&shape), Some((14, 4)));
        assert_eq!(Window { kernel: [35, 3], ..window }.output(&shape), None);
        assert_eq!(Window { kernel: [34, 3], ..window }.output(&shape), Some((1, 4)));
        assert_eq!(Window { kernel: [0, 3], ..window }.output(&shape), None);
        assert_eq!(Window { stride: [2, 0], ..window }.output(&shape), None);
        assert_eq!(Window { padding: [usize::MAX, 0], ..window }.output(&shape), None);
    }

    #[test]
    fn results_do_not_depend_on_other_examples_or_threads() {
        let (shape, n) = (ImageShape { height: 9, width: 11, channels: 5 }, 20);
        let window = Window { kernel: [3, 3], stride: [1, 2], padding: [1, 1] };
        let (height, width) = window.expect_output(&shape);
        let patch = height * width * shape.channels * window.area();
        let run = |x: &[f32], dpatches: &[f32], threads: usize| {
            let (mut patches, mut dx) = (vec![0.5; n * patch], vec![0.5; x.len()]);
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                gather(&window, &shape, n, x, &mut patches);
                scatter(&window, &shape, n, dpatches, &mut dx);
            });
            (patches, dx)
        };
        let (mut x, mut dpatches) = (values(n * shape.len(), 3), values(n * patch, 4));
        let (patches, dx) = run(&x, &dpatches, 1);
        x[shape.len()..2 * shape.len()].fill(f32::NAN);
        dpatches[patch..2 * patch].fill(f32::NAN);
        let (poisoned_patches, poisoned_dx) = run(&x, &dpatches, 3);
        for i in (0..n).filter(|&i| i != 1) {
            assert_eq!(
                bits(&patches[i * patch..][..patch]),
                bits(&poisoned_patches[i * patch..][..patch])
            );
            assert_eq!(
                bits(&dx[i * shape.len()..][..shape.len()]),
                bits(&poisoned_dx[i * shape.len()..][..shape.len()])
            );
        }
        assert!(poisoned_dx[shape.len()..2 * shape.len()].iter().all(|x| x.is_nan()));
        // All but the padding.
        assert!(poisoned_patches[patch..2 * patch].iter().all(|x| x.is_nan() || *x == 0.0));
        assert!(poisoned_patches[patch..2 * patch].iter().any(|x| x.is_nan()));
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn windows_that_do_not_fit_are_refused() {
        let window = Window { kernel: [3, 3], stride: [1, 1], padding: [0, 0] };
        gather(&window, &ImageShape { height: 2, width: 3, channels: 1 }, 1, &[0.0; 6], &mut []);
    }
}
