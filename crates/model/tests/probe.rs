//! What the probe lets through and what it refuses.

#![allow(clippy::unwrap_used)]

mod support;

use model::{
    Accumulator, Engine, Error, Example, Isolation, Network, Observed, Sum, Weights, probe,
};
use protocol::{Blocks, Geometry, Params, Trainable};
use support::zoo::{self, Kind};

/// An engine with something wrong.
struct Wrong {
    network: Network,
    fault: Fault,
    isolation: Isolation,
}

/// Changes every element of a sum.
fn change(sum: &mut Accumulator, change: impl Fn(usize, f64) -> f64) {
    let new: Vec<f64> = (0..sum.len()).map(|i| change(i, sum.value(i)) - sum.value(i)).collect();
    sum.add(1.0, new.into_iter());
}

#[derive(Clone, Copy)]
enum Fault {
    None,
    /// The mean loss of the batch is part of everybody's.
    Loss,
    /// The first example's gradient has a little of the last one's.
    Gradient,
    /// How many there are is felt in the last bits.
    Rounding,
    /// Everybody is divided by how many there are.
    Size,
    /// Losses alone know of the others.
    Losses,
    /// A tensor never gets a gradient.
    Idle,
}

impl Engine for Wrong {
    fn trainable(&self) -> Vec<Trainable> {
        self.network.trainable()
    }

    fn isolation(&self) -> Isolation {
        self.isolation
    }

    fn stand_ins(&self) -> Vec<Example> {
        self.network.stand_ins()
    }

    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.network.admits(examples)
    }

    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        let mut losses = self.network.losses(at, examples)?;
        if let Fault::Losses = self.fault {
            let all: f64 = losses.iter().sum();
            losses.iter_mut().for_each(|loss| *loss += 1e-3 * all);
        }
        Ok(losses)
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
        let fault = self.fault;
        let mut last = 0.0;
        let mut asked = |seen: &Observed<'_>, weights: &mut Weights| {
            let count = seen.examples();
            last = seen.loss(count - 1);
            match fault {
                Fault::Loss => {
                    let mean = (0..count).map(|i| seen.loss(i)).sum::<f64>() / count as f64;
                    let losses: Vec<f64> = (0..count).map(|i| seen.loss(i) + 1e-9 * mean).collect();
                    let squares: Vec<f64> = (0..count * seen.blocks())
                        .map(|i| seen.norm(i / seen.blocks(), i % seen.blocks()).powi(2))
                        .collect();
                    weigh(&Observed::new(&losses, &squares, seen.blocks()), weights);
                }
                _ => weigh(seen, weights),
            }
        };
        self.network.weighted_sum(at, examples, geometry, blocks, &mut asked, sum)?;
        match fault {
            Fault::Gradient => change(&mut sum[0], |i, x| if i == 0 { x + 1e-3 * last } else { x }),
            Fault::Rounding => change(&mut sum[0], |_, x| x * (1.0 + 1e-6 * examples.len() as f64)),
            Fault::Idle => change(&mut sum[0], |_, _| 0.0),
            Fault::Size => {
                sum.iter_mut().for_each(|sum| change(sum, |_, x| x / examples.len() as f64))
            }
            Fault::None | Fault::Loss | Fault::Losses => {}
        }
        Ok(())
    }
}

#[test]
fn every_model_we_ship_passes() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 1);
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
        (Fault::Idle, Some("no example gives it")),
    ] {
        for isolation in [Isolation::Exact, Isolation::UpToRounding] {
            let (network, params) = zoo::network(Kind::Gpt2Tied, 1);
            let found = probe(&mut Wrong { network, fault, isolation }, &params);
            // What is felt in the last bits is let through if the engine says so, and nothing else.
            let part = if matches!(fault, Fault::Rounding) && isolation == Isolation::UpToRounding {
                None
            } else {
                part
            };
            match part {
                None => found.unwrap(),
                Some(part) => assert!(found.unwrap_err().to_string().contains(part)),
            }
        }
    }
}

/// The buffers of one do not reach the other, and the frozen weights are the same.
#[test]
fn a_twin_computes_the_same() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 1);
        let mut twin = network.twin();
        let examples = network.stand_ins();
        let all: Vec<&Example> = examples.iter().collect();
        assert_eq!(network.losses(&params, &all).unwrap(), twin.losses(&params, &all).unwrap());
    }
}

/// A table that is also the head is rounded twice.
#[test]
fn uses_are_counted() {
    for (kind, most) in [(Kind::Gpt2Tied, 2), (Kind::Llama, 1), (Kind::Mlp, 1)] {
        let (network, _) = zoo::network(kind, 1);
        assert_eq!(network.uses().into_iter().max(), Some(most), "{kind:?}");
    }
}
