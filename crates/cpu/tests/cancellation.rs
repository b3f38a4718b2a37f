//! Norms where Gram matrices lose them: rows that cancel each other, and numbers whose squares
//! leave the range of f32. The norm of what an example contributes must not be larger than the norm
//! that was seen, whatever the method.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{Network, NormMethod};
use engine::Example;
use model::activation::Activation;
use model::hf::{Architecture, Gpt2Config};
use model::patches::{ImageShape, Window};
use model::{Builder, Graph, Linear};
use protocol::{Blocks, Geometry, Params};
use support::{run, zoo};
use tensor::Array;

const GRID: ImageShape = ImageShape { height: 6, width: 6, channels: 3 };
const METHODS: [NormMethod; 3] = [NormMethod::Ghost, NormMethod::Direct, NormMethod::Cheapest];

fn network(graph: Graph, scale: impl Fn(&str) -> f32) -> (Network, Params) {
    let values = graph.params().iter().enumerate().map(|(k, spec)| {
        let base = if spec.shape.len() == 1 && spec.name.ends_with("weight") { 1.0 } else { 0.0 };
        let scale = scale(&spec.name);
        Array::from_fn(spec.shape.as_slice(), |i| {
            scale * (base + 0.3 * zoo::noise(1 + 1000 * k as u64, i))
        })
    });
    let values = values.collect();
    Network::new(graph, values, |_| true).unwrap()
}

/// A convolution before a group norm: its output gradients sum to zero over the pixels, while its
/// inputs may be far from zero.
fn images(gain: f32) -> (Network, Params) {
    let mut build = Builder::features(GRID.len());
    let x = build.image(GRID);
    let window = |side| Window { kernel: [side, side], stride: [1, 1], padding: [0, 0] };
    let h = build.conv("first", x, 64, window(3), None);
    let h = build.group_norm("norm", h, 64, 1e-5);
    let h = build.conv("second", h, 16, window(1), Some(Activation::Relu));
    let h = build.mean(h);
    let logits = build.linear(h, Linear::new("head", 16, 3).init_std(0.5));
    network(build.finish(logits), |name| if name == "norm.weight" { gain } else { 1.0 })
}

/// Numbers of any size before a layer norm: the larger they are, the smaller the gradient that
/// comes back.
fn vectors() -> (Network, Params) {
    let mut build = Builder::features(16);
    let x = build.input();
    let h = build.linear(x, Linear::new("first", 16, 256).init_std(0.3).bias(false));
    let h = build.layer_norm("norm", h, 1e-5);
    let logits = build.linear(h, Linear::new("head", 256, 3).init_std(0.5));
    network(build.finish(logits), |name| if name == "first.weight" { 0.3 } else { 1.0 })
}

/// The largest ratio, over the tensors, of the norm of what is summed to the norm that was seen.
fn excess(network: &mut Network, at: &Params, example: &Example, method: NormMethod) -> f64 {
    network.set_norm_method(method);
    let seen =
        run(network, at, &[example], &Geometry::Identity, &Blocks::each(at.len()), |_, _| 1.0);
    let one = |k: usize| {
        let sum =
            seen.sum[k].data().iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if sum == 0.0 { 0.0 } else { sum / seen.norms[0][k] }
    };
    (0..at.len()).map(one).fold(0.0, f64::max)
}

#[test]
fn rows_that_cancel() {
    for offset in [0.0f32, 10.0, 255.0, 1e3, 3e3, 1e4] {
        let (mut network, at) = images(1.0);
        for (method, seed) in
            METHODS.into_iter().flat_map(|method| (0..6).map(move |seed| (method, seed)))
        {
            let example = Example::features(
                (0..GRID.len()).map(|i| offset + zoo::noise(seed, i)).collect(),
                1,
            );
            let excess = excess(&mut network, &at, &example, method);
            assert!(excess < 1.002, "{offset} {method:?}: {excess}");
        }
    }
}

#[test]
fn numbers_whose_squares_leave_the_range() {
    for scale in [1.0f32, 1e10, 1e16, 1e17, 3e17, 1e18, 2e18] {
        for method in METHODS {
            for gain in [1.0, 0.1, 0.01] {
                let (mut network, at) = images(gain);
                let example = Example::features(
                    (0..GRID.len()).map(|i| scale * zoo::noise(3, i)).collect(),
                    1,
                );
                let excess = excess(&mut network, &at, &example, method);
                assert!(excess < 1.002, "images {scale} {gain} {method:?}: {excess}");
            }
            let (mut network, at) = vectors();
            for seed in [3, 4] {
                let example =
                    Example::features((0..16).map(|i| scale * zoo::noise(seed, i)).collect(), 1);
                let excess = excess(&mut network, &at, &example, method);
                assert!(excess < 1.002, "vectors {scale} {method:?}: {excess}");
            }
        }
    }
}

/// One word again and again: all rows are nearly the same, and in a tied table lookups and head
/// meet in one row.
#[test]
fn texts_that_repeat_themselves() {
    for tied in [true, false] {
        let config = Gpt2Config {
            vocab: 40,
            positions: 128,
            width: 64,
            layers: 2,
            heads: 2,
            inner: 96,
            activation: Activation::GeluTanh,
            epsilon: 1e-5,
            tied,
        };
        for scale in [0.1, 1.0, 5.0] {
            let (mut network, at) =
                network(Architecture::Gpt2(config.clone()).graph(None), |_| scale);
            for (period, method) in [1u32, 2, 40]
                .into_iter()
                .flat_map(|period| METHODS.map(move |method| (period, method)))
            {
                let example =
                    Example::continuation((0..128).map(|i| 7 * (i % period) % 40).collect(), 1);
                let excess = excess(&mut network, &at, &example, method);
                assert!(
                    excess < 1.002,
                    "tied {tied}, scale {scale}, period {period}, {method:?}: {excess}"
                );
            }
        }
    }
}

/// Far from zero a slope is 0 or 1, whatever its formula says.
#[test]
fn features_far_from_zero() {
    for activation in [Activation::GeluTanh, Activation::GeluErf, Activation::Silu] {
        let mut build = Builder::features(1);
        let x = build.input();
        let first = Linear::new("first", 1, 1).init_std(1.0).activation(activation);
        let h = build.linear(x, first);
        let logits = build.linear(h, Linear::new("head", 1, 2).init_std(1.0));
        let (mut network, at) = network(build.finish(logits), |_| 1.0);
        let sign = at[0].data()[0].signum();
        for x in [-1e4, -1e14, -1e30] {
            let mut sum = at.zeros_like();
            network.plain_sum(&at, &[&Example::features(vec![sign * x], 0)], &mut sum).unwrap();
            assert!(sum[0].data()[0].abs() < 1e-3, "{activation:?} at {x}: {:?}", sum[0].data());
        }
    }
}
