//! Isolation of examples: no example changes a bit of another's results, by its content or its
//! presence, and an example that is not finite contributes nothing.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{
    CheckedQuery, Combination, Engine, Example, Input, Observed, StepScale, Sum, SumPrecision,
    Weights, weighted_sum,
};
use model::Activations;
use protocol::{Blocks, Geometry, Params};
use support::zoo::{self, Kind};
use support::{difference, run, sound_weights};

/// Returns examples, of which the second and the last have several parts.
fn lot(kind: Kind) -> Vec<Example> {
    let mut all: Vec<Example> = [(7, 2), (19, 4), (2, 0), (12, 5), (3, 1)]
        .iter()
        .zip(40..)
        .map(|(&(length, masked), seed)| zoo::example(kind, seed, length, masked))
        .collect();
    let combined = |indices: &[usize], combination| {
        Example::combined(indices.iter().map(|&i| all[i].clone()), combination).unwrap()
    };
    let (mean, sum) =
        (combined(&[1, 4, 0], Combination::Mean), combined(&[3, 3, 4], Combination::Sum));
    (all[1], all[4]) = (mean, sum);
    all
}

#[test]
fn a_changed_example_changes_no_other() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 5);
        let blocks = Blocks::each(params.len());
        let before = lot(kind);
        for changed in 0..before.len() {
            let mut after = before.clone();
            after[changed] = with_changed_input(&before[changed], |input| match input {
                Input::Tokens(tokens) => {
                    tokens.iter_mut().for_each(|token| *token = (*token + 3) % 13)
                }
                Input::Features(features) => features.iter_mut().for_each(|x| *x = 1e3 * *x - 7.0),
            });
            let [a, b] = [&before, &after].map(|all| {
                run(
                    &mut network,
                    &params,
                    &all.iter().collect::<Vec<_>>(),
                    &Geometry::Identity,
                    &blocks,
                    |_, _| 1.0,
                )
            });
            for example in 0..before.len() {
                if example == changed {
                    assert_ne!(
                        a.norms[example], b.norms[example],
                        "{kind:?}: the change must have an effect"
                    );
                } else {
                    assert_eq!(
                        a.losses[example].to_bits(),
                        b.losses[example].to_bits(),
                        "{kind:?}"
                    );
                    let bits =
                        |norms: &[f64]| norms.iter().map(|norm| norm.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&a.norms[example]), bits(&b.norms[example]), "{kind:?}");
                }
            }
        }
    }
}

/// Returns an example with the input of its last part changed.
fn with_changed_input(example: &Example, change: impl Fn(&mut Input)) -> Example {
    let mut parts = example.parts().to_vec();
    change(&mut parts.last_mut().unwrap().input);
    Example::combined(parts.into_iter().map(Example::from), example.combination()).unwrap()
}

/// Returns the loss of an example, its norms by block, and its contribution to a sum in steps.
///
/// Other examples have weight 0.
fn contribution(
    network: &mut Network,
    params: &Params,
    examples: &[&Example],
    index: usize,
) -> (u64, Vec<u64>, Vec<f64>) {
    let blocks = Blocks::each(params.len());
    let query =
        CheckedQuery::new(params, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
    let weigh = |observed: &Observed| {
        let mut weights = Weights::zeros(observed.examples(), observed.blocks());
        (0..params.len()).for_each(|block| weights.set(index, block, 0.7));
        weights
    };
    let precision = SumPrecision::Steps(vec![StepScale::Wide(2f32.powi(24)); params.len()]);
    let (observed, sum) =
        weighted_sum(network, params, examples, &query, &precision, weigh).unwrap();
    (
        observed.loss(index).to_bits(),
        (0..params.len()).map(|block| observed.norm(index, block).to_bits()).collect(),
        values(&sum),
    )
}

/// Returns the elements of all tensors of a sum.
fn values(sum: &Sum) -> Vec<f64> {
    sum.iter().flat_map(|sum| (0..sum.len()).map(move |i| sum.value(i))).collect()
}

/// Presence, number, length and order of other examples do not change a bit of an example's loss,
/// norms and contribution.
#[test]
fn neighbours_change_no_bit() {
    for kind in zoo::ALL {
        for memory in [Activations::Retain, Activations::Recompute] {
            let (mut network, params) = zoo::network(kind, 5);
            network.set_activations(memory);
            let others: Vec<Example> =
                (0..36).map(|i| zoo::example(kind, 90 + i, 1 + (i as usize * 7) % 24, 0)).collect();
            for target in lot(kind) {
                let alone = contribution(&mut network, &params, &[&target], 0);
                assert!(
                    alone.2.iter().any(|&x| x != 0.0) || alone.0 == 0,
                    "{kind:?}: the contribution must not be zero"
                );
                for (count, index) in
                    [(1, 0), (1, 1), (2, 1), (3, 0), (7, 4), (15, 15), (16, 3), (35, 20)]
                {
                    let mut all: Vec<&Example> = others[..count].iter().collect();
                    all.insert(index, &target);
                    assert!(
                        contribution(&mut network, &params, &all, index) == alone,
                        "{kind:?} {memory:?} {count} {index}"
                    );
                }
            }
        }
    }
}

/// A sum in steps does not depend on the order of examples or on the micro-batch size.
#[test]
fn sums_in_steps_are_exact() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 5);
        let all: Vec<Example> =
            (0..13).map(|i| zoo::example(kind, 60 + i, 2 + (i as usize * 5) % 19, 0)).collect();
        let blocks = Blocks::flat(params.len());
        let query =
            CheckedQuery::new(&params, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
        for scale in [StepScale::Narrow(2f32.powi(20)), StepScale::Wide(2f32.powi(30))] {
            let precision = SumPrecision::Steps(vec![scale; params.len()]);
            let mut sum = |examples: &[&Example], micro_batch: usize| {
                network.load(&params).unwrap();
                network.start_sum(&precision).unwrap();
                for examples in examples.chunks(micro_batch) {
                    let observed = network.observe(examples, &query).unwrap();
                    let weight = |i: usize, _: usize| 0.1 / (1.0 + observed.loss(i));
                    network.accumulate(&sound_weights(&observed, weight)).unwrap();
                }
                values(&network.take_sum().unwrap())
            };
            let forward: Vec<&Example> = all.iter().collect();
            let backward: Vec<&Example> = all.iter().rev().collect();
            let together = sum(&forward, all.len());
            assert!(together.iter().any(|&x| x != 0.0), "{kind:?}");
            assert!(together == sum(&forward, 1) && together == sum(&backward, 4), "{kind:?}");
        }
    }
}

/// If a caller panics between `observe` and `accumulate` and catches the panic, the next pass is
/// not affected.
#[test]
fn a_panic_does_not_affect_the_next_pass() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 5);
        let blocks = Blocks::flat(params.len());
        let all = lot(kind);
        let all: Vec<&Example> = all.iter().collect();
        let before = run(&mut network, &params, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&mut network, &params, &all, &Geometry::Identity, &blocks, |_, _| panic!("caller"))
        }));
        assert!(panicked.is_err());
        let after = run(&mut network, &params, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
        assert_eq!((before.norms, before.sum), (after.norms, after.sum), "{kind:?}");
    }
}

#[test]
fn a_poisoned_example_contributes_nothing() {
    for (kind, poison) in [
        (Kind::Mlp, f32::NAN),
        (Kind::Mlp, f32::INFINITY),
        (Kind::Cnn, f32::NAN),
        (Kind::Cnn, f32::NEG_INFINITY),
        (Kind::Mlp, 1e38),
    ] {
        let (mut network, params) = zoo::network(kind, 5);
        let blocks = Blocks::flat(params.len());
        let clean = lot(kind);
        let mut poisoned = clean.clone();
        poisoned[1] = with_changed_input(&clean[1], |input| {
            let Input::Features(features) = input else { unreachable!() };
            features[2] = poison;
        });
        let rest: Vec<&Example> =
            clean.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, example)| example).collect();
        let without = run(&mut network, &params, &rest, &Geometry::Identity, &blocks, |_, _| 1.0);
        let with = run(
            &mut network,
            &params,
            &poisoned.iter().collect::<Vec<_>>(),
            &Geometry::Identity,
            &blocks,
            |_, _| 1.0,
        );
        if with.norms[1][0].is_finite() {
            // With a bounded activation, a huge feature can give finite results.
            assert!(poison == 1e38 || poison.is_infinite(), "{kind:?} {poison}");
            continue;
        }
        assert!(
            with.sum.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())),
            "{kind:?} {poison}"
        );
        assert!(difference(&with.sum, &without.sum) < 1e-6, "{kind:?} {poison}");
        for (a, b) in [(0, 0), (2, 1), (3, 2)] {
            assert_eq!(with.norms[a][0].is_finite(), without.norms[b][0].is_finite());
        }
    }
}

#[test]
fn a_nan_parameter_gives_a_finite_sum() {
    let (mut network, mut params) = zoo::network(Kind::Gpt2Tied, 5);
    params[3].data_mut()[0] = f32::NAN;
    let all = lot(Kind::Gpt2Tied);
    let outcome = run(
        &mut network,
        &params,
        &all.iter().collect::<Vec<_>>(),
        &Geometry::Identity,
        &Blocks::flat(params.len()),
        |_, _| 1.0,
    );
    assert!(outcome.sum.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())));
}
