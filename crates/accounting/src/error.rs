//! Errors: arguments out of range, unsupported events, unreachable targets.

/// An error of the accountants or of calibration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument is outside its range.
    #[error("{name} must be {expected}, got {got}")]
    OutOfRange {
        /// The argument.
        name: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// An argument is missing.
    #[error("give {0}")]
    Missing(&'static str),
    /// The accountant has no valid bound for this event.
    #[error("the {accountant} accountant does not support {event}")]
    Unsupported {
        /// The accountant.
        accountant: &'static str,
        /// A description of the event.
        event: String,
    },
    /// The noise is too small for the grid of the PLD accountant.
    #[error("the pld accountant needs a noise multiplier of at least 1/60 per row; use rdp")]
    NoiseTooSmall,
    /// No value of the free parameter of a calibration reaches the target.
    #[error("no {parameter} keeps ε ≤ {epsilon} at δ = {delta}: {reason}")]
    Unreachable {
        /// The free parameter.
        parameter: &'static str,
        /// The target ε.
        epsilon: f64,
        /// The target δ.
        delta: f64,
        /// The reason.
        reason: String,
    },
    /// A count of releases does not fit into 64 bits.
    #[error("the number of releases must be below 2^64")]
    TooMany,
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
