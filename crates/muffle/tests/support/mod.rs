//! Every optimizer, and an engine small enough to see through.

#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod quadratic;

use optim::hyfree::{self, ProbeLot};
use optim::macadam::Deviation;
use optim::{Adam, Flat, HyFree, MacAdam, Muon, Optimizer, Prism, Probes, Schedule, Search, Sgd};
use optim::{adam, macadam, muon, prism, sgd};
use protocol::{Bound, Clipping, Params, Positive, Role, Trainable};

pub(crate) fn positive(x: f64) -> Positive {
    Positive::new("test", x).unwrap()
}

/// What an optimizer is made for.
pub(crate) struct Setting<'a> {
    pub(crate) tensors: &'a [Trainable],
    pub(crate) params: &'a Params,
    pub(crate) clip: f64,
    pub(crate) sigma: f64,
    pub(crate) lot_size: f64,
    /// For optimizers whose steps are about as long as their rate.
    pub(crate) rate: f64,
}

/// The names of all optimizers. A new one gets a row here and in `make`.
pub(crate) const ALL: [&str; 17] = [
    "sgd",
    "sgd-automatic",
    "adam",
    "adamw",
    "adam-bc",
    "muon",
    "muon-bc",
    "muon-max1",
    "muon-all",
    "macadam",
    "macadam-literal",
    "prism",
    "prism-automatic",
    "hyfree-sgd",
    "hyfree-adam-same-lot",
    "hyfree-muon-bc",
    "hyfree-prism",
];

/// Whether it trains low-rank pairs.
pub(crate) fn needs_pairs(name: &str) -> bool {
    name.contains("prism")
}

/// The steps of this one have the size of the gradient, the others that of the rate.
fn is_sgd(name: &str) -> bool {
    name.contains("sgd")
}

pub(crate) fn make(name: &str, setting: &Setting<'_>) -> Optimizer {
    let &Setting { tensors, params, clip, sigma, lot_size, rate } = setting;
    let automatic = Clipping::Automatic { gamma: positive(0.01 * clip) };
    let flat = |clipping| Flat { bound: Bound::new(clip, sigma).unwrap(), clipping };
    let base = name.strip_prefix("hyfree-").unwrap_or(name).trim_end_matches("-same-lot");
    let start = if is_sgd(name) { rate * 5.0 } else { rate };
    let adam = |weight_decay, denominator| {
        Adam::new(
            adam::Config { weight_decay, denominator, ..adam::Config::default() },
            flat(Clipping::Cut),
            params,
        )
        .unwrap()
    };
    let plain = adam::Denominator::Plain { epsilon: 1e-8 };
    let muon = |probes, normaliser, group| {
        let iteration =
            optim::newton_schulz::Config { normaliser, ..optim::newton_schulz::Config::default() };
        let config =
            muon::Config { momentum: 0.9, probes, iteration, group, ..muon::Config::default() };
        let noise =
            muon::Noise { clip: positive(clip), sigma: positive(sigma), clipping: Clipping::Cut };
        Muon::new(config, noise, tensors, Probes::from_seed(1)).unwrap()
    };
    let macadam = |deviation, variance_scale| {
        let config = macadam::Config {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            start: positive(clip),
            clips: (positive(clip / 10.0), positive(clip * 10.0)),
            deviation,
            variance_scale: positive(variance_scale),
        };
        MacAdam::new(config, positive(sigma), params).unwrap()
    };
    let prism = |clipping| {
        Prism::new(prism::Config::default(), flat(clipping), tensors, Probes::from_seed(2)).unwrap()
    };
    let search: Box<dyn Search> = if name.starts_with("hyfree") {
        let lot = if name.ends_with("same-lot") { ProbeLot::Same } else { ProbeLot::Fresh };
        let config = hyfree::Config {
            start: positive(start),
            lot,
            every: 2,
            clip: positive(20.0),
            ..hyfree::Config::new(sigma * 2.0).unwrap()
        };
        Box::new(HyFree::new(config))
    } else {
        Box::new(Schedule::constant(start).unwrap())
    };
    use optim::muon::Group::{AllMatrices, Hidden};
    use optim::newton_schulz::Normaliser::{AtLeastOne, Frobenius};
    match base {
        "sgd" => Optimizer::new(
            Sgd::new(sgd::Config { momentum: 0.5, weight_decay: 0.0 }, flat(Clipping::Cut), params)
                .unwrap(),
            search,
        ),
        "sgd-automatic" => Optimizer::new(
            Sgd::new(sgd::Config { momentum: 0.0, weight_decay: 0.0 }, flat(automatic), params)
                .unwrap(),
            search,
        ),
        "adam" => Optimizer::new(adam(0.0, plain), search),
        "adamw" => Optimizer::new(adam(0.01, plain), search),
        "adam-bc" => {
            Optimizer::new(adam(0.0, adam::Denominator::Corrected { floor: 1e-4 }), search)
        }
        "muon" => Optimizer::new(muon(0, Frobenius, Hidden), search),
        "muon-bc" => Optimizer::new(muon(1, Frobenius, Hidden), search),
        "muon-max1" => Optimizer::new(muon(2, AtLeastOne, Hidden), search),
        "muon-all" => Optimizer::new(muon(1, Frobenius, AllMatrices), search),
        "macadam" => Optimizer::new(macadam(Deviation::Exact, lot_size), search),
        "macadam-literal" => Optimizer::new(macadam(Deviation::Literal, 1.0), search),
        "prism" => Optimizer::new(prism(Clipping::Cut), search),
        "prism-automatic" => Optimizer::new(prism(automatic), search),
        other => panic!("{other}"),
    }
}

/// The tensors of a small model of each role; pairs if asked for.
pub(crate) fn tensors(pairs: bool) -> Vec<Trainable> {
    let tensor = |name: &str, shape: &[usize], role| Trainable {
        name: name.into(),
        shape: shape.to_vec(),
        role,
    };
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
