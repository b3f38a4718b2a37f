//! No per-example gradient of a matrix is ever made.

#![allow(clippy::unwrap_used)]

mod support;

use curator::{Curator, Door, Randomness, Records, Sampling};
use model::activation::Activation;
use model::{Builder, Example, Lora, Network};
use protocol::{Blocks, Bound, Clipping, Geometry};
use support::{Asking, frames};

/// A low-rank addition of rank 1 to a matrix of a million numbers: one step in tangent coordinates allocates less than a twentieth of its bytes in all.
#[test]
fn a_step_in_tangent_coordinates_makes_no_matrix() {
    let side = 1024;
    let mut build = Builder::numbers(side).with_lora(Some(Lora { rank: 1, alpha: 1.0, on: vec!["big".into()] }));
    let big = build.map("big", side, side, 0.03);
    let features = build.features();
    let hidden = build.linear(features, &[big], Some(Activation::Tanh));
    let head = build.map("head", side, 2, 0.03);
    let logits = build.linear(hidden, &[head], None);
    let graph = build.finish(logits);
    let values = graph.init(1).unwrap();
    let (network, at) = Network::new(graph, values, |name| name.contains(".lora_")).unwrap();
    let asking = Asking {
        geometry: Geometry::Tangent { frames: frames(&network, &at) },
        blocks: Blocks::flat(at.len()),
        bounds: vec![Bound::new(1.0, 1.0).unwrap()],
        clipping: Clipping::Cut,
    };
    let people = (0..4).map(|seed| Example::numbers((0..side).map(|i| ((i + seed) % 7) as f32 * 0.1).collect(), seed as u32 % 2)).collect();
    let mut curator = Curator::new(network, Records::new(people), Sampling::Full, Door::unlimited(), Randomness::fixed(1)).unwrap();
    // In one thread, because what others allocate is not counted. The first step makes the engine's buffers.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let measured = pool.install(|| {
        asking.ask(&mut curator, &at).unwrap();
        allocation_counter::measure(|| drop(asking.ask(&mut curator, &at).unwrap()))
    });
    assert!(measured.bytes_total > 0);
    let matrix = 4 * (side * side) as u64;
    assert!(measured.bytes_total * 20 < matrix, "{} bytes in a step, a matrix has {matrix}", measured.bytes_total);
}
