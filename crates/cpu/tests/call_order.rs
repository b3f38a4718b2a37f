//! Calls of an engine in the wrong order are refused and do not change a sum.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{CheckedQuery, Engine, Error, Example, Sum, SumPrecision, Weights};
use model::{Activations, Decoder as _};
use protocol::{Blocks, Geometry, Params};
use support::sound_weights;
use support::zoo::{self, Kind};

fn refused<T>(result: Result<T, Error>, part: &str) {
    match result.map(|_| ()) {
        Err(Error::Order(what)) => assert!(what.contains(part), "{what}"),
        other => panic!("expected Error::Order ({part}), got {other:?}"),
    }
}

fn ones(examples: usize, blocks: usize) -> Weights {
    let mut weights = Weights::zeros(examples, blocks);
    for block in 0..blocks {
        (0..examples).for_each(|example| weights.set(example, block, 1.0));
    }
    weights
}

fn is_zero(sum: &Sum) -> bool {
    sum.iter().all(|sum| (0..sum.len()).all(|i| sum.value(i) == 0.0))
}

/// Runs a test with two models, with retained and with recomputed activations.
fn for_each_network(test: impl Fn(Network, &Params, &[&Example], &Blocks)) {
    for kind in [Kind::Gpt2Tied, Kind::Mlp] {
        for activations in [Activations::Retain, Activations::Recompute] {
            let (mut network, params) = zoo::network(kind, 5);
            network.set_activations(activations);
            let examples = [zoo::example(kind, 1, 9, 2), zoo::example(kind, 2, 4, 0)];
            let examples: Vec<&Example> = examples.iter().collect();
            test(network, &params, &examples, &Blocks::each(params.len()));
        }
    }
}

#[test]
fn nothing_is_computed_without_parameters() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        for _ in 0..2 {
            network.start_sum(&SumPrecision::Float).unwrap();
            refused(network.losses(examples), "no parameters");
            refused(network.observe(examples, &query), "no parameters");
            refused(network.accumulate(&ones(2, blocks.count())), "no parameters");
            // The parameters are unloaded, so the next iteration must fail in the same way.
            network.load(params).unwrap();
            network.observe(examples, &query).unwrap();
            network.unload();
            refused(network.take_sum(), "no sum");
        }
    });
}

#[test]
fn nothing_is_accumulated_without_an_observation() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        let weights = ones(2, blocks.count());
        network.load(params).unwrap();
        network.start_sum(&SumPrecision::Float).unwrap();
        refused(network.accumulate(&weights), "no micro-batch");
        // Calls that overwrite the batch or the parameters of an observation invalidate it.
        type Between = fn(&mut Network, &Params, &[&Example]);
        let between: [Between; 6] = [
            |network, params, _| network.load(params).unwrap(),
            |network, _, examples| network.validate(examples[1]).unwrap(),
            |network, _, examples| drop(network.losses(examples).unwrap()),
            |network, params, examples| drop(network.logits(params, examples).unwrap()),
            |network, _, examples| {
                network.flops(&[examples[1], examples[0]]).unwrap();
            },
            |network, _, _| network.set_activations(Activations::Retain),
        ];
        for between in between {
            network.observe(examples, &query).unwrap();
            between(&mut network, params, examples);
            refused(network.accumulate(&weights), "no micro-batch");
        }
        network.observe(examples, &query).unwrap();
        if let Ok(mut decoder) = cpu::Decoder::new(&mut network, params) {
            decoder.start(&[&[1, 2, 3], &[4]]).unwrap();
            refused(network.accumulate(&weights), "no micro-batch");
        }
        network.start_sum(&SumPrecision::Float).unwrap();
        assert!(is_zero(&network.take_sum().unwrap()));
    });
}

#[test]
fn a_micro_batch_is_accumulated_once() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        network.load(params).unwrap();
        network.start_sum(&SumPrecision::Float).unwrap();
        let observed = network.observe(examples, &query).unwrap();
        let weights = sound_weights(&observed, |_, _| 1.0);
        network.accumulate(&weights).unwrap();
        refused(network.accumulate(&weights), "no micro-batch");
        assert!(!is_zero(&network.take_sum().unwrap()));
    });
}

#[test]
fn weights_of_another_micro_batch_are_refused() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        network.load(params).unwrap();
        network.start_sum(&SumPrecision::Float).unwrap();
        let count = blocks.count();
        for weights in [ones(1, count), ones(3, count), ones(2, 1), ones(2, count + 1)] {
            network.observe(examples, &query).unwrap();
            refused(network.accumulate(&weights), "another micro-batch");
            // Correct weights are refused too: the micro-batch must be observed again.
            refused(network.accumulate(&ones(2, count)), "no micro-batch");
        }
        assert!(is_zero(&network.take_sum().unwrap()));
    });
}

#[test]
fn a_sum_is_started_before_it_is_used() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        network.load(params).unwrap();
        refused(network.take_sum(), "no sum");
        network.observe(examples, &query).unwrap();
        refused(network.accumulate(&ones(2, blocks.count())), "no sum");
        network.start_sum(&SumPrecision::Float).unwrap();
        network.take_sum().unwrap();
        refused(network.take_sum(), "no sum");
        // There must be a grid for each tensor.
        refused(network.start_sum(&SumPrecision::Steps(Vec::new())), "expected a grid for each");
    });
}

#[test]
fn a_started_sum_is_zero() {
    for_each_network(|mut network, params, examples, blocks| {
        let tensors = network.trainable();
        let query = CheckedQuery::new(params, &Geometry::Identity, blocks, &tensors).unwrap();
        network.load(params).unwrap();
        for _ in 0..2 {
            network.start_sum(&SumPrecision::Float).unwrap();
            network.observe(examples, &query).unwrap();
            network.accumulate(&ones(2, blocks.count())).unwrap();
        }
        network.start_sum(&SumPrecision::Float).unwrap();
        assert!(is_zero(&network.take_sum().unwrap()));
    });
}

#[test]
fn parameters_of_another_model_are_refused() {
    let (mut network, _) = zoo::network(Kind::Gpt2Tied, 5);
    let (_, other) = zoo::network(Kind::Mlp, 5);
    assert!(matches!(network.load(&other), Err(Error::Params(_))));
    refused(network.losses(&[]), "no parameters");
}
