//! Privacy accounting: the cost of a differentially private run, and calibration.
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
//! | a run of equal steps, from sizes and rates | [`shape`] |
//! | accesses to data: sampling and releases | [`event`] |
//! | the dominating pair of each event, with proofs | `pair` for Gaussian noise, `atoms` for others (private) |
//! | ε and δ | [`cost`], by `rdp` or `pld` (private) |
//! | σ, steps or lot size from ε | [`calibrate`] |
//! | trade-off curves of membership inference | [`curve`] |
//! | the cost of hyperparameter tuning | [`tuning`] |
//! | the events charged to a run | [`ledger`] |
//!
//! Every bound is an upper bound, except those of [`Accountant::Gdp`], which are marked as
//! estimates. What cannot be computed is ε = ∞ or an error, never a smaller number.

mod atoms;
pub mod calibrate;
pub mod cost;
pub mod curve;
mod direction;
mod dominating;
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
pub mod shape;
mod special;
pub mod tuning;

pub use cost::{Accountant, Cost, Guarantee, Unit};
pub use curve::TradeOff;
pub use error::{Error, Result};
pub use event::{Adjacency, Composition, Event, Release};
pub use ledger::{Budget, Ledger};
pub use number::{Delta, Epsilon, FailureProbability, Rho, SamplingRate, Sigma};
pub use sampling::{Sampling, SamplingMethod};
pub use shape::RunShape;
