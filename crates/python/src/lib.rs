//! `_muffle`: the native part of the Python package `muffle`.
//!
//! It converts arguments, results and errors, and computes nothing itself. The public names, with
//! their documentation for Python, are in `python/muffle`.
//!
//! | to find | look in |
//! |---|---|
//! | events, ledgers | `accounting` |
//! | ε of a run, calibration | `pricing` |
//! | train, resume, verify, generate, predict | `runs` |
//! | audits | `audits` |
//! | an engine in Python, for the curator | `engine` |
//! | runs on such an engine | `fit` |
//! | exceptions | `error` |

// PyO3 generates items without documentation.
#![allow(missing_docs)]

mod accounting;
mod audits;
mod engine;
mod error;
mod fit;
mod pricing;
mod runs;

/// The native part of the package `muffle`.
#[pyo3::pymodule]
mod _muffle {
    #[pymodule_export]
    use crate::accounting::{Event, Guarantee, Ledger, default_delta, gdp_mu};
    #[pymodule_export]
    use crate::audits::audit;
    #[pymodule_export]
    use crate::fit::EngineSession;
    #[pymodule_export]
    use crate::pricing::{Calibration, account, calibrate};
    #[pymodule_export]
    use crate::runs::{generate, optimizers, plan, predict, resume, train, verify, version};
}
