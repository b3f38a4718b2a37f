//! After the first steps, a training step allocates no new buffers.

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
            let (mut network, params) = zoo::network(kind, 1);
            network.set_activations(memory);
            let lots: Vec<Vec<Example>> = [1, 50]
                .map(|seed| (seed..seed + 4).map(|seed| zoo::example(kind, seed, 12, 3)).collect())
                .to_vec();
            let blocks = Blocks::flat(params.len());
            let mut allocated = Vec::new();
            for step in 0..6 {
                let lot: Vec<&Example> = lots[step % 2].iter().collect();
                run(&mut network, &params, &lot, &Geometry::Identity, &blocks, |_, _| 1.0);
                allocated.push(network.allocated_buffers());
            }
            assert!(allocated[0] > 0, "{kind:?}");
            assert_eq!(allocated[1], allocated[5], "{kind:?} {memory:?}: {allocated:?}");
        }
    }
}

/// Allocations are counted by the allocator, on one thread.
#[test]
fn a_step_makes_few_temporary_allocations() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 1);
        let lot: Vec<Example> = (0..4).map(|seed| zoo::example(kind, seed, 20, 3)).collect();
        let lot: Vec<&Example> = lot.iter().collect();
        let blocks = Blocks::flat(params.len());
        let query =
            CheckedQuery::new(&params, &Geometry::Identity, &blocks, &network.trainable()).unwrap();
        let mut step = || {
            network.load(&params).unwrap();
            network.start_sum(&SumPrecision::Float).unwrap();
            let observed = network.observe(&lot, &query).unwrap();
            network.accumulate(&sound_weights(&observed, |_, _| 1.0)).unwrap();
        };
        pool.install(|| {
            step();
            step();
            let count = allocation_counter::measure(&mut step);
            // All memory is freed again. At most these exist at the same time: the observation (two
            // lists), the weights, the blocks, packed operands of a product and one or two lists.
            assert_eq!((count.count_current, count.bytes_current), (0, 0), "{kind:?}: {count:?}");
            assert!(count.count_max <= 5 && count.bytes_max < 1 << 16, "{kind:?}: {count:?}");
        });
    }
}
