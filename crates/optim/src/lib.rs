//! Optimizers: the analyst, which turns answers into the next parameters.
//!
//! An [`Optimizer`] is a [`Descent`] (the query and the direction) and a [`Search`] (the step
//! size). It sees the answers of an [`Oracle`](protocol::Oracle) and nothing else, so whatever it
//! does with them is post-processing. This crate does not depend on crates that hold records, so it
//! cannot name one:
//!
//! ```compile_fail,E0432
//! use engine::Example;
//! ```
//! ```compile_fail,E0432
//! use curator::Records;
//! ```
//!
//! | algorithm | file | geometry | blocks |
//! |---|---|---|---|
//! | DP-SGD | [`sgd`] | identity | 1 |
//! | DP-Adam, DP-AdamW, DP-AdamBC | [`adam`] | identity | 1 |
//! | DP-Muon, DP-MuonBC | [`muon`] on [`newton_schulz`] | identity | 1 per matrix, 1 for the rest |
//! | AdaCliP | [`adaclip`] | affine, from averages of its releases | 1 |
//! | DP-MacAdam | [`macadam`] | affine, from its own moments | 1 |
//! | PRISM | [`prism`] | tangent, from the low-rank factors | 1 |
//! | HyFreeDP | [`hyfree`], a search for any of them | | |
//!
//! Without privacy, the same optimizers use an oracle with exact answers. A new optimizer needs a
//! file with its hyperparameters and its [`Descent`], and a row in [`registry`].

#![forbid(unsafe_code)]

pub mod adaclip;
pub mod adam;
pub mod config;
pub mod hyfree;
pub mod macadam;
pub mod muon;
pub mod newton_schulz;
pub mod prism;
pub mod registry;
pub mod schedule;
pub mod sgd;
pub mod theory;

mod auto;
mod averaging;
mod centered_clip;
mod descent;
mod elementwise;
mod gradient_noise;
mod keys;
mod optimizer;
mod pooled_variance;
mod public;
mod search;
mod state;

pub use adaclip::AdaClip;
pub use adam::Adam;
pub use auto::Auto;
pub use config::{LearningRate, Multipliers, OptimizerConfig, Origin, Setting};
pub use descent::{Descent, GatherTensors, Note};
pub use gradient_noise::GradientNoise;
pub use hyfree::HyFree;
pub use keys::{Key, Keys};
pub use macadam::MacAdam;
pub use muon::Muon;
pub use optimizer::{Optimizer, Step};
pub use prism::Prism;
pub use public::Probes;
pub use registry::Method;
pub use schedule::Schedule;
pub use search::{FoundRate, Search};
pub use sgd::Sgd;
pub use state::{Shapes, State};

/// Returns `value` if it is at least `low` and less than `high`; `key` names it in the error.
fn within(key: &str, value: f64, low: f64, high: f64) -> Result<f64, protocol::Refused> {
    // Tests for the valid case, so that NaN is refused.
    if value >= low && value < high {
        return Ok(value);
    }
    let upper = if high.is_finite() { format!(" and less than {high}") } else { String::new() };
    Err(protocol::Refused::Query(format!("{key}: expected at least {low}{upper}, got {value}")))
}
