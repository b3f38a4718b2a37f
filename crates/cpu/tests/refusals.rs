//! Refused graphs, queries and arguments of the builder.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{CheckedQuery, Engine, Example, Input, Target};
use model::activation::Activation;
use model::{Builder, Error, Graph, Init, Linear, Value};
use protocol::{Blocks, Frame, Geometry};
use std::sync::Arc;
use support::zoo::{self, Kind};
use tensor::attention::{AttentionMask, Heads};
use tensor::rope::Rope;

/// Noise of a parameter that does not affect the logits would be charged without any use.
#[test]
fn a_disconnected_parameter_is_refused() {
    let graph = || {
        let mut build = Builder::features(4);
        let x = build.input();
        build.linear(x, Linear::new("unused", 4, 3).init_std(0.5));
        let logits = build.linear(x, Linear::new("head", 4, 2).init_std(0.5));
        build.finish(logits)
    };
    let values = graph().init(0).unwrap();
    let error = Network::new(graph(), values.clone(), |_| true).unwrap_err().to_string();
    assert!(error.contains("unused.weight"), "{error}");
    assert!(Network::new(graph(), values, |name| name.starts_with("head")).is_ok());
}

/// Buffers contain data of examples.
#[test]
fn debug_output_does_not_contain_buffers() {
    let mut build = Builder::features(2);
    let x = build.input();
    let logits = build.linear(x, Linear::new("head", 2, 2).init_std(0.5));
    let graph = build.finish(logits);
    let values = graph.init(0).unwrap();
    let (mut network, params) = Network::new(graph, values, |_| true).unwrap();
    network
        .plain_sum(&params, &[&Example::features(vec![123.5, 0.0], 0)], &mut params.zeros_like())
        .unwrap();
    assert!(!format!("{network:?}").contains("123.5"));
}

/// Tangent norms are correct only for the low-rank pairs of the model and the frames of their
/// factors.
#[test]
fn a_frame_that_does_not_fit_the_model_is_refused() {
    let (mut network, params) = zoo::network(Kind::LlamaLora, 5);
    let pairs = network.pairs();
    let example = zoo::example(Kind::LlamaLora, 40, 12, 2);
    let good = Frame::new(&params, pairs[3].0, pairs[3].1).unwrap();
    let tensors = network.trainable();
    network.load(&params).unwrap();
    let mut refused = |frames: Vec<Frame>| {
        let (geometry, blocks) = (Geometry::Tangent { frames }, Blocks::flat(params.len()));
        let query = CheckedQuery::new(&params, &geometry, &blocks, &tensors);
        // An accepted query can be computed.
        query.map(|query| network.observe(&[&example], &query).unwrap()).is_err()
    };
    assert!(!refused(vec![good.clone()]));
    assert!(refused(vec![good.clone(), good.clone()]), "duplicate frame");
    // Two factors of different layers.
    let (late, early) = (pairs[pairs.len() - 2].0, pairs[3].1);
    assert!(
        refused(vec![Frame::new(&params, late, early).unwrap()]),
        "factors of different layers"
    );
    let swapped = Frame { left: good.right, right: good.left, ..good.clone() };
    assert!(refused(vec![swapped]), "swapped factors");
    assert!(refused(vec![Frame { left: params.len(), ..good.clone() }]), "index out of range");
    type Change = (&'static str, fn(&mut Frame));
    let changes: [Change; 7] = [
        ("another inverse", |frame| frame.left_inverse.data_mut()[0] *= 1.01),
        ("another inverse", |frame| frame.right_inverse.data_mut()[0] *= 0.0),
        ("another basis", |frame| frame.left_basis.data_mut().iter_mut().for_each(|x| *x *= 1.01)),
        ("another basis and its inverse", |frame| {
            frame
                .right_basis
                .data_mut()
                .iter_mut()
                .chain(frame.right_inverse.data_mut())
                .for_each(|x| *x *= 2.0);
        }),
        ("NaN", |frame| frame.left_inverse.data_mut()[1] = f32::NAN),
        ("NaN", |frame| frame.right_basis.data_mut()[1] = f32::NAN),
        ("infinite", |frame| frame.right_inverse.data_mut()[1] = f32::INFINITY),
    ];
    for (what, change) in changes {
        let mut frame = good.clone();
        change(&mut frame);
        assert!(refused(vec![frame]), "{what}");
    }
}

#[test]
fn a_frame_of_vectors_is_refused() {
    let (network, params) = zoo::network(Kind::Llama, 5);
    let vectors: Vec<usize> = (0..params.len()).filter(|&k| params[k].shape().len() == 1).collect();
    let frame = Frame::new(&params, vectors[0], vectors[1]).unwrap();
    let geometry = Geometry::Tangent { frames: vec![frame] };
    let blocks = Blocks::flat(params.len());
    assert!(CheckedQuery::new(&params, &geometry, &blocks, &network.trainable()).is_err());
}

/// Errors are public, so they must not contain data of an example.
#[test]
fn errors_do_not_contain_data_of_examples() {
    let (mut network, params) = zoo::network(Kind::Gpt2Tied, 5);
    network.load(&params).unwrap();
    let mut message = |example: &Example| {
        let validated = network.validate(example).unwrap_err().to_string();
        let computed = network.losses(&[example]).unwrap_err().to_string();
        assert_eq!(computed, validated);
        computed
    };
    assert!(!message(&Example::continuation(vec![1, 98_765, 2], 0)).contains("98765"));
    let mut example = Example::continuation(vec![1, 2, 3], 0);
    let Target::Next(targets) = &mut example.parts_mut()[0].target else { unreachable!() };
    targets[1] = 98_765;
    assert!(!message(&example).contains("98765"));
}

/// The target must be that of the model's loss.
#[test]
fn targets_of_another_loss_are_refused() {
    let expected = [
        (Kind::Gpt2Tied, "a target for each token"),
        (Kind::Bert, "a class"),
        (Kind::BertLabels, "labels"),
        (Kind::BertValue, "a number"),
    ];
    let examples = expected.map(|(kind, got)| (kind, zoo::example(kind, 3, 4, 0), got));
    for (kind, expected) in expected {
        let (mut network, _) = zoo::network(kind, 5);
        for (other, example, got) in &examples {
            match network.validate(example) {
                Ok(()) => assert_eq!(*other, kind),
                Err(error) => {
                    let message = format!("expected {expected}, got {got}");
                    assert!(*other != kind && error.to_string().contains(&message), "{error}");
                }
            }
        }
    }
    let (mut network, _) = zoo::network(Kind::MlpLabels, 5);
    let outside = Example::new(Input::Features(vec![0.5; 7]), Target::Labels(vec![0, 3]));
    let error = network.validate(&outside).unwrap_err().to_string();
    assert!(error.contains("outside the 3 classes"), "{error}");
}

/// Mismatched shapes are detected when the graph is built, not when it is computed.
#[test]
fn the_builder_refuses_mismatched_shapes() {
    let refuses = |expected: &str, build: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)).unwrap_err();
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap();
        assert!(message.contains(expected), "{message}");
    };
    let head = |build: &mut Builder, x: Value, width: usize| {
        build.linear(x, Linear::new("head", width, 2).init_std(0.5))
    };
    refuses("head.weight: input width", &|| {
        let mut build = Builder::features(4);
        let x = build.input();
        head(&mut build, x, 5);
    });
    refuses("swiglu: expected an even number of columns, got 5", &|| {
        let mut build = Builder::features(5);
        let x = build.input();
        build.swiglu(x);
    });
    for (rows, fits) in [(9, false), (10, true)] {
        let tokens = || {
            let mut build = Builder::tokens(10, 4);
            let table = build.param("table", [rows, 2], Init::Zeros);
            build.embed_tokens(table);
        };
        if fits { tokens() } else { refuses("table: expected at least 10 rows, got 9", &tokens) }
    }
    refuses("positions: expected at least 4 rows, got 3", &|| {
        let mut build = Builder::tokens(10, 4);
        let table = build.param("positions", [3, 2], Init::Zeros);
        build.embed_positions(table);
    });
    refuses("several layers: expected no activation", &|| {
        let mut build = Builder::features(4);
        let x = build.input();
        let layer = Linear::new("two", 4, 4).activation(Activation::Relu);
        let layers = [layer.clone(), layer].map(|layer| build.linear_layer(layer));
        build.apply_linear(x, &layers);
    });
    refuses("rope: width of a head", &|| {
        attention_graph(|build, qkv| build.rope(&rope(2), HEADS, qkv));
    });
}

const HEADS: Heads = Heads { queries: 1, keys: 1, dim: 2, mask: AttentionMask::Causal };

fn rope(pairs: usize) -> Arc<Rope> {
    Arc::new(Rope::new(vec![0.1; pairs]))
}

/// Builds a language model in which `body` is applied to queries, keys and values.
fn attention_graph(body: impl Fn(&mut Builder, Value) -> Value) -> Graph {
    let mut build = Builder::tokens(10, 4);
    let table = build.param("table", [10, 6], Init::Zeros);
    let x = build.embed_tokens(table);
    let qkv = build.linear(x, Linear::new("qkv", 6, 6).init_std(0.5));
    let out = body(&mut build, qkv);
    let out = build.target_rows(out);
    let logits = build.linear(out, Linear::new("head", 2, 2).init_std(0.5));
    build.finish(logits)
}

/// An overwritten value must not be needed by another layer or for recomputation.
#[test]
fn an_overwritten_value_that_is_needed_elsewhere_is_refused() {
    let network = |graph: Graph| {
        let values = graph.init(1).unwrap();
        Network::new(graph, values, |_| true).map(|_| ())
    };
    network(attention_graph(|build, qkv| {
        let rotated = build.rope(&rope(1), HEADS, qkv);
        build.attention(HEADS, rotated)
    }))
    .unwrap();
    let refuses = |expected: &str, graph: Graph| match network(graph) {
        Err(Error::Graph(error)) => assert!(error.contains(expected), "{error}"),
        other => panic!("expected a refused graph, got {other:?}"),
    };
    refuses(
        "an overwritten value is also read by another layer",
        attention_graph(|build, qkv| {
            let rotated = build.rope(&rope(1), HEADS, qkv);
            let sum = build.add(rotated, qkv);
            build.attention(HEADS, sum)
        }),
    );
    refuses(
        "an overwritten value is computed in an earlier segment",
        attention_graph(|build, qkv| {
            build.segment();
            let rotated = build.rope(&rope(1), HEADS, qkv);
            build.attention(HEADS, rotated)
        }),
    );
    // The backward pass of a norm reads its input.
    refuses(
        "an overwritten value is also read by another layer",
        attention_graph(|build, qkv| {
            let other = build.layer_norm("norm", qkv, 1e-5);
            let rotated = build.rope(&rope(1), HEADS, qkv);
            let sum = build.add(rotated, other);
            build.attention(HEADS, sum)
        }),
    );
}
