//! Cases for all optimizers, and an engine with a known solution.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod quadratic;

use cpu::Network;
use model::activation::Activation;
use model::{Builder, Linear, Lora};
use optim::{Multipliers, Optimizer, OptimizerConfig, State, registry};
use protocol::{Params, Role, Trainable};
use std::collections::BTreeMap;
use tensor::Array;
use toml::{Table, Value};

/// The problem that an optimizer is built for.
pub(crate) struct Setting<'a> {
    pub(crate) tensors: &'a [Trainable],
    pub(crate) params: &'a Params,
    pub(crate) clip: f64,
    pub(crate) sigma: f64,
    pub(crate) lot_size: f64,
    /// The learning rate of optimizers whose steps are about as long as their rate.
    pub(crate) rate: f64,
}

/// Variants of private optimizers: the name of the case, the optimizer, and further keys.
const VARIANTS: [(&str, &str, &str); 11] = [
    ("sgd-automatic", "dp-sgd", "clipping = 'automatic'\nmomentum = 0.0"),
    ("muon-max1", "dp-muon-bc", "normaliser = 'max1'\nprobes = 2"),
    ("muon-all", "dp-muon-bc", "muon_group = 'all'"),
    ("macadam-literal", "dp-macadam", "variance = 'literal'\nvariance_scale = 1.0"),
    ("macadam-exact", "dp-macadam", "variance = 'exact'"),
    ("prism-automatic", "dp-prism", "clipping = 'automatic'"),
    ("prism-subtract-noise", "dp-prism", "subtract_noise = true"),
    ("hyfree-sgd", "dp-sgd", "learning_rate = 'hyfree'"),
    ("hyfree-adam-same-lot", "dp-adam", "learning_rate = 'hyfree'\nhyfree.lot = 'same'"),
    ("hyfree-muon-bc", "dp-muon-bc", "learning_rate = 'hyfree'"),
    ("hyfree-prism", "dp-prism", "learning_rate = 'hyfree'"),
];

/// The names of all cases: every private optimizer of the registry, and variants.
pub(crate) fn cases() -> impl Iterator<Item = &'static str> {
    let private = registry::ALL.iter().filter(|entry| entry.private).map(|entry| entry.name);
    private.chain(VARIANTS.iter().map(|(case, _, _)| *case))
}

/// The optimizer of a case, and its further keys.
fn optimizer_of(case: &str) -> (&str, &'static str) {
    let variant = VARIANTS.iter().find(|(name, _, _)| *name == case);
    variant.map_or((case, ""), |(_, optimizer, keys)| (*optimizer, *keys))
}

/// Whether the optimizer trains low-rank pairs.
pub(crate) fn needs_pairs(case: &str) -> bool {
    registry::find(optimizer_of(case).0).unwrap().needs_pairs
}

/// Keys that suit the small problems of the suite better than the defaults.
fn tuned(optimizer: &str, clip: f64) -> String {
    match optimizer {
        "dp-sgd" => "momentum = 0.5".into(),
        "dp-muon" | "dp-muon-bc" => "momentum = 0.9".into(),
        "dp-adam-bc" => "variance_floor = 1e-4".into(),
        "dp-adaclip" | "dp-macadam" => format!("clips = [{:?}, {:?}]", clip / 10.0, clip * 10.0),
        _ => String::new(),
    }
}

pub(crate) fn make(case: &str, setting: &Setting<'_>) -> Optimizer {
    let &Setting { tensors, params, clip, sigma, lot_size, rate } = setting;
    let (optimizer, further) = optimizer_of(case);
    // Steps of SGD are proportional to the gradient, those of the others to the learning rate.
    let is_sgd = matches!(optimizer, "dp-sgd" | "dp-adaclip");
    let start = if is_sgd { rate * 5.0 } else { rate };
    let mut keys: Table = format!(
        "name = {optimizer:?}\nlearning_rate = {start:?}\nclip = {clip:?}\n\
         hyfree = {{ start = {start:?}, every = 2, loss_clip = 20.0 }}"
    )
    .parse()
    .unwrap();
    if further.contains("automatic") || further.contains("hyfree") {
        keys.insert("automatic_gamma".into(), Value::Float(0.01 * clip));
    }
    for more in [&tuned(optimizer, clip), further] {
        merge(&mut keys, more.parse().unwrap());
    }
    let config: OptimizerConfig = Value::Table(keys).try_into().unwrap();
    config
        .build(&optim::Setting {
            tensors,
            params,
            lot_size,
            steps: 0,
            sigma: Multipliers { gradient: sigma, probe: sigma * 2.0 },
            origin: Default::default(),
            seed: 1,
        })
        .unwrap()
}

/// Adds keys to a table, recursively.
fn merge(table: &mut Table, more: Table) {
    for (key, value) in more {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(more)) => merge(inner, more),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

/// The tensors of a small model, with every role; optionally with pairs.
pub(crate) fn tensors(pairs: bool) -> Vec<Trainable> {
    let tensor = |name: &str, shape: &[usize], role| Trainable::new(name, shape, role);
    if pairs {
        vec![
            tensor("a.lora_left", &[6, 2], Role::Left(1)),
            tensor("a.lora_right", &[5, 2], Role::Right(0)),
            tensor("b.lora_left", &[4, 1], Role::Left(3)),
            tensor("b.lora_right", &[7, 1], Role::Right(2)),
            tensor("head.bias", &[3], Role::Vector),
        ]
    } else {
        vec![
            tensor("wide", &[4, 6], Role::Hidden),
            tensor("tall", &[7, 3], Role::Hidden),
            tensor("table", &[5, 4], Role::Table),
            tensor("kernel", &[3, 2, 2, 2], Role::Hidden),
            tensor("bias", &[6], Role::Vector),
        ]
    }
}

/// A perceptron; with pairs, its low-rank additions and its last bias are trained.
pub(crate) fn perceptron(pairs: bool) -> (Network, Params) {
    let mut build =
        Builder::features(4).with_lora(pairs.then(|| Lora { rank: 2, alpha: 2.0, on: Vec::new() }));
    let first =
        build.linear_layer(Linear::new("first", 4, 12).init_std(0.5).activation(Activation::Tanh));
    let features = build.input();
    let hidden = build.apply_linear(features, &[first]);
    let second = build
        .linear_layer(Linear::new("second", 12, 12).init_std(0.3).activation(Activation::Tanh));
    let hidden = build.apply_linear(hidden, &[second]);
    let head = build.linear_layer(Linear::new("head", 12, 3).init_std(0.3));
    let logits = build.apply_linear(hidden, &[head]);
    let graph = build.finish(logits);
    let mut values = graph.init(1).unwrap();
    graph.subtract_adapters(&mut values);
    Network::new(graph, values, |name| !pairs || name.contains(".lora_") || name == "head.bias")
        .unwrap()
}

/// The tensors of a state and its parts, without shared ones, by the path of their name and index.
pub(crate) fn state_tensors(state: &State) -> BTreeMap<(String, usize), &Array> {
    let mut all = BTreeMap::new();
    for (name, tensors) in &state.tensors {
        all.extend(tensors.iter().map(|(k, tensor)| ((name.clone(), k), tensor)));
    }
    for (part, state) in &state.parts {
        let inner = state_tensors(state).into_iter();
        all.extend(inner.map(|((name, k), tensor)| ((format!("{part}/{name}"), k), tensor)));
    }
    all
}

/// Checks that two states have the same numbers, tensors and shared tensors, up to rounding.
pub(crate) fn assert_close(a: &State, b: &State, case: &str) {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * (1.0 + b.abs());
    let near_arrays = |a: &Array, b: &Array| {
        a.shape() == b.shape()
            && a.data().iter().zip(b.data()).all(|(&a, &b)| near(a.into(), b.into()))
    };
    assert_eq!(a.kind, b.kind, "{case}");
    assert!(a.numbers.keys().eq(b.numbers.keys()), "{case}: {}", a.kind);
    assert!(a.numbers.values().zip(b.numbers.values()).all(|(a, b)| near(*a, *b)), "{case}");
    let (own, other) = (state_tensors(a), state_tensors(b));
    assert!(own.keys().eq(other.keys()), "{case}: {}", a.kind);
    assert!(own.values().zip(other.values()).all(|(a, b)| near_arrays(a, b)), "{case}: {}", a.kind);
    assert!(a.shared.keys().eq(b.shared.keys()), "{case}: {}", a.kind);
    for (a, b) in a.shared.values().zip(b.shared.values()) {
        assert!(a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| near_arrays(a, b)));
    }
    assert!(a.parts.keys().eq(b.parts.keys()), "{case}: {}", a.kind);
    a.parts.values().zip(b.parts.values()).for_each(|(a, b)| assert_close(a, b, case));
}
