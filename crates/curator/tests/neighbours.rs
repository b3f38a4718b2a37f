//! With the same randomness, neighbouring data sets give sums at most the declared sensitivity
//! apart, in every geometry, block and way of clipping, and the same control flow.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::NormMethod;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::{Combination, Example};
use protocol::{Announcement, Bound, LossQuery, Oracle};
use support::{ALL, Kind, curator, network, poisson, positive, query_specs, record, records, sums};

/// Records of which number 3 is as given.
fn with(kind: Kind, third: Option<Example>) -> Records {
    let mut places: Vec<Option<Example>> = records(kind, 9).into_iter().map(Some).collect();
    places[3] = third;
    Records::with_vacancies(places)
}

/// Records of all kinds: small, ordinary, huge, of several parts, and ones whose gradients are not
/// finite.
fn data_set(kind: Kind) -> Vec<Example> {
    let scales: &[f32] =
        if kind == Kind::Mlp { &[1e-6, 1.0, 1e4, 1e30, f32::INFINITY, f32::NAN] } else { &[1.0] };
    let seeds = 40..43u64;
    let single = seeds.flat_map(|seed| scales.iter().map(move |&scale| record(kind, seed, scale)));
    let parts =
        |combination| Example::combined((50..57).map(|seed| record(kind, seed, 3.0)), combination);
    single.chain(parts(Combination::Mean)).chain(parts(Combination::Sum)).collect()
}

fn samplings() -> [Sampling; 4] {
    [
        poisson(0.6),
        Sampling::FixedSize { dataset: 9, lot: 5 },
        Sampling::Shuffled { dataset: 9, lot: 4 },
        Sampling::Full,
    ]
}

/// The largest share of the sensitivity that was seen.
fn farthest(kind: Kind, one: Option<Example>, other: Option<Example>, declared: f64) -> f64 {
    [1e-8, 0.3, 1e6]
        .into_iter()
        .map(|clip| farthest_at(kind, clip, one.as_ref(), other.as_ref(), declared))
        .fold(0.0, f64::max)
}

fn farthest_at(
    kind: Kind,
    clip: f64,
    one: Option<&Example>,
    other: Option<&Example>,
    declared: f64,
) -> f64 {
    let (network, _) = network(kind);
    let mut farthest = 0.0f64;
    for sampling in samplings() {
        let (mut a, at) = curator(kind, with(kind, one.cloned()), sampling, 11);
        let (mut b, _) = curator(kind, with(kind, other.cloned()), sampling, 11);
        for spec in query_specs(kind, &network, &at, clip, 1e-3) {
            // A few lots, so that the record is in some of them; shuffled lots in one epoch.
            for _ in 0..3 {
                let (answer_a, answer_b) = match (spec.ask(&mut a, &at), spec.ask(&mut b, &at)) {
                    (Ok(a), Ok(b)) => (a, b),
                    // Centers and automatic clipping do not go with every clip bound; what is
                    // refused is refused to both.
                    (Err(a), Err(b)) => {
                        assert_eq!(a, b);
                        assert_ne!(clip, 0.3);
                        continue;
                    }
                    other => panic!("one was answered and one refused: {other:?}"),
                };
                assert_eq!(answer_a.std, answer_b.std);
                let (sum_a, sum_b) = (sums(&answer_a, a.lot_size()), sums(&answer_b, b.lot_size()));
                let apart: Vec<Vec<f64>> = sum_a
                    .iter()
                    .zip(&sum_b)
                    .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect())
                    .collect();
                for (block, bound) in spec.bounds.iter().enumerate() {
                    let share = spec.norm(&apart, block) / (declared * bound.clip.get());
                    assert!(
                        share <= 1.0,
                        "{kind:?} {sampling:?} clip {clip} block {block} {:?}: {share}",
                        spec.clipping
                    );
                    farthest = farthest.max(share);
                }
            }
        }
        assert_eq!(a.ledger(), b.ledger(), "the same control flow");
    }
    farthest
}

#[test]
fn adding_or_removing_a_record_moves_a_sum_by_the_clip_bound_at_most() {
    for kind in ALL {
        let mut farthest_of_all = 0.0f64;
        for person in data_set(kind) {
            farthest_of_all = farthest_of_all.max(farthest(kind, None, Some(person), 1.0));
        }
        // The bound is tight: some record uses nearly all of it.
        assert!(farthest_of_all > 0.99, "{kind:?}: {farthest_of_all}");
    }
}

/// All rows of a person together move a sum by the clip bound at most, wherever they are in the
/// file. As separate records they would move it by several times the bound.
#[test]
fn the_rows_of_a_person_are_clipped_together() {
    for kind in ALL {
        for combination in [Combination::Mean, Combination::Sum] {
            let (net, at) = network(kind);
            let spec = &query_specs(kind, &net, &at, 1e-3, 1e-3)[0];
            let release = |present: bool, combined: bool| {
                // Rows of three persons in turns; the person in question has every third.
                let row = |i: u64| (present || i % 3 != 1).then(|| record(kind, i, 1.0));
                let rows = Records::with_vacancies((0..12).map(row).collect());
                let place_of_row: Vec<usize> = (0..12).map(|i| i % 3).collect();
                let records = match combined {
                    true => rows.combine_rows(&place_of_row, combination).unwrap(),
                    false => rows,
                };
                assert_eq!(records.places(), if combined { 3 } else { 12 });
                let (mut curator, _) = curator(kind, records, Sampling::Full, 5);
                let answer = spec.ask(&mut curator, &at).unwrap();
                sums(&answer, curator.lot_size())
            };
            let moved = |combined: bool| {
                let (with, without) = (release(true, combined), release(false, combined));
                let apart: Vec<Vec<f64>> = with
                    .iter()
                    .zip(&without)
                    .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect())
                    .collect();
                spec.norm(&apart, 0) / spec.bounds[0].clip.get()
            };
            let together = moved(true);
            assert!((0.9..=1.0).contains(&together), "{kind:?} {combination:?}: {together}");
            assert!(moved(false) > 1.2, "{kind:?}: {}", moved(false));
        }
    }
}

#[test]
fn replacing_a_record_moves_a_sum_by_twice_the_clip_bound_at_most() {
    for kind in ALL {
        let examples = data_set(kind);
        for pair in examples.windows(2) {
            farthest(kind, Some(pair[0].clone()), Some(pair[1].clone()), 2.0);
        }
    }
}

#[test]
fn losses_move_by_their_clip_bound_at_most() {
    for kind in ALL {
        for person in data_set(kind) {
            for clip in [1e-3, 0.5, 100.0] {
                let bound = Bound::new(clip, 1e-3).unwrap();
                let (mut a, at) = curator(kind, with(kind, None), Sampling::Full, 3);
                let (mut b, _) = curator(kind, with(kind, Some(person.clone())), Sampling::Full, 3);
                let ask = |curator: &mut Curator<_>| {
                    curator.draw(&Announcement::default().and(positive(1e-3), 1)).unwrap();
                    curator.loss(&LossQuery { at: &at, bound }).unwrap().value * curator.lot_size()
                };
                let apart = (ask(&mut a) - ask(&mut b)).abs();
                assert!(apart <= clip, "{kind:?} {clip}: {apart}");
            }
        }
    }
}

/// Records whose rows nearly cancel: equal tokens, each of which is to be followed by another one.
/// What is left of the gradient is far smaller than what it is summed from.
#[test]
fn rows_that_cancel_do_not_hide_a_gradient() {
    let (net, _) = network(Kind::Gpt2);
    for (token, count) in [(3u32, 11usize), (0, 8), (7, 11)] {
        let tokens = vec![token; count];
        let targets = (0..count as u32).collect();
        let cancelling = Example::new(engine::Input::Tokens(tokens), engine::Target::Next(targets));
        for method in [NormMethod::Cheapest, NormMethod::Ghost, NormMethod::Direct] {
            for clip in [1e-8, 1e-5, 1e-2] {
                let release = |record: Option<Example>| {
                    let (mut network, at) = network(Kind::Gpt2);
                    network.set_norm_method(method);
                    let records = Records::with_vacancies(vec![record]);
                    let mut curator = Curator::new(
                        network,
                        records,
                        Sampling::Full,
                        Door::unlimited(),
                        Randomness::fixed(1),
                    )
                    .unwrap();
                    let spec = &query_specs(Kind::Gpt2, &net, &at, clip, 1e-4)[2];
                    (sums(&spec.ask(&mut curator, &at).unwrap(), 1.0), spec.bounds.clone())
                };
                let ((with, bounds), (without, _)) =
                    (release(Some(cancelling.clone())), release(None));
                for (k, bound) in bounds.iter().enumerate() {
                    let apart = with[k]
                        .iter()
                        .zip(&without[k])
                        .map(|(a, b)| (a - b).powi(2))
                        .sum::<f64>()
                        .sqrt();
                    assert!(
                        apart <= bound.clip.get(),
                        "{method:?} {clip} tensor {k}: {}",
                        apart / bound.clip.get()
                    );
                }
            }
        }
    }
}
