//! The interface between the curator and the computation of gradients.
//!
//! The curator loads parameters into an [`Engine`], lets it [observe](Engine::observe) a
//! micro-batch (losses and squared norms per example and block), turns the observation into
//! [`Weights`], lets the engine [accumulate](Engine::accumulate) the weighted gradients, and
//! [takes the sum](Engine::take_sum) once per lot. No type of this crate depends on how an engine
//! computes: arrays in host memory and integers cross the interface, and no closure does.
//!
//! | to find | look in |
//! |---|---|
//! | what an engine must do, and what it must guarantee | [`Engine`] |
//! | one record, as an engine sees it | [`Example`] |
//! | a validated query | [`CheckedQuery`] |
//! | exact sums on a public grid | [`Sum`], [`StepScale`] |
//! | sums over several processes | [`Reducer`] |
//! | the checks an engine must pass before it sees a record | [`probe()`] |

#![forbid(unsafe_code)]

mod engine;
mod error;
mod example;
mod observed;
mod probe;
mod query;
mod reducer;
mod sum;

pub use engine::{Engine, Isolation, weighted_sum};
pub use error::Error;
pub use example::{Combination, Example, Input, Part, Target};
pub use observed::{Observed, Weights};
pub use probe::{probe, probe_isolation, probe_norms};
pub use query::CheckedQuery;
pub use reducer::{OneProcess, Reducer};
pub use sum::{Accumulator, StepScale, Sum, SumPrecision};
