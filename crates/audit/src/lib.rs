//! Attacks a mechanism from outside, and says how large its ε is at least.
//!
//! An accountant says that ε is *at most* so much, for a mechanism as it is meant. An audit looks
//! at the mechanism as it is. It sees what an analyst sees, the answers of a [`protocol::Oracle`],
//! and may choose the data. What it finds is a lower bound: if that is above what is claimed, the
//! claim is false; if it is below, nothing is proved.
//!
//! | to find | look in |
//! |---|---|
//! | how often a test errs, at most | [`rate`] |
//! | ε from a score on data with and without somebody | [`distinguish`] |
//! | many releases with and without one record | [`mechanism`] |
//! | one run with many canaries (Steinke, Nasr, Jagielski 2023) | [`one_run`] |
//! | the same randomness on neighbouring data: how far apart every release is | [`replay`] |

#![forbid(unsafe_code)]

pub mod distinguish;
pub mod mechanism;
pub mod one_run;
pub mod rate;
pub mod replay;

pub use distinguish::{Claim, EpsilonBounds, Scores, ThresholdTest};
pub use mechanism::{MechanismAudit, MechanismScores};
pub use one_run::OneRun;
pub use replay::PairedOracles;
