//! `audit.json`: the result of an audit. Unknown fields are refused.

use crate::report::Number;
use accounting::{Guarantee, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The target of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditKind {
    /// Many releases of a small model, with and without one record.
    Mechanism,
    /// One training run with canaries.
    Run,
    /// The same randomness on neighbouring data sets.
    Replay,
}

impl AuditKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mechanism => "mechanism",
            Self::Run => "run",
            Self::Replay => "replay",
        }
    }
}

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditDocument {
    /// The target of the audit.
    pub audit: AuditKind,
    /// The lower bound on ε.
    pub epsilon_lower: Number,
    /// The claimed ε.
    pub epsilon_claimed: Number,
    /// δ of both.
    pub delta: Number,
    /// The probability with which the bound holds.
    pub confidence: f64,
    /// Whether nothing contradicts the claim.
    pub passed: bool,
    /// Whether the result may be published.
    pub private: bool,
    /// The cost of the audit; none if it used synthetic records only.
    pub spent: Option<SpentDocument>,
    /// The joint cost with the audited run and earlier audits of it.
    pub joint: Option<JointDocument>,
    /// Violations that were found.
    pub violations: Vec<String>,
    /// Settings and observations, by name.
    pub details: BTreeMap<String, String>,
}

/// A privacy cost; ε is infinite without a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceDocument {
    /// ε.
    pub epsilon: Number,
    /// δ.
    pub delta: Option<f64>,
    /// The unit of privacy.
    pub unit: Option<Unit>,
}

/// The cost of an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpentDocument {
    /// The cost.
    #[serde(flatten)]
    pub price: PriceDocument,
    /// The audit's ledger, if it has a folder.
    pub ledger: Option<PathBuf>,
}

/// The joint cost of a run and its audits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JointDocument {
    /// The cost.
    #[serde(flatten)]
    pub price: PriceDocument,
    /// The ledgers that were added up.
    pub of: Vec<String>,
}

impl From<Option<Guarantee>> for PriceDocument {
    fn from(price: Option<Guarantee>) -> Self {
        Self {
            epsilon: price.map_or(f64::INFINITY, |price| price.epsilon).into(),
            delta: price.map(|price| price.delta),
            unit: price.map(|price| price.unit),
        }
    }
}
