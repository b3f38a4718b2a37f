//! What several tests need: a gradient by brute force, one example at a time, and ways to compare.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod zoo;

use model::{Accumulator, Engine, Example, Network, Observed, Sum, Weights};
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
    let mut sum = Sum::float(at);
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    let mut weigh = |seen: &Observed<'_>, weights: &mut Weights| {
        for example in 0..seen.examples() {
            losses.push(seen.loss(example));
            norms.push((0..seen.blocks()).map(|block| seen.norm(example, block)).collect());
            (0..seen.blocks())
                .for_each(|block| weights.set(example, block, weight(example, block)));
        }
    };
    network.weighted_sum(at, examples, geometry, blocks, &mut weigh, &mut sum).unwrap();
    Outcome { losses, norms, sum: params(&sum, at) }
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
