//! Attacks on the claimed guarantee: many trials of the mechanism, one run with canaries, the same
//! randomness on neighbouring data.
//!
//! The statistics are in the crate `audit`, which sees only answers. This module provides the
//! models, the records and the curators.

mod adversarial;
mod document;
mod folder;
mod mechanism;
mod one_run;
mod replay;

pub use document::{AuditDocument, AuditKind, JointDocument, PriceDocument, SpentDocument};
pub use folder::{AuditFolder, JointCost};
pub use mechanism::MechanismSettings;
pub use one_run::OneRunSettings;
pub use replay::{OtherRecords, ReplaySettings};

use crate::Error;
use crate::chart::{Axis, Chart, Series};
use crate::verify::spent::Spent;
use accounting::Guarantee;
use audit::Claim;
use engine::{Engine, Example, Input, Target};
use noise::{PublicRandom, Rng};
use std::path::PathBuf;

/// The result of an audit.
#[derive(Clone, Debug)]
pub struct AuditResult {
    /// A lower bound on ε, with the given confidence.
    pub epsilon_lower: f64,
    /// The claimed ε; infinite without a claim.
    pub epsilon_claimed: f64,
    /// δ of both.
    pub delta: f64,
    /// The probability with which the bound holds.
    pub confidence: f64,
    /// Contradictions to the claim, one line each.
    pub violations: Vec<String>,
    /// Settings and observations: name and value.
    pub details: Vec<(String, String)>,
    /// Whether it may be published: it was computed from synthetic records, or from charged
    /// releases.
    pub private: bool,
    /// The privacy cost of the audit; `None` if it used synthetic records only.
    pub spent: Option<AuditCost>,
    /// Observations compared with the claim.
    pub chart: Chart,
}

/// The privacy cost of an audit that trains on records.
///
/// # Claim
/// It covers everything that the audit shows: the bound, the guesses and the chart are computed
/// from the trained model, which is a charged release, and from synthetic canaries and coins.
#[derive(Clone, Debug)]
pub struct AuditCost {
    /// The charges of the audit itself.
    pub spent: Spent,
    /// The cost of these charges; `None` without a guarantee.
    pub price: Option<Guarantee>,
    /// The path of the audit's ledger, if it has a folder.
    pub ledger: Option<PathBuf>,
    /// The joint cost with the audited run and earlier audits of it.
    pub joint: Option<JointCost>,
}

impl AuditResult {
    /// Whether nothing contradicts the claim.
    pub fn passed(&self) -> bool {
        // Every comparison with NaN is false, so NaN does not pass.
        self.epsilon_lower <= self.epsilon_claimed && self.violations.is_empty()
    }

    /// The content of `audit.json`.
    pub fn document(&self, kind: AuditKind) -> AuditDocument {
        let spent = self.spent.as_ref();
        let joint = spent.and_then(|cost| cost.joint.as_ref());
        AuditDocument {
            audit: kind,
            epsilon_lower: self.epsilon_lower.into(),
            epsilon_claimed: self.epsilon_claimed.into(),
            delta: self.delta.into(),
            confidence: self.confidence,
            passed: self.passed(),
            private: self.private,
            spent: spent.map(|cost| SpentDocument {
                price: cost.price.into(),
                ledger: cost.ledger.clone(),
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

/// The false-positive rates at which a curve is drawn.
fn false_positive_rates() -> impl Iterator<Item = f64> {
    (0..=120).map(|i| 10f64.powf(-5.0 + f64::from(i) / 24.0).min(1.0))
}

/// Draws the claimed trade-off curve and the observed tests.
fn trade_off_chart(claim: &Claim, observed: Vec<Series>) -> Result<Chart, Error> {
    let curve = claim.trade_off()?;
    let mut series = vec![
        Series::new(
            "claimed: at most",
            false_positive_rates().map(|fpr| (fpr, curve.tpr(fpr))).collect(),
        ),
        Series::new("guessing", false_positive_rates().map(|fpr| (fpr, fpr)).collect()).dashed(),
    ];
    series.extend(observed);
    Ok(Chart {
        title: "Membership tests".into(),
        x: Axis::log("false-positive rate"),
        y: Axis::log("true-positive rate"),
        series,
        marks: Vec::new(),
    })
}

/// Creates `count` synthetic records with random content that fit the engine.
fn canaries(engine: &(impl Engine + ?Sized), seed: u64, count: usize) -> Vec<Example> {
    let probe_examples = engine.probe_examples();
    let parts = || probe_examples.iter().flat_map(Example::parts);
    // Any class up to the largest one of the probe examples, or the targets of these in turn.
    let max_class = parts()
        .filter_map(|part| if let Target::Class(class) = part.target { Some(class) } else { None })
        .max();
    let targets: Vec<&Target> = parts().map(|part| &part.target).collect();
    let max_token = parts()
        .filter_map(|part| {
            if let Input::Tokens(tokens) = &part.input { tokens.iter().max() } else { None }
        })
        .max();
    let longest = probe_examples.iter().map(Example::len).max().unwrap_or(0);
    let mut words = PublicRandom::new("canaries", seed).words();
    let mut random_up_to =
        move |max: u32| ((u64::from(words.next_u32()) * (u64::from(max) + 1)) >> 32) as u32;
    let mut features = vec![0.0f32; longest * count];
    PublicRandom::new("canary numbers", seed).fill_normals(&mut features);
    let canary = |i: usize| {
        let input = match max_token {
            Some(&max) => Input::Tokens((0..longest).map(|_| random_up_to(max)).collect()),
            None => Input::Features(features[i * longest..][..longest].to_vec()),
        };
        match (input, max_class, targets[i % targets.len()]) {
            (Input::Tokens(tokens), None, Target::Next(_)) => Example::continuation(tokens, 1),
            (input, Some(class), _) => Example::new(input, Target::Class(random_up_to(class))),
            (input, None, target) => Example::new(input, target.clone()),
        }
    };
    (0..count).map(canary).collect()
}
