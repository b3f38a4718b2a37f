//! Planted errors, each of which an audit must find.
//!
//! Each [`Mutant`] is a way in which a respected library or paper was wrong. The code of the
//! curator is not changed: errors are planted behind its seams, by a [`Mechanism`], an [`Engine`]
//! or an [`Oracle`] that wraps the correct one.

#![allow(clippy::unwrap_used)]

use accounting::{Adjacency, Composition, Delta, Ledger, SamplingRate};
use audit::{Claim, PairedOracles};
use cpu::Network;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::{
    CheckedQuery, Engine, Error, Example, Isolation, Observed, Sum, SumPrecision, Weights,
};
use model::hf::{Architecture, Gpt2Config};
use noise::{IndependentGaussian, Key, Mechanism, Release, TensorNoise};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, LossQuery, Noisy, Oracle,
    Params, Refused, TensorMap, Trainable,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod support;
use support::{Kind, QuerySpec, network, query_specs, record};

/// A planted error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Noise × 0.7.
    SmallNoise,
    /// Noise of each micro-batch has its share of the variance, and only the first one's is added.
    MicroBatchNoise,
    /// All releases have the same noise.
    SameNoise,
    /// Every second lot has the noise of the one before.
    NoiseTwice,
    /// All tensors have the same noise.
    SharedNoise,
    /// One tensor has no noise.
    TensorWithoutNoise,
    /// One element of each tensor has no noise: a coordinate that a chart omits.
    ElementWithoutNoise,
    /// The blocks of a lot are charged as if there were only one.
    OneBlockCharged,
    /// The first block is not clipped.
    ClippingOff,
    /// Sums are divided by the realised lot size.
    RealisedDivisor,
    /// Empty lots are refused.
    RefuseEmptyLot,
}

/// Places of the data set in the mechanism audit. With a micro-batch of 1, a full lot has as many
/// micro-batches.
const PLACES: usize = 5;

/// A mechanism with a planted error.
struct MutantMechanism {
    mutant: Option<Mutant>,
    blocks: usize,
    correct: IndependentGaussian,
}

impl Mechanism for MutantMechanism {
    fn name(&self) -> &'static str {
        "mutant"
    }

    fn validate(&self, multiplier: f64, elements: usize) -> Result<(), noise::Error> {
        self.correct.validate(multiplier, elements)
    }

    fn charged_multiplier(&self, draw: u64, multiplier: f64) -> f64 {
        let correct = self.correct.charged_multiplier(draw, multiplier);
        match self.mutant {
            // n blocks with σ√n cost what one costs with σ.
            Some(Mutant::OneBlockCharged) => correct * (self.blocks as f64).sqrt(),
            _ => correct,
        }
    }

    fn released_deviation(&self, draw: u64, deviation: f64) -> f64 {
        self.correct.released_deviation(draw, deviation)
    }

    fn add_noise(&mut self, release: &Release<'_>, sums: Vec<Vec<f64>>) -> Vec<Vec<f32>> {
        let key = match self.mutant {
            Some(Mutant::SameNoise) => Key::from_seed(0),
            Some(Mutant::NoiseTwice) => Key::from_seed(release.draw / 2),
            _ => release.key.clone(),
        };
        let tensor = |tensor: &TensorNoise| match self.mutant {
            Some(Mutant::SmallNoise) => scaled(tensor, 0.7),
            Some(Mutant::MicroBatchNoise) => scaled(tensor, 1.0 / (PLACES as f64).sqrt()),
            Some(Mutant::SharedNoise) => TensorNoise { index: 0, ..*tensor },
            _ => *tensor,
        };
        let tensors: Vec<TensorNoise> = release.tensors.iter().map(tensor).collect();
        let wrong = Release { key: &key, tensors: &tensors, ..release.clone() };
        let mut values = self.correct.add_noise(&wrong, sums.clone());
        for (k, (values, sum)) in values.iter_mut().zip(&sums).enumerate() {
            let without_noise = match self.mutant {
                Some(Mutant::TensorWithoutNoise) if k == 1 => sum.len(),
                Some(Mutant::ElementWithoutNoise) => 1,
                _ => 0,
            };
            for (value, sum) in values.iter_mut().zip(sum).take(without_noise) {
                *value = (sum / release.lot_size) as f32;
            }
        }
        values
    }
}

fn scaled(tensor: &TensorNoise, factor: f64) -> TensorNoise {
    TensorNoise { deviation: tensor.deviation * factor, ..*tensor }
}

/// An engine that counts examples, and does not clip the first block if asked.
struct MutantEngine<E> {
    engine: E,
    mutant: Option<Mutant>,
    examples: Arc<AtomicUsize>,
}

impl<E: Engine> Engine for MutantEngine<E> {
    fn trainable(&self) -> Vec<Trainable> {
        self.engine.trainable()
    }

    fn probe_examples(&self) -> Vec<Example> {
        self.engine.probe_examples()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        self.engine.validate(example)
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.engine.load(params)
    }

    fn unload(&mut self) {
        self.engine.unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.engine.losses(examples)
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.engine.start_sum(precision)
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        self.examples.fetch_add(examples.len(), Ordering::Relaxed);
        self.engine.observe(examples, query)
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        if self.mutant != Some(Mutant::ClippingOff) {
            return self.engine.accumulate(weights);
        }
        let mut unclipped = Weights::zeros(weights.examples(), weights.blocks());
        for example in 0..weights.examples() {
            unclipped.set(example, 0, 1.0);
            for block in 1..weights.blocks() {
                unclipped.set(example, block, f64::from(weights.block(block)[example]));
            }
        }
        self.engine.accumulate(&unclipped)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.engine.take_sum()
    }

    fn roundings(&self) -> Vec<usize> {
        self.engine.roundings()
    }

    fn isolation(&self) -> Isolation {
        self.engine.isolation()
    }
}

/// A curator with a planted error.
struct MutantCurator<E> {
    curator: Curator<MutantEngine<E>>,
    mutant: Option<Mutant>,
    /// Examples that the engine has seen in the present query.
    examples: Arc<AtomicUsize>,
}

impl<E: Engine> MutantCurator<E> {
    fn new(
        mutant: Option<Mutant>,
        blocks: usize,
        engine: E,
        places: Vec<Option<Example>>,
        sampling: Sampling,
        seed: u64,
    ) -> Self {
        let examples = Arc::new(AtomicUsize::new(0));
        let engine = MutantEngine { engine, mutant, examples: examples.clone() };
        let (records, secret) = (Records::with_vacancies(places), Randomness::fixed(seed));
        let mut curator =
            Curator::new(engine, records, sampling, Door::unlimited(), secret).unwrap();
        let correct = IndependentGaussian::default();
        curator.set_mechanism(Box::new(MutantMechanism { mutant, blocks, correct }));
        Self { curator, mutant, examples }
    }

    fn with_micro_batch(mut self, examples: usize) -> Self {
        self.curator.set_micro_batch(examples);
        self
    }

    fn ledger(&self) -> &Ledger {
        self.curator.ledger()
    }
}

impl<E: Engine> Oracle for MutantCurator<E> {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        self.curator.draw(announced)
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        self.examples.store(0, Ordering::Relaxed);
        let mut answer = self.curator.gradient(query)?;
        let realised = self.examples.load(Ordering::Relaxed);
        match self.mutant {
            Some(Mutant::RefuseEmptyLot) if realised == 0 => {
                return Err(Refused::Failed("the lot is empty".into()));
            }
            Some(Mutant::RealisedDivisor) => {
                let factor = (self.curator.lot_size() / realised.max(1) as f64) as f32;
                let values = answer.value.iter_mut().flat_map(|(_, tensor)| tensor.data_mut());
                values.for_each(|value| *value *= factor);
            }
            _ => {}
        }
        Ok(answer)
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        self.curator.loss(query)
    }
}

const TRIALS: u64 = 6000;

/// The mechanism audit, with several micro-batches in a lot: whether the claim survives.
fn mechanism_passes(mutant: Option<Mutant>, kind: Kind, which: usize, rate: f64) -> bool {
    let (net, at) = network(kind);
    // Bounds that the record reaches in every block.
    let mut spec = query_specs(kind, &net, &at, 0.01, 1.0).swap_remove(which);
    spec.bounds =
        spec.bounds.iter().map(|bound| Bound::new(bound.clip.get(), 2.0).unwrap()).collect();
    let sampling = if rate < 1.0 {
        Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }
    } else {
        Sampling::Full
    };
    let curator = |last: Option<Example>| {
        // Vacant places, so that a lot has several micro-batches.
        let mut places: Vec<Option<Example>> = vec![None; PLACES];
        places[PLACES - 1] = last;
        let (network, _) = network(kind);
        MutantCurator::new(mutant, spec.blocks.count(), network, places, sampling, 77)
            .with_micro_batch(1)
    };
    let (mut with, mut without) = (curator(Some(record(kind, 4, 1.0))), curator(None));
    let audit = audit::MechanismAudit { query: spec.query(&at), rate, steps: 1, trials: TRIALS };
    let observed = audit.observe(&mut with, &mut without, |_| ()).unwrap();
    let (event, _) = with.ledger().events().runs().last().unwrap();
    let claim = Claim {
        events: Composition::repeated(event.clone(), 1),
        unit: Adjacency::AddRemove.into(),
        delta: Delta::new(1e-5).unwrap(),
    };
    let (_, found) = observed.bound(&claim, 0.999).unwrap();
    observed.noise.is_empty() && found.epsilon_lower() <= claim.epsilon().unwrap()
}

/// The replay audit: whether every release stays within its sensitivity.
fn replay_passes<E: Engine>(
    mutant: Option<Mutant>,
    make: impl Fn() -> E,
    spec: &QuerySpec,
    at: &Params,
    kind: Kind,
) -> bool {
    let mut passes = true;
    for seed in 0..6u64 {
        let curator = |last: Option<Example>| {
            let mut places: Vec<Option<Example>> =
                (0..6).map(|seed| Some(record(kind, seed, 1.0))).collect();
            places.push(last);
            let sampling = Sampling::Poisson { rate: SamplingRate::new(0.4).unwrap() };
            MutantCurator::new(mutant, spec.blocks.count(), make(), places, sampling, seed)
                .with_micro_batch(2)
        };
        let (mut one, mut other) = (curator(Some(record(kind, 20 + seed, 30.0))), curator(None));
        let mut twins = PairedOracles::new(&mut one, &mut other, 1.0);
        for _ in 0..5 {
            let announced = Announcement::gradient(&spec.bounds).and(support::positive(1.0), 1);
            if twins.draw(&announced).is_err() || twins.gradient(&spec.query(at)).is_err() {
                break;
            }
            let _ = twins.loss(&LossQuery { at, bound: Bound::new(1.0, 1.0).unwrap() });
        }
        passes &= twins.report().violations.is_empty();
        passes &= one.ledger() == other.ledger();
    }
    passes
}

fn mlp_replay_passes(mutant: Option<Mutant>, which: usize) -> bool {
    let (net, at) = network(Kind::Mlp);
    let spec = query_specs(Kind::Mlp, &net, &at, 0.5, 0.5).swap_remove(which);
    replay_passes(mutant, || network(Kind::Mlp).0, &spec, &at, Kind::Mlp)
}

/// Indices of the queries of `support`: one block, a block for each tensor, tangent coordinates.
const FLAT: usize = 0;
const EACH: usize = 2;
const TANGENT: usize = 7;

#[test]
fn the_correct_mechanism_passes() {
    for (kind, which, rate) in [
        (Kind::Mlp, FLAT, 1.0),
        (Kind::Mlp, EACH, 1.0),
        (Kind::Lora, TANGENT, 1.0),
        (Kind::Mlp, FLAT, 0.5),
    ] {
        assert!(mechanism_passes(None, kind, which, rate), "{kind:?} {which} {rate}");
    }
}

#[test]
fn correct_sensitivity_and_control_flow_pass() {
    for which in 0..7 {
        assert!(mlp_replay_passes(None, which), "{which}");
    }
}

#[test]
fn too_little_noise_is_found() {
    assert!(!mechanism_passes(Some(Mutant::SmallNoise), Kind::Mlp, FLAT, 1.0));
}

#[test]
fn noise_missing_in_micro_batches_is_found() {
    assert!(!mechanism_passes(Some(Mutant::MicroBatchNoise), Kind::Mlp, FLAT, 1.0));
}

#[test]
fn noise_that_repeats_is_found() {
    for mutant in [Mutant::SameNoise, Mutant::NoiseTwice] {
        assert!(!mechanism_passes(Some(mutant), Kind::Mlp, FLAT, 1.0), "{mutant:?}");
    }
}

#[test]
fn noise_shared_by_tensors_is_found() {
    assert!(!mechanism_passes(Some(Mutant::SharedNoise), Kind::Mlp, FLAT, 1.0));
}

#[test]
fn a_tensor_without_noise_is_found() {
    let mutant = Some(Mutant::TensorWithoutNoise);
    for (kind, which) in [(Kind::Mlp, FLAT), (Kind::Mlp, EACH), (Kind::Lora, TANGENT)] {
        assert!(!mechanism_passes(mutant, kind, which, 1.0), "{kind:?} {which}");
    }
}

#[test]
fn an_element_without_noise_is_found() {
    let mutant = Some(Mutant::ElementWithoutNoise);
    for (kind, which) in [(Kind::Mlp, FLAT), (Kind::Lora, TANGENT)] {
        assert!(!mechanism_passes(mutant, kind, which, 1.0), "{kind:?} {which}");
    }
}

#[test]
fn blocks_charged_as_one_are_found() {
    assert!(!mechanism_passes(Some(Mutant::OneBlockCharged), Kind::Mlp, EACH, 1.0));
}

#[test]
fn a_layer_without_clipping_is_found() {
    assert!(!mlp_replay_passes(Some(Mutant::ClippingOff), EACH));
    assert!(!mechanism_passes(Some(Mutant::ClippingOff), Kind::Mlp, EACH, 1.0));
}

#[test]
fn a_divisor_that_depends_on_the_lot_is_found() {
    assert!(!mlp_replay_passes(Some(Mutant::RealisedDivisor), FLAT));
}

#[test]
fn a_refusal_that_depends_on_the_lot_is_found() {
    let (net, at) = network(Kind::Mlp);
    let spec = query_specs(Kind::Mlp, &net, &at, 0.5, 0.5).swap_remove(FLAT);
    let found = |mutant| {
        let curator = |last| {
            let network = network(Kind::Mlp).0;
            MutantCurator::new(mutant, 1, network, vec![last], Sampling::Full, 1)
        };
        let (mut one, mut other) = (curator(Some(record(Kind::Mlp, 1, 1.0))), curator(None));
        let mut twins = PairedOracles::new(&mut one, &mut other, 1.0);
        let _ = spec.ask(&mut twins, &at);
        !twins.report().violations.is_empty()
    };
    assert!(!found(None) && found(Some(Mutant::RefuseEmptyLot)));
}

/// A tied model and an engine that measures the gradient of the token table by its use as a table
/// alone, although the table is the head as well.
struct TiedOnce {
    tied: Network,
    untied: Network,
    /// What is loaded into the untied one.
    own: Params,
}

fn gpt2(tied: bool) -> Network {
    let activation = model::activation::Activation::GeluTanh;
    let config = Gpt2Config {
        vocab: 11,
        positions: 16,
        width: 8,
        layers: 1,
        heads: 2,
        inner: 16,
        activation,
        epsilon: 1e-5,
        tied,
    };
    let graph = Architecture::Gpt2(config).graph(None);
    let values = graph.init(3).unwrap();
    Network::new(graph, values, |_| true).unwrap().0
}

impl Engine for TiedOnce {
    fn trainable(&self) -> Vec<Trainable> {
        self.tied.trainable()
    }

    fn probe_examples(&self) -> Vec<Example> {
        self.tied.probe_examples()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        self.tied.validate(example)
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        let tied = self.tied.trainable();
        let place = |name: &str| tied.iter().position(|tensor| tensor.name == name);
        let table = tied.iter().position(|tensor| tensor.name.contains("wte")).unwrap();
        let of = |tensor: &Trainable| params[place(&tensor.name).unwrap_or(table)].clone();
        self.own = Params::new(self.untied.trainable().iter().map(of).collect());
        self.untied.load(&self.own)?;
        self.tied.load(params)
    }

    fn unload(&mut self) {
        self.tied.unload();
        self.untied.unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.tied.losses(examples)
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.tied.start_sum(precision)
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        self.tied.observe(examples, query)?;
        // The untied model has the same tensors and one more, the head, which gets a block of its
        // own, whose norm is dropped.
        let (tied, tensors) = (self.tied.trainable(), self.untied.trainable());
        let (blocks, count) = (query.blocks(), query.blocks().count());
        let block = |tensor: &Trainable| {
            let place = tied.iter().position(|other| other.name == tensor.name);
            place.map_or(count, |k| blocks.of(k))
        };
        let own_blocks = Blocks::new(tensors.iter().map(block).collect()).unwrap();
        let own_query = CheckedQuery::new(&self.own, query.geometry(), &own_blocks, &tensors)?;
        let seen = self.untied.observe(examples, &own_query)?;
        let losses = (0..seen.examples()).map(|i| seen.loss(i)).collect();
        let squares = (0..seen.examples() * count).map(|i| seen.norm(i / count, i % count).powi(2));
        Ok(Observed::new(losses, squares.collect(), count))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        self.tied.accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.tied.take_sum()
    }

    fn roundings(&self) -> Vec<usize> {
        self.tied.roundings()
    }
}

#[test]
fn tied_weights_that_count_once_are_found() {
    let (_, at) = network(Kind::Gpt2);
    let spec = QuerySpec {
        geometry: Geometry::Identity,
        blocks: Blocks::flat(at.len()),
        bounds: vec![Bound::new(0.1, 0.5).unwrap()],
        clipping: Clipping::Cut,
    };
    let once = || TiedOnce { tied: gpt2(true), untied: gpt2(false), own: Params::default() };
    assert!(replay_passes(None, || gpt2(true), &spec, &at, Kind::Gpt2));
    assert!(!replay_passes(None, once, &spec, &at, Kind::Gpt2));
}
