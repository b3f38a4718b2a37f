//! An example that is not finite contributes nothing, with retained and recomputed activations.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::NormMethod;
use engine::{Example, Input};
use model::Activations;
use protocol::{Blocks, Geometry, Params};
use support::zoo::{self, Kind};
use support::{difference, run};

/// Returns four examples and changes the parameters, so that the second example is not finite.
fn poisoned(kind: Kind, params: &mut Params, tables: &[usize], poison: f32) -> Vec<Example> {
    let lengths = [(7, 2), (11, 4), (3, 0), (9, 5)];
    let mut lot: Vec<Example> = lengths
        .iter()
        .zip(40..)
        .map(|(&(length, masked), seed)| zoo::example(kind, seed, length, masked))
        .collect();
    for (i, example) in lot.iter_mut().enumerate() {
        match &mut example.parts_mut()[0].input {
            // Only the second example has token 12, whose row in every table is not finite.
            Input::Tokens(tokens) => {
                tokens.iter_mut().for_each(|token| *token %= 12);
                if i == 1 {
                    tokens[3] = 12;
                }
            }
            Input::Features(features) if i == 1 => features[2] = poison,
            Input::Features(_) => {}
        }
        if let engine::Target::Next(targets) = &mut example.parts_mut()[0].target {
            targets.iter_mut().filter(|target| **target < 13).for_each(|target| *target %= 12);
        }
    }
    for &table in tables {
        let width = params[table].shape()[1];
        params[table].data_mut()[12 * width] = poison;
    }
    lot
}

#[test]
fn a_poisoned_example_is_erased_in_every_memory_mode() {
    // Models with a trained token table that is not the head, and models of features.
    for kind in [
        Kind::Gpt2Untied,
        Kind::Llama,
        Kind::Bert,
        Kind::Cnn,
        Kind::Mlp,
        Kind::MlpLabels,
        Kind::MlpValue,
    ] {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for blocks in [1, 2] {
                for method in [NormMethod::Cheapest, NormMethod::Ghost, NormMethod::Direct] {
                    let mut sums = Vec::new();
                    for memory in [Activations::Retain, Activations::Recompute] {
                        let (mut network, mut params) = zoo::network(kind, 5);
                        network.set_activations(memory);
                        network.set_norm_method(method);
                        let tokens = matches!(kind, Kind::Gpt2Untied | Kind::Llama | Kind::Bert);
                        let tables: Vec<usize> =
                            if tokens { vec![token_table(&network)] } else { Vec::new() };
                        let lot = poisoned(kind, &mut params, &tables, poison);
                        let blocks =
                            Blocks::new((0..params.len()).map(|k| k % blocks).collect()).unwrap();
                        let all: Vec<&Example> = lot.iter().collect();
                        let rest = [all[0], all[2], all[3]];
                        let with = run(
                            &mut network,
                            &params,
                            &all,
                            &Geometry::Identity,
                            &blocks,
                            |_, _| 1.0,
                        );
                        let without = run(
                            &mut network,
                            &params,
                            &rest,
                            &Geometry::Identity,
                            &blocks,
                            |_, _| 1.0,
                        );
                        let context = format!("{kind:?} {poison} {memory:?} {method:?}");
                        let sound = with.losses[1].is_finite()
                            && with.norms[1].iter().all(|norm| norm.is_finite());
                        // A bounded activation can give finite values, but the gradient of the
                        // first layer is not finite.
                        assert!(!sound, "{context}: the example must not be sound");
                        assert!(
                            without
                                .sum
                                .iter()
                                .all(|tensor| tensor.data().iter().all(|x| x.is_finite())),
                            "{context}"
                        );
                        assert!(
                            with.sum
                                .iter()
                                .all(|tensor| tensor.data().iter().all(|x| x.is_finite())),
                            "{context}"
                        );
                        assert!(difference(&with.sum, &without.sum) < 1e-5, "{context}");
                        assert!(
                            without
                                .sum
                                .iter()
                                .flat_map(|tensor| tensor.data())
                                .any(|x| x.abs() > 1e-3),
                            "{context}"
                        );
                        sums.push(with.sum);
                    }
                    assert!(difference(&sums[0], &sums[1]) < 1e-5, "{kind:?} {poison} {method:?}");
                }
            }
        }
    }
}

/// Returns the index of the trained token table.
fn token_table(network: &cpu::Network) -> usize {
    use engine::Engine;
    network
        .trainable()
        .iter()
        .position(|tensor| {
            tensor.shape.len() == 2 && tensor.shape[0] == 13 && tensor.role == protocol::Role::Table
        })
        .unwrap()
}
