//! What came of verifying a statement: what holds, what does not, and what was not checked.

use crate::Statement;
use accounting::Guarantee;
use std::path::PathBuf;

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it is about.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// One line: what was found.
    pub detail: String,
}

/// One thing that was not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// What it is about.
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

/// What everything comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Nothing contradicts, and all evidence that a run leaves is there.
    Consistent,
    /// Nothing contradicts, and some evidence is missing.
    Incomplete,
    /// Something contradicts.
    Inconsistent,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The statement that was looked at.
    pub path: PathBuf,
    /// The statement; none if it cannot be read as one.
    pub statement: Option<Statement>,
    /// What the ledger costs, computed again; ε is infinite without privacy. None if it cannot be
    /// computed.
    pub price: Option<Guarantee>,
    /// The fingerprint of the key that signed the statement, if a key was given and the signature
    /// is its.
    pub signer: Option<String>,
    /// Everything that was checked.
    pub checks: Vec<Check>,
    /// What was not.
    pub unchecked: Vec<Unchecked>,
}

impl Verdict {
    /// What it comes to.
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

    pub(super) fn check(&mut self, name: &'static str, found: Found) {
        let (passed, detail) = match found {
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
        "whether ledger, checkpoints and sealed mark were all put back to an older state before \
         the run was resumed: charges made after it would be missing",
    ),
    (
        "other copies",
        "whether another copy of the run's folder was resumed as well: it would have this run id \
         and another head, and the charges of both count",
    ),
    ("program", "whether the program that ran was this one, unchanged, and drew its noise well"),
    (
        "data",
        "whether the training data were what is claimed, and a row is what is said to be protected",
    ),
    (
        "figures",
        "NLL and other figures are not computed again; tokenizer and config.json of the model are \
         not hashed",
    ),
];

/// A line that says what holds, or what does not.
pub(super) type Found = Result<String, String>;
