//! Gradients of unusual graphs, which no built-in model has: values that are added to themselves,
//! unused sums, weights and values that several segments share.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{Network, NormMethod};
use engine::{Engine, Example};
use model::activation::Activation;
use model::patches::{ImageShape, Window};
use model::{Activations, Builder, Graph, Linear, Value};
use protocol::{Blocks, Geometry, Params};
use support::{close, difference, gradients, norm, run, zoo};
use tensor::Array;

const IMAGE: ImageShape = ImageShape { height: 2, width: 2, channels: 4 };

/// Adds a linear layer from 4 to 4 columns.
fn linear(build: &mut Builder, name: &str, x: Value, activation: Option<Activation>) -> Value {
    let layer = Linear::new(name, 4, 4).init_std(0.5);
    build.linear(x, activation.into_iter().fold(layer, Linear::activation))
}

/// Builds a model of features: a hidden layer, the operations of `body` and a head.
fn feature_graph(body: impl Fn(&mut Builder, Value) -> Value) -> Graph {
    let mut build = Builder::features(4);
    let x = build.input();
    let h = linear(&mut build, "first", x, Some(Activation::Tanh));
    let y = body(&mut build, h);
    let logits = build.linear(y, Linear::new("head", 4, 3).init_std(0.5));
    build.finish(logits)
}

/// Builds a model of images: a convolution, the operations of `body` and a head.
fn image_graph(body: impl Fn(&mut Builder, Value) -> Value) -> Graph {
    let mut build = Builder::features(IMAGE.len());
    let x = build.image(IMAGE);
    let one = Window { kernel: [1, 1], stride: [1, 1], padding: [0, 0] };
    let h = build.conv("first", x, 4, one, Some(Activation::Tanh));
    let y = body(&mut build, h);
    let flat = build.flatten(y);
    let logits = build.linear(flat, Linear::new("head", IMAGE.len(), 3).init_std(0.5));
    build.finish(logits)
}

fn graphs() -> Vec<(&'static str, Graph)> {
    let tanh = Some(Activation::Tanh);
    vec![
        ("a value added to itself", feature_graph(|build, h| build.add(h, h))),
        (
            "a value in two nested sums",
            feature_graph(|build, h| {
                let w = linear(build, "w", h, tanh);
                let y = build.add(h, w);
                build.add(h, y)
            }),
        ),
        (
            "a residual around a linear map",
            feature_graph(|build, h| {
                let w = linear(build, "w", h, None);
                build.add(h, w)
            }),
        ),
        (
            "a residual around an activation",
            feature_graph(|build, h| {
                let w = linear(build, "w", h, tanh);
                build.add(w, h)
            }),
        ),
        (
            "a residual around a layer norm",
            feature_graph(|build, h| {
                let w = build.layer_norm("w", h, 1e-5);
                build.add(h, w)
            }),
        ),
        (
            "a residual around a group norm",
            image_graph(|build, h| {
                let w = build.group_norm("w", h, 2, 1e-5);
                build.add(h, w)
            }),
        ),
        (
            "an unused sum",
            feature_graph(|build, h| {
                let w = linear(build, "w", h, tanh);
                let y = build.add(h, w);
                build.add(h, w);
                y
            }),
        ),
        (
            "a weight in two segments, each use before a sum",
            feature_graph(|build, mut h| {
                let shared = Linear::new("shared", 4, 4).init_std(0.5).bias(false);
                let shared = build.linear_layer(shared);
                for i in 0..2 {
                    build.segment();
                    let up = linear(build, &format!("up{i}"), h, tanh);
                    let w = build.apply_linear(up, &[shared]);
                    h = build.add(h, w);
                }
                build.segment();
                h
            }),
        ),
        (
            "a value read in later segments, but not by a backward pass",
            feature_graph(|build, h| {
                build.segment();
                let w = linear(build, "w", h, tanh);
                let y = build.add(w, h);
                let y = linear(build, "y", y, tanh);
                build.segment();
                build.add(y, h)
            }),
        ),
        ("a value read in later segments by sums only", {
            let mut build = Builder::features(4);
            let x = build.input();
            let h = linear(&mut build, "first", x, tanh);
            build.segment();
            let w = linear(&mut build, "w", x, tanh);
            let y = build.add(h, w);
            let y = linear(&mut build, "y", y, tanh);
            build.segment();
            let z = build.add(y, h);
            let logits = build.linear(z, Linear::new("head", 4, 3).init_std(0.5));
            build.finish(logits)
        }),
    ]
}

fn network(graph: Graph) -> (Network, Params) {
    let values = graph.params().iter().enumerate().map(|(k, spec)| {
        let base = if spec.shape.len() == 1 && spec.name.ends_with("weight") { 1.0 } else { 0.0 };
        Array::from_fn(spec.shape.as_slice(), |i| base + 0.5 * zoo::noise(1 + 1000 * k as u64, i))
    });
    let values = values.collect();
    Network::new(graph, values, |_| true).unwrap()
}

fn example(network: &Network, seed: u64) -> Example {
    let model::InputShape::Features(count) = network.graph().input() else { unreachable!() };
    Example::features((0..count).map(|i| zoo::noise(seed, i)).collect(), (seed % 3) as u32)
}

#[test]
fn gradients_equal_finite_differences() {
    for (name, graph) in graphs() {
        let (mut network, params) = network(graph);
        let example = example(&network, 3);
        for memory in [Activations::Retain, Activations::Recompute] {
            network.set_activations(memory);
            let gradient = &gradients(&mut network, &params, &[&example])[0];
            for k in 0..params.len() {
                for i in 0..params[k].len() {
                    let mut loss = |step: f32| {
                        let mut moved = params.clone();
                        moved[k].data_mut()[i] += step;
                        network.load(&moved).unwrap();
                        network.losses(&[&example]).unwrap()[0]
                    };
                    let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
                    let got = f64::from(gradient[k].data()[i]);
                    assert!(
                        (slope - got).abs() < 1e-3,
                        "{name}, {memory:?}, tensor {k}, element {i}: {slope} {got}"
                    );
                }
            }
        }
    }
}

#[test]
fn norms_and_sums_equal_those_of_single_examples() {
    for (name, graph) in graphs() {
        let (mut network, params) = network(graph);
        let examples: Vec<Example> = (3..6).map(|seed| example(&network, seed)).collect();
        let examples: Vec<&Example> = examples.iter().collect();
        let alone = gradients(&mut network, &params, &examples);
        let blocks = Blocks::each(params.len());
        let weight =
            |example: usize, block: usize| 0.25 + 0.5 * example as f64 - 0.125 * block as f64;
        for memory in [Activations::Retain, Activations::Recompute] {
            for method in [NormMethod::Ghost, NormMethod::Direct, NormMethod::Cheapest] {
                network.set_activations(memory);
                network.set_norm_method(method);
                let outcome =
                    run(&mut network, &params, &examples, &Geometry::Identity, &blocks, weight);
                for (example, gradient) in alone.iter().enumerate() {
                    for block in 0..params.len() {
                        let (got, expected) = (
                            outcome.norms[example][block],
                            norm(gradient, &Geometry::Identity, &blocks, block),
                        );
                        assert!(
                            close(got, expected, 1e-4, 1e-6),
                            "{name}, {memory:?}, {method:?}, tensor {block}: {got} {expected}"
                        );
                    }
                }
                let expected = support::weighted(&alone, &blocks, weight);
                assert!(difference(&outcome.sum, &expected) < 1e-5, "{name}, {memory:?}");
            }
        }
    }
}

/// Buffers are reused; data of an earlier example must not affect the next one.
#[test]
fn earlier_examples_do_not_change_norms() {
    for (name, graph) in graphs() {
        let (mut network, params) = network(graph);
        let target = example(&network, 3);
        let blocks = Blocks::flat(params.len());
        let mut norms = Vec::new();
        for scale in [1.0, 50.0] {
            let mut past = example(&network, 7);
            let engine::Input::Features(features) = &mut past.parts_mut()[0].input else {
                unreachable!()
            };
            features.iter_mut().for_each(|x| *x *= scale);
            for example in [&past, &target] {
                norms.push(
                    run(&mut network, &params, &[example], &Geometry::Identity, &blocks, |_, _| {
                        1.0
                    })
                    .norms[0][0],
                );
            }
        }
        assert!(norms[1].is_finite(), "{name}: {norms:?}");
        assert_eq!(norms[1].to_bits(), norms[3].to_bits(), "{name}: {norms:?}");
    }
}

/// GPT-2 stores weights as inputs × outputs, Llama as outputs × inputs.
#[test]
fn transposed_storage_is_declared() {
    for (kind, expected) in [(zoo::Kind::Gpt2Untied, true), (zoo::Kind::Llama, false)] {
        let (network, _) = zoo::network(kind, 1);
        let hidden: Vec<bool> = network
            .trainable()
            .iter()
            .filter(|tensor| tensor.role == protocol::Role::Hidden)
            .map(|tensor| tensor.transposed)
            .collect();
        assert!(!hidden.is_empty() && hidden.iter().all(|&x| x == expected), "{kind:?}");
    }
}
