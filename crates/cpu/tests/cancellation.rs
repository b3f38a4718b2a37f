//! Norms for which Gram matrices are inaccurate: rows that cancel each other, and values whose
//! squares leave the range of f32. For all methods, the norm of an example's contribution must not
//! be larger than the reported norm.

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

const IMAGE: ImageShape = ImageShape { height: 6, width: 6, channels: 3 };
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

/// Returns a model with a convolution before a group norm.
///
/// The output gradients of the convolution sum to zero over the pixels, while its inputs can be far
/// from zero.
fn image_model(gain: f32) -> (Network, Params) {
    let mut build = Builder::features(IMAGE.len());
    let x = build.image(IMAGE);
    let window = |side| Window { kernel: [side, side], stride: [1, 1], padding: [0, 0] };
    let h = build.conv("first", x, 64, window(3), None);
    let h = build.group_norm("norm", h, 64, 1e-5);
    let h = build.conv("second", h, 16, window(1), Some(Activation::Relu));
    let h = build.mean(h);
    let logits = build.linear(h, Linear::new("head", 16, 3).init_std(0.5));
    network(build.finish(logits), |name| if name == "norm.weight" { gain } else { 1.0 })
}

/// Returns a model with a linear layer before a layer norm: the larger the features, the smaller
/// the gradient.
fn feature_model() -> (Network, Params) {
    let mut build = Builder::features(16);
    let x = build.input();
    let h = build.linear(x, Linear::new("first", 16, 256).init_std(0.3).bias(false));
    let h = build.layer_norm("norm", h, 1e-5);
    let logits = build.linear(h, Linear::new("head", 256, 3).init_std(0.5));
    network(build.finish(logits), |name| if name == "first.weight" { 0.3 } else { 1.0 })
}

/// Returns the largest ratio, over all tensors, of the norm of the contribution to the reported
/// norm.
fn excess(network: &mut Network, params: &Params, example: &Example, method: NormMethod) -> f64 {
    network.set_norm_method(method);
    let outcome = run(
        network,
        params,
        &[example],
        &Geometry::Identity,
        &Blocks::each(params.len()),
        |_, _| 1.0,
    );
    let one = |k: usize| {
        let sum =
            outcome.sum[k].data().iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if sum == 0.0 { 0.0 } else { sum / outcome.norms[0][k] }
    };
    (0..params.len()).map(one).fold(0.0, f64::max)
}

#[test]
fn reported_norms_cover_rows_that_cancel() {
    for offset in [0.0f32, 10.0, 255.0, 1e3, 3e3, 1e4] {
        let (mut network, params) = image_model(1.0);
        for (method, seed) in
            METHODS.into_iter().flat_map(|method| (0..6).map(move |seed| (method, seed)))
        {
            let example = Example::features(
                (0..IMAGE.len()).map(|i| offset + zoo::noise(seed, i)).collect(),
                1,
            );
            let excess = excess(&mut network, &params, &example, method);
            assert!(excess < 1.002, "{offset} {method:?}: {excess}");
        }
    }
}

#[test]
fn reported_norms_cover_features_whose_squares_overflow() {
    for scale in [1.0f32, 1e10, 1e16, 1e17, 3e17, 1e18, 2e18] {
        for method in METHODS {
            for gain in [1.0, 0.1, 0.01] {
                let (mut network, params) = image_model(gain);
                let example = Example::features(
                    (0..IMAGE.len()).map(|i| scale * zoo::noise(3, i)).collect(),
                    1,
                );
                let excess = excess(&mut network, &params, &example, method);
                assert!(excess < 1.002, "images {scale} {gain} {method:?}: {excess}");
            }
            let (mut network, params) = feature_model();
            for seed in [3, 4] {
                let example =
                    Example::features((0..16).map(|i| scale * zoo::noise(seed, i)).collect(), 1);
                let excess = excess(&mut network, &params, &example, method);
                assert!(excess < 1.002, "vectors {scale} {method:?}: {excess}");
            }
        }
    }
}

/// One token is repeated: all rows are nearly the same, and the lookups and the head of a tied
/// table contribute to the same row.
#[test]
fn reported_norms_cover_texts_of_repeated_tokens() {
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
            let (mut network, params) =
                network(Architecture::Gpt2(config.clone()).graph(None), |_| scale);
            for (period, method) in [1u32, 2, 40]
                .into_iter()
                .flat_map(|period| METHODS.map(move |method| (period, method)))
            {
                let example =
                    Example::continuation((0..128).map(|i| 7 * (i % period) % 40).collect(), 1);
                let excess = excess(&mut network, &params, &example, method);
                assert!(
                    excess < 1.002,
                    "tied {tied}, scale {scale}, period {period}, {method:?}: {excess}"
                );
            }
        }
    }
}

/// For large negative inputs the derivative of an activation is 0; its formula must not overflow.
#[test]
fn derivatives_of_activations_vanish_far_below_zero() {
    for activation in [Activation::GeluTanh, Activation::GeluErf, Activation::Silu] {
        let mut build = Builder::features(1);
        let x = build.input();
        let first = Linear::new("first", 1, 1).init_std(1.0).activation(activation);
        let h = build.linear(x, first);
        let logits = build.linear(h, Linear::new("head", 1, 2).init_std(1.0));
        let (mut network, params) = network(build.finish(logits), |_| 1.0);
        let sign = params[0].data()[0].signum();
        for x in [-1e4, -1e14, -1e30] {
            let mut sum = params.zeros_like();
            network.plain_sum(&params, &[&Example::features(vec![sign * x], 0)], &mut sum).unwrap();
            assert!(sum[0].data()[0].abs() < 1e-3, "{activation:?} at {x}: {:?}", sum[0].data());
        }
    }
}
