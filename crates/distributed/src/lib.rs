//! Training by several processes (ranks), which hold the same records and draw the same lots.
//!
//! The tensors of the model are divided among the ranks ([`Ownership`]). Each rank sums its share
//! of a lot. The owner of a tensor receives the sums of all ranks, adds noise, and computes the
//! direction of the tensor, for which it stores the optimizer's state. Then all ranks receive the
//! direction. Two wrappers, [`LotReducer`] and [`ShardedDescent`], do this; the curator, the engine
//! and the optimizers know nothing of ranks.
//!
//! | to find | look in |
//! |---|---|
//! | sums of a lot, reduced to the owners of the tensors | [`LotReducer`] |
//! | an optimizer whose state is divided among the ranks | [`ShardedDescent`] |
//! | which rank owns which tensor | [`Ownership`] |
//! | this process among the others, and its communication thread | [`Ranks`] |
//! | one secret for all ranks | [`shared_randomness`] |
//! | reduce, gather, broadcast | `collectives` |
//! | the one primitive below them | `transport` |
//! | processes started by an MPI launcher | `mpi_transport`, with the feature `mpi` |
//! | threads that act as ranks, for tests | [`threads`](fn@threads) |
//!
//! Sums without noise and the secret of a run travel between the processes, so the network must be
//! as trusted as the processes.

#![forbid(unsafe_code)]

mod collectives;
mod error;
#[cfg(feature = "mpi")]
mod mpi_transport;
mod ownership;
mod ranks;
mod reducer;
mod secret;
mod sharded;
mod stall;
mod threads;
mod transport;

pub use collectives::Summand;
pub use error::Error;
#[cfg(feature = "mpi")]
pub use mpi_transport::connect_mpi;
pub use ownership::Ownership;
pub use ranks::{Pending, Ranks, launcher_rank, local_ranks};
pub use reducer::LotReducer;
pub use secret::shared_randomness;
pub use sharded::ShardedDescent;
pub use threads::threads;
