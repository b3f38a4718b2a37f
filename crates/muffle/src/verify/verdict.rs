//! The result of verifying a statement: what holds, what does not, and what was not checked.

use crate::Statement;
use accounting::Guarantee;
use serde::Serialize;
use std::path::PathBuf;

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject of the check.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// One line: what was found.
    pub detail: String,
}

/// One thing that was not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// The subject of the check.
    pub name: &'static str,
    /// Why it was not.
    pub reason: Reason,
    /// One line: what remains open.
    pub detail: String,
}

/// Why something was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A file that a finished run has is not there.
    Missing,
    /// No file of a run can show it.
    OutOfReach,
}

/// The conclusion of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Nothing contradicts, and all evidence that a run leaves is there.
    Consistent,
    /// Nothing contradicts, and some evidence is missing.
    Incomplete,
    /// Something contradicts.
    Inconsistent,
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The file of the statement.
    pub path: PathBuf,
    /// The statement; none if it cannot be read as one.
    pub statement: Option<Statement>,
    /// The recomputed cost of the ledger; ε is infinite without privacy. None if it cannot be
    /// computed.
    pub price: Option<Guarantee>,
    /// The fingerprint of the key that signed the statement, if a key was given and the signature
    /// is its.
    pub signer: Option<String>,
    /// Everything that was checked.
    pub checks: Vec<Check>,
    /// Everything that was not checked.
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

    /// Whether nothing contradicts. Evidence may be missing.
    pub fn consistent(&self) -> bool {
        self.conclusion() != Conclusion::Inconsistent
    }

    /// Evidence that is not there.
    pub fn missing(&self) -> impl Iterator<Item = &Unchecked> {
        self.unchecked.iter().filter(|unchecked| unchecked.reason == Reason::Missing)
    }

    pub(super) fn check(&mut self, name: &'static str, finding: Finding) {
        let (passed, detail) = match finding {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        self.checks.push(Check { name, passed, detail });
    }

    pub(super) fn miss(&mut self, name: &'static str, detail: &str) {
        self.unchecked.push(Unchecked { name, reason: Reason::Missing, detail: detail.into() });
    }

    pub(super) fn out_of_reach(&mut self, name: &'static str, detail: &str) {
        self.unchecked.push(Unchecked { name, reason: Reason::OutOfReach, detail: detail.into() });
    }
}

/// What no file of a run can show.
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

/// One line: what holds, or what does not.
pub(super) type Finding = Result<String, String>;
