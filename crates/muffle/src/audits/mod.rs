//! Attacks on what we claim: the mechanism many times, one run with canaries, the same randomness
//! on neighbouring data.
//!
//! The statistics are in the crate `audit`, which sees nothing but answers. Here are the models,
//! the records and the curators that are asked.

mod adversarial;
mod document;
mod folder;
mod mechanism;
mod one_run;
mod replay;

pub use document::{AuditDocument, AuditKind, JointDocument, PriceDocument, SpentDocument};
pub use folder::{AuditFolder, Joint};
pub use mechanism::Mechanism;
pub use one_run::OneRun;
pub use replay::{Others, Replay};

use crate::Error;
use crate::chart::{Axis, Chart, Series};
use crate::verify::spent::Spent;
use accounting::Guarantee;
use audit::Claim;
use engine::{Engine, Example, Input, Target};
use noise::{PublicRandom, Rng};
use std::path::PathBuf;

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
    /// Whether it may be shown: it was computed from made-up records, or from answers that were
    /// paid for.
    pub private: bool,
    /// What it cost to find out; none if no record but made-up ones was used.
    pub spent: Option<Expense>,
    /// What was seen beside what is claimed.
    pub chart: Chart,
}

/// The privacy cost of an audit that trains on records.
///
/// # Claim
/// Whatever the audit shows is covered by it: the bound, the guesses and the chart are computed
/// from the trained model, which is a release that was charged for, and from canaries and coins
/// that are made up.
#[derive(Clone, Debug)]
pub struct Expense {
    /// What was charged by the audit itself.
    pub spent: Spent,
    /// What that comes to; none if there is no guarantee.
    pub price: Option<Guarantee>,
    /// Where its ledger is, if it has a folder.
    pub ledger: Option<PathBuf>,
    /// With the run that was audited, and earlier audits of it.
    pub joint: Option<Joint>,
}

impl Verdict {
    /// Whether nothing speaks against the claim.
    pub fn passed(&self) -> bool {
        // Asks for the good case.
        self.epsilon_lower <= self.epsilon_claimed && self.violations.is_empty()
    }

    /// The document of an audit of this kind.
    pub fn document(&self, kind: AuditKind) -> AuditDocument {
        let spent = self.spent.as_ref();
        let joint = spent.and_then(|expense| expense.joint.as_ref());
        AuditDocument {
            audit: kind,
            epsilon_lower: self.epsilon_lower.into(),
            epsilon_claimed: self.epsilon_claimed.into(),
            delta: self.delta.into(),
            confidence: self.confidence,
            passed: self.passed(),
            private: self.private,
            spent: spent.map(|expense| SpentDocument {
                price: expense.price.into(),
                ledger: expense.ledger.clone(),
            }),
            joint: joint
                .map(|joint| JointDocument { price: joint.price.into(), of: joint.of.clone() }),
            violations: self.violations.clone(),
            details: self.details.iter().cloned().collect(),
        }
    }
}

/// Receives the progress of an audit: units of work done, and their total.
pub type AuditProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Rates at which a curve is drawn.
fn rates() -> impl Iterator<Item = f64> {
    (0..=120).map(|i| 10f64.powf(-5.0 + f64::from(i) / 24.0).min(1.0))
}

/// What an attacker can gain if the claim is true, beside the best tests that were made.
fn trade_off(claim: &Claim, seen: Vec<Series>) -> Result<Chart, Error> {
    let curve = claim.trade_off()?;
    let mut series = vec![
        Series::new("claimed: at most", rates().map(|fpr| (fpr, curve.tpr(fpr))).collect()),
        Series::new("guessing", rates().map(|fpr| (fpr, fpr)).collect()).dashed(),
    ];
    series.extend(seen);
    Ok(Chart {
        title: "What an attacker gains".into(),
        x: Axis::log("says \"there\" wrongly (share)"),
        y: Axis::log("says \"there\" rightly (share)"),
        series,
        marks: Vec::new(),
    })
}

/// Made-up records that stand out: random content, each different from the others.
fn canaries(engine: &(impl Engine + ?Sized), seed: u64, count: usize) -> Vec<Example> {
    let probe_examples = engine.probe_examples();
    let classes = probe_examples
        .iter()
        .filter_map(
            |example| if let Target::Class(class) = example.target { Some(class) } else { None },
        )
        .max();
    let tokens = probe_examples
        .iter()
        .filter_map(|example| {
            if let Input::Tokens(tokens) = &example.input { tokens.iter().max() } else { None }
        })
        .max();
    let longest = probe_examples.iter().map(Example::len).max().unwrap_or(0);
    let mut words = PublicRandom::new("canaries", seed).words();
    let mut below =
        move |most: u32| ((u64::from(words.next_u32()) * (u64::from(most) + 1)) >> 32) as u32;
    let mut numbers = vec![0.0f32; longest * count];
    PublicRandom::new("canary numbers", seed).fill_normals(&mut numbers);
    let canary = |i: usize| match (tokens, classes) {
        (Some(&most), None) => {
            Example::continuation((0..longest).map(|_| below(most)).collect(), 1)
        }
        (Some(&most), Some(class)) => {
            Example::labelled((0..longest).map(|_| below(most)).collect(), below(class))
        }
        (None, class) => {
            Example::features(numbers[i * longest..][..longest].to_vec(), below(class.unwrap_or(0)))
        }
    };
    (0..count).map(canary).collect()
}
