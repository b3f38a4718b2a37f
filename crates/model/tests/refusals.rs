//! What a network refuses to train, what an engine refuses to measure, and what a builder refuses
//! to build.

#![allow(clippy::unwrap_used)]

mod support;

use model::{Builder, Engine, Example, Init, Network, Sum, Target, Value};
use protocol::{Blocks, Frame, Geometry};
use std::sync::Arc;
use support::zoo::{self, Kind};
use tensor::attention::{AttentionMask, Heads};
use tensor::rope::Rope;

/// A parameter from which nothing reaches the logits would be charged for and never move.
#[test]
fn a_stranded_parameter_is_refused() {
    let graph = || {
        let mut build = Builder::numbers(4);
        let x = build.features();
        let (dead, head) = (build.map("dead", 4, 3, 0.5), build.map("head", 4, 2, 0.5));
        build.linear(x, &[dead], None);
        let logits = build.linear(x, &[head], None);
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
    let mut build = Builder::numbers(2);
    let x = build.features();
    let head = build.map("head", 2, 2, 0.5);
    let logits = build.linear(x, &[head], None);
    let graph = build.finish(logits);
    let values = graph.init(0).unwrap();
    let (mut network, at) = Network::new(graph, values, |_| true).unwrap();
    network
        .plain_sum(&at, &[&Example::numbers(vec![123.5, 0.0], 0)], &mut at.zeros_like())
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
    let mut refused = |frames: Vec<Frame>| {
        let mut sum = Sum::float(&at);
        let blocks = Blocks::flat(at.len());
        network
            .weighted_sum(
                &at,
                &[&example],
                &Geometry::Tangent { frames },
                &blocks,
                &mut |_, _| (),
                &mut sum,
            )
            .is_err()
    };
    assert!(!refused(vec![good.clone()]));
    assert!(refused(vec![good.clone(), good.clone()]), "twice");
    // Two factors of different maps: the early one's gradient is not there when the late one's is.
    let (late, early) = (pairs[pairs.len() - 2].0, pairs[3].1);
    assert!(refused(vec![Frame::new(&at, late, early).unwrap()]), "strangers");
    let swapped = Frame { left: good.right, right: good.left, ..good.clone() };
    assert!(refused(vec![swapped]), "the wrong way round");
    assert!(refused(vec![Frame { left: at.len(), ..good.clone() }]), "nobody");
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
    let (mut network, at) = zoo::network(Kind::Llama, 5);
    let vectors: Vec<usize> = (0..at.len()).filter(|&k| at[k].shape().len() == 1).collect();
    let frame = Frame::new(&at, vectors[0], vectors[1]).unwrap();
    let example = zoo::example(Kind::Llama, 40, 12, 2);
    let geometry = Geometry::Tangent { frames: vec![frame] };
    let mut sum = Sum::float(&at);
    assert!(
        network
            .weighted_sum(
                &at,
                &[&example],
                &geometry,
                &Blocks::flat(at.len()),
                &mut |_, _| (),
                &mut sum
            )
            .is_err()
    );
}

/// Errors are read by others: they do not say what an example contains.
#[test]
fn refusals_do_not_tell_what_is_in_an_example() {
    let (mut network, at) = zoo::network(Kind::Gpt2Tied, 5);
    let mut said = |example: &Example| network.losses(&at, &[example]).unwrap_err().to_string();
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
        let head = build.map("head", width, 2, 0.5);
        build.linear(x, &[head], None)
    };
    refuses("head.weight takes as many numbers as come", &|| {
        let mut build = Builder::numbers(4);
        let x = build.features();
        head(&mut build, x, 5);
    });
    refuses("a gate and a value", &|| {
        let mut build = Builder::numbers(5);
        let x = build.features();
        build.swiglu(x);
    });
    for (rows, fits) in [(9, false), (10, true)] {
        let tokens = || {
            let mut build = Builder::texts(10, 4);
            let table = build.param("table", [rows, 2], Init::Zeros);
            build.tokens(table);
        };
        if fits { tokens() } else { refuses("table: 9 rows", &tokens) }
    }
    refuses("places: 3 rows", &|| {
        let mut build = Builder::texts(10, 4);
        let table = build.param("places", [3, 2], Init::Zeros);
        build.positions(table);
    });
    let rope = |pairs: usize| Arc::new(Rope::new(vec![0.1; pairs]));
    let heads = Heads { queries: 1, keys: 1, dim: 2, mask: AttentionMask::Causal };
    let texts = |body: &dyn Fn(&mut Builder, Value) -> Value| {
        let mut build = Builder::texts(10, 4);
        let table = build.param("table", [10, 6], Init::Zeros);
        let x = build.tokens(table);
        let map = build.map("map", 6, 6, 0.5);
        let qkv = build.linear(x, &[map], None);
        let out = body(&mut build, qkv);
        let out = build.target_rows(out);
        let logits = head(&mut build, out, 2);
        build.finish(logits);
    };
    texts(&|build, qkv| {
        let turned = build.rotate(&rope(1), heads, qkv);
        build.attention(heads, turned)
    });
    refuses("an angle for each pair", &|| texts(&|build, qkv| build.rotate(&rope(2), heads, qkv)));
    refuses("turned in place is read elsewhere", &|| {
        texts(&|build, qkv| {
            let turned = build.rotate(&rope(1), heads, qkv);
            let sum = build.add(turned, qkv);
            build.attention(heads, sum)
        });
    });
    refuses("turned in place is made before a cut", &|| {
        texts(&|build, qkv| {
            build.cut();
            let turned = build.rotate(&rope(1), heads, qkv);
            build.attention(heads, turned)
        });
    });
}
