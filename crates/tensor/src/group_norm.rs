//! Group normalization (Wu and He 2018).
//!
//! Each group of channels of an example gets mean 0 and variance 1 over its pixels, then a gain and
//! a bias per channel.
//!
//! y = (x − μ)·ρ·gain + bias with ρ = 1/√(σ² + ε), μ and σ² those of the example and group (Wu and
//! He 2018, equations 1 to 6). With x̂ = (x − μ)·ρ and g the gradient at y, the backward pass is dx
//! = ρ·(g·gain − mean(g·gain) − x̂·mean(g·gain·x̂)), the means being those of the group. Unlike in
//! batch normalization, examples are independent, so each has its own gradient.
//!
//! Sums over pixels are computed in f64, in the order of the pixels. An example is one task.

use rayon::prelude::*;

use crate::parallel::rows_per_piece;
use crate::simd::{LANES, load, store, vectorized};

/// The shape of a batch `[examples·pixels, channels]`, and ε.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Examples of the batch.
    pub examples: usize,
    /// Pixels of an example.
    pub pixels: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// The number of groups of channels, all of the same size.
    pub groups: usize,
    /// ε, added to the variance.
    pub epsilon: f32,
}

/// Per-example gradients of gain and bias, computed by [`GroupNorm::parameter_gradients`].
#[derive(Clone, Copy, Debug)]
pub struct AffineGradients<'a> {
    /// `[examples, channels]`: each example's gradient of the gain.
    pub dgain: &'a [f32],
    /// `[examples, channels]`: each example's gradient of the bias.
    pub dbias: &'a [f32],
}

impl GroupNorm {
    /// Computes the forward pass, and `mean` and `rstd` (ρ) for the backward pass.
    ///
    /// `out` has the shape of `x`; `mean` and `rstd` are `[examples, groups]`.
    pub fn forward(
        &self,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        out: &mut [f32],
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        self.check(x, gain, mean, rstd);
        assert_eq!(bias.len(), self.channels, "one bias per channel");
        assert_eq!(out.len(), x.len(), "length of the output");
        let image = self.image();
        if image == 0 {
            mean.fill(0.0);
            rstd.fill(1.0 / self.epsilon.sqrt());
            return;
        }
        let batch = out.par_chunks_mut(image).zip(x.par_chunks(image));
        let statistics = mean.par_chunks_mut(self.groups).zip(rstd.par_chunks_mut(self.groups));
        batch.zip(statistics).with_min_len(rows_per_piece(self.examples, image)).for_each(
            |((out, x), (mean, rstd))| {
                vectorized(
                    #[inline(always)]
                    || {
                        let count = (image / self.groups) as f64;
                        self.sums(
                            x,
                            |_| 0.0,
                            |x, _| f64::from(x),
                            |group, sum| mean[group] = (sum / count) as f32,
                        );
                        // The second pass: squares of differences, not a difference of squares.
                        let square = |x: f32, mean: f32| f64::from(x - mean) * f64::from(x - mean);
                        let epsilon = f64::from(self.epsilon);
                        self.sums(
                            x,
                            |group| mean[group],
                            square,
                            |group, sum| {
                                rstd[group] = (1.0 / (sum / count + epsilon).sqrt()) as f32
                            },
                        );
                        self.apply(x, gain, bias, mean, rstd, out);
                    },
                );
            },
        );
    }

    /// Computes per-example gradients of gain and bias from `dout`, `mean` and `rstd`.
    pub fn parameter_gradients(
        &self,
        x: &[f32],
        mean: &[f32],
        rstd: &[f32],
        dout: &[f32],
        dgain: &mut [f32],
        dbias: &mut [f32],
    ) {
        let (image, c) = (self.image(), self.channels);
        assert_eq!(
            (x.len(), dout.len()),
            (self.examples * image, self.examples * image),
            "length of the gradients"
        );
        assert_eq!(
            (dgain.len(), dbias.len()),
            (self.examples * c, self.examples * c),
            "a gain and a bias per example and channel"
        );
        if image == 0 {
            dgain.fill(0.0);
            dbias.fill(0.0);
            return;
        }
        let batch = x.par_chunks(image).zip(dout.par_chunks(image));
        let statistics = mean.par_chunks(self.groups).zip(rstd.par_chunks(self.groups));
        let affine = dgain.par_chunks_mut(c).zip(dbias.par_chunks_mut(c));
        let all =
            batch.zip(statistics).zip(affine).with_min_len(rows_per_piece(self.examples, image));
        all.for_each(|(((x, dout), (mean, rstd)), (dgain, dbias))| {
            vectorized(
                #[inline(always)]
                || self.affine_gradients(x, mean, rstd, dout, dgain, dbias),
            );
        });
    }

    /// Computes the gradient with respect to `x` from `dout` and the gradients of gain and bias.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        x: &[f32],
        gain: &[f32],
        mean: &[f32],
        rstd: &[f32],
        dout: &[f32],
        affine: AffineGradients<'_>,
        dx: &mut [f32],
    ) {
        let AffineGradients { dgain, dbias } = affine;
        let (image, c) = (self.image(), self.channels);
        self.check(x, gain, mean, rstd);
        assert_eq!((dout.len(), dx.len()), (x.len(), x.len()), "length of the gradients");
        assert_eq!(
            (dgain.len(), dbias.len()),
            (self.examples * c, self.examples * c),
            "a gain and a bias per example and channel"
        );
        if image == 0 {
            return;
        }
        let batch = dx.par_chunks_mut(image).zip(x.par_chunks(image).zip(dout.par_chunks(image)));
        let statistics = mean.par_chunks(self.groups).zip(rstd.par_chunks(self.groups));
        let affine = dgain.par_chunks(c).zip(dbias.par_chunks(c));
        let all =
            batch.zip(statistics).zip(affine).with_min_len(rows_per_piece(self.examples, image));
        all.for_each(|(((dx, (x, dout)), (mean, rstd)), (dgain, dbias))| {
            vectorized(
                #[inline(always)]
                || {
                    self.input_gradient(
                        x,
                        gain,
                        mean,
                        rstd,
                        dout,
                        AffineGradients { dgain, dbias },
                        dx,
                    )
                },
            );
        });
    }

    /// Returns the number of elements of one example.
    fn image(&self) -> usize {
        self.pixels * self.channels
    }

    fn check(&self, x: &[f32], gain: &[f32], mean: &[f32], rstd: &[f32]) {
        let Self { examples, pixels, channels, groups, .. } = *self;
        assert!(
            groups > 0 && channels % groups == 0,
            "{channels} channels do not fall into {groups} groups"
        );
        assert_eq!(
            x.len(),
            examples * pixels * channels,
            "{examples} examples of {pixels} pixels of {channels} channels"
        );
        assert_eq!(gain.len(), channels, "one gain per channel");
        assert_eq!(
            (mean.len(), rstd.len()),
            (examples * groups, examples * groups),
            "statistics per example and group"
        );
    }

    /// Calls `done` with Σ term(x, centre of the group) of every group of one example.
    #[inline(always)]
    fn sums(
        &self,
        x: &[f32],
        centre: impl Fn(usize) -> f32,
        term: impl Fn(f32, f32) -> f64,
        mut done: impl FnMut(usize, f64),
    ) {
        let size = self.channels / self.groups;
        let mut group_sum = 0.0;
        for from in (0..self.channels).step_by(LANES) {
            let width = LANES.min(self.channels - from);
            let centres = self.lanes(from, |channel| centre(channel / size));
            let mut sums = [0.0f64; LANES];
            for at in (from..x.len()).step_by(self.channels) {
                let x = load(&x[at..]);
                for l in 0..LANES {
                    sums[l] += term(x[l], centres[l]);
                }
            }
            // Channels come in order, so a group is complete when its last channel is.
            for (channel, sum) in (from..from + width).zip(sums) {
                group_sum += sum;
                if (channel + 1) % size == 0 {
                    done(channel / size, group_sum);
                    group_sum = 0.0;
                }
            }
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        mean: &[f32],
        rstd: &[f32],
        out: &mut [f32],
    ) {
        let size = self.channels / self.groups;
        for from in (0..self.channels).step_by(LANES) {
            let width = LANES.min(self.channels - from);
            let means = self.lanes(from, |channel| mean[channel / size]);
            let rstds = self.lanes(from, |channel| rstd[channel / size]);
            let (gains, biases) = (load(&gain[from..]), load(&bias[from..]));
            for at in (from..x.len()).step_by(self.channels) {
                let mut y = load(&x[at..]);
                for l in 0..LANES {
                    y[l] = ((y[l] - means[l]) * rstds[l]).mul_add(gains[l], biases[l]);
                }
                store(y, &mut out[at..at + width]);
            }
        }
    }

    /// Computes dgain = Σ g·x̂ and dbias = Σ g of one example.
    #[inline(always)]
    fn affine_gradients(
        &self,
        x: &[f32],
        mean: &[f32],
        rstd: &[f32],
        dout: &[f32],
        dgain: &mut [f32],
        dbias: &mut [f32],
    ) {
        let size = self.channels / self.groups;
        for from in (0..self.channels).step_by(LANES) {
            let width = LANES.min(self.channels - from);
            let means = self.lanes(from, |channel| mean[channel / size]);
            let rstds = self.lanes(from, |channel| rstd[channel / size]);
            let (mut gains, mut biases) = ([0.0f64; LANES], [0.0f64; LANES]);
            for at in (from..x.len()).step_by(self.channels) {
                let (x, g) = (load(&x[at..]), load(&dout[at..]));
                for l in 0..LANES {
                    gains[l] += f64::from(g[l]) * f64::from((x[l] - means[l]) * rstds[l]);
                    biases[l] += f64::from(g[l]);
                }
            }
            store(gains.map(|sum| sum as f32), &mut dgain[from..from + width]);
            store(biases.map(|sum| sum as f32), &mut dbias[from..from + width]);
        }
    }

    /// Computes dx of one example; mean(g·gain) and mean(g·gain·x̂) follow from dgain and dbias.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn input_gradient(
        &self,
        x: &[f32],
        gain: &[f32],
        mean: &[f32],
        rstd: &[f32],
        dout: &[f32],
        affine: AffineGradients<'_>,
        dx: &mut [f32],
    ) {
        let AffineGradients { dgain, dbias } = affine;
        let size = self.channels / self.groups;
        let count = (self.image() / self.groups) as f64;
        let group_mean = |gradient: &[f32], group: usize| {
            let members = group * size..(group + 1) * size;
            let sum: f64 = gradient[members.clone()]
                .iter()
                .zip(&gain[members])
                .map(|(&d, &gain)| f64::from(d) * f64::from(gain))
                .sum();
            (sum / count) as f32
        };
        let (mut group, mut mean_g, mut mean_gx) = (usize::MAX, 0.0, 0.0);
        for from in (0..self.channels).step_by(LANES) {
            let width = LANES.min(self.channels - from);
            let means = self.lanes(from, |channel| mean[channel / size]);
            let rstds = self.lanes(from, |channel| rstd[channel / size]);
            let gains = load(&gain[from..]);
            let (mut means_g, mut means_gx) = ([0.0; LANES], [0.0; LANES]);
            for (l, channel) in (from..from + width).enumerate() {
                if channel / size != group {
                    group = channel / size;
                    (mean_g, mean_gx) = (group_mean(dbias, group), group_mean(dgain, group));
                }
                (means_g[l], means_gx[l]) = (mean_g, mean_gx);
            }
            for at in (from..x.len()).step_by(self.channels) {
                let (x, mut g) = (load(&x[at..]), load(&dout[at..]));
                for l in 0..LANES {
                    let normal = (x[l] - means[l]) * rstds[l];
                    g[l] = rstds[l]
                        * (-normal).mul_add(means_gx[l], g[l].mul_add(gains[l], -means_g[l]));
                }
                store(g, &mut dx[at..at + width]);
            }
        }
    }

    /// Returns a value for each channel of the block from `from` on; 0 beyond the last channel.
    #[inline(always)]
    fn lanes(&self, from: usize, number: impl Fn(usize) -> f32) -> [f32; LANES] {
        std::array::from_fn(|l| if from + l < self.channels { number(from + l) } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn widen(values: &[f32]) -> Vec<f64> {
        values.iter().map(|&x| f64::from(x)).collect()
    }

    /// Computes the definition for one example, in f64.
    fn naive(norm: &GroupNorm, x: &[f64], gain: &[f64], bias: &[f64]) -> Vec<f64> {
        let (c, size) = (norm.channels, norm.channels / norm.groups);
        let mut out = vec![0.0; x.len()];
        for group in 0..norm.groups {
            let members: Vec<usize> = (0..x.len()).filter(|i| i % c / size == group).collect();
            let mean = members.iter().map(|&i| x[i]).sum::<f64>() / members.len() as f64;
            let variance =
                members.iter().map(|&i| (x[i] - mean).powi(2)).sum::<f64>() / members.len() as f64;
            for i in members {
                out[i] = (x[i] - mean) / (variance + f64::from(norm.epsilon)).sqrt() * gain[i % c]
                    + bias[i % c];
            }
        }
        out
    }

    struct Run {
        out: Vec<f32>,
        mean: Vec<f32>,
        rstd: Vec<f32>,
        dx: Vec<f32>,
        dgain: Vec<f32>,
        dbias: Vec<f32>,
    }

    fn run(norm: &GroupNorm, x: &[f32], gain: &[f32], bias: &[f32], dout: &[f32]) -> Run {
        let (per_group, per_channel) = (norm.examples * norm.groups, norm.examples * norm.channels);
        let (mut out, mut mean, mut rstd) =
            (vec![f32::NAN; x.len()], vec![f32::NAN; per_group], vec![f32::NAN; per_group]);
        norm.forward(x, gain, bias, &mut out, &mut mean, &mut rstd);
        let (mut dx, mut dgain, mut dbias) =
            (vec![f32::NAN; x.len()], vec![f32::NAN; per_channel], vec![f32::NAN; per_channel]);
        norm.parameter_gradients(x, &mean, &rstd, dout, &mut dgain, &mut dbias);
        norm.backward(
            x,
            gain,
            &mean,
            &rstd,
            dout,
            AffineGradients { dgain: &dgain, dbias: &dbias },
            &mut dx,
        );
        Run { out, mean, rstd, dx, dgain, dbias }
    }

    proptest! {
        #[test]
        fn forward_and_backward_match_the_definition(
            examples in 0usize..3,
            pixels in 0usize..12,
            size in 1usize..20,
            groups in 1usize..6,
            shift in -3.0f32..3.0,
        ) {
            let norm =
                GroupNorm { examples, pixels, channels: size * groups, groups, epsilon: 1e-2 };
            let (image, c) = (norm.image(), norm.channels);
            let x: Vec<f32> = values(examples * image, 1).iter().map(|x| x + shift).collect();
            let (gain, bias, dout) = (values(c, 2), values(c, 3), values(x.len(), 4));
            let got = run(&norm, &x, &gain, &bias, &dout);
            for example in 0..examples {
                let this = example * image..(example + 1) * image;
                let parts = [widen(&x[this.clone()]), widen(&gain), widen(&bias)];
                let dout = widen(&dout[this.clone()]);
                for (got, expected) in
                    got.out[this.clone()].iter().zip(naive(&norm, &parts[0], &parts[1], &parts[2]))
                {
                    prop_assert!((f64::from(*got) - expected).abs() < 1e-5, "{} {}", got, expected);
                }
                let channels = example * c..(example + 1) * c;
                for (part, gradient) in
                    [&got.dx[this], &got.dgain[channels.clone()], &got.dbias[channels]]
                        .into_iter()
                        .enumerate()
                {
                    prop_assert_eq!(gradient.len(), parts[part].len());
                    // About forty elements of each.
                    for i in (0..gradient.len()).step_by(gradient.len() / 40 + 1) {
                        let loss = |step: f64| -> f64 {
                            let mut moved = parts.clone();
                            moved[part][i] += step;
                            naive(&norm, &moved[0], &moved[1], &moved[2])
                                .iter()
                                .zip(&dout)
                                .map(|(y, d)| y * d)
                                .sum()
                        };
                        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                        let error = (f64::from(gradient[i]) - slope).abs();
                        prop_assert!(
                            error < 2e-5 * (1.0 + slope.abs()),
                            "part {} number {}: {} \
                            {}",
                            part,
                            i,
                            gradient[i],
                            slope
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn statistics_are_accurate_far_from_zero() {
        let norm = GroupNorm { examples: 1, pixels: 4096, channels: 4, groups: 2, epsilon: 1e-5 };
        // Mean 1000 and variance 1, exactly.
        let x: Vec<f32> =
            (0..norm.image()).map(|i| if (i / 4) % 2 == 0 { 999.0 } else { 1001.0 }).collect();
        let got = run(&norm, &x, &[1.0; 4], &[0.0; 4], &vec![1.0; x.len()]);
        assert_eq!(got.mean, [1000.0; 2]);
        assert_eq!(got.rstd, [(1.0 / (1.0f64 + f64::from(norm.epsilon)).sqrt()) as f32; 2]);
        assert_eq!(got.dbias, [4096.0; 4]);
        assert!(got.dgain.iter().all(|d| d.abs() < 1e-6));
    }

    #[test]
    fn values_at_the_limits_of_f32_stay_finite() {
        let norm = GroupNorm { examples: 1, pixels: 8, channels: 3, groups: 1, epsilon: 1e-5 };
        let x: Vec<f32> = values(24, 1).iter().map(|x| x * 1e30).collect();
        let got = run(&norm, &x, &[1.0; 3], &[0.0; 3], &values(24, 2));
        assert!(got.out.iter().chain(&got.dx).chain(&got.dgain).all(|x| x.is_finite()));
        assert!(got.out.iter().any(|x| x.abs() > 1.0));
        // Zero variance: the output is the bias, and ε alone scales the gradient.
        let flat = run(&norm, &[0.1; 24], &[2.0; 3], &[0.5; 3], &values(24, 2));
        assert!(flat.out.iter().all(|&y| y == 0.5));
        assert!(flat.dx.iter().all(|d| d.is_finite()) && flat.dgain.iter().all(|&d| d == 0.0));
    }

    #[test]
    fn results_do_not_depend_on_other_examples_or_threads() {
        let norm = GroupNorm { examples: 30, pixels: 35, channels: 18, groups: 3, epsilon: 1e-5 };
        let (mut x, mut dout) = (values(30 * norm.image(), 1), values(30 * norm.image(), 2));
        let (gain, bias) = (values(18, 3), values(18, 4));
        let with = |threads: usize, x: &[f32], dout: &[f32]| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let Run { out, mean, rstd, dx, dgain, dbias } =
                pool.install(|| run(&norm, x, &gain, &bias, dout));
            [out, mean, rstd, dx, dgain, dbias]
        };
        let before = with(1, &x, &dout);
        let at = norm.image() + 7;
        x[at] = f32::NAN;
        let after = with(3, &x, &dout);
        dout[norm.image()..2 * norm.image()].fill(f32::NAN);
        let worse = with(2, &x, &dout);
        for (before, after) in
            before.iter().zip(after.iter().chain(&worse)).chain(before.iter().zip(&worse))
        {
            let each = before.len() / norm.examples;
            for i in (0..norm.examples).filter(|&i| i != 1) {
                assert_eq!(bits(&before[i * each..][..each]), bits(&after[i * each..][..each]));
            }
        }
        // Only the group of the pixel is NaN.
        let group = 7 / 6;
        for (i, y) in after[0][norm.image()..2 * norm.image()].iter().enumerate() {
            assert_eq!(y.is_nan(), i % 18 / 6 == group);
        }
        assert!(worse[3][norm.image()..2 * norm.image()].iter().all(|d| d.is_nan()));
    }

    #[test]
    #[should_panic(expected = "do not fall into")]
    fn groups_must_divide_the_channels() {
        let norm = GroupNorm { examples: 0, pixels: 1, channels: 5, groups: 2, epsilon: 1e-5 };
        norm.forward(&[], &[1.0; 5], &[0.0; 5], &mut [], &mut [], &mut []);
    }
}
