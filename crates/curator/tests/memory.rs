//! No per-example gradient of a matrix is ever made; and what happens if there is not enough
//! memory.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::{CheckedQuery, Engine, Error, Example, Observed, Sum, SumPrecision, Weights};
use model::activation::Activation;
use model::{Builder, Linear, Lora};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, LossQuery, Oracle, Params, Trainable,
};
use support::{Kind, QuerySpec, frames, network, poisson, positive, query_specs, records, sums};

/// A low-rank addition of rank 1 to a matrix of a million numbers: one step in tangent coordinates
/// allocates less than a twentieth of its bytes in all.
#[test]
fn a_step_in_tangent_coordinates_makes_no_matrix() {
    let side = 1024;
    let mut build = Builder::features(side).with_lora(Some(Lora {
        rank: 1,
        alpha: 1.0,
        on: vec!["big".into()],
    }));
    let features = build.input();
    let big = Linear::new("big", side, side).init_std(0.03).activation(Activation::Tanh);
    let hidden = build.linear(features, big);
    let logits = build.linear(hidden, Linear::new("head", side, 2).init_std(0.03));
    let graph = build.finish(logits);
    let values = graph.init(1).unwrap();
    let (network, at) = Network::new(graph, values, |name| name.contains(".lora_")).unwrap();
    let spec = QuerySpec {
        geometry: Geometry::Tangent { frames: frames(&network, &at) },
        blocks: Blocks::flat(at.len()),
        bounds: vec![Bound::new(1.0, 1.0).unwrap()],
        clipping: Clipping::Cut,
    };
    let examples = (0..4)
        .map(|seed| {
            Example::features(
                (0..side).map(|i| ((i + seed) % 7) as f32 * 0.1).collect(),
                seed as u32 % 2,
            )
        })
        .collect();
    let mut curator = Curator::new(
        network,
        Records::new(examples),
        Sampling::Full,
        Door::unlimited(),
        Randomness::fixed(1),
    )
    .unwrap();
    // In one thread, because what others allocate is not counted. The first step makes the engine's
    // buffers.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let measured = pool.install(|| {
        spec.ask(&mut curator, &at).unwrap();
        allocation_counter::measure(|| drop(spec.ask(&mut curator, &at).unwrap()))
    });
    assert!(measured.bytes_total > 0);
    let matrix = 4 * (side * side) as u64;
    assert!(
        measured.bytes_total * 20 < matrix,
        "{} bytes in a step, a matrix has {matrix}",
        measured.bytes_total
    );
}

/// Has memory for so many examples at a time.
struct Narrow {
    network: Network,
    most: usize,
}

impl Narrow {
    fn room(&self, examples: &[&Example]) -> Result<(), Error> {
        if examples.len() > self.most {
            Err(Error::OutOfMemory { examples: examples.len(), bytes: usize::MAX })
        } else {
            Ok(())
        }
    }
}

impl Engine for Narrow {
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
        self.room(examples)?;
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
        self.room(examples)?;
        self.network.observe(examples, query)
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        self.network.accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.network.take_sum()
    }

    fn roundings(&self) -> Vec<usize> {
        self.network.roundings()
    }
}

/// The micro-batch is halved until it fits; what is released, and what it costs, is the same. One
/// record that does not fit is a failure, and stays charged.
#[test]
fn too_little_memory_halves_the_micro_batch() {
    let kind = Kind::Gpt2;
    let (net, at) = network(kind);
    for spec in query_specs(kind, &net, &at, 0.5, 0.1) {
        let curator = |most: usize, micro_batch: usize| {
            let (network, _) = network(kind);
            let (examples, door) = (Records::new(records(kind, 23)), Door::unlimited());
            let mut curator = Curator::new(
                Narrow { network, most },
                examples,
                poisson(0.9),
                door,
                Randomness::fixed(4),
            )
            .unwrap();
            curator.set_micro_batch(micro_batch);
            curator
        };
        let (mut narrow, mut wide) = (curator(3, 16), curator(100, 2));
        let (a, b) = (spec.ask(&mut narrow, &at).unwrap(), spec.ask(&mut wide, &at).unwrap());
        assert_eq!((narrow.micro_batch(), wide.micro_batch()), (2, 2));
        assert_eq!(sums(&a, narrow.lot_size()), sums(&b, wide.lot_size()));
        assert_eq!(narrow.ledger(), wide.ledger());
        let mut none = curator(0, 16);
        assert!(spec.ask(&mut none, &at).is_err());
        assert_eq!((none.micro_batch(), none.ledger().events().len()), (1, 1));
        let mut narrow = curator(3, 16);
        narrow.draw(&Announcement::default().and(positive(1.0), 1)).unwrap();
        assert!(narrow.loss(&LossQuery { at: &at, bound: Bound::new(5.0, 1.0).unwrap() }).is_ok());
        assert_eq!(narrow.micro_batch(), 2);
    }
}

/// What was added up before memory ran out is not added up again.
#[test]
fn a_restarted_lot_is_summed_once() {
    let kind = Kind::Gpt2;
    let (net, at) = network(kind);
    let spec = query_specs(kind, &net, &at, 0.5, 0.1).swap_remove(0);
    // The first micro-batch of four fits, because two of its places are vacant; the second does
    // not.
    let places = || {
        records(kind, 12)
            .into_iter()
            .enumerate()
            .map(|(i, record)| Some(record).filter(|_| i > 1))
            .collect()
    };
    let release = |most: usize| {
        let (network, _) = network(kind);
        let records = Records::with_vacancies(places());
        let mut curator = Curator::new(
            Narrow { network, most },
            records,
            Sampling::Full,
            Door::unlimited(),
            Randomness::fixed(4),
        )
        .unwrap();
        curator.set_micro_batch(4);
        (sums(&spec.ask(&mut curator, &at).unwrap(), curator.lot_size()), curator.micro_batch())
    };
    let ((short, two), (enough, four)) = (release(3), release(100));
    assert_eq!((two, four), (2, 4));
    assert!(short == enough);
}
