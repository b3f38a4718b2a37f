//! What the curator does with an engine's answers: records without finite losses and norms
//! contribute nothing, and geometries that an engine does not support are refused.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use curator::{Curator, Door, NonPrivateOracle, Randomness, Records, Sampling};
use engine::{
    Accumulator, CheckedQuery, Engine, Error, Example, Observed, Sum, SumPrecision, Weights,
};
use protocol::{Announcement, GeometryKind, Oracle, Params, Refused, Trainable};
use support::{ALL, Kind, network, query_specs, record, records, sums};

/// What an engine says that is not so.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// As it is.
    True,
    /// The loss of the marked record is this.
    Loss(f64),
    /// The squared norm of the marked record is this in the last block.
    LastSquare(f64),
    /// One example is missing.
    Fewer,
    /// Norms of one block more.
    MoreBlocks,
    /// The sum is in floating point.
    FloatSum,
}

/// An engine whose gradients are finite, and whose answers about one record are not.
struct Lying {
    network: Network,
    marked: Example,
    answer: Answer,
    unsupported: Option<GeometryKind>,
}

impl Lying {
    fn new(kind: Kind, answer: Answer) -> Self {
        let (network, _) = network(kind);
        Self { network, marked: marked(kind), answer, unsupported: None }
    }
}

impl Engine for Lying {
    fn trainable(&self) -> Vec<Trainable> {
        self.network.trainable()
    }

    fn probe_examples(&self) -> Vec<Example> {
        self.network.probe_examples()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        self.network.validate(example)
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.network.load(params)
    }

    fn unload(&mut self) {
        self.network.unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.network.losses(examples)
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.network.start_sum(precision)
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let observed = self.network.observe(examples, query)?;
        let mut blocks = observed.blocks();
        let mut losses: Vec<f64> = (0..examples.len()).map(|i| observed.loss(i)).collect();
        let norm = |i: usize| observed.norm(i / blocks, i % blocks);
        let mut squares: Vec<f64> = (0..examples.len() * blocks).map(|i| norm(i).powi(2)).collect();
        let place = examples.iter().position(|example| **example == self.marked);
        match (self.answer, place) {
            (Answer::Loss(loss), Some(i)) => losses[i] = loss,
            (Answer::LastSquare(square), Some(i)) => squares[(i + 1) * blocks - 1] = square,
            (Answer::Fewer, Some(_)) => {
                losses.pop();
                squares.truncate(losses.len() * blocks);
            }
            (Answer::MoreBlocks, _) => {
                blocks += 1;
                squares.resize(losses.len() * blocks, 0.0);
            }
            _ => {}
        }
        Ok(Observed::new(losses, squares, blocks))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        self.network.accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        let sum = self.network.take_sum()?;
        if !matches!(self.answer, Answer::FloatSum) {
            return Ok(sum);
        }
        let float =
            |sum: &Accumulator| Accumulator::Float((0..sum.len()).map(|i| sum.value(i)).collect());
        Ok(Sum::new(sum.iter().map(float).collect()))
    }

    fn roundings(&self) -> Vec<usize> {
        self.network.roundings()
    }

    fn supports(&self, geometry: GeometryKind) -> bool {
        self.unsupported != Some(geometry)
    }
}

/// The record of which the engine lies.
fn marked(kind: Kind) -> Example {
    record(kind, 40, 1.0)
}

/// Nine records, of which number 3 is as given.
fn places(kind: Kind, third: Option<Example>) -> Records {
    let mut places: Vec<Option<Example>> = records(kind, 9).into_iter().map(Some).collect();
    places[3] = third;
    Records::with_vacancies(places)
}

fn curator<E: Engine>(engine: E, records: Records) -> Curator<E> {
    let (door, randomness) = (Door::unlimited(), Randomness::fixed(11));
    let mut curator = Curator::new(engine, records, Sampling::Full, door, randomness).unwrap();
    curator.set_micro_batch(4);
    curator
}

const NOT_FINITE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// The sum is, to the last bit, that of the other records: in every geometry, block and way of
/// clipping, although the record's gradient is finite.
#[test]
fn a_record_without_a_finite_loss_or_norm_contributes_exactly_nothing() {
    for kind in ALL {
        let (net, at) = network(kind);
        for spec in query_specs(kind, &net, &at, 0.5, 1e-3) {
            let release = |answer: Answer, record: Option<Example>| {
                let mut curator = curator(Lying::new(kind, answer), places(kind, record));
                sums(&spec.ask(&mut curator, &at).unwrap(), curator.lot_size())
            };
            let without = release(Answer::True, None);
            assert!(
                release(Answer::True, Some(marked(kind))) != without,
                "{kind:?}: a sound record contributes"
            );
            let unsound =
                NOT_FINITE.into_iter().flat_map(|x| [Answer::Loss(x), Answer::LastSquare(x)]);
            for answer in unsound {
                assert!(
                    release(answer, Some(marked(kind))) == without,
                    "{kind:?} {answer:?} {:?} {:?}",
                    spec.geometry.kind(),
                    spec.clipping
                );
            }
        }
    }
}

/// The same with an engine that tells the truth of a record that is not finite.
#[test]
fn a_record_that_is_not_finite_contributes_exactly_nothing() {
    let kind = Kind::Mlp;
    let (net, at) = network(kind);
    for spec in query_specs(kind, &net, &at, 0.5, 1e-3) {
        let release = |record: Option<Example>| {
            let mut curator = curator(network(kind).0, places(kind, record));
            sums(&spec.ask(&mut curator, &at).unwrap(), curator.lot_size())
        };
        let without = release(None);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut poisoned = marked(kind).parts()[0].clone();
            let engine::Input::Features(numbers) = &mut poisoned.input else { unreachable!() };
            numbers[2] = poison;
            let poisoned = Example::from(poisoned);
            assert!(release(Some(poisoned)) == without, "{poison} {:?}", spec.clipping);
        }
    }
}

/// Without privacy as well, up to the rounding of sums in floating point.
#[test]
fn a_record_that_is_not_finite_does_not_spoil_an_exact_sum() {
    for kind in ALL {
        let (net, at) = network(kind);
        for spec in query_specs(kind, &net, &at, 0.5, 1e-3) {
            let release = |answer: Answer, record: Option<Example>| {
                let (engine, records) = (Lying::new(kind, answer), places(kind, record));
                let mut exact =
                    NonPrivateOracle::new(engine, records, Sampling::Full, Randomness::fixed(1))
                        .unwrap();
                sums(&spec.ask(&mut exact, &at).unwrap(), 9.0)
            };
            let without = release(Answer::True, None);
            let size = without.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
            for answer in [Answer::Loss(f64::NAN), Answer::LastSquare(f64::INFINITY)] {
                let with = release(answer, Some(marked(kind)));
                let pairs = with.iter().flatten().zip(without.iter().flatten());
                let apart = pairs.fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
                assert!(apart <= 1e-6 * size, "{kind:?} {answer:?}: {apart} of {size}");
            }
        }
    }
}

#[test]
fn other_observations_and_sums_are_refused() {
    let kind = Kind::Mlp;
    let (net, at) = network(kind);
    for answer in [Answer::Fewer, Answer::MoreBlocks, Answer::FloatSum] {
        for spec in query_specs(kind, &net, &at, 0.5, 1e-3) {
            let records = places(kind, Some(marked(kind)));
            let mut curator = curator(Lying::new(kind, answer), records);
            let refused = spec.ask(&mut curator, &at).unwrap_err();
            assert!(matches!(refused, Refused::Failed(_)), "{answer:?}: {refused}");
            // What was begun stays charged.
            assert_eq!(curator.ledger().events().len(), 1);
        }
    }
}

/// Refused before anything is charged; other geometries are answered.
#[test]
fn a_geometry_that_the_engine_does_not_support_is_refused() {
    let kind = Kind::Lora;
    let (net, at) = network(kind);
    for unsupported in [GeometryKind::Affine, GeometryKind::Tangent] {
        let mut refusals = 0;
        for spec in query_specs(kind, &net, &at, 0.5, 1e-3) {
            let engine = Lying { unsupported: Some(unsupported), ..Lying::new(kind, Answer::True) };
            let mut curator = curator(engine, places(kind, None));
            curator.draw(&Announcement::gradient(&spec.bounds)).unwrap();
            let answer = curator.gradient(&spec.query(&at));
            if spec.geometry.kind() == unsupported {
                let refused = answer.unwrap_err().to_string();
                assert!(refused.contains("does not support"), "{refused}");
                refusals += 1;
            } else {
                answer.unwrap();
            }
        }
        assert!(refusals > 0, "{unsupported:?}");
    }
}
