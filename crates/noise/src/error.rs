//! Errors of keys and mechanisms.

/// An error of this crate. Errors do not depend on records.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system provides no randomness.
    #[error("the operating system provides no randomness: {0}")]
    System(String),
    /// A key was already taken or skipped, or its number is too large.
    #[error("random draw {number}: expected a number from {next} up to, but not including, {end}")]
    KeyUnavailable {
        /// The requested number.
        number: u64,
        /// The smallest available number.
        next: u64,
        /// The largest available number plus 1.
        end: u64,
    },
    /// The noise is too large for the resolution of its grid.
    #[error(
        "noise multiplier times the square root of the number of elements of a block: expected a \
         number from 0 to {max:e}, got {got:e}"
    )]
    NoiseTooLarge {
        /// The largest value for which rounding is negligible.
        max: f64,
        /// The value of the block.
        got: f64,
    },
    /// A saved state is not a state of this mechanism.
    #[error("noise mechanism {mechanism}: the saved state belongs to another mechanism")]
    State {
        /// The name of the mechanism.
        mechanism: &'static str,
    },
}
