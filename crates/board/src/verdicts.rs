//! Verification of runs in the background, one at a time.

use crate::files;
use muffle::verify::{Conclusion, UncheckedReason, Verdict, verify};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of a verification.
#[derive(Clone, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(crate) enum Verification {
    /// None was asked for.
    None,
    /// It is being made.
    Running,
    /// It could not be made.
    Failed { error: String },
    /// It was made.
    Done(Outcome),
}

/// The verdict for the page.
#[derive(Clone, Serialize)]
pub(crate) struct Outcome {
    conclusion: &'static str,
    sentence: String,
    lines: Vec<Line>,
}

/// A check.
#[derive(Clone, Serialize)]
pub(crate) struct Line {
    /// passed, failed, missing or out-of-reach.
    kind: &'static str,
    name: &'static str,
    detail: String,
}

impl From<&Verdict> for Outcome {
    fn from(verdict: &Verdict) -> Self {
        let made = verdict.checks.iter().map(|check| Line {
            kind: if check.passed { "passed" } else { "failed" },
            name: check.name,
            detail: check.detail.clone(),
        });
        let not_made = verdict.unchecked.iter().map(|unchecked| Line {
            kind: match unchecked.reason {
                UncheckedReason::Missing => "missing",
                UncheckedReason::OutOfReach => "out-of-reach",
            },
            name: unchecked.name,
            detail: unchecked.detail.clone(),
        });
        Self {
            conclusion: match verdict.conclusion() {
                Conclusion::Consistent => "consistent",
                Conclusion::Incomplete => "incomplete",
                Conclusion::Inconsistent => "inconsistent",
            },
            sentence: verdict.sentence(),
            lines: made.chain(not_made).collect(),
        }
    }
}

/// The last verification of each run, by its id.
#[derive(Default)]
pub(crate) struct Verdicts {
    by_id: Arc<Mutex<HashMap<String, Verification>>>,
    /// Held by the verification that is being made.
    turn: Arc<Mutex<()>>,
}

impl Verdicts {
    /// The last verification of a run.
    pub(crate) fn get(&self, id: &str) -> Verification {
        lock(&self.by_id).get(id).cloned().unwrap_or(Verification::None)
    }

    /// Starts a verification, unless one of this run is being made.
    pub(crate) fn start(&self, id: &str, folder: PathBuf) -> Verification {
        let mut verifications = lock(&self.by_id);
        if matches!(verifications.get(id), Some(Verification::Running)) {
            return Verification::Running;
        }
        let (id, by_id, turn) = (id.to_string(), self.by_id.clone(), self.turn.clone());
        let key = id.clone();
        let thread = std::thread::Builder::new().name("verify".into()).spawn(move || {
            let _turn = lock(&turn);
            let made = std::panic::catch_unwind(|| {
                files::check_for_verify(&folder)?;
                verify(&folder).map_err(|error| error.to_string())
            });
            let verification = match made {
                Ok(Ok(verdict)) => Verification::Done(Outcome::from(&verdict)),
                Ok(Err(error)) => Verification::Failed { error },
                Err(_) => Verification::Failed { error: "internal fault of the program".into() },
            };
            lock(&by_id).insert(id, verification);
        });
        let verification = match thread {
            Ok(_) => Verification::Running,
            Err(error) => Verification::Failed { error: error.to_string() },
        };
        verifications.insert(key, verification.clone());
        verification
    }
}

/// Locks a value. A thread that panicked with it leaves it complete.
pub(crate) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
