//! What a differentially private run has cost, and what it may cost.
//!
//! ```
//! use accounting::{Accountant, Adjacency, Composition, Cost, Delta, Event, SamplingRate, Sigma};
//!
//! let step = Event::poisson(SamplingRate::new(256.0 / 60_000.0)?, Sigma::new(1.1)?);
//! let run = Composition::repeated(step, 14_040);
//! let cost = Cost::new(&run, Adjacency::AddRemove)?;
//! let guarantee = cost.epsilon(Accountant::Best, Delta::new(1e-5)?)?;
//! assert!((guarantee.epsilon - 2.3796).abs() < 1e-3);
//! # Ok::<(), accounting::Error>(())
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | how lots are drawn | [`sampling`] |
//! | what can happen to data | [`event`] |
//! | the worst pair of neighbours for each event, and why | [`pair`](crate) (private; proofs in its documentation) |
//! | ε and δ | [`cost`], by [`rdp`](crate) or [`pld`](crate) |
//! | σ, steps or lot size from ε | [`calibrate`] |
//! | what an attacker can gain | [`curve`] |
//! | the price of trying several times | [`tuning`] |
//! | what a run has spent so far | [`ledger`] |
//!
//! Every figure is an upper bound, except those of [`Accountant::Gdp`], which say that they are
//! estimates. What cannot be computed is ε = ∞ or an error, never a smaller number.

pub mod calibrate;
pub mod cost;
pub mod curve;
mod direction;
pub mod error;
pub mod event;
mod gaussian;
mod gdp;
pub mod ledger;
mod mixture;
pub mod number;
mod pair;
mod pld;
mod rdp;
pub mod sampling;
mod special;
pub mod tuning;

pub use cost::{Accountant, Cost, Guarantee, Unit};
pub use curve::TradeOff;
pub use error::{Error, Result};
pub use event::{Adjacency, Composition, Event, Release};
pub use ledger::{Budget, Ledger};
pub use number::{Delta, Epsilon, SamplingRate, Sigma};
pub use sampling::{Sampling, SamplingMethod};
