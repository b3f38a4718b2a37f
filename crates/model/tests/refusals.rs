//! What a network refuses to train.

#![allow(clippy::unwrap_used)]

use model::{Builder, Network};

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
    network.plain_sum(&at, &[&model::Example::numbers(vec![123.5, 0.0], 0)], &mut at.zeros_like()).unwrap();
    assert!(!format!("{network:?}").contains("123.5"));
}
