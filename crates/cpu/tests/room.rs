//! A norm that is reported is not smaller than that of the gradient that is summed, rounding
//! included: what the room that is added to norms is for.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::{Network, NormMethod};
use engine::{CheckedQuery, Engine, StepScale, SumPrecision, weighted_sum};
use noise::PublicRandom;
use protocol::{Blocks, Frame, Geometry, Params};
use support::{sound_weights, zoo};
use tensor::Array;

/// The norm that is reported for an example, and that of what it adds to a sum, encoded, on a grid
/// far finer than f32.
fn norms(
    network: &mut Network,
    at: &Params,
    example: &engine::Example,
    geometry: &Geometry,
) -> (f64, f64) {
    let blocks = Blocks::flat(at.len());
    let query = CheckedQuery::new(at, geometry, &blocks, &network.trainable()).unwrap();
    let mut ask = |scale: f32| {
        let precision = SumPrecision::Steps(vec![StepScale::Wide(scale); at.len()]);
        let weigh = |observed: &_| sound_weights(observed, |_, _| 1.0);
        let (observed, sum) =
            weighted_sum(network, at, &[example], &query, &precision, weigh).unwrap();
        (observed.norm(0, 0), sum)
    };
    let (norm, _) = ask(1.0);
    let (_, sum) = ask(2f32.powi(40 - norm.max(1e-6).log2().ceil() as i32));
    let gradient = sum.iter().map(|sum| (0..sum.len()).map(|i| sum.value(i)).collect()).collect();
    let encoded = geometry.encode(&blocks, gradient);
    (norm, encoded.iter().flatten().map(|x| x * x).sum::<f64>().sqrt())
}

fn affine(at: &Params) -> Geometry {
    let made = |seed: u64, f: &dyn Fn(f32) -> f32| {
        let tensor = |(k, like): (usize, &Array)| {
            let mut tensor = Array::zeros(like.shape());
            PublicRandom::from_seed(seed + k as u64).normals(0, tensor.data_mut());
            tensor.data_mut().iter_mut().for_each(|x| *x = f(*x));
            tensor
        };
        Params::new(at.iter().enumerate().map(tensor).collect())
    };
    // Small scales, so that an encoding lengthens what rounding leaves.
    Geometry::Affine {
        center: made(500, &|z| 1e-4 * z),
        scale: made(600, &|z| 1e-3 * (0.2 + z.abs())),
    }
}

#[test]
fn reported_norms_cover_what_is_summed() {
    for kind in zoo::ALL {
        let (mut network, at) = zoo::network(kind, 5);
        let pairs = network.pairs();
        let frames: Vec<Frame> =
            pairs.iter().map(|&(left, right)| Frame::new(&at, left, right).unwrap()).collect();
        let mut geometries = vec![Geometry::Identity, affine(&at)];
        if !frames.is_empty() {
            geometries.push(Geometry::Tangent { frames });
        }
        for geometry in &geometries {
            for method in [NormMethod::Direct, NormMethod::Ghost, NormMethod::Cheapest] {
                network.set_norm_method(method);
                for seed in 0..12 {
                    let example = zoo::example(kind, 300 + seed, 3 + (seed as usize * 5) % 21, 0);
                    let (reported, summed) = norms(&mut network, &at, &example, geometry);
                    // A norm from inner products is certain to a thousandth; others are never too
                    // small.
                    let room = if method == NormMethod::Direct
                        || !matches!(geometry, Geometry::Identity)
                    {
                        1.0
                    } else {
                        1.0015
                    };
                    assert!(
                        summed <= reported * room,
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
