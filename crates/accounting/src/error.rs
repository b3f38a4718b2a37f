//! What can go wrong: a number outside its range, an event an accountant does not know, a promise
//! nobody can keep.

/// Why a figure was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument is outside the range in which it has a meaning.
    #[error("{name} must be {expected}, got {got}")]
    OutOfRange {
        /// The argument.
        name: &'static str,
        /// The range in words.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// The accountant has no valid bound for this event and refuses to guess.
    #[error("the {accountant} accountant does not support {event}")]
    Unsupported {
        /// The accountant that refuses.
        accountant: &'static str,
        /// The event, in words.
        event: String,
    },
    /// Calibration: no value of the free parameter keeps the promise.
    #[error("no {parameter} keeps ε ≤ {epsilon} at δ = {delta}: {reason}")]
    Unreachable {
        /// The free parameter.
        parameter: &'static str,
        /// The promised ε.
        epsilon: f64,
        /// The promised δ.
        delta: f64,
        /// Why not.
        reason: String,
    },
    /// A count went beyond what 64 bits hold.
    #[error("more than 2^64 releases in one ledger")]
    TooMany,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;
