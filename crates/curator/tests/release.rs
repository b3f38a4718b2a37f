//! What is released, and what is refused.

#![allow(clippy::unwrap_used)]

mod support;

use accounting::{Accountant, Adjacency, Budget, Delta, Epsilon, Event};
use cpu::NormMethod;
use curator::{Curator, Door, NonPrivateOracle, Origin, Randomness, Records, Sampling, lot_event};
use engine::{Engine, Example};
use model::Activations;
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, LossQuery, Oracle, Params,
    Refused, TensorMap,
};
use support::{
    ALL, Kind, QuerySpec, curator, network, poisson, positive, query_specs, record, records, sums,
};

fn close(a: &[Vec<f64>], b: &[Vec<f64>], tolerance: f64) -> bool {
    a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (a - b).abs() <= tolerance)
}

#[test]
fn releases_do_not_depend_on_micro_batches() {
    for kind in ALL {
        let (net, at) = network(kind);
        for spec in query_specs(kind, &net, &at, 0.5, 0.1) {
            let release =
                |micro: usize, method: NormMethod, memory: Activations, threads: usize| {
                    let (mut network, at) = network(kind);
                    network.set_norm_method(method);
                    network.set_activations(memory);
                    let records = Records::new(records(kind, 23));
                    let mut curator = Curator::new(
                        network,
                        records,
                        poisson(0.7),
                        Door::unlimited(),
                        Randomness::fixed(4),
                    )
                    .unwrap();
                    curator.set_micro_batch(micro);
                    let pool =
                        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| sums(&spec.ask(&mut curator, &at).unwrap(), curator.lot_size()))
                };
            let whole = release(1000, NormMethod::Cheapest, Activations::Retain, 2);
            let size = whole.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
            // How a lot is divided changes not one bit, and neither does making activations again.
            for micro in [1, 2, 7, 16] {
                assert!(
                    whole == release(micro, NormMethod::Cheapest, Activations::Retain, 2),
                    "{kind:?} {micro}"
                );
                assert!(
                    whole == release(micro, NormMethod::Cheapest, Activations::Recompute, 2),
                    "{kind:?} {micro}"
                );
            }
            assert!(
                close(
                    &whole,
                    &release(5, NormMethod::Direct, Activations::Recompute, 2),
                    1e-5 * size
                ),
                "{kind:?}"
            );
            assert!(
                close(&whole, &release(5, NormMethod::Ghost, Activations::Retain, 2), 1e-5 * size),
                "{kind:?}"
            );
            // The number of threads changes not one bit.
            assert_eq!(
                release(5, NormMethod::Cheapest, Activations::Retain, 1),
                release(5, NormMethod::Cheapest, Activations::Retain, 3)
            );
        }
    }
}

#[test]
fn an_empty_lot_takes_the_same_path() {
    let (net, at) = network(Kind::Mlp);
    for spec in query_specs(Kind::Mlp, &net, &at, 1.0, 1.0) {
        let (mut curator, at) =
            curator(Kind::Mlp, Records::new(records(Kind::Mlp, 20)), poisson(1e-12), 4);
        let answer = spec.ask(&mut curator, &at).unwrap();
        assert!(
            answer
                .value
                .iter()
                .all(|tensor| tensor.data().iter().all(|x| x.is_finite() && *x != 0.0))
        );
        assert_eq!(curator.ledger().events().len(), 1);
        assert!((curator.lot_size() - 2e-11).abs() < 1e-20, "the divisor is the expected size");
    }
}

#[test]
fn a_poisoned_record_contributes_nothing() {
    let (net, at) = network(Kind::Mlp);
    for spec in query_specs(Kind::Mlp, &net, &at, 1.0, 0.1) {
        let healthy = records(Kind::Mlp, 8);
        let release = |extra: Option<Example>| {
            let places = healthy.iter().cloned().map(Some).chain([extra]).collect();
            let (mut curator, at) =
                curator(Kind::Mlp, Records::with_vacancies(places), Sampling::Full, 9);
            spec.ask(&mut curator, &at).unwrap()
        };
        let without = release(None);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = vec![0.5; support::FEATURES];
            numbers[2] = poison;
            assert_eq!(release(Some(Example::features(numbers, 1))), without);
        }
    }
}

#[test]
fn unannounced_queries_are_refused() {
    let (net, at) = network(Kind::Mlp);
    let spec = &query_specs(Kind::Mlp, &net, &at, 1.0, 1.0)[2];
    let (mut curator, at) =
        curator(Kind::Mlp, Records::new(records(Kind::Mlp, 5)), Sampling::Full, 1);
    let probe = |curator: &mut Curator<_>, sigma| {
        curator.loss(&LossQuery { at: &at, bound: Bound::new(1.0, sigma).unwrap() })
    };
    assert!(matches!(curator.gradient(&spec.query(&at)), Err(Refused::Query(_))), "no lot");
    assert!(curator.draw(&Announcement::default()).is_err(), "nothing announced");
    curator.draw(&Announcement::gradient(&spec.bounds).and(positive(5.0), 2)).unwrap();
    assert!(probe(&mut curator, 4.0).is_err());
    assert!(probe(&mut curator, 5.0).is_ok() && probe(&mut curator, 5.0).is_ok());
    assert!(probe(&mut curator, 5.0).is_err(), "only two");
    assert!(curator.gradient(&spec.query(&at)).is_ok());
    assert!(curator.gradient(&spec.query(&at)).is_err(), "only once");
    assert_eq!(curator.ledger().events().len(), 1, "one lot, one event");
    // A refused query spends nothing of what was announced.
    curator.draw(&Announcement::gradient(&spec.bounds)).unwrap();
    let wrong = QuerySpec {
        bounds: spec.bounds[1..].to_vec(),
        geometry: Geometry::Identity,
        blocks: spec.blocks.clone(),
        clipping: Clipping::Cut,
    };
    assert!(curator.gradient(&wrong.query(&at)).is_err());
    assert!(curator.gradient(&spec.query(&at)).is_ok());
}

/// On data and on vacant places: a refusal must not depend on the records.
#[test]
fn invalid_queries_are_refused() {
    for places in [records(Kind::Mlp, 5).into_iter().map(Some).collect(), vec![None; 5]] {
        let (mut curator, at) =
            curator(Kind::Mlp, Records::with_vacancies(places), Sampling::Full, 1);
        let other = Params::new(at.iter().skip(1).cloned().collect());
        let blocks = Blocks::flat(at.len());
        let mut ask =
            |at: &Params, geometry: &Geometry, blocks: &Blocks, clip: f64, clipping: Clipping| {
                let bounds = [Bound::new(clip, 1.0).unwrap()];
                curator.draw(&Announcement::gradient(&bounds)).unwrap();
                curator.gradient(&GradientQuery { at, geometry, blocks, bounds: &bounds, clipping })
            };
        let (cut, automatic) =
            (Clipping::Cut, |gamma: f64| Clipping::Automatic { gamma: positive(gamma) });
        assert!(ask(&other, &Geometry::Identity, &Blocks::flat(other.len()), 1.0, cut).is_err());
        assert!(ask(&at, &Geometry::Identity, &Blocks::flat(other.len()), 1.0, cut).is_err());
        assert!(ask(&at, &Geometry::Identity, &Blocks::each(at.len()), 1.0, cut).is_err());
        let affine = |center: f32, scale: f32| {
            let filled = |x: f32| {
                let mut params = at.zeros_like();
                params.fill(x);
                params
            };
            Geometry::Affine { center: filled(center), scale: filled(scale) }
        };
        for (center, scale) in [
            (0.0, 0.0),
            (0.0, -1.0),
            (0.0, f32::NAN),
            (f32::NAN, 1.0),
            (f32::INFINITY, 1.0),
            (1e6, 1.0),
            (1.0, 1e-6),
            (0.0, 1e-35),
            (0.0, 1e35),
        ] {
            assert!(
                ask(&at, &affine(center, scale), &blocks, 1.0, cut).is_err(),
                "{center} {scale}"
            );
        }
        assert!(
            ask(
                &at,
                &Geometry::Affine { center: Params::default(), scale: Params::default() },
                &blocks,
                1.0,
                cut
            )
            .is_err()
        );
        assert!(ask(&at, &affine(0.1, 1.0), &blocks, 1.0, cut).is_ok());
        // A center that is near in scales may be far in clip bounds, or in γ.
        assert!(ask(&at, &affine(0.1, 1.0), &blocks, 1e-5, cut).is_err());
        assert!(ask(&at, &affine(0.1, 1.0), &blocks, 1.0, automatic(1e-5)).is_err());
        for clip in [1e-300, 1e-40, 1e-16, 1e16, 1e38, 1e300] {
            assert!(ask(&at, &Geometry::Identity, &blocks, clip, cut).is_err(), "{clip}");
        }
        assert!(ask(&at, &Geometry::Identity, &blocks, 1.0, automatic(1e-38)).is_err());
        assert!(ask(&at, &Geometry::Identity, &blocks, 1.0, automatic(1e-3)).is_ok());
        for clip in [1e-300, 1e308] {
            let bound = Bound::new(clip, 1.0).unwrap();
            curator.draw(&Announcement::gradient(&[bound])).unwrap();
            assert!(curator.loss(&LossQuery { at: &at, bound }).is_err(), "{clip}");
        }
    }
    for (clip, sigma) in [
        (0.0, 1.0),
        (1.0, 0.0),
        (f64::NAN, 1.0),
        (1.0, f64::NAN),
        (-1.0, 1.0),
        (1.0, f64::INFINITY),
    ] {
        assert!(Bound::new(clip, sigma).is_err());
    }
}

/// Frames that are not those of the factors are refused, whatever the records: the bound of a sum
/// rests on them.
#[test]
fn foreign_frames_are_refused() {
    for places in [records(Kind::Lora, 3).into_iter().map(Some).collect(), vec![None; 3]] {
        let (mut curator, at) =
            curator(Kind::Lora, Records::with_vacancies(places), Sampling::Full, 1);
        let (net, _) = network(Kind::Lora);
        let spec = &query_specs(Kind::Lora, &net, &at, 1.0, 1.0)[7];
        assert!(spec.ask(&mut curator, &at).is_ok());
        let Geometry::Tangent { frames } = &spec.geometry else { panic!("tangent") };
        let mut refused = |change: &dyn Fn(&mut protocol::Frame)| {
            let mut frames = frames.clone();
            change(&mut frames[0]);
            let geometry = Geometry::Tangent { frames };
            let query = GradientQuery { geometry: &geometry, ..spec.query(&at) };
            curator.draw(&Announcement::gradient(&spec.bounds)).unwrap();
            curator.gradient(&query).is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|frame| frame
            .right_basis
            .data_mut()
            .iter_mut()
            .for_each(|x| *x *= 1.0001)));
        assert!(refused(&|frame| frame.right_inverse.fill(0.0)));
        assert!(refused(&|frame| frame.left_basis.data_mut()[0] = f32::NAN));
        assert!(refused(&|frame| std::mem::swap(&mut frame.left, &mut frame.right)));
        assert!(refused(&|frame| frame.left = 1000));
        // And those of other factors.
        let mut elsewhere = at.clone();
        elsewhere[frames[0].left].data_mut()[0] += 0.01;
        curator.draw(&Announcement::gradient(&spec.bounds)).unwrap();
        assert!(curator.gradient(&spec.query(&elsewhere)).is_err());
    }
}

#[test]
fn records_that_do_not_fit_are_refused_before_anything_is_computed() {
    let (network, _) = network(Kind::Mlp);
    let mut examples = records(Kind::Mlp, 5);
    examples.push(Example::features(vec![0.0; 3], 0));
    let refused = Curator::new(
        network,
        Records::new(examples),
        Sampling::Full,
        Door::unlimited(),
        Randomness::fixed(0),
    )
    .unwrap_err();
    assert!(matches!(&refused, Refused::Query(what) if what.contains("record 6")), "{refused}");
}

#[test]
fn a_spent_budget_refuses_before_anything_is_computed() {
    let budget = Budget {
        epsilon: Epsilon::new(1.0).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        unit: Adjacency::AddRemove.into(),
        accountant: Accountant::Best,
    };
    let (network, at) = network(Kind::Mlp);
    let spec = &query_specs(Kind::Mlp, &network, &at, 1.0, 6.0)[0];
    let mut curator = Curator::new(
        network,
        Records::new(records(Kind::Mlp, 20)),
        poisson(0.3),
        Door::within(budget),
        Randomness::from_system().unwrap(),
    )
    .unwrap();
    let steps = (0..10_000).take_while(|_| spec.ask(&mut curator, &at).is_ok()).count() as u64;
    assert!(steps > 3 && steps < 1000, "{steps}");
    assert!(matches!(spec.ask(&mut curator, &at), Err(Refused::Budget(_))));
    // The lot before the refusal is gone too.
    assert!(matches!(curator.gradient(&spec.query(&at)), Err(Refused::Query(_))));
    assert_eq!(curator.ledger().events().len(), steps);
    assert!(budget.price(curator.ledger().events()).unwrap().epsilon <= 1.0);
    assert_eq!(curator.randomness().origin(), Origin::System);
}

/// A draw that is refused takes the lot before it away, with all that could still have been asked
/// of it.
#[test]
fn a_refused_draw_leaves_no_lot() {
    let budget = Budget {
        epsilon: Epsilon::new(50.0).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        unit: Adjacency::AddRemove.into(),
        accountant: Accountant::Best,
    };
    let (network, at) = network(Kind::Mlp);
    let spec = &query_specs(Kind::Mlp, &network, &at, 1.0, 2.0)[0];
    let announced = Announcement::gradient(&spec.bounds);
    let plan = accounting::Composition::repeated(lot_event(Sampling::Full, &announced).unwrap(), 1);
    let door = Door::planned(budget, &plan).unwrap();
    let mut curator = Curator::new(
        network,
        Records::new(records(Kind::Mlp, 5)),
        Sampling::Full,
        door,
        Randomness::fixed(1),
    )
    .unwrap();
    curator.draw(&announced).unwrap();
    assert!(matches!(curator.draw(&announced), Err(Refused::Budget(_))));
    assert!(
        matches!(curator.gradient(&spec.query(&at)), Err(Refused::Query(what)) if what.contains("no lot"))
    );
}

#[test]
fn system_randomness_does_not_repeat() {
    let (net, at) = network(Kind::Mlp);
    let spec = &query_specs(Kind::Mlp, &net, &at, 1.0, 1.0)[0];
    let release = || {
        let (network, at) = network(Kind::Mlp);
        let records = Records::with_vacancies(vec![None; 5]);
        let mut curator = Curator::new(
            network,
            records,
            Sampling::Full,
            Door::unlimited(),
            Randomness::from_system().unwrap(),
        )
        .unwrap();
        spec.ask(&mut curator, &at).unwrap()
    };
    assert_ne!(release(), release());
}

#[test]
fn the_non_private_oracle_is_exact_and_reports_it() {
    let (net, at) = network(Kind::Lora);
    let examples = records(Kind::Lora, 12);
    for spec in query_specs(Kind::Lora, &net, &at, 1e-3, 5.0) {
        let (mut engine, at) = network(Kind::Lora);
        let mut sum = at.zeros_like();
        engine.plain_sum(&at, &examples.iter().collect::<Vec<_>>(), &mut sum).unwrap();
        let mut expected: TensorMap<Vec<f64>> = sum
            .iter()
            .map(|tensor| tensor.data().iter().map(|&x| f64::from(x)).collect())
            .enumerate()
            .collect();
        spec.geometry.encode_sum(&spec.blocks, &vec![12.0; spec.blocks.count()], &mut expected);
        let expected: Vec<Vec<f64>> = expected.into_iter().map(|(_, x)| x).collect();
        let mut exact = NonPrivateOracle::new(
            engine,
            Records::new(examples.clone()),
            Sampling::Full,
            Randomness::fixed(1),
        )
        .unwrap();
        let answer = spec.ask(&mut exact, &at).unwrap();
        let size = expected.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(close(&sums(&answer, 12.0), &expected, 1e-5 * size));
        assert!(answer.std.iter().all(|&std| std == 0.0));
        let loss = exact
            .loss(&LossQuery { at: &at, bound: Bound::new(1e-9, 1.0).unwrap() })
            .unwrap()
            .value;
        let (mut engine, _) = network(Kind::Lora);
        engine.load(&at).unwrap();
        let losses = engine.losses(&examples.iter().collect::<Vec<_>>()).unwrap();
        assert!((loss - losses.iter().sum::<f64>() / 12.0).abs() < 1e-6);
        assert_eq!(exact.ledger().events().runs(), [(Event::NonPrivate, 1)]);
        assert!(
            exact
                .ledger()
                .cost(Adjacency::AddRemove)
                .unwrap()
                .epsilon(Accountant::Best, Delta::new(1e-5).unwrap())
                .unwrap()
                .epsilon
                .is_infinite()
        );
    }
}

#[test]
fn one_record_more_or_less_does_not_change_the_divisor() {
    let (a, _) = curator(Kind::Mlp, Records::new(records(Kind::Mlp, 5)), poisson(0.5), 1);
    let mut places: Vec<Option<Example>> = records(Kind::Mlp, 5).into_iter().map(Some).collect();
    places[2] = None;
    let (b, _) = curator(Kind::Mlp, Records::with_vacancies(places), poisson(0.5), 1);
    assert_eq!(a.lot_size(), b.lot_size());
    assert_eq!(format!("{:?}", Records::new(vec![record(Kind::Mlp, 1, 1.0)])), "Records(1 places)");
}
