//! Adversarial lots: records that amplify rounding errors, as an attacker would choose them.
//!
//! A record may change the answer by its own contribution only. Kernels round, and their rounding
//! may depend on the number of rows in a batch, so that the presence of a record could change the
//! last bits of other contributions. For most records this is far below the clip margin. The
//! records of this module are those for which it is not: inputs at which a model's derivative
//! jumps, magnitudes at which much precision is lost, rows with the same rounding errors.

use super::canaries;
use engine::{Example, Input, Target};
use model::InputShape;
use model::Network;
use noise::PublicRandom;
use protocol::Params;

/// Other records, and target records to try among them.
#[derive(Clone)]
pub(super) struct AdversarialLot {
    /// The property of the other records.
    pub(super) name: &'static str,
    /// The other records.
    pub(super) others: Vec<Example>,
    /// Target records: each is compared with its absence, or with the next one in its place.
    pub(super) targets: Vec<Example>,
}

/// The norm of an input at a kink: so large that its gradient is clipped.
const KINK_SCALE: f64 = 1000.0;

/// A factor for very large inputs.
const HUGE: f32 = 1e6;
/// A factor for very small inputs.
const TINY: f32 = 1e-6;

/// The maximum number of tokens of a lot of long texts, unless one text has more.
const MAX_TOKENS: usize = 2048;

/// Creates lots of `count` other records each, for the public model before the first step.
pub(super) fn lots(
    network: &dyn Network,
    params: &Params,
    seed: u64,
    count: usize,
) -> Vec<AdversarialLot> {
    let ordinary = canaries(network, seed, count + 1);
    let (target, ordinary) = (ordinary[count].clone(), &ordinary[..count]);
    let mut lots = match network.graph().input() {
        InputShape::Features(width) => {
            feature_lots(network, params, width, seed, &target, ordinary)
        }
        InputShape::Tokens { vocab, max_length } => {
            token_lots(vocab, max_length, &target, ordinary)
        }
    };
    let others = (0..count)
        .filter_map(|i| lots.get(i % lots.len())?.others.get(i / lots.len()).cloned())
        .collect();
    let targets = lots.first().map_or_else(|| vec![target], |lot| lot.targets.clone());
    lots.push(AdversarialLot { name: "mixture", others, targets });
    lots
}

/// Lots for a model of `width` features.
fn feature_lots(
    network: &dyn Network,
    params: &Params,
    width: usize,
    seed: u64,
    target: &Example,
    ordinary: &[Example],
) -> Vec<AdversarialLot> {
    let example = |i: usize, features: Vec<f32>| {
        let target = ordinary[i % ordinary.len()].parts()[0].target.clone();
        Example::new(Input::Features(features), target)
    };
    let examples = |features: &dyn Fn(usize) -> Vec<f32>| -> Vec<Example> {
        (0..ordinary.len()).map(|i| example(i, features(i))).collect()
    };
    let scaled = |i: usize, factor: f32| match &ordinary[i].parts()[0].input {
        Input::Features(features) => features.iter().map(|x| x * factor).collect(),
        Input::Tokens(_) => Vec::new(),
    };
    let zero = example(0, vec![0.0; width]);
    let targets = vec![zero, target.clone()];
    let lot = |name, others| AdversarialLot { name, others, targets: targets.clone() };
    let mut lots = vec![
        lot("zeros", examples(&|_| vec![0.0; width])),
        lot("equal features", examples(&|i| vec![0.25 * (i as f32 + 1.0); width])),
        lot("huge features", examples(&|i| scaled(i, HUGE))),
        lot("tiny features", examples(&|i| scaled(i, TINY))),
        lot("duplicates", vec![ordinary[0].clone(); ordinary.len()]),
    ];
    let kinks = kinks(network, params, width, seed, ordinary.len());
    if let Some(kink) = kinks.first() {
        // Gradients of the same record have the same direction: if they jump, they jump together.
        lots.insert(0, lot("repeated kink", vec![example(0, kink.clone()); ordinary.len()]));
        let others = kinks.into_iter().enumerate().map(|(i, kink)| example(i, kink)).collect();
        lots.insert(0, lot("kinks", others));
    }
    lots
}

/// Lots for a model of texts.
fn token_lots(
    vocab: usize,
    longest: usize,
    target: &Example,
    ordinary: &[Example],
) -> Vec<AdversarialLot> {
    let token = |i: usize| (i * 7919 % vocab.max(1)) as u32;
    let example = |i: usize, tokens: Vec<u32>| match &ordinary[i % ordinary.len()].parts()[0].target
    {
        Target::Next(_) => Example::continuation(tokens, 1),
        target => Example::new(Input::Tokens(tokens), target.clone()),
    };
    // The first token of a continuation is not predicted, so that it needs a second one.
    let shortest =
        if matches!(target.parts()[0].target, Target::Next(_)) { 2 } else { 1 }.min(longest);
    let long_count = (MAX_TOKENS / longest.max(1)).clamp(1, ordinary.len());
    let targets = vec![example(0, vec![token(3); shortest]), target.clone()];
    let lot = |name, count: usize, tokens: &dyn Fn(usize) -> Vec<u32>| AdversarialLot {
        name,
        others: (0..count).map(|i| example(i, tokens(i))).collect(),
        targets: targets.clone(),
    };
    vec![
        lot("shortest texts", ordinary.len(), &|i| (0..shortest).map(|t| token(i + t)).collect()),
        lot("longest texts", long_count, &|i| {
            (0..longest).map(|t| token(i * longest + t + 1)).collect()
        }),
        lot("repeated token", long_count, &|i| vec![token(i); longest]),
        AdversarialLot {
            name: "duplicates",
            others: vec![ordinary[0].clone(); ordinary.len()],
            targets: targets.clone(),
        },
    ]
}

/// Computes inputs at which hidden units of the first layer are zero up to rounding.
///
/// There an activation such as ReLU has a kink. The inputs are orthogonal to the weights of as many
/// units as the width allows. Empty if no tensor is a first layer of this width.
fn kinks(
    network: &dyn Network,
    params: &Params,
    width: usize,
    seed: u64,
    count: usize,
) -> Vec<Vec<f32>> {
    let first = network
        .tensors(params)
        .into_iter()
        .find(|(_, tensor)| tensor.shape().len() == 2 && tensor.shape().contains(&width));
    let Some((_, weight)) = first else { return Vec::new() };
    let (rows, columns) = (weight.shape()[0], weight.shape()[1]);
    let element = |row: usize, column: usize| f64::from(weight.data()[row * columns + column]);
    let units: Vec<Vec<f64>> = if columns == width {
        (0..rows).map(|row| (0..columns).map(|column| element(row, column)).collect()).collect()
    } else {
        (0..columns).map(|column| (0..rows).map(|row| element(row, column)).collect()).collect()
    };
    // All units are zero if some direction is orthogonal to all their weights.
    let zero_units = if units.len() < width { units.len() } else { width / 2 };
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for unit in units.into_iter().take(zero_units) {
        basis.extend(normalized(orthogonal_part(unit, &basis)));
    }
    let mut normals = vec![0.0f32; width * count];
    PublicRandom::new("kinks", seed).fill_normals(&mut normals);
    let kink = |normals: &[f32]| {
        let normals = normals.iter().map(|&x| f64::from(x)).collect();
        let direction = normalized(orthogonal_part(normals, &basis))?;
        Some(direction.into_iter().map(|x| (KINK_SCALE * x) as f32).collect())
    };
    normals.chunks_exact(width.max(1)).filter_map(kink).collect()
}

/// The part of a vector that is orthogonal to an orthonormal basis, by Gram–Schmidt done twice.
fn orthogonal_part(mut vector: Vec<f64>, basis: &[Vec<f64>]) -> Vec<f64> {
    for direction in basis.iter().chain(basis) {
        let coefficient: f64 = vector.iter().zip(direction).map(|(a, b)| a * b).sum();
        vector.iter_mut().zip(direction).for_each(|(x, y)| *x -= coefficient * y);
    }
    vector
}

/// A vector divided by its norm; `None` if the norm is almost zero.
fn normalized(vector: Vec<f64>) -> Option<Vec<f64>> {
    let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    (norm > 1e-9).then(|| vector.into_iter().map(|x| x / norm).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::device;
    use engine::Input;
    use model::Mlp;
    use model::activation::Activation;

    fn mlp(input: usize, hidden: usize) -> (Box<dyn Network>, Params) {
        let graph =
            Mlp { input, hidden: vec![hidden], classes: 2, activation: Activation::Relu }.graph();
        let values = graph.init(0).unwrap();
        device().network(graph, values, &|_| true).unwrap()
    }

    fn text(preset: model::Preset) -> (Box<dyn Network>, Params) {
        let config = model::hf::Config::new(preset.architecture());
        let checkpoint = model::Checkpoint::new(config, None, 0).unwrap();
        let (_, network, params) = checkpoint.network(device(), |_| true).unwrap();
        (network, params)
    }

    #[test]
    fn kinks_are_where_hidden_units_are_zero() {
        for (input, hidden, zeroed) in [(64, 17, 17), (8, 20, 4)] {
            let (network, params) = mlp(input, hidden);
            let weight = params[0].data();
            let kinks = kinks(&network, &params, input, 5, 15);
            assert_eq!(kinks.len(), 15);
            for kink in &kinks {
                let norm = kink.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                assert!((norm - KINK_SCALE).abs() < 1.0, "{norm}");
                let unit = |k: usize| {
                    weight[k * input..][..input]
                        .iter()
                        .zip(kink)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum::<f64>()
                };
                assert!((0..zeroed).all(|k| unit(k).abs() < 1e-3), "more than rounding of 1000");
                assert!((zeroed..hidden).all(|k| unit(k).abs() > 1e-3));
            }
            assert_ne!(kinks[0], kinks[1]);
        }
    }

    /// The model accepts all records, and they have the properties that name the lots.
    #[test]
    fn lots_have_the_properties_that_name_them() {
        let (network, params) = mlp(12, 5);
        let all = lots(&network, &params, 1, 15);
        let names: Vec<&str> = all.iter().map(|lot| lot.name).collect();
        assert_eq!(
            names,
            [
                "kinks",
                "repeated kink",
                "zeros",
                "equal features",
                "huge features",
                "tiny features",
                "duplicates",
                "mixture"
            ]
        );
        let features = |example: &Example| match &example.parts()[0].input {
            Input::Features(features) => features.clone(),
            Input::Tokens(_) => Vec::new(),
        };
        let of = |name: &str| {
            all.iter()
                .find(|lot| lot.name == name)
                .unwrap()
                .others
                .iter()
                .map(features)
                .collect::<Vec<_>>()
        };
        assert!(of("zeros").iter().flatten().all(|x| *x == 0.0));
        assert!(of("equal features").iter().all(|record| record.iter().all(|x| *x == record[0])));
        assert!(of("huge features").iter().all(|record| record.iter().any(|x| x.abs() > 1e5)));
        assert!(of("tiny features").iter().flatten().all(|x| x.abs() < 1e-4));
        assert!(of("duplicates").windows(2).all(|pair| pair[0] == pair[1]));
        assert!(all.iter().all(
            |lot| lot.others.len() == 15 && features(&lot.targets[0]).iter().all(|x| *x == 0.0)
        ));
        for (network, _, lots) in
            [(network, params, all)].into_iter().chain([model::Preset::Tiny].map(|preset| {
                let (network, params) = text(preset);
                let lots = lots(&network, &params, 1, 15);
                (network, params, lots)
            }))
        {
            let mut network = network.new_instance();
            for lot in &lots {
                for example in lot.others.iter().chain(&lot.targets) {
                    let valid = network.validate(example);
                    valid.unwrap_or_else(|error| panic!("{}: {error}", lot.name));
                }
            }
        }
    }

    #[test]
    fn texts_are_shortest_longest_and_repeated() {
        let (network, params) = text(model::Preset::Tiny);
        let InputShape::Tokens { max_length, .. } = network.graph().input() else { unreachable!() };
        let all = lots(&network, &params, 1, 15);
        let of = |name: &str| &all.iter().find(|lot| lot.name == name).unwrap().others;
        assert!(
            of("shortest texts").len() == 15
                && of("shortest texts").iter().all(|text| text.len() == 2)
        );
        assert!(
            !of("longest texts").is_empty()
                && of("longest texts").iter().all(|text| text.len() == max_length)
        );
        let same = |text: &Example| {
            if let Input::Tokens(tokens) = &text.parts()[0].input {
                tokens.iter().all(|t| *t == tokens[0])
            } else {
                false
            }
        };
        assert!(of("repeated token").iter().all(|text| same(text) && text.len() == max_length));
        assert!(of("longest texts").iter().all(|text| !same(text)));
        assert!(of("mixture").len() > 10);
    }
}
