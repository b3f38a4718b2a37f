//! No example reaches another, bit for bit, for every model: neither by what it contains nor by
//! being there; and one that is not finite contributes nothing.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{
    CheckedQuery, Engine, Example, Input, Observed, StepScale, Sum, SumPrecision, Weights,
    weighted_sum,
};
use model::Activations;
use protocol::{Blocks, Geometry, Params};
use support::zoo::{self, Kind};
use support::{difference, run, sound_weights};

fn lot(kind: Kind) -> Vec<Example> {
    [(7, 2), (19, 4), (2, 0), (12, 5)]
        .iter()
        .zip(40..)
        .map(|(&(length, masked), seed)| zoo::example(kind, seed, length, masked))
        .collect()
}

#[test]
fn a_changed_example_changes_no_other() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::each(at.len());
        let before = lot(kind);
        for changed in 0..before.len() {
            let mut after = before.clone();
            match &mut after[changed].input {
                Input::Tokens(tokens) => {
                    tokens.iter_mut().for_each(|token| *token = (*token + 3) % 13)
                }
                Input::Features(numbers) => numbers.iter_mut().for_each(|x| *x = 1e3 * *x - 7.0),
            }
            let [a, b] = [&before, &after].map(|all| {
                run(
                    &mut network,
                    &at,
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
                        "{kind:?}: the change must be felt"
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

/// What an example gives: loss, norms by block, and its share of a sum in steps, which no weight of
/// another's can hide in.
fn given(
    network: &mut Network,
    at: &Params,
    examples: &[&Example],
    place: usize,
) -> (u64, Vec<u64>, Vec<f64>) {
    let blocks = Blocks::each(at.len());
    let query = CheckedQuery::new(at, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
    let weigh = |observed: &Observed| {
        let mut weights = Weights::zeros(observed.examples(), observed.blocks());
        (0..at.len()).for_each(|block| weights.set(place, block, 0.7));
        weights
    };
    let precision = SumPrecision::Steps(vec![StepScale::Wide(2f32.powi(24)); at.len()]);
    let (observed, sum) = weighted_sum(network, at, examples, &query, &precision, weigh).unwrap();
    (
        observed.loss(place).to_bits(),
        (0..at.len()).map(|block| observed.norm(place, block).to_bits()).collect(),
        values(&sum),
    )
}

/// The elements of a sum, tensor after tensor.
fn values(sum: &Sum) -> Vec<f64> {
    sum.iter().flat_map(|sum| (0..sum.len()).map(move |i| sum.value(i))).collect()
}

/// Whether others are there, how many, how long and in which order changes no bit of an example's
/// loss, norms and contribution.
#[test]
fn neighbours_change_no_bit() {
    for kind in zoo::ALL {
        for memory in [Activations::Retain, Activations::Recompute] {
            let (mut network, at) = zoo::network(kind, 5);
            network.set_activations(memory);
            let company: Vec<Example> =
                (0..36).map(|i| zoo::example(kind, 90 + i, 1 + (i as usize * 7) % 24, 0)).collect();
            for target in lot(kind) {
                let alone = given(&mut network, &at, &[&target], 0);
                assert!(
                    alone.2.iter().any(|&x| x != 0.0) || alone.0 == 0,
                    "{kind:?}: there is something to see"
                );
                for (count, place) in
                    [(1, 0), (1, 1), (2, 1), (3, 0), (7, 4), (15, 15), (16, 3), (35, 20)]
                {
                    let mut all: Vec<&Example> = company[..count].iter().collect();
                    all.insert(place, &target);
                    assert!(
                        given(&mut network, &at, &all, place) == alone,
                        "{kind:?} {memory:?} {count} {place}"
                    );
                }
            }
        }
    }
}

/// A lot's sum in steps is, to the last one, what its examples give one by one, in whichever order
/// and company.
#[test]
fn sums_in_steps_are_exact() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let all: Vec<Example> =
            (0..13).map(|i| zoo::example(kind, 60 + i, 2 + (i as usize * 5) % 19, 0)).collect();
        let blocks = Blocks::flat(at.len());
        let query =
            CheckedQuery::new(&at, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
        for scale in [StepScale::Narrow(2f32.powi(20)), StepScale::Wide(2f32.powi(30))] {
            let precision = SumPrecision::Steps(vec![scale; at.len()]);
            let mut sum = |examples: &[&Example], micro_batch: usize| {
                network.load(&at).unwrap();
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

/// A caller may panic between `observe` and `accumulate`, and catch it: the next pass starts from
/// nothing all the same.
#[test]
fn a_panic_leaves_nothing_behind() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::flat(at.len());
        let all = lot(kind);
        let all: Vec<&Example> = all.iter().collect();
        let before = run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| {
                panic!("by the caller")
            })
        }));
        assert!(panicked.is_err());
        let after = run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
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
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::flat(at.len());
        let clean = lot(kind);
        let mut poisoned = clean.clone();
        let Input::Features(numbers) = &mut poisoned[1].input else { unreachable!() };
        numbers[2] = poison;
        let rest: Vec<&Example> =
            clean.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, example)| example).collect();
        let without = run(&mut network, &at, &rest, &Geometry::Identity, &blocks, |_, _| 1.0);
        let with = run(
            &mut network,
            &at,
            &poisoned.iter().collect::<Vec<_>>(),
            &Geometry::Identity,
            &blocks,
            |_, _| 1.0,
        );
        if with.norms[1][0].is_finite() {
            // A bounded activation may tame a huge number; then it is an ordinary example.
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
fn poisoned_weights_are_felt_by_all_and_sum_to_nothing() {
    let (mut network, mut at) = zoo::network(Kind::Gpt2Tied, 5);
    at[3].data_mut()[0] = f32::NAN;
    let all = lot(Kind::Gpt2Tied);
    let outcome = run(
        &mut network,
        &at,
        &all.iter().collect::<Vec<_>>(),
        &Geometry::Identity,
        &Blocks::flat(at.len()),
        |_, _| 1.0,
    );
    assert!(outcome.sum.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())));
}
