//! Several processes: what they release is what one releases, and neighbouring data sets stay
//! within the declared sensitivity. Threads stand for processes.

#![allow(clippy::unwrap_used)]

mod support;

use curator::{Curator, Door, NonPrivateOracle, Randomness, Records, Sampling};
use distributed::{LotReducer, Ownership, Ranks, threads};
use engine::{Accumulator, Example, OneProcess, Reducer, Sum};
use protocol::{Announcement, Bound, LossQuery, Oracle, Params, Refused, TensorMap, Trainable};
use support::{
    ALL, Kind, QuerySpec, curator, network, poisson, query_specs, record, records, sums,
};

use tensor::Array;

/// The same work on so many.
fn on<T: Send>(count: usize, work: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let all: Vec<_> = threads(count)
            .unwrap()
            .into_iter()
            .map(|ranks| scope.spawn(move || work(&ranks)))
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every n-th tensor belongs to a rank.
fn ownership(at: &Params, count: usize) -> Ownership {
    let shapes = at.iter().map(|tensor| tensor.shape().to_vec()).collect();
    Ownership::new((0..at.len()).map(|tensor| tensor % count).collect(), shapes)
}

/// Joins several ranks; a single one computes alone, without a reducer of this crate.
fn join<E: engine::Engine>(curator: &mut Curator<E>, ranks: &Ranks, at: &Params) {
    if ranks.count() > 1 {
        let ownership = ownership(at, ranks.count());
        let reducer = LotReducer::new(ranks.clone(), ownership).unwrap();
        curator.set_reducer(Box::new(reducer)).unwrap();
    }
}

fn data_set(kind: Kind, place: usize, who: Option<Example>) -> Records {
    let mut places: Vec<Option<Example>> = records(kind, 150).into_iter().map(Some).collect();
    places[place] = who;
    Records::with_vacancies(places)
}

/// Two releases by one of several: what it owns, and all of it put together.
fn released(
    ranks: &Ranks,
    kind: Kind,
    records: Records,
    sampling: Sampling,
    spec: &QuerySpec,
) -> Vec<(TensorMap, Params)> {
    let (mut curator, at) = curator(kind, records, sampling, 11);
    join(&mut curator, ranks, &at);
    let one = |_| {
        curator.draw(&Announcement::gradient(&spec.bounds)).unwrap();
        let own = curator.gradient(&spec.query(&at)).unwrap().value;
        let ownership = ownership(&at, ranks.count());
        let whole = ranks.all_gather(&ownership, own.clone()).wait().unwrap();
        (own, whole)
    };
    (0..2).map(one).collect()
}

/// With the same randomness 1, 2 and 4 processes release the same, bit for bit. Lots are so large
/// that some of it travels while the rest is summed, and so small that some are empty.
#[test]
fn releases_do_not_depend_on_the_number_of_ranks() {
    for kind in ALL {
        let (network, params) = network(kind);
        for sampling in [poisson(0.9), poisson(0.01)] {
            for spec in query_specs(kind, &network, &params, 0.3, 0.5) {
                let alone =
                    on(1, |ranks| released(ranks, kind, data_set(kind, 0, None), sampling, &spec))
                        .remove(0);
                for count in [2, 4] {
                    let all = on(count, |ranks| {
                        released(ranks, kind, data_set(kind, 0, None), sampling, &spec)
                    });
                    for (release, (_, expected)) in alone.iter().enumerate() {
                        for (rank, of) in all.iter().enumerate() {
                            let (own, whole) = &of[release];
                            assert_eq!(whole, &all[0][release].1, "the same on all processes");
                            // Each rank has the tensors that it owns, and no others.
                            let owned = (0..whole.len()).filter(|k| k % count == rank);
                            assert!(own.iter().eq(owned.map(|k| (k, &whole[k]))));
                            assert!(whole == expected, "{kind:?} {count}");
                        }
                    }
                }
            }
        }
    }
}

/// One record more or less, at any place of the lot of either process, moves the sums by at most
/// the bound: those that travel early and those that come last.
#[test]
fn neighbours_stay_within_the_sensitivity() {
    for kind in ALL {
        let (network, params) = network(kind);
        for spec in query_specs(kind, &network, &params, 0.3, 1e-3) {
            for place in [0, 1, 70, 148, 149] {
                let sums = |who: Option<Example>| {
                    let of = |ranks: &Ranks| {
                        released(
                            ranks,
                            kind,
                            data_set(kind, place, who.clone()),
                            Sampling::Full,
                            &spec,
                        )
                    };
                    let whole = on(2, of).remove(0).remove(0).1;
                    sums(&protocol::Noisy { value: whole, std: Vec::new() }, 150.0)
                };
                let (with, without) = (sums(Some(record(kind, 41, 1e4))), sums(None));
                let apart: Vec<Vec<f64>> = with
                    .iter()
                    .zip(&without)
                    .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect())
                    .collect();
                for (block, bound) in spec.bounds.iter().enumerate() {
                    // What is released was rounded to f32.
                    assert!(
                        spec.norm(&apart, block) <= bound.clip.get() * (1.0 + 1e-4),
                        "{kind:?} {place} {block}"
                    );
                }
            }
        }
    }
}

/// Losses are one number, which every process gets.
#[test]
fn losses_are_the_same_on_all_ranks() {
    let loss = |ranks: &Ranks| {
        let (mut curator, at) = curator(Kind::Mlp, data_set(Kind::Mlp, 3, None), poisson(0.5), 5);
        join(&mut curator, ranks, &at);
        let bound = Bound::new(2.0, 0.7).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap();
        curator.loss(&LossQuery { at: &at, bound }).unwrap().value
    };
    let alone = on(1, loss)[0];
    for count in [2, 3] {
        let all = on(count, loss);
        assert!(all.iter().all(|loss| *loss == alone), "{all:?} {alone}");
    }
}

/// Checks that every rank refused because rank 1 differs from rank 0.
fn assert_disagreement(messages: &[String]) {
    let differs = |message: &String| message.contains("rank 1 and rank 0 are not doing the same");
    assert!(messages.iter().all(differs), "{messages:?}");
}

/// A process that is at another step is noticed before anything is computed.
#[test]
fn ranks_at_different_steps_are_refused() {
    let messages = on(2, |ranks| {
        let (mut curator, at) = curator(Kind::Mlp, data_set(Kind::Mlp, 0, None), poisson(0.5), 5);
        join(&mut curator, ranks, &at);
        let bound = Bound::new(1.0, if ranks.is_first() { 1.0 } else { 2.0 }).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap_err().to_string()
    });
    assert_disagreement(&messages);
}

/// Each with a secret of its own would draw another lot, and a record could count twice.
#[test]
fn ranks_with_different_secrets_are_refused() {
    let messages = on(2, |ranks| {
        // The same lot whatever the secret: all records.
        let (mut curator, at) = curator(
            Kind::Mlp,
            data_set(Kind::Mlp, 0, None),
            Sampling::Full,
            5 + ranks.rank() as u64,
        );
        join(&mut curator, ranks, &at);
        let bound = Bound::new(1.0, 1.0).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap_err().to_string()
    });
    assert_disagreement(&messages);
}

/// One must not clip in other coordinates than those in which another adds noise.
#[test]
fn different_tangent_spaces_are_refused() {
    let messages = on(2, |ranks| {
        let (mut curator, at) = curator(Kind::Lora, data_set(Kind::Lora, 0, None), poisson(0.5), 5);
        join(&mut curator, ranks, &at);
        let mut elsewhere = at.clone();
        elsewhere.iter_mut().for_each(|tensor| tensor.data_mut()[0] += 1e-3 * ranks.rank() as f32);
        let (network, _) = network(Kind::Lora);
        let spec = query_specs(Kind::Lora, &network, &elsewhere, 0.3, 0.5).pop().unwrap();
        spec.ask(&mut curator, &elsewhere).unwrap_err().to_string()
    });
    assert_disagreement(&messages);
}

/// The secret is the first one's.
#[test]
fn all_ranks_share_one_secret() {
    let drawn = on(3, |ranks| {
        let (network, at) = network(Kind::Mlp);
        let randomness = distributed::shared_randomness(ranks).unwrap();
        let door = Door::unlimited();
        let mut curator =
            Curator::new(network, data_set(Kind::Mlp, 0, None), poisson(0.5), door, randomness)
                .unwrap();
        join(&mut curator, ranks, &at);
        let bound = Bound::new(1.0, 1.0).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap();
        curator.loss(&LossQuery { at: &at, bound }).unwrap().value
    });
    assert!(drawn.iter().all(|loss| *loss == drawn[0]), "{drawn:?}");
}

/// An owner that is not one of the ranks is refused, and so is a tensor without an owner.
#[test]
fn tensors_without_an_owner_are_refused() {
    let (mut curator, at) = curator(Kind::Mlp, data_set(Kind::Mlp, 0, None), poisson(0.5), 5);
    assert!(LotReducer::new(Ranks::alone(), ownership(&at, 2)).is_err());
    for other in [vec![at[0].clone()], vec![Array::zeros([1]); at.len()]] {
        let ownership = ownership(&Params::new(other), 1);
        let reducer = LotReducer::new(Ranks::alone(), ownership).unwrap();
        let refused = curator.set_reducer(Box::new(reducer)).unwrap_err().to_string();
        assert!(refused.contains("ownership: expected"), "{refused}");
    }
}

/// Two owners of one tensor would release two sums with the same noise.
#[test]
fn ranks_with_other_owners_are_refused() {
    let messages = on(2, |ranks| {
        let (mut curator, at) = curator(Kind::Mlp, data_set(Kind::Mlp, 0, None), poisson(0.5), 5);
        let owners = (0..at.len()).map(|k| (k + ranks.rank()) % 2).collect();
        let shapes = at.iter().map(|tensor| tensor.shape().to_vec()).collect();
        let reducer = LotReducer::new(ranks.clone(), Ownership::new(owners, shapes)).unwrap();
        curator.set_reducer(Box::new(reducer)).unwrap();
        let bound = Bound::new(1.0, 1.0).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap_err().to_string()
    });
    assert_disagreement(&messages);
}

/// Without privacy, several ranks agree, and sum gradients and losses as one does.
#[test]
fn non_private_answers_do_not_depend_on_the_number_of_ranks() {
    let oracle = |ranks: &Ranks, seed: u64| {
        let (network, at) = network(Kind::Mlp);
        let records = data_set(Kind::Mlp, 0, None);
        let randomness = Randomness::fixed(seed);
        let mut oracle = NonPrivateOracle::new(network, records, poisson(0.9), randomness).unwrap();
        if ranks.count() > 1 {
            let reducer = LotReducer::new(ranks.clone(), ownership(&at, ranks.count())).unwrap();
            oracle.set_reducer(Box::new(reducer)).unwrap();
        }
        (oracle, at)
    };
    let bound = Bound::new(1.0, 1.0).unwrap();
    let answers = |ranks: &Ranks| {
        let (mut oracle, at) = oracle(ranks, 3);
        oracle.draw(&Announcement::gradient(&[bound])).unwrap();
        let blocks = protocol::Blocks::flat(at.len());
        let query = protocol::GradientQuery {
            at: &at,
            geometry: &protocol::Geometry::Identity,
            blocks: &blocks,
            bounds: &[bound],
            clipping: protocol::Clipping::Cut,
        };
        let own = oracle.gradient(&query).unwrap().value;
        let whole = ranks.all_gather(&ownership(&at, ranks.count()), own).wait().unwrap();
        (whole, oracle.loss(&LossQuery { at: &at, bound }).unwrap().value)
    };
    let (alone, alone_loss) = on(1, answers).remove(0);
    for (whole, loss) in [on(2, answers), on(3, answers)].concat() {
        assert!((loss / alone_loss - 1.0).abs() < 1e-9, "{loss} {alone_loss}");
        for (a, b) in whole.iter().zip(alone.iter()) {
            assert!(a.data().iter().zip(b.data()).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }
    let refused = on(2, |ranks| {
        let (mut oracle, _) = oracle(ranks, ranks.rank() as u64);
        oracle.draw(&Announcement::gradient(&[bound])).is_err()
    });
    assert_eq!(refused, [true, true]);
}

/// A reducer that changes the division of a lot or the shapes of sums.
struct WrongReducer {
    inner: OneProcess,
    error: &'static str,
}

impl Reducer for WrongReducer {
    fn validate(&self, tensors: &[Trainable]) -> Result<(), Refused> {
        self.inner.validate(tensors)
    }

    fn stages(&mut self, lot: &[usize]) -> Vec<Vec<usize>> {
        let mut stages = self.inner.stages(lot);
        match self.error {
            "missing" => drop(stages[0].pop()),
            "repeated" => stages[0].push(lot[0]),
            "foreign" => {
                stages[0].pop();
                stages[0].push(lot.iter().max().unwrap() + 1);
            }
            _ => {}
        }
        stages
    }

    fn add(&mut self, sum: Sum) -> Result<(), Refused> {
        self.inner.add(sum)
    }

    fn finish(&mut self) -> Result<TensorMap<Accumulator>, Refused> {
        let mut totals = self.inner.finish()?;
        if self.error == "shape" {
            totals.insert(0, Accumulator::Float(vec![0.0]));
        }
        Ok(totals)
    }

    fn sum_integers(&self, values: &mut [i64]) -> Result<(), Refused> {
        self.inner.sum_integers(values)
    }

    fn sum_floats(&self, values: &mut [f64]) -> Result<(), Refused> {
        self.inner.sum_floats(values)
    }

    fn agree(&self, state: &dyn Fn() -> String) -> Result<(), Refused> {
        self.inner.agree(state)
    }
}

#[test]
fn a_reducer_that_breaks_its_contract_is_refused() {
    for error in ["none", "missing", "repeated", "foreign", "shape"] {
        let (mut curator, at) = curator(Kind::Mlp, data_set(Kind::Mlp, 0, None), poisson(0.5), 5);
        curator
            .set_reducer(Box::new(WrongReducer { inner: OneProcess::default(), error }))
            .unwrap();
        let (network, _) = network(Kind::Mlp);
        let spec = query_specs(Kind::Mlp, &network, &at, 0.3, 0.5).swap_remove(0);
        assert_eq!(spec.ask(&mut curator, &at).is_ok(), error == "none", "{error}");
        let bound = Bound::new(1.0, 1.0).unwrap();
        curator.draw(&Announcement::default().and(bound.sigma, 1)).unwrap();
        let loss = curator.loss(&LossQuery { at: &at, bound });
        assert_eq!(loss.is_ok(), ["none", "shape"].contains(&error), "{error}");
    }
}

/// Many records that point the same way, with all of their bound in a few elements: what is sent in
/// 32 bits holds them.
#[test]
fn sums_in_32_bits_do_not_overflow() {
    let network = || {
        let mut build = model::Builder::features(1);
        let x = build.input();
        let logits = build.linear(x, model::Linear::new("head", 1, 2).init_std(0.5));
        let graph = build.finish(logits);
        let values = graph.init(3).unwrap();
        cpu::Network::new(graph, values, |name| name.contains("weight")).unwrap()
    };
    let bound = Bound::new(1.0, 1e-3).unwrap();
    let release = |ranks: &Ranks| {
        let (network, at) = network();
        let records = Records::new(vec![Example::features(vec![1000.0], 0); 800]);
        let mut curator =
            Curator::new(network, records, Sampling::Full, Door::unlimited(), Randomness::fixed(3))
                .unwrap();
        join(&mut curator, ranks, &at);
        let blocks = protocol::Blocks::flat(1);
        let query = protocol::GradientQuery {
            at: &at,
            geometry: &protocol::Geometry::Identity,
            blocks: &blocks,
            bounds: &[bound],
            clipping: protocol::Clipping::Cut,
        };
        curator.draw(&Announcement::gradient(&[bound])).unwrap();
        let own = curator.gradient(&query).unwrap().value;
        ranks.all_gather(&ownership(&at, ranks.count()), own).wait().unwrap()
    };
    let alone = on(1, release).remove(0);
    assert!(
        alone.iter().flat_map(|tensor| tensor.data()).any(|x| x.abs() > 0.6),
        "every record contributes its bound"
    );
    assert!(on(2, release).iter().all(|release| *release == alone));
}
