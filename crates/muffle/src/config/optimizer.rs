//! The keys of `[optimizer]`.

use super::Auto;
use serde::{Deserialize, Serialize};

/// How answers become parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// sgd, adam, adamw, muon (not private), dp-sgd, dp-adam, dp-adamw, dp-adam-bc, dp-muon,
    /// dp-muon-bc, dp-macadam or dp-prism.
    pub name: String,
    /// A number, or "hyfree".
    pub learning_rate: Auto<Rate>,
    /// constant, linear or cosine.
    pub schedule: Schedule,
    /// Steps in which the rate rises.
    pub warm_up: u64,
    /// The share of the rate that is left at the end of a falling schedule.
    pub end: f64,
    /// The clip bound of each block.
    pub clip: Auto<f64>,
    /// flat cuts at the bound, automatic scales every gradient to about it.
    pub clipping: ClippingName,
    /// The γ of automatic clipping.
    pub automatic_gamma: f64,
    /// Momentum of SGD and Muon.
    pub momentum: Auto<f64>,
    /// β₁ and β₂ of Adam's kind.
    pub betas: (f64, f64),
    /// ε of Adam's kind.
    pub epsilon: f64,
    /// Decoupled weight decay; 0.01 for adamw and 0 for the others by default.
    pub weight_decay: Auto<f64>,
    /// DP-AdamBC: the least variance that is divided by.
    pub variance_floor: f64,
    /// Muon: steps of the Newton–Schulz iteration.
    pub newton_schulz_steps: usize,
    /// Muon: degree of its polynomial, or "quintic".
    pub newton_schulz_degree: Degree,
    /// Muon: frobenius or max1.
    pub normaliser: NormaliserName,
    /// Muon: none, rows-over-cols or larger-side.
    pub shape_scale: ShapeScaleName,
    /// Muon: hidden or all.
    pub muon_group: MuonGroup,
    /// Muon: pairs of probes of the bias correction.
    pub probes: usize,
    /// Muon, PRISM: the rate of all other tensors, relative to the matrices'.
    pub auxiliary_ratio: Auto<f64>,
    /// DP-MacAdam: exact or literal.
    pub deviation: DeviationName,
    /// DP-MacAdam: c_s; the lot size by default.
    pub variance_scale: Auto<f64>,
    /// DP-MacAdam: the least and the largest clip bound.
    pub clips: (f64, f64),
    /// PRISM: how many times the noise the ridge is.
    pub ridge: f64,
    /// HyFreeDP.
    pub hyfree: HyFree,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: "dp-muon-bc".into(),
            learning_rate: Auto::Auto,
            schedule: Schedule::Constant,
            warm_up: 0,
            end: 0.0,
            clip: Auto::Auto,
            clipping: ClippingName::Flat,
            automatic_gamma: 0.01,
            momentum: Auto::Auto,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: Auto::Auto,
            variance_floor: 1e-8,
            newton_schulz_steps: 5,
            newton_schulz_degree: Degree::Newton(2),
            normaliser: NormaliserName::Frobenius,
            shape_scale: ShapeScaleName::None,
            muon_group: MuonGroup::Hidden,
            probes: 1,
            auxiliary_ratio: Auto::Auto,
            deviation: DeviationName::Exact,
            variance_scale: Auto::Auto,
            clips: (0.01, 10.0),
            ridge: 1.0,
            hyfree: HyFree::default(),
        }
    }
}

/// A learning rate, or how it is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Rate {
    /// This one.
    Fixed(f64),
    /// By probing.
    Found(FoundBy),
}

/// How a rate is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// HyFreeDP.
    Hyfree,
}

/// A degree, or the popular quintic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Degree {
    /// p_κ
    Newton(usize),
    /// 3.4445, −4.7750, 2.0315
    Named(DegreeName),
}

/// A polynomial by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DegreeName {
    /// The popular one.
    Quintic,
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
    };
}

names!(
    /// How a rate falls.
    Schedule {
        /// Not at all.
        Constant,
        /// In a straight line.
        Linear,
        /// Along half a cosine.
        Cosine,
    }
);
names!(
    /// How gradients are clipped.
    ClippingName {
        /// min(1, C/‖g‖)
        Flat,
        /// C/(‖g‖ + γ)
        Automatic,
    }
);
names!(
    /// What Muon divides a momentum by.
    NormaliserName {
        /// Its norm.
        Frobenius,
        /// Its norm, but at least 1.
        Max1,
    }
);
names!(
    /// What Muon multiplies a direction by.
    ShapeScaleName {
        /// 1
        None,
        /// √max(1, rows/cols)
        RowsOverCols,
        /// 0.2 √max(rows, cols)
        LargerSide,
    }
);
names!(
    /// What Muon orthogonalises.
    MuonGroup {
        /// Weights between hidden values.
        Hidden,
        /// Every matrix.
        All,
    }
);
names!(
    /// How DP-MacAdam squares deviations.
    DeviationName {
        /// As its factor is exact for.
        Exact,
        /// To the letter of the paper.
        Literal,
    }
);
names!(
    /// Which lot HyFreeDP asks.
    ProbeLotName {
        /// One of its own.
        Fresh,
        /// The gradient's.
        Same,
    }
);

/// HyFreeDP's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HyFree {
    /// The rate before the first probe.
    pub start: f64,
    /// Every how many steps it probes.
    pub every: u64,
    /// At 3 or 5 points.
    pub points: u8,
    /// Which lot is asked.
    pub lot: ProbeLotName,
    /// How much more noise the gradients get to pay for the probes, as a factor.
    pub gradient_factor: f64,
    /// Standard deviations by which a fit must stand out; 0 for the paper's rule.
    pub gate: f64,
    /// The clip bound of losses before the first probe.
    pub loss_clip: f64,
    /// The least.
    pub lowest_loss_clip: f64,
}

impl Default for HyFree {
    fn default() -> Self {
        Self {
            start: 1e-4,
            every: 5,
            points: 3,
            lot: ProbeLotName::Fresh,
            gradient_factor: 1.01,
            gate: 2.0,
            loss_clip: 10.0,
            lowest_loss_clip: 0.1,
        }
    }
}
