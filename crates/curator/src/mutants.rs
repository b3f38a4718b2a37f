//! Planted errors, and that the audits find them. All of it exists in this crate's own tests only.
//!
//! Each mutant is a way in which a respected library or paper was wrong. The code that is mutated
//! is the code that runs; nothing of it is left when it is built for use.

use crate::{Curator, Door, Randomness, Records, Sampling};
use accounting::{Adjacency, Composition, Delta, Rate};
use audit::{Claim, MechanismAudit, PairedOracles};
use model::hf::{Architecture, Gpt2Config};
use model::{Engine, Error, Example, Network, Observed, Sum, Weights};
use protocol::{
    Announcement, Blocks, Bound, Clipping, Geometry, LossQuery, Noisy, Oracle, Params, Trainable,
};
use std::cell::Cell;

#[path = "../tests/support/mod.rs"]
mod support;
use support::{Asking, Kind, askings, network, record};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Noise × 0.7.
    SmallNoise,
    /// The first block is not clipped.
    ClipOff,
    /// Noise is meant to be added to each micro-batch, a share of it each, and is only added to the
    /// first.
    MicroBatchNoise,
    /// Sums are divided by how many there are in the lot.
    RealisedDivisor,
    /// Every release has the noise of the first.
    SameNoise,
    /// All tensors have the same noise.
    SharedNoise,
    /// One tensor has no noise.
    BareTensor,
    /// One number in each tensor has no noise: a coordinate that a chart forgets.
    BareNumber,
    /// Blocks of a lot are charged as if there were only one.
    PerBlockPrice,
    /// Every other lot has the noise of the one before.
    NoiseTwice,
    /// A lot in which nobody is is not answered.
    EmptyRefused,
}

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    static MICRO_BATCHES: Cell<usize> = const { Cell::new(1) };
}

/// Whether this one is planted, in this thread.
pub(crate) fn is(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// How many micro-batches the present lot has.
pub(crate) fn set_micro_batches(count: usize) {
    MICRO_BATCHES.set(count.max(1));
}

/// A release that was divided by something else than is declared.
pub(crate) fn times(mut answer: Noisy<Params>, factor: f64) -> Noisy<Params> {
    answer.value.iter_mut().flat_map(|tensor| tensor.data_mut()).for_each(|x| *x *= factor as f32);
    answer
}

/// What is planted, for other threads.
#[derive(Clone, Copy)]
pub(crate) struct Planted {
    mutant: Option<Mutant>,
    micro_batches: usize,
}

impl Planted {
    pub(crate) fn now() -> Self {
        Self { mutant: PLANTED.get(), micro_batches: MICRO_BATCHES.get() }
    }

    pub(crate) fn spoil(self, tensor: usize, noise: &mut [i64]) {
        let times = |noise: &mut [i64], factor: f64| {
            noise.iter_mut().for_each(|z| *z = (*z as f64 * factor) as i64)
        };
        match self.mutant {
            Some(Mutant::SmallNoise) => times(noise, 0.7),
            Some(Mutant::MicroBatchNoise) => times(noise, 1.0 / (self.micro_batches as f64).sqrt()),
            Some(Mutant::BareTensor) if tensor == 1 => noise.fill(0),
            Some(Mutant::BareNumber) => noise.iter_mut().take(1).for_each(|z| *z = 0),
            _ => {}
        }
    }
}

/// Plants it as long as something is done.
fn with<T>(mutant: Option<Mutant>, act: impl FnOnce() -> T) -> T {
    PLANTED.set(mutant);
    let done = act();
    PLANTED.set(None);
    done
}

const TRIALS: u64 = 6000;

/// The mechanism audit: whether the claim survives, with many micro-batches in a lot.
fn mechanism_passes(kind: Kind, which: usize, rate: f64) -> bool {
    let (net, at) = network(kind);
    // Bounds that the record reaches in every block.
    let mut asking = askings(kind, &net, &at, 0.01, 1.0).swap_remove(which);
    asking.bounds =
        asking.bounds.iter().map(|bound| Bound::new(bound.clip.get(), 2.0).unwrap()).collect();
    let sampling = if rate < 1.0 {
        Sampling::Poisson { rate: Rate::new(rate).unwrap() }
    } else {
        Sampling::Full
    };
    let curator = |last: Option<Example>| {
        // Vacant places, so that a lot has several micro-batches.
        let mut places: Vec<Option<Example>> = vec![None; 5];
        places[4] = last;
        let (network, _) = network(kind);
        let mut curator = Curator::new(
            network,
            Records::with_vacancies(places),
            sampling,
            Door::unlimited(),
            Randomness::fixed(77),
        )
        .unwrap();
        curator.set_micro_batch(1);
        curator
    };
    let (mut there, mut away) = (curator(Some(record(kind, 4, 1.0))), curator(None));
    let mechanism = MechanismAudit { query: asking.query(&at), rate, steps: 1, trials: TRIALS };
    let observed = mechanism.observe(&mut there, &mut away, |_| ()).unwrap();
    let (event, _) = there.ledger().events().runs().last().unwrap();
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
    make: impl Fn() -> E,
    asking: &Asking,
    at: &Params,
    kind: Kind,
) -> bool {
    let mut passes = true;
    for seed in 0..6u64 {
        let curator = |last: Option<Example>| {
            let mut places: Vec<Option<Example>> =
                (0..6).map(|seed| Some(record(kind, seed, 1.0))).collect();
            places.push(last);
            let sampling = Sampling::Poisson { rate: Rate::new(0.4).unwrap() };
            let mut curator = Curator::new(
                make(),
                Records::with_vacancies(places),
                sampling,
                Door::unlimited(),
                Randomness::fixed(seed),
            )
            .unwrap();
            curator.set_micro_batch(2);
            curator
        };
        let (mut one, mut other) = (curator(Some(record(kind, 20 + seed, 30.0))), curator(None));
        let mut twins = PairedOracles::new(&mut one, &mut other, 1.0);
        for _ in 0..5 {
            let announced = Announcement::gradient(&asking.bounds).and(support::positive(1.0), 1);
            if twins.draw(&announced).is_err() || twins.gradient(&asking.query(at)).is_err() {
                break;
            }
            let _ = twins.loss(&LossQuery { at, bound: Bound::new(1.0, 1.0).unwrap() });
        }
        passes &= twins.report().violations.is_empty();
        passes &= one.ledger() == other.ledger();
    }
    passes
}

fn replayed(mutant: Option<Mutant>, which: usize) -> bool {
    let (net, at) = network(Kind::Mlp);
    let asking = askings(Kind::Mlp, &net, &at, 0.5, 0.5).swap_remove(which);
    with(mutant, || replay_passes(|| network(Kind::Mlp).0, &asking, &at, Kind::Mlp))
}

/// Places among the askings of `support`: one block, a block each, tangent coordinates.
const FLAT: usize = 0;
const EACH: usize = 2;
const TANGENT: usize = 7;

#[test]
fn the_mechanism_as_it_is_passes() {
    for (kind, which, rate) in [
        (Kind::Mlp, FLAT, 1.0),
        (Kind::Mlp, EACH, 1.0),
        (Kind::Lora, TANGENT, 1.0),
        (Kind::Mlp, FLAT, 0.5),
    ] {
        assert!(mechanism_passes(kind, which, rate), "{kind:?} {which} {rate}");
    }
}

#[test]
fn sensitivity_and_control_flow_as_they_are_pass() {
    for which in 0..7 {
        assert!(replayed(None, which), "{which}");
    }
}

#[test]
fn too_little_noise_is_found() {
    assert!(!with(Some(Mutant::SmallNoise), || mechanism_passes(Kind::Mlp, FLAT, 1.0)));
}

#[test]
fn noise_forgotten_in_micro_batches_is_found() {
    assert!(!with(Some(Mutant::MicroBatchNoise), || mechanism_passes(Kind::Mlp, FLAT, 1.0)));
}

#[test]
fn noise_that_repeats_itself_is_found() {
    for mutant in [Mutant::SameNoise, Mutant::NoiseTwice] {
        assert!(!with(Some(mutant), || mechanism_passes(Kind::Mlp, FLAT, 1.0)), "{mutant:?}");
    }
}

#[test]
fn noise_that_tensors_share_is_found() {
    assert!(!with(Some(Mutant::SharedNoise), || mechanism_passes(Kind::Mlp, FLAT, 1.0)));
}

#[test]
fn a_tensor_without_noise_is_found() {
    for (kind, which) in [(Kind::Mlp, FLAT), (Kind::Mlp, EACH), (Kind::Lora, TANGENT)] {
        assert!(
            !with(Some(Mutant::BareTensor), || mechanism_passes(kind, which, 1.0)),
            "{kind:?} {which}"
        );
    }
}

#[test]
fn a_coordinate_that_a_chart_forgets_is_found() {
    for (kind, which) in [(Kind::Mlp, FLAT), (Kind::Lora, TANGENT)] {
        assert!(
            !with(Some(Mutant::BareNumber), || mechanism_passes(kind, which, 1.0)),
            "{kind:?} {which}"
        );
    }
}

#[test]
fn blocks_charged_one_by_one_are_found() {
    assert!(!with(Some(Mutant::PerBlockPrice), || mechanism_passes(Kind::Mlp, EACH, 1.0)));
}

#[test]
fn a_layer_that_is_not_clipped_is_found() {
    assert!(!replayed(Some(Mutant::ClipOff), EACH));
    assert!(!with(Some(Mutant::ClipOff), || mechanism_passes(Kind::Mlp, EACH, 1.0)));
}

#[test]
fn a_divisor_that_depends_on_the_lot_is_found() {
    assert!(!replayed(Some(Mutant::RealisedDivisor), FLAT));
}

#[test]
fn a_refusal_that_depends_on_the_lot_is_found() {
    let (net, at) = network(Kind::Mlp);
    let asking = askings(Kind::Mlp, &net, &at, 0.5, 0.5).swap_remove(FLAT);
    let refuses = |mutant| {
        with(mutant, || {
            let curator = |last| {
                let records = Records::with_vacancies(vec![last]);
                Curator::new(
                    network(Kind::Mlp).0,
                    records,
                    Sampling::Full,
                    Door::unlimited(),
                    Randomness::fixed(1),
                )
                .unwrap()
            };
            let (mut one, mut other) = (curator(Some(record(Kind::Mlp, 1, 1.0))), curator(None));
            let mut twins = PairedOracles::new(&mut one, &mut other, 1.0);
            let _ = asking.ask(&mut twins, &at);
            !twins.report().violations.is_empty()
        })
    };
    assert!(!refuses(None) && refuses(Some(Mutant::EmptyRefused)));
}

/// A model whose token table is its head as well, and an engine that measures the gradient of the
/// table by its use as a table alone.
struct TiedOnce {
    tied: Network,
    untied: Network,
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

    fn stand_ins(&self) -> Vec<Example> {
        self.tied.stand_ins()
    }

    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.tied.admits(examples)
    }

    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.tied.losses(at, examples)
    }

    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        geometry: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        sum: &mut Sum,
    ) -> Result<(), Error> {
        // The untied model has the same tensors and one more, the head, which is put into a block
        // that nobody looks at.
        let tensors = self.untied.trainable();
        let place =
            |name: &str| self.tied.trainable().iter().position(|tensor| tensor.name == name);
        let table =
            self.tied.trainable().iter().position(|tensor| tensor.name.contains("wte")).unwrap();
        let own = Params::new(
            tensors.iter().map(|tensor| at[place(&tensor.name).unwrap_or(table)].clone()).collect(),
        );
        let own_blocks = Blocks::new(
            tensors
                .iter()
                .map(|tensor| place(&tensor.name).map_or(blocks.count(), |k| blocks.of(k)))
                .collect(),
        )
        .unwrap();
        let (mut losses, mut squares) = (Vec::new(), Vec::new());
        let look = &mut |seen: &Observed<'_>, _: &mut Weights| {
            losses = (0..seen.examples()).map(|i| seen.loss(i)).collect();
            squares = (0..seen.examples())
                .flat_map(|i| (0..blocks.count()).map(move |b| seen.norm(i, b).powi(2)))
                .collect();
        };
        self.untied.weighted_sum(
            &own,
            examples,
            geometry,
            &own_blocks,
            look,
            &mut Sum::float(&own),
        )?;
        let count = blocks.count();
        self.tied.weighted_sum(
            at,
            examples,
            geometry,
            blocks,
            &mut |_, weights| weigh(&Observed::new(&losses, &squares, count), weights),
            sum,
        )
    }
}

#[test]
fn tied_weights_that_count_once_are_found() {
    let (_, at) = network(Kind::Gpt2);
    let asking = Asking {
        geometry: Geometry::Identity,
        blocks: Blocks::flat(at.len()),
        bounds: vec![Bound::new(0.1, 0.5).unwrap()],
        clipping: Clipping::Cut,
    };
    assert!(replay_passes(|| gpt2(true), &asking, &at, Kind::Gpt2));
    assert!(!replay_passes(
        || TiedOnce { tied: gpt2(true), untied: gpt2(false) },
        &asking,
        &at,
        Kind::Gpt2
    ));
}
