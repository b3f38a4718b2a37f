//! Helpers for tests: brute-force gradients of single examples, and comparisons.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod zoo;

use cpu::Network;
use engine::{
    Accumulator, CheckedQuery, Engine, Example, Observed, Sum, SumPrecision, Weights, weighted_sum,
};
use proptest::test_runner::{Config, RngSeed};
use protocol::{Blocks, Geometry, Params};
use tensor::Array;

/// Returns a configuration with `cases` cases from a fixed seed.
///
/// `MUFFLE_CASES=20` draws twenty times as many cases, with a new seed each time.
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

/// Losses, norms and the weighted gradient sum of a micro-batch.
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    /// Norms by example and block.
    pub(crate) norms: Vec<Vec<f64>>,
    pub(crate) sum: Params,
}

/// Computes the losses and norms of a micro-batch and its sum with weights `weight(example,
/// block)`.
pub(crate) fn run(
    network: &mut Network,
    params: &Params,
    examples: &[&Example],
    geometry: &Geometry,
    blocks: &Blocks,
    weight: impl Fn(usize, usize) -> f64,
) -> Outcome {
    let query = CheckedQuery::new(params, geometry, blocks, &network.trainable()).unwrap();
    let weigh = |observed: &Observed| sound_weights(observed, &weight);
    let (observed, sum) =
        weighted_sum(network, params, examples, &query, &SumPrecision::Float, weigh).unwrap();
    let norms = |example| (0..observed.blocks()).map(move |block| (example, block));
    let norms = (0..observed.examples())
        .map(|example| norms(example).map(|(example, block)| observed.norm(example, block)))
        .map(Iterator::collect)
        .collect();
    let losses = (0..observed.examples()).map(|example| observed.loss(example)).collect();
    Outcome { losses, norms, sum: to_params(&sum, params) }
}

/// Returns the weights of sound examples; like in the curator, other examples have weight 0.
pub(crate) fn sound_weights(observed: &Observed, weight: impl Fn(usize, usize) -> f64) -> Weights {
    let mut weights = Weights::zeros(observed.examples(), observed.blocks());
    for example in (0..observed.examples()).filter(|&example| observed.is_sound(example)) {
        for block in 0..observed.blocks() {
            weights.set(example, block, weight(example, block));
        }
    }
    weights
}

/// Converts a sum to tensors of the shapes of `like`.
pub(crate) fn to_params(sum: &Sum, like: &Params) -> Params {
    let tensor =
        |(sum, like): (&Accumulator, &Array)| Array::from_fn(like.shape(), |i| sum.value(i) as f32);
    Params::new(sum.iter().zip(like.iter()).map(tensor).collect())
}

/// Computes each example's gradient from its parts, each in a batch of one, without norms.
pub(crate) fn gradients(
    network: &mut Network,
    params: &Params,
    examples: &[&Example],
) -> Vec<Params> {
    examples
        .iter()
        .map(|example| {
            let mut total = params.zeros_like();
            for part in example.parts() {
                let mut sum = params.zeros_like();
                network.plain_sum(params, &[&part.clone().into()], &mut sum).unwrap();
                for (total, sum) in total.iter_mut().zip(sum.iter()) {
                    let pairs = total.data_mut().iter_mut().zip(sum.data());
                    pairs.for_each(|(total, x)| *total += example.part_weight() * x);
                }
            }
            total
        })
        .collect()
}

/// Returns the norm of a block: the root of Σ ((g − center)/scale)² over its tensors.
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

/// Returns whether two numbers differ by at most an absolute plus a relative tolerance.
pub(crate) fn close(a: f64, b: f64, relative: f64, absolute: f64) -> bool {
    (a - b).abs() <= absolute + relative * a.abs().max(b.abs())
}

/// Returns the weighted sum Σ_i w_i · g_i.
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

/// Returns the largest difference of elements, relative to the largest element of the tensor.
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
