//! PRISM through the library: models whose low-rank factors are not balanced or lack rank.

#![allow(clippy::unwrap_used)]

mod support;

use accounting::SamplingRate;
use cpu::Network;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::{CheckedQuery, Engine, Error, Example, Observed, Sum, SumPrecision, Weights};
use muffle::Session;
use noise::PublicRandom;
use optim::Method;
use protocol::{GeometryKind, Params, Role, Trainable};
use support::quadratic::Quadratic;
use support::{Setting, make, perceptron, tensors};
use tensor::matmul::product;
use tensor::{Array, linalg};

fn normal(rows: usize, cols: usize, seed: u64) -> Array {
    let mut array = Array::zeros([rows, cols]);
    PublicRandom::from_seed(seed).normals(0, array.data_mut());
    array
}

/// Replaces every pair (A, B) by (A R, B R⁻ᵀ); `gauge` returns R and R⁻ᵀ of a rank.
fn regauged(
    tensors: &[Trainable],
    params: &Params,
    gauge: impl Fn(usize) -> (Array, Array),
) -> Params {
    let mut changed = params.clone();
    for (left, tensor) in tensors.iter().enumerate() {
        if let Role::Left(right) = tensor.role {
            let (r, inverse) = gauge(params[left].cols());
            changed[left] = product(params[left].view(), r.view());
            changed[right] = product(params[right].view(), inverse.view());
        }
    }
    changed
}

/// s I and I/s.
fn scaling(rank: usize, s: f32) -> (Array, Array) {
    let diagonal =
        |x: f32| Array::from_fn([rank, rank], |i| if i / rank == i % rank { x } else { 0.0 });
    (diagonal(s), diagonal(1.0 / s))
}

/// A random R with the singular values 8 and 1/8, and R⁻ᵀ.
fn random_gauge(rank: usize, seed: u64) -> (Array, Array) {
    let (u, _, v) = linalg::svd(&normal(rank, rank, seed)).unwrap();
    let made = |power: i32| {
        let scaled = Array::from_fn([rank, rank], |i| {
            u.data()[i] * if i % rank == 0 { 8.0f32 } else { 0.125 }.powi(power)
        });
        product(scaled.view(), v.view().t())
    };
    (made(1), made(-1))
}

fn examples() -> Vec<Example> {
    let example = |seed: u64| {
        let mut features = normal(1, 4, seed).into_data();
        let class = (seed % 3) as usize;
        features[class] += 2.0;
        Example::features(features, class as u32)
    };
    (0..200).map(example).collect()
}

/// The change of all logits in some steps of PRISM with the real curator and next to no noise.
///
/// The curator draws noise in coordinates that depend on the factors by a rotation, so runs from
/// different factors have different noise; its multiplier is 1e-5.
fn learned(network: Network, params: &Params) -> Vec<f32> {
    let (tensors, people) = (network.trainable(), examples());
    let sampling = Sampling::Poisson { rate: SamplingRate::new(0.5).unwrap() };
    let setting = Setting {
        tensors: &tensors,
        params,
        clip: 0.5,
        sigma: 1e-5,
        lot_size: sampling.lot_size(people.len()),
        rate: 0.02,
    };
    let mut optimizer = make("dp-prism", &setting);
    let logits = |params: &Params| {
        perceptron(true).0.logits(params, &people.iter().collect::<Vec<_>>()).unwrap()
    };
    let before = logits(params);
    let records = Records::new(people.clone());
    let mut curator =
        Curator::new(network, records, sampling, Door::unlimited(), Randomness::fixed(2)).unwrap();
    let mut trained = params.clone();
    for _ in 0..6 {
        assert_eq!(optimizer.step(&mut trained, &mut curator).unwrap().notes, []);
    }
    logits(&trained).iter().zip(before).map(|(after, before)| after - before).collect()
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |most, x| most.max(x.abs()))
}

#[test]
fn training_does_not_depend_on_the_factorization() {
    let (network, params) = perceptron(true);
    let tensors = network.trainable();
    let expected = learned(network, &params);
    let size = largest(expected.iter().copied());
    assert!(size > 0.1, "{size}");
    let mut starts = vec![regauged(&tensors, &params, |rank| scaling(rank, 100.0))];
    starts.extend((0..3).map(|seed| regauged(&tensors, &params, |rank| random_gauge(rank, seed))));
    for (i, start) in starts.into_iter().enumerate() {
        let got = learned(perceptron(true).0, &start);
        let apart = largest(got.iter().zip(&expected).map(|(a, b)| a - b)) / size;
        assert!(apart < 2e-4, "start {i}: {apart:e} of {size}");
    }
}

/// An engine that reports half of the norm in tangent spaces.
struct UnderstatedNorms {
    inner: Quadratic,
    factor: f64,
}

impl Engine for UnderstatedNorms {
    fn trainable(&self) -> Vec<Trainable> {
        self.inner.trainable()
    }

    fn probe_examples(&self) -> Vec<Example> {
        self.inner.probe_examples()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        self.inner.validate(example)
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.inner.load(params)
    }

    fn unload(&mut self) {
        self.inner.unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.inner.losses(examples)
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.inner.start_sum(precision)
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let observed = self.inner.observe(examples, query)?;
        let tangent = query.geometry().kind() == GeometryKind::Tangent;
        let factor = if tangent { self.factor } else { 1.0 };
        let (count, blocks) = (observed.examples(), observed.blocks());
        let square = |i: usize| (factor * observed.norm(i / blocks, i % blocks)).powi(2);
        Ok(Observed::new(
            (0..count).map(|i| observed.loss(i)).collect(),
            (0..count * blocks).map(square).collect(),
            blocks,
        ))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        self.inner.accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.inner.take_sum()
    }
}

/// Factors that lack rank have no tangent space to probe, and get one before the first query.
#[test]
fn an_engine_is_probed_at_the_factors_of_the_first_query() {
    // `lost` columns of B are 0. With one of two, every tensor still gets a gradient, so no other
    // check refuses the engine; with both it is the usual start of low-rank adapters.
    let session = |lost: usize, factor: f64| {
        let inner = Quadratic::new(tensors(true));
        let mut params = inner.start(5);
        params[1].data_mut().chunks_exact_mut(2).for_each(|row| row[..lost].fill(0.0));
        let records = Records::new(inner.examples(50, 1.0, 0.3));
        Session::builder(UnderstatedNorms { inner, factor }, params, records)
            .noise_multiplier(1.0)
            .optimizer(Method::DpPrism(Default::default()))
            .steps(2)
            .lot_size(10)
            .build()
    };
    for lost in [1, 2] {
        let refused = session(lost, 0.5).err().map(|error| error.to_string());
        assert!(
            refused.as_ref().is_some_and(|error| error.contains("Tangent geometry")),
            "{lost}: {refused:?}"
        );
        let mut honest = session(lost, 1.0).unwrap();
        let notes = honest.step().unwrap().unwrap().notes;
        let expected = format!("{lost} of 2 directions");
        assert!(notes.len() == 1 && notes[0].0.contains(&expected), "{notes:?}");
        assert_eq!(honest.step().unwrap().unwrap().notes, []);
    }
}
