//! What several tests need: a gradient by brute force, one example at a time, and ways to compare.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod zoo;

use cpu::Network;
use engine::{
    Accumulator, CheckedQuery, Engine, Example, Observed, Sum, SumPrecision, Weights, weighted_sum,
};
use proptest::test_runner::{Config, RngSeed};
use protocol::{Blocks, Geometry, Params};
use tensor::Array;

/// `cases` cases from a fixed seed; `MUFFLE_CASES=20` draws twenty times as many, new ones each
/// time.
pub(crate) fn config(cases: u32) -> Config {
    match std::env::var("MUFFLE_CASES").ok().and_then(|times| times.parse::<u32>().ok()) {
        Some(times) => Config {
            cases: cases.saturating_mul(times),
            failure_persistence: None,
            ..Config::default()
        },
        None => Config {
            cases,
            rng_seed: RngSeed::Fixed(7),
            failure_persistence: None,
            ..Config::default()
        },
    }
}

/// Losses and norms of a micro-batch, and the weighted sum for weights of our choice.
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    /// By example, then block.
    pub(crate) norms: Vec<Vec<f64>>,
    pub(crate) sum: Params,
}

pub(crate) fn run(
    network: &mut Network,
    at: &Params,
    examples: &[&Example],
    geometry: &Geometry,
    blocks: &Blocks,
    weight: impl Fn(usize, usize) -> f64,
) -> Outcome {
    let query = CheckedQuery::new(at, geometry, blocks, &network.trainable()).unwrap();
    let weigh = |observed: &Observed| sound_weights(observed, &weight);
    let (observed, sum) =
        weighted_sum(network, at, examples, &query, &SumPrecision::Float, weigh).unwrap();
    let norms = |example| (0..observed.blocks()).map(move |block| (example, block));
    let norms = (0..observed.examples())
        .map(|example| norms(example).map(|(example, block)| observed.norm(example, block)))
        .map(Iterator::collect)
        .collect();
    let losses = (0..observed.examples()).map(|example| observed.loss(example)).collect();
    Outcome { losses, norms, sum: params(&sum, at) }
}

/// Weights of the sound examples, as the curator sets them: the others have weight 0.
pub(crate) fn sound_weights(observed: &Observed, weight: impl Fn(usize, usize) -> f64) -> Weights {
    let mut weights = Weights::zeros(observed.examples(), observed.blocks());
    for example in (0..observed.examples()).filter(|&example| observed.is_sound(example)) {
        for block in 0..observed.blocks() {
            weights.set(example, block, weight(example, block));
        }
    }
    weights
}

/// A sum as tensors of these shapes.
pub(crate) fn params(sum: &Sum, like: &Params) -> Params {
    let tensor =
        |(sum, like): (&Accumulator, &Array)| Array::from_fn(like.shape(), |i| sum.value(i) as f32);
    Params::new(sum.iter().zip(like.iter()).map(tensor).collect())
}

/// Each example's gradient, made alone and whole: a batch of one, summed without norms.
pub(crate) fn gradients(network: &mut Network, at: &Params, examples: &[&Example]) -> Vec<Params> {
    examples
        .iter()
        .map(|example| {
            let mut sum = at.zeros_like();
            network.plain_sum(at, &[example], &mut sum).unwrap();
            sum
        })
        .collect()
}

/// Σ over the tensors of a block of ((g − center)/scale)².
pub(crate) fn norm(gradient: &Params, geometry: &Geometry, blocks: &Blocks, block: usize) -> f64 {
    let mut total = 0.0;
    for k in (0..gradient.len()).filter(|&k| blocks.of(k) == block) {
        for (i, &g) in gradient[k].data().iter().enumerate() {
            let g = f64::from(g);
            total += match geometry {
                Geometry::Affine { center, scale } => {
                    ((g - f64::from(center[k].data()[i])) / f64::from(scale[k].data()[i])).powi(2)
                }
                _ => g * g,
            };
        }
    }
    total.sqrt()
}

pub(crate) fn close(a: f64, b: f64, relative: f64, absolute: f64) -> bool {
    (a - b).abs() <= absolute + relative * a.abs().max(b.abs())
}

/// Σ_i w_i · g_i
pub(crate) fn weighted(
    gradients: &[Params],
    blocks: &Blocks,
    weight: impl Fn(usize, usize) -> f64,
) -> Params {
    let mut sum = gradients[0].zeros_like();
    for (example, gradient) in gradients.iter().enumerate() {
        for k in 0..sum.len() {
            let w = weight(example, blocks.of(k)) as f32;
            sum[k].data_mut().iter_mut().zip(gradient[k].data()).for_each(|(s, g)| *s += w * g);
        }
    }
    sum
}

/// The largest difference, in units of the largest number of its tensor.
pub(crate) fn difference(a: &Params, b: &Params) -> f64 {
    let one = |(a, b): (&Array, &Array)| {
        let scale = b.data().iter().fold(1e-2f32, |m, x| m.max(x.abs()));
        a.data()
            .iter()
            .zip(b.data())
            .fold(0.0f64, |m, (x, y)| m.max(f64::from((x - y).abs() / scale)))
    };
    a.iter().zip(b.iter()).map(one).fold(0.0, f64::max)
}
