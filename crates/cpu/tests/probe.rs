//! The probe accepts correct engines and refuses incorrect ones.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use engine::{
    Accumulator, CheckedQuery, Engine, Error, Example, Isolation, Observed, Sum, SumPrecision,
    Weights, probe,
};
use model::activation::Activation;
use model::{Builder, Linear};
use protocol::{Blocks, Geometry, GeometryKind, Params, Trainable};
use support::zoo::{self, Kind};

/// An engine with a planted error.
struct FaultyEngine {
    network: Network,
    fault: Fault,
    isolation: Isolation,
    /// A model with the same tensors and an untied head, for [`Fault::UntiedTable`].
    untied: Option<Network>,
    /// The loaded parameters.
    params: Option<Params>,
    /// Number of examples of the last micro-batch.
    observed: usize,
    /// Loss of the last example of the last micro-batch.
    last_loss: f64,
}

/// Planted errors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The mean loss of the batch is part of every loss.
    Loss,
    /// The gradient of the first example depends on the loss of the last one.
    Gradient,
    /// The number of examples changes the last bits.
    Rounding,
    /// Every gradient is divided by the number of examples.
    Size,
    /// Only `losses` depends on the other examples.
    Losses,
    /// A tensor's gradient is not added to the sum.
    Missing,
    /// Reported norms are multiplied by this.
    Norms(f64),
    /// The norm of the last block is multiplied by this, if there are several.
    LastBlock(f64),
    /// Reported norms are multiplied by this in one geometry.
    NormsIn(GeometryKind, f64),
    /// The norm of a tied table counts its use as a table only.
    UntiedTable,
    /// The norm of an example of several parts is too small.
    PartNorms,
    /// The norm of an example of several parts is too small in one geometry.
    PartNormsIn(GeometryKind),
    /// The loss of an example of several parts is that of its first part.
    PartLosses,
    /// The loss of an example of several parts depends on the last example.
    PartMixing,
    /// The norm of an example that follows one of several parts is too small.
    NormsAfterParts,
}

impl FaultyEngine {
    fn new(network: Network, fault: Fault) -> Self {
        Self {
            network,
            fault,
            isolation: Isolation::Exact,
            untied: None,
            params: None,
            observed: 0,
            last_loss: 0.0,
        }
    }

    /// Returns the observation of the untied model, in the blocks of the tied model.
    fn observe_untied(
        &mut self,
        examples: &[&Example],
        blocks: &Blocks,
    ) -> Result<Observed, Error> {
        let params = self.params.as_ref().unwrap();
        let tied = self.network.trainable();
        let untied = self.untied.as_mut().unwrap();
        let index = |name: &str| tied.iter().position(|tensor| tensor.name == name);
        let table = tied.iter().position(|tensor| tensor.role == protocol::Role::Table).unwrap();
        // The head is a copy of the table, in a separate block that is dropped.
        let tensors = untied.trainable();
        let value = |tensor: &Trainable| params[index(&tensor.name).unwrap_or(table)].clone();
        let values = Params::new(tensors.iter().map(value).collect());
        let block =
            |tensor: &Trainable| index(&tensor.name).map_or(blocks.count(), |k| blocks.of(k));
        let untied_blocks = Blocks::new(tensors.iter().map(block).collect()).unwrap();
        let query =
            CheckedQuery::new(&values, &Geometry::Identity, &untied_blocks, &tensors).unwrap();
        untied.load(&values)?;
        let observed = untied.observe(examples, &query)?;
        untied.unload();
        Ok(changed(&observed, blocks.count(), |loss| loss, |_, norm| norm))
    }
}

/// Returns the observation of the first `blocks` blocks with changed losses and norms.
fn changed(
    observed: &Observed,
    blocks: usize,
    loss: impl Fn(f64) -> f64,
    norm: impl Fn(usize, f64) -> f64,
) -> Observed {
    let count = observed.examples();
    let losses = (0..count).map(|i| loss(observed.loss(i))).collect();
    let squares = (0..count * blocks)
        .map(|i| (i / blocks, i % blocks))
        .map(|(i, block)| norm(block, observed.norm(i, block)).powi(2));
    Observed::new(losses, squares.collect(), blocks)
}

/// Returns whether an example has several parts.
fn has_parts(example: &Example) -> bool {
    example.parts().len() > 1
}

/// Changes every element of a sum.
fn change(sum: &mut Accumulator, change: impl Fn(usize, f64) -> f64) {
    let new: Vec<f64> = (0..sum.len()).map(|i| change(i, sum.value(i)) - sum.value(i)).collect();
    sum.add(1.0, new.into_iter());
}

impl Engine for FaultyEngine {
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
        self.params = Some(params.clone());
        self.network.load(params)
    }

    fn unload(&mut self) {
        self.network.unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        if self.fault == Fault::PartLosses {
            let first = |example: &&Example| Example::from(example.parts()[0].clone());
            let first: Vec<Example> = examples.iter().map(first).collect();
            return self.network.losses(&first.iter().collect::<Vec<_>>());
        }
        let mut losses = self.network.losses(examples)?;
        if self.fault == Fault::Losses {
            let all: f64 = losses.iter().sum();
            losses.iter_mut().for_each(|loss| *loss += 1e-3 * all);
        }
        Ok(losses)
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
        let (count, blocks) = (observed.examples(), observed.blocks());
        let kind = query.geometry().kind();
        // Returns the observation with changed losses and norms of some examples.
        let changed_in = |wrong: &dyn Fn(usize) -> bool, added: f64, factor: f64| {
            let loss = |i: usize| observed.loss(i) + if wrong(i) { added } else { 0.0 };
            let factor = |i: usize| if wrong(i) { factor } else { 1.0 };
            let square =
                |i: usize| (factor(i / blocks) * observed.norm(i / blocks, i % blocks)).powi(2);
            let squares = (0..count * blocks).map(square).collect();
            Observed::new((0..count).map(loss).collect(), squares, blocks)
        };
        (self.observed, self.last_loss) = (count, observed.loss(count - 1));
        Ok(match self.fault {
            Fault::Loss => {
                let mean = (0..count).map(|i| observed.loss(i)).sum::<f64>() / count as f64;
                changed(&observed, blocks, |loss| loss + 1e-9 * mean, |_, norm| norm)
            }
            Fault::Norms(factor) => {
                changed(&observed, blocks, |loss| loss, |_, norm| factor * norm)
            }
            Fault::LastBlock(factor) if blocks > 1 => {
                let norm = |k, norm| if k + 1 == blocks { factor * norm } else { norm };
                changed(&observed, blocks, |loss| loss, norm)
            }
            Fault::NormsIn(kind, factor) if query.geometry().kind() == kind => {
                changed(&observed, blocks, |loss| loss, |_, norm| factor * norm)
            }
            Fault::PartNorms => changed_in(&|i| has_parts(examples[i]), 0.0, 0.5),
            Fault::PartNormsIn(geometry) if geometry == kind => {
                changed_in(&|i| has_parts(examples[i]), 0.0, 0.5)
            }
            Fault::PartMixing => {
                let last = observed.loss(count - 1);
                changed_in(&|i| has_parts(examples[i]) && i + 1 < count, 1e-9 * last, 1.0)
            }
            Fault::NormsAfterParts => {
                changed_in(&|i| examples[..i].iter().any(|other| has_parts(other)), 0.0, 0.5)
            }
            Fault::UntiedTable if query.geometry().kind() == GeometryKind::Identity => {
                self.observe_untied(examples, query.blocks())?
            }
            _ => observed,
        })
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        self.network.accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        let mut sum = self.network.take_sum()?;
        let (count, last) = (self.observed as f64, self.last_loss);
        match self.fault {
            Fault::Gradient => change(&mut sum[0], |i, x| if i == 0 { x + 1e-3 * last } else { x }),
            Fault::Rounding => change(&mut sum[0], |_, x| x * (1.0 + 1e-6 * count)),
            Fault::Missing => change(&mut sum[0], |_, _| 0.0),
            Fault::Size => sum.iter_mut().for_each(|sum| change(sum, |_, x| x / count)),
            _ => {}
        }
        Ok(sum)
    }

    fn roundings(&self) -> Vec<usize> {
        self.network.roundings()
    }

    fn isolation(&self) -> Isolation {
        self.isolation
    }
}

fn refused(engine: &mut FaultyEngine, params: &Params, what: &str, part: &str) {
    let error = probe(engine, params).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{what}: {error:?}");
}

#[test]
fn every_built_in_model_passes() {
    for kind in zoo::ALL {
        let (network, params) = zoo::network(kind, 1);
        // The wrapper without an error passes too.
        probe(&mut FaultyEngine::new(network.new_instance(), Fault::None), &params).unwrap();
        let mut network = network;
        probe(&mut network, &params).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

#[test]
fn a_model_that_mixes_examples_is_refused() {
    for (fault, part) in [
        (Fault::None, None),
        (Fault::Size, Some("another's")),
        (Fault::Losses, Some("another's")),
        (Fault::Loss, Some("another's")),
        (Fault::Gradient, Some("another's")),
        (Fault::Rounding, Some("by rounding")),
        (Fault::Missing, Some("its gradient has the norm")),
    ] {
        for isolation in [Isolation::Exact, Isolation::UpToRounding] {
            let (network, params) = zoo::network(Kind::Gpt2Tied, 1);
            let mut engine = FaultyEngine { isolation, ..FaultyEngine::new(network, fault) };
            // Only differences by rounding are accepted, and only if the engine declares them.
            match part {
                None => probe(&mut engine, &params).unwrap(),
                Some(_) if fault == Fault::Rounding && isolation == Isolation::UpToRounding => {
                    probe(&mut engine, &params).unwrap();
                }
                Some(part) => refused(&mut engine, &params, &format!("{fault:?}"), part),
            }
        }
    }
}

/// A norm that is too small violates the clip bound; one that is too large clips too much.
#[test]
fn wrong_norms_are_refused() {
    for kind in zoo::ALL {
        for (fault, part) in [
            (Fault::Norms(0.9), "Identity geometry"),
            (Fault::Norms(1.1), "Identity geometry"),
            (Fault::Norms(f64::NAN), "Identity geometry"),
            (Fault::LastBlock(0.9), "Identity geometry"),
        ] {
            let (network, params) = zoo::network(kind, 1);
            refused(
                &mut FaultyEngine::new(network, fault),
                &params,
                &format!("{kind:?} {fault:?}"),
                part,
            );
        }
    }
}

#[test]
fn norms_that_are_wrong_in_one_geometry_are_refused() {
    for kind in zoo::ALL {
        let (network, params) = zoo::network(kind, 1);
        let has_pairs = !network.pairs().is_empty();
        for (geometry, part) in
            [(GeometryKind::Affine, "Affine geometry"), (GeometryKind::Tangent, "Tangent geometry")]
        {
            let fault = Fault::NormsIn(geometry, 0.9);
            let mut engine = FaultyEngine::new(network.new_instance(), fault);
            if geometry == GeometryKind::Tangent && !has_pairs {
                // A model without low-rank pairs has no tangent geometry.
                probe(&mut engine, &params).unwrap();
            } else {
                refused(&mut engine, &params, &format!("{kind:?} {fault:?}"), part);
            }
        }
    }
}

/// An engine that treats examples of several parts wrongly is refused.
#[test]
fn wrong_examples_of_several_parts_are_refused() {
    for kind in zoo::ALL {
        let (network, params) = zoo::network(kind, 1);
        let mut faults = vec![
            (Fault::PartNorms, "Identity geometry"),
            (Fault::PartNormsIn(GeometryKind::Affine), "Affine geometry"),
            (Fault::PartLosses, "an example of 4 parts has the loss"),
            (Fault::PartMixing, "another's"),
            (Fault::NormsAfterParts, "another's"),
        ];
        if !network.pairs().is_empty() {
            faults.push((Fault::PartNormsIn(GeometryKind::Tangent), "Tangent geometry"));
        }
        for (fault, part) in faults {
            let mut engine = FaultyEngine::new(network.new_instance(), fault);
            refused(&mut engine, &params, &format!("{kind:?} {fault:?}"), part);
        }
    }
}

/// The norm of a tied table must cover the sum of both uses.
#[test]
fn the_norm_of_one_use_of_a_tied_table_is_refused() {
    for (kind, untied) in [(Kind::Gpt2Tied, Kind::Gpt2Untied), (Kind::LlamaTied, Kind::Llama)] {
        let (network, params) = zoo::network(kind, 1);
        let untied = Some(zoo::network(untied, 1).0);
        let mut engine = FaultyEngine { untied, ..FaultyEngine::new(network, Fault::UntiedTable) };
        refused(&mut engine, &params, &format!("{kind:?}"), "Identity geometry");
    }
}

/// A frozen layer is zero, so the trained layer before it has a gradient of exactly 0.
#[test]
fn a_tensor_without_gradient_is_refused() {
    let mut build = Builder::features(4);
    let x = build.input();
    let hidden = build.linear(x, Linear::new("hidden", 4, 4).activation(Activation::Tanh));
    let zero = build.linear(hidden, Linear::new("zero", 4, 4).init_std(0.0));
    let logits = build.linear(zero, Linear::new("head", 4, 3));
    let graph = build.finish(logits);
    let values = graph.init(1).unwrap();
    let trains = |name: &str| name.starts_with("hidden") || name == "head.bias";
    let (mut network, params) = Network::new(graph, values, trains).unwrap();
    let error = probe(&mut network, &params).unwrap_err().to_string();
    assert!(error.contains("hidden.weight: trainable, but no example gives it"), "{error}");
}

#[test]
fn a_new_instance_computes_the_same() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 1);
        let mut other = network.new_instance();
        let examples = network.probe_examples();
        let all: Vec<&Example> = examples.iter().collect();
        network.load(&params).unwrap();
        other.load(&params).unwrap();
        assert_eq!(network.losses(&all).unwrap(), other.losses(&all).unwrap());
    }
}

/// The gradient of a tied table is rounded twice.
#[test]
fn roundings_are_counted() {
    for (kind, most) in [(Kind::Gpt2Tied, 2), (Kind::Llama, 1), (Kind::Mlp, 1)] {
        let (network, _) = zoo::network(kind, 1);
        assert_eq!(network.roundings().into_iter().max(), Some(most), "{kind:?}");
    }
}
