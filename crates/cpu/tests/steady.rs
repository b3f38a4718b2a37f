//! In the steady state a step asks the system for no memory.

#![allow(clippy::unwrap_used)]

mod support;

use engine::{CheckedQuery, Engine, Example, SumPrecision};
use model::Activations;
use protocol::{Blocks, Geometry};
use support::{run, sound_weights, zoo};

#[test]
fn buffers_are_reused() {
    for kind in zoo::ALL {
        for memory in [Activations::Retain, Activations::Recompute] {
            let (mut network, at) = zoo::network(kind, 1);
            network.set_activations(memory);
            let lots: Vec<Vec<Example>> = [1, 50]
                .map(|seed| (seed..seed + 4).map(|seed| zoo::example(kind, seed, 12, 3)).collect())
                .to_vec();
            let blocks = Blocks::flat(at.len());
            let mut fresh = Vec::new();
            for step in 0..6 {
                let lot: Vec<&Example> = lots[step % 2].iter().collect();
                run(&mut network, &at, &lot, &Geometry::Identity, &blocks, |_, _| 1.0);
                fresh.push(network.fresh_buffers());
            }
            assert!(fresh[0] > 0, "{kind:?}");
            assert_eq!(fresh[1], fresh[5], "{kind:?} {memory:?}: {fresh:?}");
        }
    }
}

/// Counted by the allocator itself, on one thread.
#[test]
fn the_allocator_agrees() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 1);
        let lot: Vec<Example> = (0..4).map(|seed| zoo::example(kind, seed, 20, 3)).collect();
        let lot: Vec<&Example> = lot.iter().collect();
        let blocks = Blocks::flat(at.len());
        let query =
            CheckedQuery::new(&at, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
        let mut step = || {
            network.load(&at).unwrap();
            network.start_sum(&SumPrecision::Float).unwrap();
            let observed = network.observe(&lot, &query).unwrap();
            network.accumulate(&sound_weights(&observed, |_, _| 1.0)).unwrap();
        };
        pool.install(|| {
            step();
            step();
            let seen = allocation_counter::measure(&mut step);
            // What comes goes again, and there are at a time no more than the observation (two
            // lists), the weights, the blocks, a product's packed operands and a list or two.
            assert_eq!((seen.count_current, seen.bytes_current), (0, 0), "{kind:?}: {seen:?}");
            assert!(seen.count_max <= 5 && seen.bytes_max < 1 << 16, "{kind:?}: {seen:?}");
        });
    }
}
