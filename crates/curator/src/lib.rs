//! Holds people's records and answers questions about them with calibrated noise, for a price that
//! is paid first.
//!
//! | to find | look in |
//! |---|---|
//! | what is held, and that it does not come out | [`records`](Records), [`spill`](Collector), [`private`](Private) |
//! | who is in a lot, and what that means for the price | [`sampler`](Sampling) |
//! | how a gradient is clipped and summed | `sums` |
//! | the one function that releases sums, with noise | `release` |
//! | the one function that charges | [`door`](Door) |
//! | keys, and the noise itself | the crate `noise` |
//! | one secret for several processes | [`secret`](shared_randomness) |
//! | the answers | [`answers`](Curator) |
//! | what is remembered over an interruption, and kept from everybody | [`sealed`](Sealed) |
//! | the same without privacy, and saying so | [`exact`](Exact) |
//! | planted errors, and the audits that find them | `tests/mutants.rs` |
//!
//! The numbered claims behind it are in `PROOFS.md`, each with its function and its test.

#![forbid(unsafe_code)]

mod answers;
mod door;
mod exact;
mod grid;
mod private;
mod records;
mod reduce;
mod release;
mod sampler;
mod sealed;
mod secret;
mod spill;
mod sums;

pub use answers::{Curator, Keeper};
pub use door::{Door, Journal};
pub use exact::Exact;
pub use noise::{Origin, Randomness};
pub use private::Private;
pub use records::Records;
pub use sampler::Sampling;
pub use sealed::Sealed;
pub use secret::shared_randomness;
pub use spill::Collector;
