//! Graphs that a network refuses, queries that do not fit a model, and what a builder refuses to
//! build.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{CheckedQuery, Engine, Example, Target};
use model::activation::Activation;
use model::{Builder, Error, Graph, Init, Linear, Value};
use protocol::{Blocks, Frame, Geometry};
use std::sync::Arc;
use support::zoo::{self, Kind};
use tensor::attention::{AttentionMask, Heads};
use tensor::rope::Rope;

/// A parameter from which nothing reaches the logits would be charged for and never move.
#[test]
fn a_stranded_parameter_is_refused() {
    let graph = || {
        let mut build = Builder::features(4);
        let x = build.input();
        build.linear(x, Linear::new("dead", 4, 3).init_std(0.5));
        let logits = build.linear(x, Linear::new("head", 4, 2).init_std(0.5));
        build.finish(logits)
    };
    let values = graph().init(0).unwrap();
    let error = Network::new(graph(), values.clone(), |_| true).unwrap_err().to_string();
    assert!(error.contains("dead.weight"), "{error}");
    assert!(Network::new(graph(), values, |name| name.starts_with("head")).is_ok());
}

/// Buffers hold what examples left behind.
#[test]
fn a_network_does_not_print_its_buffers() {
    let mut build = Builder::features(2);
    let x = build.input();
    let logits = build.linear(x, Linear::new("head", 2, 2).init_std(0.5));
    let graph = build.finish(logits);
    let values = graph.init(0).unwrap();
    let (mut network, at) = Network::new(graph, values, |_| true).unwrap();
    network
        .plain_sum(&at, &[&Example::features(vec![123.5, 0.0], 0)], &mut at.zeros_like())
        .unwrap();
    assert!(!format!("{network:?}").contains("123.5"));
}

/// A norm in a tangent space is only right for a pair of the model, in the frame of its own
/// factors.
#[test]
fn a_frame_that_is_none_of_the_models_is_refused() {
    let (mut network, at) = zoo::network(Kind::LlamaLora, 5);
    let pairs = network.pairs();
    let example = zoo::example(Kind::LlamaLora, 40, 12, 2);
    let good = Frame::new(&at, pairs[3].0, pairs[3].1).unwrap();
    let tensors = network.trainable();
    network.load(&at).unwrap();
    let mut refused = |frames: Vec<Frame>| {
        let (geometry, blocks) = (Geometry::Tangent { frames }, Blocks::flat(at.len()));
        let query = CheckedQuery::new(&at, &geometry, &blocks, &tensors);
        // What is not refused can be computed.
        query.map(|query| network.observe(&[&example], &query).unwrap()).is_err()
    };
    assert!(!refused(vec![good.clone()]));
    assert!(refused(vec![good.clone(), good.clone()]), "twice");
    // Two factors of different maps: the early one's gradient is not there when the late one's is.
    let (late, early) = (pairs[pairs.len() - 2].0, pairs[3].1);
    assert!(refused(vec![Frame::new(&at, late, early).unwrap()]), "strangers");
    let swapped = Frame { left: good.right, right: good.left, ..good.clone() };
    assert!(refused(vec![swapped]), "the wrong way round");
    assert!(refused(vec![Frame { left: at.len(), ..good.clone() }]), "no such tensor");
    type Spoil = (&'static str, fn(&mut Frame));
    let spoil: [Spoil; 7] = [
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
    for (what, spoil) in spoil {
        let mut frame = good.clone();
        spoil(&mut frame);
        assert!(refused(vec![frame]), "{what}");
    }
}

#[test]
fn a_frame_of_vectors_is_refused() {
    let (network, at) = zoo::network(Kind::Llama, 5);
    let vectors: Vec<usize> = (0..at.len()).filter(|&k| at[k].shape().len() == 1).collect();
    let frame = Frame::new(&at, vectors[0], vectors[1]).unwrap();
    let geometry = Geometry::Tangent { frames: vec![frame] };
    let blocks = Blocks::flat(at.len());
    assert!(CheckedQuery::new(&at, &geometry, &blocks, &network.trainable()).is_err());
}

/// Errors are read by others: they do not say what an example contains.
#[test]
fn refusals_do_not_tell_what_is_in_an_example() {
    let (mut network, at) = zoo::network(Kind::Gpt2Tied, 5);
    network.load(&at).unwrap();
    let mut said = |example: &Example| {
        let validated = network.validate(example).unwrap_err().to_string();
        let said = network.losses(&[example]).unwrap_err().to_string();
        assert_eq!(said, validated);
        said
    };
    assert!(!said(&Example::continuation(vec![1, 98_765, 2], 0)).contains("98765"));
    let mut example = Example::continuation(vec![1, 2, 3], 0);
    let Target::Next(targets) = &mut example.target else { unreachable!() };
    targets[1] = 98_765;
    assert!(!said(&example).contains("98765"));
}

/// What does not fit is said when it is built, not when it runs.
#[test]
fn a_builder_refuses_what_does_not_fit() {
    let refuses = |expected: &str, build: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)).unwrap_err();
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap();
        assert!(said.contains(expected), "{said}");
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
    refuses("places: expected at least 4 rows, got 3", &|| {
        let mut build = Builder::tokens(10, 4);
        let table = build.param("places", [3, 2], Init::Zeros);
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
        texts(|build, qkv| build.rope(&rope(2), HEADS, qkv));
    });
}

const HEADS: Heads = Heads { queries: 1, keys: 1, dim: 2, mask: AttentionMask::Causal };

fn rope(pairs: usize) -> Arc<Rope> {
    Arc::new(Rope::new(vec![0.1; pairs]))
}

/// A text model with what `body` makes of queries, keys and values.
fn texts(body: impl Fn(&mut Builder, Value) -> Value) -> Graph {
    let mut build = Builder::tokens(10, 4);
    let table = build.param("table", [10, 6], Init::Zeros);
    let x = build.embed_tokens(table);
    let qkv = build.linear(x, Linear::new("map", 6, 6).init_std(0.5));
    let out = body(&mut build, qkv);
    let out = build.target_rows(out);
    let logits = build.linear(out, Linear::new("head", 2, 2).init_std(0.5));
    build.finish(logits)
}

/// What a layer overwrites must not be needed by another one, nor when activations are recomputed.
#[test]
fn a_value_that_is_overwritten_and_read_elsewhere_is_refused() {
    let network = |graph: Graph| {
        let values = graph.init(1).unwrap();
        Network::new(graph, values, |_| true).map(|_| ())
    };
    network(texts(|build, qkv| {
        let turned = build.rope(&rope(1), HEADS, qkv);
        build.attention(HEADS, turned)
    }))
    .unwrap();
    let refuses = |expected: &str, graph: Graph| match network(graph) {
        Err(Error::Graph(error)) => assert!(error.contains(expected), "{error}"),
        other => panic!("expected a refused graph, got {other:?}"),
    };
    refuses(
        "overwritten is read elsewhere",
        texts(|build, qkv| {
            let turned = build.rope(&rope(1), HEADS, qkv);
            let sum = build.add(turned, qkv);
            build.attention(HEADS, sum)
        }),
    );
    refuses(
        "overwritten is made in an earlier segment",
        texts(|build, qkv| {
            build.segment();
            let turned = build.rope(&rope(1), HEADS, qkv);
            build.attention(HEADS, turned)
        }),
    );
    // The backward pass of a norm reads its input.
    refuses(
        "overwritten is read elsewhere",
        texts(|build, qkv| {
            let other = build.layer_norm("norm", qkv, 1e-5);
            let turned = build.rope(&rope(1), HEADS, qkv);
            let sum = build.add(turned, other);
            build.attention(HEADS, sum)
        }),
    );
}
