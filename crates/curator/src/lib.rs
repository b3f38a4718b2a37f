//! Holds records and answers queries about them with calibrated noise; charges first.
//!
//! | to find | look in |
//! |---|---|
//! | the records, in memory or in a temporary file | [`records`](Records), [`spill`](Collector) |
//! | the type of values computed from records | [`private`](Private) |
//! | how lots are drawn, and what that is charged as | [`sampler`](lot_event) |
//! | how gradients are clipped and summed | `sums` |
//! | the public grids that make sums exact | `grid` |
//! | the one function that releases sums, with noise | `release` |
//! | the one function that charges | [`door`](Door) |
//! | keys, and the noise itself | the crate `noise` |
//! | answers to queries | [`answers`](Curator) |
//! | the private state that a resumed run needs | [`private_state`](PrivateState) |
//! | exact answers without privacy, reported as such | [`non_private`](NonPrivateOracle) |
//! | planted errors, and the audits that find them | `tests/mutants.rs` |
//!
//! `PROOFS.md` has the numbered claims, each with its functions and its tests.

#![forbid(unsafe_code)]

mod answers;
mod door;
mod grid;
mod non_private;
mod private;
mod private_state;
mod records;
mod release;
mod sampler;
mod spill;
mod sums;

pub use accounting::Sampling;
pub use answers::{Curator, StateSink};
pub use door::{Door, Journal};
pub use noise::{Origin, Randomness};
pub use non_private::NonPrivateOracle;
pub use private::Private;
pub use private_state::PrivateState;
pub use records::Records;
pub use sampler::lot_event;
pub use spill::Collector;
