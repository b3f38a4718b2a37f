//! Attacks on what we claim: the mechanism many times, one run with canaries, the same randomness on neighbouring data.
//!
//! The statistics are in the crate `audit`, which sees nothing but answers. Here are the models, the records and the curators that are asked.

mod mechanism;
mod one_run;
mod replay;

pub use mechanism::Mechanism;
pub use one_run::OneRun;
pub use replay::Replay;

use crate::Failed;
use crate::plot::{Axis, Line, Plot, Scale, Series};
use audit::Claim;
use model::{Engine, Example, Input, Target};
use tensor::normal::{Key, Rng};

/// What an audit found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// ε is at least this, with the given confidence.
    pub epsilon_lower: f64,
    /// What is claimed; infinite if nothing is.
    pub epsilon_claimed: f64,
    /// δ of both.
    pub delta: f64,
    /// With which probability all of it holds.
    pub confidence: f64,
    /// What must not be, one line each.
    pub violations: Vec<String>,
    /// What was done and seen: name and value.
    pub details: Vec<(String, String)>,
    /// What was seen beside what is claimed.
    pub plot: Plot,
}

impl Verdict {
    /// Whether nothing speaks against the claim.
    pub fn passed(&self) -> bool {
        // Asks for the good case.
        self.epsilon_lower <= self.epsilon_claimed && self.violations.is_empty()
    }
}

/// What an audit says on its way: how much of it is done, and of how much.
pub type Said<'a> = &'a mut dyn FnMut(u64, u64);

/// Rates at which a curve is drawn.
fn rates() -> impl Iterator<Item = f64> {
    (0..=120).map(|i| 10f64.powf(-5.0 + f64::from(i) / 24.0).min(1.0))
}

/// What an attacker can gain if the claim is true, beside the best tests that were made.
fn trade_off(claim: &Claim, seen: Vec<Series>) -> Result<Plot, Failed> {
    let curve = claim.trade_off()?;
    let mut series = vec![
        Series {
            name: "claimed: at most".into(),
            points: rates().map(|fpr| (fpr, curve.tpr(fpr))).collect(),
            spread: Vec::new(),
            line: Line::Solid,
        },
        Series { name: "guessing".into(), points: rates().map(|fpr| (fpr, fpr)).collect(), spread: Vec::new(), line: Line::Dashed },
    ];
    series.extend(seen);
    Ok(Plot {
        title: "What an attacker gains".into(),
        x: Axis { label: "says \"there\" wrongly (share)".into(), scale: Scale::Log },
        y: Axis { label: "says \"there\" rightly (share)".into(), scale: Scale::Log },
        series,
        marks: Vec::new(),
    })
}

/// Made-up records that stand out: what nobody would write, and each another one.
fn canaries(engine: &impl Engine, seed: u64, count: usize) -> Vec<Example> {
    let stand_ins = engine.stand_ins();
    let classes = stand_ins.iter().filter_map(|example| if let Target::Class(class) = example.target { Some(class) } else { None }).max();
    let tokens =
        stand_ins.iter().filter_map(|example| if let Input::Tokens(tokens) = &example.input { tokens.iter().max() } else { None }).max();
    let longest = stand_ins.iter().map(Example::len).max().unwrap_or(0);
    let mut words = Key::for_purpose("canaries", seed).words();
    let mut below = move |most: u32| ((u64::from(words.next_u32()) * (u64::from(most) + 1)) >> 32) as u32;
    let mut numbers = vec![0.0f32; longest * count];
    Key::for_purpose("canary numbers", seed).fill_normals(&mut numbers);
    let canary = |i: usize| match (tokens, classes) {
        (Some(&most), None) => Example::continuation((0..longest).map(|_| below(most)).collect(), 1),
        (Some(&most), Some(class)) => Example::labelled((0..longest).map(|_| below(most)).collect(), below(class)),
        (None, class) => Example::numbers(numbers[i * longest..][..longest].to_vec(), below(class.unwrap_or(0))),
    };
    (0..count).map(canary).collect()
}
