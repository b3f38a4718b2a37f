//! Privacy audits: lower bounds on the ε of a mechanism, from its releases.
//!
//! An accountant gives an upper bound on ε for the mechanism as designed. An audit attacks the
//! mechanism as implemented. It sees what an analyst sees, the answers of a [`protocol::Oracle`],
//! and may choose the data. Its result is a lower bound: if it exceeds the claimed ε, the claim is
//! false; otherwise nothing is proved.
//!
//! | to find | look in |
//! |---|---|
//! | Clopper–Pearson bounds on error rates | [`rate`] |
//! | ε from scores on data with and without a record | [`distinguish`] |
//! | many releases with and without a record | [`mechanism`] |
//! | one run with many canaries (Steinke, Nasr, Jagielski 2023) | [`one_run`] |
//! | the same randomness on neighbouring data: the distance of each pair of releases | [`replay`] |

#![forbid(unsafe_code)]

pub mod distinguish;
mod error;
pub mod mechanism;
pub mod one_run;
pub mod rate;
pub mod replay;

pub use distinguish::{Claim, EpsilonBounds, Scores, ThresholdTest};
pub use error::{Error, Result};
pub use mechanism::{MechanismAudit, MechanismScores};
pub use one_run::OneRun;
pub use replay::PairedOracles;
