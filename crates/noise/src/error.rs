//! What can go wrong when keys are taken and noise is added.

/// An error of this crate. It is public: none depends on records.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system provides no randomness.
    #[error("the operating system provides no randomness: {0}")]
    System(String),
    /// A key was taken or skipped before, or the sequence is shorter.
    #[error("random draw {number}: expected a number from {next} up to, but not including, {end}")]
    Key {
        /// The number that was requested.
        number: u64,
        /// The first number that is available.
        next: u64,
        /// The number after the last one.
        end: u64,
    },
    /// The noise is too large for the resolution of its grid.
    #[error(
        "noise multiplier times the square root of a block's elements: expected a number from 0 \
         to {most:e}, got {got:e}"
    )]
    Coarse {
        /// The largest value for which rounding is negligible.
        most: f64,
        /// The value of the block.
        got: f64,
    },
    /// A saved state is not one of this mechanism.
    #[error("noise mechanism {mechanism}: the saved state belongs to another mechanism")]
    State {
        /// The name of the mechanism.
        mechanism: &'static str,
    },
}
