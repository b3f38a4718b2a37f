//! The optimizers by name: one row each.

use crate::config::{
    self, Auto, ClippingName, Config, Degree, DeviationName, MuonGroup, NormaliserName,
    ProbeLotName, Rate, ShapeScaleName,
};
use optim::hyfree::{Points, ProbeLot};
use optim::macadam::Deviation;
use optim::muon::{Group, ShapeScale};
use optim::newton_schulz::{Normaliser, Polynomial};
use optim::schedule::Shape;
use optim::{Adam, Flat, HyFree, MacAdam, Muon, Optimizer, Prism, Probes, Schedule, Search, Sgd};
use optim::{adam, hyfree, macadam, muon, newton_schulz, prism, sgd};
use protocol::{Bound, Clipping, Params, Positive, Refused, Trainable};

/// What an optimizer is called and what follows from that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Name {
    /// As users write it.
    pub name: &'static str,
    /// Whether it clips and adds noise.
    pub private: bool,
    kind: Kind,
    /// The rate if none is given: for fine-tuning.
    rate: f64,
    /// The clip bound if none is given.
    clip: f64,
    momentum: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sgd,
    Adam,
    AdamW,
    AdamBc,
    Muon,
    MuonBc,
    MacAdam,
    Prism,
}

/// All of them.
pub const ALL: [Name; 12] = [
    Name { name: "sgd", private: false, kind: Kind::Sgd, rate: 0.05, clip: 1.0, momentum: 0.9 },
    Name { name: "adam", private: false, kind: Kind::Adam, rate: 5e-4, clip: 1.0, momentum: 0.9 },
    Name { name: "adamw", private: false, kind: Kind::AdamW, rate: 5e-4, clip: 1.0, momentum: 0.9 },
    Name { name: "muon", private: false, kind: Kind::Muon, rate: 3e-3, clip: 0.1, momentum: 0.95 },
    Name { name: "dp-sgd", private: true, kind: Kind::Sgd, rate: 0.3, clip: 0.1, momentum: 0.9 },
    Name { name: "dp-adam", private: true, kind: Kind::Adam, rate: 2e-3, clip: 0.1, momentum: 0.9 },
    Name {
        name: "dp-adamw",
        private: true,
        kind: Kind::AdamW,
        rate: 2e-3,
        clip: 0.1,
        momentum: 0.9,
    },
    Name {
        name: "dp-adam-bc",
        private: true,
        kind: Kind::AdamBc,
        rate: 1e-3,
        clip: 0.1,
        momentum: 0.9,
    },
    Name {
        name: "dp-muon",
        private: true,
        kind: Kind::Muon,
        rate: 3e-3,
        clip: 0.1,
        momentum: 0.95,
    },
    Name {
        name: "dp-muon-bc",
        private: true,
        kind: Kind::MuonBc,
        rate: 3e-3,
        clip: 0.1,
        momentum: 0.95,
    },
    Name {
        name: "dp-macadam",
        private: true,
        kind: Kind::MacAdam,
        rate: 1e-3,
        clip: 1.0,
        momentum: 0.9,
    },
    Name {
        name: "dp-prism",
        private: true,
        kind: Kind::Prism,
        rate: 1e-3,
        clip: 1.0,
        momentum: 0.9,
    },
];

impl Name {
    /// The optimizer of this name.
    ///
    /// # Errors
    /// If there is none, with the nearest that there is.
    pub fn of(name: &str) -> Result<Self, String> {
        ALL.into_iter().find(|known| known.name == name).ok_or_else(|| {
            let near = ALL.iter().max_by(|a, b| {
                strsim::jaro_winkler(name, a.name).total_cmp(&strsim::jaro_winkler(name, b.name))
            });
            let names = ALL.map(|known| known.name).join(", ");
            format!(
                "there is no optimizer {name:?}: did you mean {:?}? There are {names}",
                near.map_or("", |near| near.name)
            )
        })
    }

    /// The clip bound if none is given.
    pub fn usual_clip(self) -> f64 {
        self.clip
    }

    /// Whether it trains low-rank additions and nothing else will do.
    pub fn needs_pairs(self) -> bool {
        self.kind == Kind::Prism
    }
}

/// The noise multipliers of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Of all blocks of a gradient together.
    pub gradient: f64,
    /// Of each probe of the loss, if there are any.
    pub probe: f64,
}

/// What an optimizer is made for.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The trained tensors.
    pub tensors: &'a [Trainable],
    /// Their values.
    pub params: &'a Params,
    /// The public lot size.
    pub lot_size: f64,
    /// How many steps there will be.
    pub steps: u64,
}

/// Makes the optimizer that a configuration asks for.
///
/// # Errors
/// If a number makes no sense, or the model does not fit the optimizer.
pub fn build(
    config: &Config,
    sigma: Multipliers,
    setting: Setting<'_>,
) -> Result<Optimizer, Refused> {
    let options = &config.optimizer;
    let name = Name::of(&options.name).map_err(Refused::Query)?;
    let Setting { tensors, params, lot_size, .. } = setting;
    let clipping = match options.clipping {
        ClippingName::Flat => Clipping::Cut,
        ClippingName::Automatic => Clipping::Automatic {
            gamma: Positive::new("optimizer.automatic_gamma", options.automatic_gamma)?,
        },
    };
    let clip = Positive::new("optimizer.clip", options.clip.or(name.clip))?;
    let gradient = Positive::new("the noise multiplier", sigma.gradient)?;
    let flat = Flat { bound: Bound { clip, sigma: gradient }, clipping };
    let momentum = checked("optimizer.momentum", options.momentum.or(name.momentum), 0.0..1.0)?;
    let (b1, b2) = options.betas;
    let betas =
        (checked("optimizer.betas", b1, 0.0..1.0)?, checked("optimizer.betas", b2, 0.0..1.0)?);
    let usual = if name.kind == Kind::AdamW { 0.01 } else { 0.0 };
    let weight_decay =
        checked("optimizer.weight_decay", options.weight_decay.or(usual), 0.0..f64::INFINITY)?;
    if weight_decay > 0.0 && matches!(name.kind, Kind::Adam | Kind::MacAdam | Kind::Prism) {
        return Err(Refused::Query(format!(
            "optimizer.weight_decay: {} has none; use an optimizer that does, such as adamw",
            name.name
        )));
    }
    let adam = |weight_decay, denominator| adam::Config { betas, weight_decay, denominator };
    let plain = adam::Denominator::Plain {
        epsilon: checked("optimizer.epsilon", options.epsilon, 0.0..f64::INFINITY)?,
    };
    let floor = Positive::new("optimizer.variance_floor", options.variance_floor)?.get();
    let search = search(options, name, sigma, setting.steps)?;
    let public = Probes::from_seed(config.model.seed ^ 0x4d55_4646);
    let ratio = |default: f64| {
        checked(
            "optimizer.auxiliary_ratio",
            options.auxiliary_ratio.or(default),
            0.0..f64::INFINITY,
        )
    };
    Ok(match name.kind {
        Kind::Sgd => {
            Optimizer::new(Sgd::new(sgd::Config { momentum, weight_decay }, flat, params)?, search)
        }
        Kind::Adam => Optimizer::new(Adam::new(adam(0.0, plain), flat, params)?, search),
        Kind::AdamW => Optimizer::new(Adam::new(adam(weight_decay, plain), flat, params)?, search),
        Kind::AdamBc => Optimizer::new(
            Adam::new(adam(weight_decay, adam::Denominator::Corrected { floor }), flat, params)?,
            search,
        ),
        Kind::Muon | Kind::MuonBc => {
            let polynomial = match options.newton_schulz_degree {
                Degree::Newton(0) => {
                    return Err(Refused::Query(
                        "optimizer.newton_schulz_degree: at least 1 expected".into(),
                    ));
                }
                Degree::Newton(degree) => Polynomial::Newton { degree },
                Degree::Named(_) => Polynomial::Quintic,
            };
            let normaliser = match options.normaliser {
                NormaliserName::Frobenius => Normaliser::Frobenius,
                NormaliserName::Max1 => Normaliser::AtLeastOne,
            };
            let muon = muon::Config {
                momentum,
                iteration: newton_schulz::Config {
                    polynomial,
                    steps: options.newton_schulz_steps,
                    normaliser,
                },
                probes: if name.kind == Kind::MuonBc { options.probes } else { 0 },
                scale: match options.shape_scale {
                    ShapeScaleName::None => ShapeScale::None,
                    ShapeScaleName::RowsOverCols => ShapeScale::RowsOverCols,
                    ShapeScaleName::LargerSide => ShapeScale::LargerSide,
                },
                weight_decay,
                group: match options.muon_group {
                    MuonGroup::Hidden => Group::Hidden,
                    MuonGroup::All => Group::AllMatrices,
                },
                auxiliary: adam(0.0, plain),
                auxiliary_ratio: ratio(2.0 / 3.0)?,
            };
            Optimizer::new(
                Muon::new(muon, muon::Noise { clip, sigma: gradient, clipping }, tensors, public)?,
                search,
            )
        }
        Kind::MacAdam => {
            let (least, most) = options.clips;
            let config = macadam::Config {
                betas,
                epsilon: options.epsilon,
                start: clip,
                clips: (
                    Positive::new("optimizer.clips", least)?,
                    Positive::new("optimizer.clips", most)?,
                ),
                deviation: match options.deviation {
                    DeviationName::Exact => Deviation::Exact,
                    DeviationName::Literal => Deviation::Literal,
                },
                variance_scale: Positive::new(
                    "optimizer.variance_scale",
                    options.variance_scale.or(lot_size),
                )?,
            };
            Optimizer::new(MacAdam::new(config, gradient, params)?, search)
        }
        Kind::Prism => {
            let config = prism::Config {
                betas,
                ridge: checked("optimizer.ridge", options.ridge, 0.0..f64::INFINITY)?,
                head_ratio: ratio(1.0)?,
                head_epsilon: options.epsilon,
            };
            Optimizer::new(Prism::new(config, flat, tensors, public)?, search)
        }
    })
}

fn search(
    options: &config::Optimizer,
    name: Name,
    sigma: Multipliers,
    steps: u64,
) -> Result<Box<dyn Search>, Refused> {
    if let Auto::Value(Rate::Found(_)) = options.learning_rate {
        let probing = &options.hyfree;
        return Ok(Box::new(HyFree::new(hyfree::Config {
            start: Positive::new("optimizer.hyfree.start", probing.start)?,
            every: probing.every.max(1),
            points: match probing.points {
                3 => Points::Three,
                5 => Points::Five,
                other => {
                    return Err(Refused::Query(format!(
                        "optimizer.hyfree.points: 3 or 5 expected, got {other}"
                    )));
                }
            },
            lot: match probing.lot {
                ProbeLotName::Fresh => ProbeLot::Fresh,
                ProbeLotName::Same => ProbeLot::Same,
            },
            sigma: Positive::new("the multiplier of the probes", sigma.probe)?,
            clip: Positive::new("optimizer.hyfree.loss_clip", probing.loss_clip)?,
            lowest_clip: Positive::new(
                "optimizer.hyfree.lowest_loss_clip",
                probing.lowest_loss_clip,
            )?,
            gate: checked("optimizer.hyfree.gate", probing.gate, 0.0..f64::INFINITY)?,
        })));
    }
    let rate = match options.learning_rate {
        Auto::Value(Rate::Fixed(rate)) => rate,
        _ => name.rate,
    };
    let end = checked("optimizer.end", options.end, 0.0..f64::INFINITY)?;
    let shape = match options.schedule {
        config::Schedule::Constant => Shape::Constant,
        config::Schedule::Linear => Shape::Linear { end },
        config::Schedule::Cosine => Shape::Cosine { end },
    };
    Ok(Box::new(Schedule {
        peak: Positive::new("optimizer.learning_rate", rate)?,
        shape,
        warm_up: options.warm_up,
        steps,
    }))
}

fn checked(what: &str, value: f64, range: std::ops::Range<f64>) -> Result<f64, Refused> {
    if range.contains(&value) {
        return Ok(value);
    }
    let upper =
        if range.end.is_finite() { format!(" and less than {}", range.end) } else { String::new() };
    Err(Refused::Query(format!("{what}: at least {}{upper} expected, got {value}", range.start)))
}
