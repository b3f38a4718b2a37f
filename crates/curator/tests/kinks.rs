//! Records at the kinks of ReLU and max-pooling, where the last bit of an activation decides a
//! whole gradient: whether one record is present must change no bit of what the others contribute.
//!
//! The attack: many co-records in the null space of the first layer at its public initial value,
//! scaled up, so that their activations are nothing but rounding; a target that contributes next to
//! nothing itself. If the number of records changes how products are rounded, the target's presence
//! turns units of all co-records on and off, and moves the sum by many times its bound.

#![allow(clippy::unwrap_used)]

mod support;

use audit::PairedOracles;
use cpu::Network;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::Example;
use model::activation::Activation;
use model::patches::ImageShape;
use model::{Cnn, Graph, Mlp};
use noise::PublicRandom;
use protocol::{Announcement, Blocks, Bound, Clipping, Geometry, GradientQuery, Oracle, Params};
use support::poisson;
use tensor::linalg::thin_qr;
use tensor::{Array, matmul::product};

/// A record that the rows of a first layer map to nothing but rounding.
fn in_null_space(weights: &Array, seed: u64, scale: f32) -> Vec<f32> {
    let (outputs, inputs) = (weights.rows(), weights.cols());
    let mut x = vec![0.0; inputs];
    PublicRandom::from_seed(seed).normals(0, &mut x);
    let turned =
        Array::from_fn([inputs, outputs], |i| weights.data()[i % outputs * inputs + i / outputs]);
    let (basis, _) = thin_qr(&turned).unwrap();
    // Twice, so that what rounding leaves of the first time is gone as well.
    for _ in 0..2 {
        let row = Array::new([1, inputs], x.clone()).unwrap();
        let inside = product(product(row.view(), basis.view()).view(), basis.view().t());
        x.iter_mut().zip(inside.data()).for_each(|(x, y)| *x -= y);
    }
    x.iter().map(|x| x * scale).collect()
}

/// The largest movement of any sum by the target's presence, as a share of the declared
/// sensitivity.
fn farthest(
    graph: &dyn Fn() -> Graph,
    others: &[Example],
    target: &Example,
    micro_batch: usize,
    sampling: Sampling,
    seed: u64,
) -> f64 {
    let network = || {
        let graph = graph();
        let values = graph.init(seed).unwrap();
        Network::new(graph, values, |_| true).unwrap()
    };
    let at: Params = network().1;
    let curator = |last: Option<Example>| {
        let mut places: Vec<Option<Example>> = others.iter().cloned().map(Some).collect();
        places.push(last);
        let mut curator = Curator::new(
            network().0,
            Records::with_vacancies(places),
            sampling,
            Door::unlimited(),
            Randomness::fixed(seed),
        )
        .unwrap();
        curator.set_micro_batch(micro_batch);
        curator
    };
    let (mut one, mut other) = (curator(Some(target.clone())), curator(None));
    let mut twins = PairedOracles::new(&mut one, &mut other, 1.0);
    let blocks = Blocks::flat(at.len());
    let bounds = [Bound::new(1.0, 1e-3).unwrap()];
    let query = GradientQuery {
        at: &at,
        geometry: &Geometry::Identity,
        blocks: &blocks,
        bounds: &bounds,
        clipping: Clipping::Cut,
    };
    for _ in 0..2 {
        twins.draw(&Announcement::gradient(&bounds)).unwrap();
        twins.gradient(&query).unwrap();
    }
    assert!(twins.report().violations.is_empty() || twins.report().max_distance > 1.0);
    twins.report().max_distance
}

/// Many shapes around the sides at which libraries choose another product: 16 × 16 elements, 64
/// rows, one row.
#[test]
fn presence_changes_no_other_record() {
    for (inputs, hidden, count) in [
        (64, 17, 15),
        (64, 15, 17),
        (32, 5, 12),
        (80, 63, 64),
        (80, 65, 63),
        (40, 4, 1),
        (40, 20, 2),
    ] {
        let graph = || {
            Mlp { input: inputs, hidden: vec![hidden], classes: 2, activation: Activation::Relu }
                .graph()
        };
        for seed in 0..3 {
            let weights = graph()
                .init(seed)
                .unwrap()
                .into_iter()
                .find(|tensor| tensor.shape() == [hidden, inputs])
                .unwrap();
            let others: Vec<Example> = (0..count)
                .map(|i| {
                    Example::features(
                        in_null_space(&weights, 100 * seed + i, 1000.0),
                        (i % 2) as u32,
                    )
                })
                .collect();
            let targets = [
                Example::features(vec![0.0; inputs], 0),
                Example::features(in_null_space(&weights, 77, 1000.0), 1),
                Example::features(vec![1.0; inputs], 1),
            ];
            for target in &targets {
                for (micro_batch, sampling) in [
                    (16, Sampling::Full),
                    (64, Sampling::Full),
                    (3, Sampling::Full),
                    (16, poisson(0.7)),
                ] {
                    let share = farthest(&graph, &others, target, micro_batch, sampling, seed);
                    assert!(
                        share <= 1.0,
                        "{inputs}-{hidden}, {count} others, micro-batch {micro_batch}, \
                         {sampling:?}: {share}"
                    );
                }
            }
        }
    }
}

/// Max-pooling and ReLU on images that are flat, so that every window is a tie up to rounding.
#[test]
fn presence_changes_no_other_image() {
    let image = ImageShape { height: 8, width: 8, channels: 1 };
    let cnn = Cnn {
        image,
        stages: vec![4, 6],
        activation: Activation::Relu,
        groups: 2,
        global_pooling: true,
        classes: 3,
    };
    let graph = || cnn.graph();
    for seed in 0..2 {
        let others: Vec<Example> =
            (0..9).map(|i| Example::features(vec![0.1 * i as f32 - 0.3; 64], i % 3)).collect();
        for target in [Example::features(vec![0.0; 64], 0), Example::features(vec![1000.0; 64], 1)]
        {
            for micro_batch in [1, 4, 16] {
                let share = farthest(&graph, &others, &target, micro_batch, Sampling::Full, seed);
                assert!(share <= 1.0, "micro-batch {micro_batch}: {share}");
            }
        }
    }
}
