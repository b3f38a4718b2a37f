//! The margin for rounding: a reported norm is not smaller than that of the summed gradient.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{Network, NormMethod};
use engine::{CheckedQuery, Engine, StepScale, SumPrecision, weighted_sum};
use noise::PublicRandom;
use protocol::{Blocks, Frame, Geometry, Params};
use support::{sound_weights, zoo};
use tensor::Array;

/// Returns the reported norm of an example and the norm of its encoded contribution to a sum.
///
/// The sum is on a grid much finer than f32.
fn norms(
    network: &mut Network,
    params: &Params,
    example: &engine::Example,
    geometry: &Geometry,
) -> (f64, f64) {
    let blocks = Blocks::flat(params.len());
    let query = CheckedQuery::new(params, geometry, &blocks, &network.trainable()).unwrap();
    let mut observe = |scale: f32| {
        let precision = SumPrecision::Steps(vec![StepScale::Wide(scale); params.len()]);
        let weigh = |observed: &_| sound_weights(observed, |_, _| 1.0);
        let (observed, sum) =
            weighted_sum(network, params, &[example], &query, &precision, weigh).unwrap();
        (observed.norm(0, 0), sum)
    };
    let (norm, _) = observe(1.0);
    let (_, sum) = observe(2f32.powi(40 - norm.max(1e-6).log2().ceil() as i32));
    let gradient = sum.iter().map(|sum| (0..sum.len()).map(|i| sum.value(i)).collect()).collect();
    let encoded = geometry.encode(&blocks, gradient);
    (norm, encoded.iter().flatten().map(|x| x * x).sum::<f64>().sqrt())
}

/// Returns an affine geometry with random center and scale.
fn affine(params: &Params) -> Geometry {
    let random = |seed: u64, f: &dyn Fn(f32) -> f32| {
        let tensor = |(k, like): (usize, &Array)| {
            let mut tensor = Array::zeros(like.shape());
            PublicRandom::from_seed(seed + k as u64).normals(0, tensor.data_mut());
            tensor.data_mut().iter_mut().for_each(|x| *x = f(*x));
            tensor
        };
        Params::new(params.iter().enumerate().map(tensor).collect())
    };
    // Small scales, so that the encoding amplifies rounding errors.
    Geometry::Affine {
        center: random(500, &|z| 1e-4 * z),
        scale: random(600, &|z| 1e-3 * (0.2 + z.abs())),
    }
}

#[test]
fn reported_norms_cover_what_is_summed() {
    for kind in zoo::ALL {
        let (mut network, params) = zoo::network(kind, 5);
        let pairs = network.pairs();
        let frames: Vec<Frame> =
            pairs.iter().map(|&(left, right)| Frame::new(&params, left, right).unwrap()).collect();
        let mut geometries = vec![Geometry::Identity, affine(&params)];
        if !frames.is_empty() {
            geometries.push(Geometry::Tangent { frames });
        }
        for geometry in &geometries {
            for method in [NormMethod::Direct, NormMethod::Ghost, NormMethod::Cheapest] {
                network.set_norm_method(method);
                for seed in 0..12 {
                    let example = zoo::example(kind, 300 + seed, 3 + (seed as usize * 5) % 21, 0);
                    let (reported, summed) = norms(&mut network, &params, &example, geometry);
                    // A ghost norm is accurate to a thousandth; other norms are never too small.
                    let tolerance = if method == NormMethod::Direct
                        || !matches!(geometry, Geometry::Identity)
                    {
                        1.0
                    } else {
                        1.0015
                    };
                    assert!(
                        summed <= reported * tolerance,
                        "{kind:?} {method:?} {seed}: reported {reported:e}, summed {summed:e}"
                    );
                    assert!(
                        reported <= summed * 1.01 + 1e-6,
                        "{kind:?} {method:?} {seed}: reported {reported:e}, summed {summed:e}"
                    );
                }
            }
        }
    }
}
