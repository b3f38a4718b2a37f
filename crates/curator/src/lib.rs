//! Holds people's records and answers questions about them with calibrated noise, for a price that
//! is paid first.
//!
//! | to find | look in |
//! |---|---|
//! | what is held, and that it does not come out | [`records`](Records), [`spill`](Collector), [`private`](Private) |
//! | who is in a lot, and what that means for the price | [`sampler`](lot_event) |
//! | how a gradient is clipped and summed | `sums` |
//! | the one function that adds noise | `noise` |
//! | the one function that charges | [`door`](Door) |
//! | keys that are used once and forgotten | [`randomness`](Randomness), `ratchet` |
//! | the answers | [`answers`](Curator) |
//! | what is remembered over an interruption, and kept from everybody | [`sealed`](Sealed) |
//! | the same without privacy, and saying so | [`exact`](Exact) |
//! | errors planted on purpose, and the audits that find them | `mutants`, in tests only |
//!
//! The numbered claims behind it are in `PROOFS.md`, each with its function and its test.

#![forbid(unsafe_code)]

// The models and records of the other tests are used by those inside as well.
#[cfg(test)]
extern crate self as curator;

mod answers;
mod door;
mod exact;
mod grid;
mod noise;
mod private;
mod randomness;
mod ratchet;
mod records;
mod reduce;
mod sampler;
mod sealed;
mod spill;
mod sums;

#[cfg(test)]
mod float_noise;
#[cfg(test)]
mod mutants;

pub use accounting::Sampling;
pub use answers::{Curator, Keeper};
pub use door::{Door, Journal};
pub use exact::Exact;
pub use noise::Noise;
pub use private::Private;
pub use randomness::{Origin, Randomness};
pub use records::Records;
pub use sampler::lot_event;
pub use sealed::Sealed;
pub use spill::Collector;
