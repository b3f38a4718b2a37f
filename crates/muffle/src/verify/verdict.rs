//! The result of verifying a statement: checks that passed or failed, and what was not checked.

use crate::Statement;
use crate::report::digits::{up, up_e};
use crate::run::chain::ChainError;
use crate::verify::signature::SignatureError;
use accounting::Guarantee;
use serde::Serialize;
use std::path::PathBuf;

/// A check that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check.
    pub name: &'static str,
    /// Whether it passed.
    pub passed: bool,
    /// The finding, on one line.
    pub detail: String,
}

/// A check that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// The name of the check.
    pub name: &'static str,
    /// Why it was not made.
    pub reason: UncheckedReason,
    /// What remains open, on one line.
    pub detail: String,
}

/// Why a check was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncheckedReason {
    /// A file that a finished run has is missing.
    Missing,
    /// No file of a run can show it.
    OutOfReach,
}

/// The conclusion of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// No check failed, and no evidence is missing.
    Consistent,
    /// No check failed, but evidence is missing.
    Incomplete,
    /// A check failed.
    Inconsistent,
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The file of the statement.
    pub path: PathBuf,
    /// The statement; `None` if it is malformed.
    pub statement: Option<Statement>,
    /// The recomputed cost of the ledger; `None` if it cannot be computed. Without privacy ε is
    /// infinite.
    pub price: Option<Guarantee>,
    /// The fingerprint of the given key, if it signed the statement.
    pub signer: Option<String>,
    /// The checks that were made.
    pub checks: Vec<Check>,
    /// The checks that were not made.
    pub unchecked: Vec<Unchecked>,
}

impl Verdict {
    /// The conclusion.
    pub fn conclusion(&self) -> Conclusion {
        if self.checks.is_empty() || self.checks.iter().any(|check| !check.passed) {
            return Conclusion::Inconsistent;
        }
        match self.missing().next() {
            None => Conclusion::Consistent,
            Some(_) => Conclusion::Incomplete,
        }
    }

    /// Whether no check failed. Evidence may be missing.
    pub fn consistent(&self) -> bool {
        self.conclusion() != Conclusion::Inconsistent
    }

    /// Checks that were not made because evidence is missing.
    pub fn missing(&self) -> impl Iterator<Item = &Unchecked> {
        self.unchecked.iter().filter(|unchecked| unchecked.reason == UncheckedReason::Missing)
    }

    /// The names of checks with missing evidence, separated by commas.
    pub fn missing_names(&self) -> String {
        self.missing().map(|missing| missing.name).collect::<Vec<_>>().join(", ")
    }

    /// The conclusion in one sentence, with the guarantee that was found.
    pub fn sentence(&self) -> String {
        let qualification = match self.conclusion() {
            Conclusion::Inconsistent => {
                return "Inconsistent. Do not rely on this statement.".into();
            }
            Conclusion::Incomplete => {
                format!(" as far as the evidence goes ({} is missing)", self.missing_names())
            }
            Conclusion::Consistent => String::new(),
        };
        match (&self.statement, self.price) {
            (Some(statement), Some(price)) if statement.private => format!(
                "Consistent{qualification}: ε = {} at δ = {} ({}).",
                up(price.epsilon, 3),
                up_e(price.delta),
                price.unit
            ),
            _ => format!(
                "Consistent{qualification}: the statement says that the model is NOT PRIVATE."
            ),
        }
    }

    /// Adds a check that was made.
    pub(super) fn add(&mut self, name: &'static str, finding: Finding) {
        let (passed, detail) = match finding {
            Ok(detail) => (true, detail),
            Err(failure) => (false, failure.to_string()),
        };
        self.checks.push(Check { name, passed, detail });
    }

    /// Adds a check that was not made because evidence is missing.
    pub(super) fn add_missing(&mut self, name: &'static str, detail: &str) {
        let reason = UncheckedReason::Missing;
        self.unchecked.push(Unchecked { name, reason, detail: detail.into() });
    }

    /// Adds a check that was not made because no file can show the property.
    pub(super) fn add_out_of_reach(&mut self, name: &'static str, detail: &str) {
        let reason = UncheckedReason::OutOfReach;
        self.unchecked.push(Unchecked { name, reason, detail: detail.into() });
    }
}

/// Properties that no file of a run can show.
pub(super) const OUT_OF_REACH: [(&str, &str); 5] = [
    (
        "older copy",
        "whether ledger, checkpoints and sealed mark were all restored to an older state before \
         the run was resumed: charges made after it would be missing",
    ),
    (
        "other copies",
        "whether another copy of the run's folder was resumed as well: it would have this run id \
         and another head, and the charges of both count",
    ),
    ("program", "whether the run was made by this program, unmodified, with good noise"),
    (
        "data",
        "whether the training data are those that are claimed, with the claimed unit in each row",
    ),
    (
        "figures",
        "NLL and other figures are not recomputed; tokenizer and config.json of the model are not \
         hashed",
    ),
];

/// Why a check failed, on one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Two facts contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// A ledger is invalid, or does not contain a position.
    #[error(transparent)]
    Ledger(#[from] ChainError),
    /// A file of the run has an invalid ledger.
    #[error("{file}: {source}")]
    LedgerFile { file: &'static str, source: ChainError },
    /// The statement is not signed by the given key.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A figure is out of range, or a cost cannot be computed.
    #[error(transparent)]
    Accounting(#[from] accounting::Error),
    /// The statement is malformed.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A file cannot be read.
    #[error(transparent)]
    Library(#[from] crate::Error),
}

impl Failure {
    /// Makes a failure of facts that contradict each other.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::Contradiction(message.into())
    }
}

/// The finding of a check, on one line: what was confirmed, or why it failed.
pub(super) type Finding = Result<String, Failure>;
