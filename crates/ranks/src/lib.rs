//! Several processes that train one model, and how numbers get from one to another.
//!
//! | to find | look in |
//! |---|---|
//! | who is there, and the thread that does the talking | [`talk`](Ranks) |
//! | what is done together: sums, parts put together, one's word for all | [`together`](Parts) |
//! | which process works on which tensor | [`share`](fn@share) |
//! | the one primitive below all of it | `wire` |
//! | processes that an MPI launcher started | `launched`, with the feature `mpi` |
//! | threads that stand for processes, for tests | [`threads`](fn@threads) |
//!
//! It transports numbers and bytes and does not know what they mean. The curator hands it sums
//! without noise, so the network between the processes must be as trusted as the processes.

#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
mod launched;
mod share;
mod talk;
mod threads;
mod together;
mod wire;

#[cfg(feature = "mpi")]
pub use launched::launched;
pub use share::share;
pub use talk::{Pending, Ranks, launcher, neighbours};
pub use threads::threads;
pub use together::{Number, Parts};
pub use wire::Lost;
