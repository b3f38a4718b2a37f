//! Errors of an audit.

/// An error of an audit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// There are too few trials for a bound.
    #[error(
        "the audit needs at least {least} trials with and without the record, \
         got {with} and {without}"
    )]
    TooFewTrials {
        /// The smallest number allowed.
        least: usize,
        /// Trials with the record.
        with: usize,
        /// Trials without the record.
        without: usize,
    },
    /// The confidence is not a probability.
    #[error("the confidence must be greater than 0 and less than 1, got {0}")]
    Confidence(f64),
    /// There are too few canaries, or not one score for each.
    #[error("expected at least 2 canaries with a score each, got {canaries} and {scores} scores")]
    Canaries {
        /// The number of canaries.
        canaries: usize,
        /// The number of scores.
        scores: usize,
    },
    /// No release depends on the record, so that nothing can be measured.
    #[error("the record does not change any release; choose another record or model")]
    NoEffect,
    /// The claim cannot be evaluated.
    #[error(transparent)]
    Accounting(#[from] accounting::Error),
    /// An oracle refused a query.
    #[error(transparent)]
    Refused(#[from] protocol::Refused),
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Validates a confidence level.
pub(crate) fn check_confidence(confidence: f64) -> Result<()> {
    // Tests for the valid case, so that NaN is refused.
    if confidence > 0.0 && confidence < 1.0 { Ok(()) } else { Err(Error::Confidence(confidence)) }
}
