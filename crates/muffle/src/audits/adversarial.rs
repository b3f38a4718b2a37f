//! Lots made to magnify rounding: the records that an attacker would choose beside the target.
//!
//! A record may change the answer by its own contribution only. Kernels round, and how they round
//! may depend on how many rows a batch has, so that a record that is there or not could reach the
//! contributions of others through the last bits of their numbers. For most records this is far
//! below what is allowed for. The records here are those for which it is not: numbers at which a
//! model's derivative jumps, sizes at which much is lost, rows that all round alike.

use super::canaries;
use engine::{Example, Target};
use model::InputShape;
use model::Network;
use noise::PublicRandom;
use protocol::Params;

/// Records beside the target, and targets to try among them.
#[derive(Clone)]
pub(super) struct Lot {
    /// What is strange about them.
    pub(super) name: &'static str,
    /// The other records.
    pub(super) others: Vec<Example>,
    /// Each of them once there, and once not or replaced by the next.
    pub(super) targets: Vec<Example>,
}

/// How far beyond a usual record the numbers of a kink are: whatever the gradient is, it is
/// clipped, and if it jumps, by all of its size.
const KINK_SCALE: f64 = 1000.0;

/// Sizes of numbers that are far from usual.
const HUGE: f32 = 1e6;
const TINY: f32 = 1e-6;

/// Tokens of a lot of long texts, at most, unless one text alone has more.
const TOKENS: usize = 2048;

/// Lots of `count` other records each, for a model as it is publicly known before the first step.
pub(super) fn lots(network: &dyn Network, params: &Params, seed: u64, count: usize) -> Vec<Lot> {
    let usual = canaries(network, seed, count + 1);
    let (target, usual) = (usual[count].clone(), &usual[..count]);
    let mut lots = match network.graph().input() {
        InputShape::Features(numbers) => of_numbers(network, params, numbers, seed, &target, usual),
        InputShape::Tokens { vocab, max_length } => of_tokens(vocab, max_length, &target, usual),
    };
    // Some of each.
    let others = (0..count)
        .filter_map(|i| lots.get(i % lots.len())?.others.get(i / lots.len()).cloned())
        .collect();
    let targets = lots.first().map_or_else(|| vec![target], |lot| lot.targets.clone());
    lots.push(Lot { name: "some of each", others, targets });
    lots
}

fn of_numbers(
    network: &dyn Network,
    params: &Params,
    numbers: usize,
    seed: u64,
    target: &Example,
    usual: &[Example],
) -> Vec<Lot> {
    let of = |i: usize, value: Vec<f32>| Example {
        target: usual[i % usual.len()].target.clone(),
        ..Example::features(value, 0)
    };
    let all = |make: &dyn Fn(usize) -> Vec<f32>| -> Vec<Example> {
        (0..usual.len()).map(|i| of(i, make(i))).collect()
    };
    let scaled = |i: usize, by: f32| match &usual[i].input {
        engine::Input::Features(own) => own.iter().map(|x| x * by).collect(),
        engine::Input::Tokens(_) => Vec::new(),
    };
    let zero = of(0, vec![0.0; numbers]);
    let targets = vec![zero, target.clone()];
    let lot = |name, others| Lot { name, others, targets: targets.clone() };
    let mut lots = vec![
        lot("zeros", all(&|_| vec![0.0; numbers])),
        lot("equal numbers", all(&|i| vec![0.25 * (i as f32 + 1.0); numbers])),
        lot("huge numbers", all(&|i| scaled(i, HUGE))),
        lot("tiny numbers", all(&|i| scaled(i, TINY))),
        lot("duplicates", vec![usual[0].clone(); usual.len()]),
    ];
    let kinks = kinks(network, params, numbers, seed, usual.len());
    if let Some(one) = kinks.first() {
        // Gradients of one and the same record point the same way: if they jump, they jump
        // together.
        lots.insert(0, lot("one kink repeated", vec![of(0, one.clone()); usual.len()]));
        lots.insert(
            0,
            lot("kinks", kinks.into_iter().enumerate().map(|(i, value)| of(i, value)).collect()),
        );
    }
    lots
}

fn of_tokens(vocab: usize, longest: usize, target: &Example, usual: &[Example]) -> Vec<Lot> {
    let token = |i: usize| (i * 7919 % vocab.max(1)) as u32;
    let of = |i: usize, tokens: Vec<u32>| match usual[i % usual.len()].target {
        Target::Class(class) => Example::labelled(tokens, class),
        Target::Next(_) => Example::continuation(tokens, 1),
    };
    // A text that is continued needs a second token, to be predicted: with one it is empty, and no
    // record.
    let least = if matches!(target.target, Target::Class(_)) { 1 } else { 2 }.min(longest);
    let few = (TOKENS / longest.max(1)).clamp(1, usual.len());
    let targets = vec![of(0, vec![token(3); least]), target.clone()];
    let lot = |name, count: usize, make: &dyn Fn(usize) -> Vec<u32>| Lot {
        name,
        others: (0..count).map(|i| of(i, make(i))).collect(),
        targets: targets.clone(),
    };
    vec![
        lot("shortest texts", usual.len(), &|i| (0..least).map(|t| token(i + t)).collect()),
        lot("longest texts", few, &|i| (0..longest).map(|t| token(i * longest + t + 1)).collect()),
        lot("one token repeated", few, &|i| vec![token(i); longest]),
        Lot {
            name: "duplicates",
            others: vec![usual[0].clone(); usual.len()],
            targets: targets.clone(),
        },
    ]
}

/// Numbers at which hidden units of the first layer are, but for rounding, exactly zero, where an
/// activation such as ReLU has a kink: orthogonal to the weights of as many units as the width
/// allows. None if no tensor is a first layer of this width.
fn kinks(
    network: &dyn Network,
    params: &Params,
    numbers: usize,
    seed: u64,
    count: usize,
) -> Vec<Vec<f32>> {
    let first = network
        .tensors(params)
        .into_iter()
        .find(|(_, tensor)| tensor.shape().len() == 2 && tensor.shape().contains(&numbers));
    let Some((_, weight)) = first else { return Vec::new() };
    let (rows, columns) = (weight.shape()[0], weight.shape()[1]);
    let number = |row: usize, column: usize| f64::from(weight.data()[row * columns + column]);
    let units: Vec<Vec<f64>> = if columns == numbers {
        (0..rows).map(|row| (0..columns).map(|column| number(row, column)).collect()).collect()
    } else {
        (0..columns).map(|column| (0..rows).map(|row| number(row, column)).collect()).collect()
    };
    // All of them, if something is left that is orthogonal to all.
    let zeroed = if units.len() < numbers { units.len() } else { numbers / 2 };
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for unit in units.into_iter().take(zeroed) {
        basis.extend(normalised(without(unit, &basis)));
    }
    let mut normals = vec![0.0f32; numbers * count];
    PublicRandom::new("kinks", seed).fill_normals(&mut normals);
    let kink = |normals: &[f32]| {
        let direction =
            normalised(without(normals.iter().map(|&x| f64::from(x)).collect(), &basis))?;
        Some(direction.into_iter().map(|x| (KINK_SCALE * x) as f32).collect())
    };
    normals.chunks_exact(numbers.max(1)).filter_map(kink).collect()
}

/// A vector without its parts along an orthonormal basis; twice, so that little is left of them.
fn without(mut vector: Vec<f64>, basis: &[Vec<f64>]) -> Vec<f64> {
    for along in basis.iter().chain(basis) {
        let part: f64 = vector.iter().zip(along).map(|(a, b)| a * b).sum();
        vector.iter_mut().zip(along).for_each(|(x, y)| *x -= part * y);
    }
    vector
}

/// None of a vector that is next to nothing.
fn normalised(vector: Vec<f64>) -> Option<Vec<f64>> {
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

    fn text(which: model::Preset) -> (Box<dyn Network>, Params) {
        let graph =
            model::Checkpoint::new(model::hf::Config::new(which.architecture()), None, 0).unwrap();
        let (_, network, params) = graph.network(device(), |_| true).unwrap();
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
                assert!(
                    (0..zeroed).all(|k| unit(k).abs() < 1e-3),
                    "of 1000, not more than rounding"
                );
                assert!((zeroed..hidden).all(|k| unit(k).abs() > 1e-3));
            }
            assert_ne!(kinks[0], kinks[1]);
        }
    }

    /// The model takes all of them, and they are as strange as their names say.
    #[test]
    fn lots_are_what_they_are_called() {
        let (network, params) = mlp(12, 5);
        let all = lots(&network, &params, 1, 15);
        let names: Vec<&str> = all.iter().map(|lot| lot.name).collect();
        assert_eq!(
            names,
            [
                "kinks",
                "one kink repeated",
                "zeros",
                "equal numbers",
                "huge numbers",
                "tiny numbers",
                "duplicates",
                "some of each"
            ]
        );
        let numbers = |example: &Example| {
            if let Input::Features(numbers) = &example.input { numbers.clone() } else { Vec::new() }
        };
        let of = |name: &str| {
            all.iter()
                .find(|lot| lot.name == name)
                .unwrap()
                .others
                .iter()
                .map(numbers)
                .collect::<Vec<_>>()
        };
        assert!(of("zeros").iter().flatten().all(|x| *x == 0.0));
        assert!(of("equal numbers").iter().all(|record| record.iter().all(|x| *x == record[0])));
        assert!(of("huge numbers").iter().all(|record| record.iter().any(|x| x.abs() > 1e5)));
        assert!(of("tiny numbers").iter().flatten().all(|x| x.abs() < 1e-4));
        assert!(of("duplicates").windows(2).all(|pair| pair[0] == pair[1]));
        assert!(all.iter().all(
            |lot| lot.others.len() == 15 && numbers(&lot.targets[0]).iter().all(|x| *x == 0.0)
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
            if let Input::Tokens(tokens) = &text.input {
                tokens.iter().all(|t| *t == tokens[0])
            } else {
                false
            }
        };
        assert!(of("one token repeated").iter().all(|text| same(text) && text.len() == max_length));
        assert!(of("longest texts").iter().all(|text| !same(text)));
        assert!(of("some of each").len() > 10);
    }
}
