//! Small models, records for them, and curators of our choice.

#![allow(dead_code, clippy::unwrap_used)]

use accounting::SamplingRate;
use cpu::Network;
use curator::{Curator, Door, Randomness, Records, Sampling};
use engine::Example;
use model::activation::Activation;
use model::hf::{Architecture, Gpt2Config};
use model::{Lora, Mlp};
use noise::PublicRandom;
use protocol::{
    Announcement, Blocks, Bound, Clipping, Frame, Geometry, GradientQuery, Noisy, Oracle, Params,
    Positive, Refused,
};
use tensor::Array;

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mlp,
    Gpt2,
    Lora,
}

pub(crate) const ALL: [Kind; 3] = [Kind::Mlp, Kind::Gpt2, Kind::Lora];

pub(crate) const FEATURES: usize = 6;
const VOCAB: usize = 11;

pub(crate) fn network(kind: Kind) -> (Network, Params) {
    let gpt2 = Architecture::Gpt2(Gpt2Config {
        vocab: VOCAB,
        positions: 16,
        width: 8,
        layers: 1,
        heads: 2,
        inner: 16,
        activation: Activation::GeluTanh,
        epsilon: 1e-5,
        tied: true,
    });
    let graph = match kind {
        Kind::Mlp => {
            Mlp { input: FEATURES, hidden: vec![8], classes: 3, activation: Activation::Tanh }
                .graph()
        }
        Kind::Gpt2 => gpt2.graph(None),
        Kind::Lora => gpt2.graph(Some(Lora { rank: 2, alpha: 4.0, on: Vec::new() })),
    };
    let mut values = graph.init(3).unwrap();
    // Nothing degenerate: no bias is zero, no pair balanced.
    values.iter_mut().enumerate().for_each(|(k, value)| {
        let mut noise = vec![0.0; value.len()];
        PublicRandom::from_seed(100 + k as u64).normals(0, &mut noise);
        value.data_mut().iter_mut().zip(noise).for_each(|(x, z)| *x += 0.3 * z);
    });
    Network::new(graph, values, |name| kind != Kind::Lora || name.contains(".lora_")).unwrap()
}

/// Record number `seed`; `scale` makes numbers large or small.
pub(crate) fn record(kind: Kind, seed: u64, scale: f32) -> Example {
    let mut noise = vec![0.0f32; 16];
    PublicRandom::from_seed(seed).derive(7).normals(0, &mut noise);
    match kind {
        Kind::Mlp => Example::features(
            noise[..FEATURES].iter().map(|z| z * scale).collect(),
            (seed % 3) as u32,
        ),
        Kind::Gpt2 | Kind::Lora => {
            let length = 2 + (seed % 9) as usize;
            let token = |z: &f32| (z.abs() * 1000.0) as u32 % VOCAB as u32;
            Example::continuation(noise[..length].iter().map(token).collect(), (seed % 3) as usize)
        }
    }
}

pub(crate) fn records(kind: Kind, count: u64) -> Vec<Example> {
    (0..count).map(|seed| record(kind, seed, 10f32.powi(seed as i32 % 5 - 2))).collect()
}

pub(crate) fn curator(
    kind: Kind,
    records: Records,
    sampling: Sampling,
    seed: u64,
) -> (Curator<Network>, Params) {
    let (network, params) = network(kind);
    (
        Curator::new(network, records, sampling, Door::unlimited(), Randomness::fixed(seed))
            .unwrap(),
        params,
    )
}

pub(crate) fn poisson(rate: f64) -> Sampling {
    Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }
}

pub(crate) fn positive(x: f64) -> Positive {
    Positive::new("test", x).unwrap()
}

/// A way of spec: everything about a query but where.
pub(crate) struct QuerySpec {
    pub(crate) geometry: Geometry,
    pub(crate) blocks: Blocks,
    pub(crate) bounds: Vec<Bound>,
    pub(crate) clipping: Clipping,
}

impl QuerySpec {
    pub(crate) fn ask(
        &self,
        curator: &mut impl Oracle,
        at: &Params,
    ) -> Result<Noisy<Params>, Refused> {
        curator.draw(&Announcement::gradient(&self.bounds))?;
        let answer = curator.gradient(&self.query(at))?;
        Ok(Noisy { value: answer.value.into_params(at.len())?, std: answer.std })
    }

    pub(crate) fn query<'a>(&'a self, at: &'a Params) -> GradientQuery<'a> {
        GradientQuery {
            at,
            geometry: &self.geometry,
            blocks: &self.blocks,
            bounds: &self.bounds,
            clipping: self.clipping,
        }
    }

    /// The norm of a block of some tensors, all numbers taken together.
    pub(crate) fn norm(&self, params: &[Vec<f64>], block: usize) -> f64 {
        (0..params.len())
            .filter(|&k| self.blocks.of(k) == block)
            .flat_map(|k| &params[k])
            .map(|x| x * x)
            .sum::<f64>()
            .sqrt()
    }
}

/// The low-rank pairs of a model.
pub(crate) fn frames(network: &Network, params: &Params) -> Vec<Frame> {
    network
        .pairs()
        .into_iter()
        .map(|(left, right)| Frame::new(params, left, right).unwrap())
        .collect()
}

/// Every geometry, partition and way of clipping that makes sense for a model, with small noise so
/// that sums can be seen through it.
pub(crate) fn query_specs(
    kind: Kind,
    network: &Network,
    params: &Params,
    clip: f64,
    sigma: f64,
) -> Vec<QuerySpec> {
    let affine = || {
        let made = |seed: u64, f: &dyn Fn(f32) -> f32| {
            let tensor = |(k, tensor): (usize, &Array)| {
                let mut array = Array::zeros(tensor.shape());
                PublicRandom::from_seed(seed + k as u64).normals(0, array.data_mut());
                array.data_mut().iter_mut().for_each(|x| *x = f(*x));
                array
            };
            Params::new(params.iter().enumerate().map(tensor).collect())
        };
        Geometry::Affine { center: made(500, &|z| 0.05 * z), scale: made(600, &|z| 0.2 + z.abs()) }
    };
    let tensors = params.len();
    let halves =
        Blocks::new((0..tensors).map(|k| usize::from(k * 2 >= tensors)).collect()).unwrap();
    let automatic = Clipping::Automatic { gamma: positive(0.05) };
    let mut list = vec![
        (Geometry::Identity, Blocks::flat(tensors), Clipping::Cut),
        (Geometry::Identity, Blocks::flat(tensors), automatic),
        (Geometry::Identity, Blocks::each(tensors), Clipping::Cut),
        (Geometry::Identity, Blocks::each(tensors), automatic),
        (Geometry::Identity, halves.clone(), Clipping::Cut),
        (affine(), Blocks::flat(tensors), Clipping::Cut),
        (affine(), halves, automatic),
    ];
    if kind == Kind::Lora {
        list.push((
            Geometry::Tangent { frames: frames(network, params) },
            Blocks::flat(tensors),
            Clipping::Cut,
        ));
        list.push((
            Geometry::Tangent { frames: frames(network, params) },
            Blocks::flat(tensors),
            automatic,
        ));
    }
    let bounds = |count: usize| {
        (0..count)
            .map(|k| {
                Bound::new(clip * (1.0 + 0.5 * k as f64), sigma * (1.0 + 0.1 * k as f64)).unwrap()
            })
            .collect()
    };
    list.into_iter()
        .map(|(geometry, blocks, clipping)| QuerySpec {
            bounds: bounds(blocks.count()),
            geometry,
            blocks,
            clipping,
        })
        .collect()
}

/// Released numbers times the lot size, by tensor.
pub(crate) fn sums(release: &Noisy<Params>, lot_size: f64) -> Vec<Vec<f64>> {
    tensor_sums(release.value.iter(), lot_size)
}

pub(crate) fn tensor_sums<'a>(
    release: impl Iterator<Item = &'a Array>,
    lot_size: f64,
) -> Vec<Vec<f64>> {
    release.map(|tensor| tensor.data().iter().map(|&x| f64::from(x) * lot_size).collect()).collect()
}
