//! No example reaches another: what it contains bit for bit, whether and how long it is up to rounding, for every model; and one that is not finite contributes
//! nothing.

#![allow(clippy::unwrap_used)]

mod support;

use model::{Example, Input};
use protocol::{Blocks, Geometry};
use support::zoo::{self, Kind};
use support::{close, difference, run};

fn lot(kind: Kind) -> Vec<Example> {
    [(7, 2), (19, 4), (2, 0), (12, 5)].iter().zip(40..).map(|(&(length, masked), seed)| zoo::example(kind, seed, length, masked)).collect()
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
                Input::Tokens(tokens) => tokens.iter_mut().for_each(|token| *token = (*token + 3) % 13),
                Input::Numbers(numbers) => numbers.iter_mut().for_each(|x| *x = 1e3 * *x - 7.0),
            }
            let [a, b] = [&before, &after]
                .map(|all| run(&mut network, &at, &all.iter().collect::<Vec<_>>(), &Geometry::Identity, &blocks, |_, _| 1.0));
            for example in 0..before.len() {
                if example == changed {
                    assert_ne!(a.norms[example], b.norms[example], "{kind:?}: the change must be felt");
                } else {
                    assert_eq!(a.losses[example].to_bits(), b.losses[example].to_bits(), "{kind:?}");
                    let bits = |norms: &[f64]| norms.iter().map(|norm| norm.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&a.norms[example]), bits(&b.norms[example]), "{kind:?}");
                }
            }
        }
    }
}

/// Products are cut by the number of all rows, so an absent or a longer neighbour may move the last bits, and no more.
#[test]
fn an_absent_or_longer_neighbour_changes_others_by_rounding_only() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::each(at.len());
        let all = lot(kind);
        let whole = run(&mut network, &at, &all.iter().collect::<Vec<_>>(), &Geometry::Identity, &blocks, |_, _| 1.0);
        for changed in 0..all.len() {
            let longer = zoo::example(kind, 77, 24, 0);
            let absent: Vec<&Example> = all.iter().enumerate().filter(|(i, _)| *i != changed).map(|(_, example)| example).collect();
            let replaced: Vec<&Example> = all.iter().enumerate().map(|(i, example)| if i == changed { &longer } else { example }).collect();
            for (others, place) in [(absent, [0, 1, 2]), (replaced, [0, 1, 2].map(|i| i + usize::from(i >= changed)))] {
                let seen = run(&mut network, &at, &others, &Geometry::Identity, &blocks, |_, _| 1.0);
                for (i, place) in place.into_iter().enumerate() {
                    let origin = i + usize::from(i >= changed);
                    assert!(close(seen.losses[place], whole.losses[origin], 1e-5, 1e-6), "{kind:?}");
                    for (a, b) in seen.norms[place].iter().zip(&whole.norms[origin]) {
                        assert!(close(*a, *b, 2e-4, 1e-5), "{kind:?}: {a} {b}");
                    }
                }
            }
        }
    }
}

/// Whoever weighs may panic, and a caller may catch it: the next pass starts from nothing all the same.
#[test]
fn a_panic_leaves_nothing_behind() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::flat(at.len());
        let all = lot(kind);
        let all: Vec<&Example> = all.iter().collect();
        let before = run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| panic!("by the caller"))
        }));
        assert!(panicked.is_err());
        let after = run(&mut network, &at, &all, &Geometry::Identity, &blocks, |_, _| 1.0);
        assert_eq!((before.norms, before.sum), (after.norms, after.sum), "{kind:?}");
    }
}

#[test]
fn a_poisoned_example_contributes_nothing() {
    for (kind, poison) in
        [(Kind::Mlp, f32::NAN), (Kind::Mlp, f32::INFINITY), (Kind::Cnn, f32::NAN), (Kind::Cnn, f32::NEG_INFINITY), (Kind::Mlp, 1e38)]
    {
        let (mut network, at) = zoo::network(kind, 5);
        let blocks = Blocks::flat(at.len());
        let clean = lot(kind);
        let mut poisoned = clean.clone();
        let Input::Numbers(numbers) = &mut poisoned[1].input else { unreachable!() };
        numbers[2] = poison;
        let rest: Vec<&Example> = clean.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, example)| example).collect();
        let without = run(&mut network, &at, &rest, &Geometry::Identity, &blocks, |_, _| 1.0);
        let with = run(&mut network, &at, &poisoned.iter().collect::<Vec<_>>(), &Geometry::Identity, &blocks, |_, _| 1.0);
        if with.norms[1][0].is_finite() {
            // A bounded activation may tame a huge number; then it is an ordinary example.
            assert!(poison == 1e38 || poison.is_infinite(), "{kind:?} {poison}");
            continue;
        }
        assert!(with.sum.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())), "{kind:?} {poison}");
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
    let outcome = run(&mut network, &at, &all.iter().collect::<Vec<_>>(), &Geometry::Identity, &Blocks::flat(at.len()), |_, _| 1.0);
    assert!(outcome.sum.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())));
}
