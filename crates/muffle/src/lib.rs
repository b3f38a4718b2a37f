//! Muffle: differentially private training of neural networks.
//!
//! Ten lines train a model:
//!
//! ```no_run
//! use muffle::{Config, Silent, run};
//!
//! let config = Config::parse(r#"
//!     [model]
//!     source = "models/stories15M"
//!     [data]
//!     train = "e2e_train.txt"
//!     [privacy]
//!     epsilon = 8.0
//! "#)?;
//! let outcome = run::train(&config, "runs/e2e".as_ref(), &mut Silent)?;
//! println!("ε = {:?} at δ = {:?}", outcome.statement.epsilon, outcome.statement.delta);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | train and resume, with a folder on disk | [`run`] |
//! | a run in memory, with a model of your own | [`Session`] |
//! | `RUN.toml`, optimizers by name | [`config`] |
//! | steps, noise and privacy cost of a run | [`plan`] |
//! | models, tokenizers, records | [`load`], [`hub`] |
//! | evaluation of a model | [`mod@evaluate`] |
//! | predictions of a model | [`mod@predict`] |
//! | generated texts | [`mod@generate`] |
//! | the privacy statement, reports | [`report`] |
//! | charts as SVG and for the terminal | [`chart`] |
//! | checks of a statement, signatures, joint cost of several runs | [`mod@verify`] |
//! | attacks on all of that | [`audits`] |
//! | several runs side by side | [`mod@compare`] |

pub mod audits;
pub mod chart;
pub mod compare;
pub mod config;
pub mod device;
pub mod evaluate;
pub mod generate;
pub mod hub;
pub mod load;
pub mod plan;
pub mod predict;
pub mod report;
pub mod run;
pub mod verify;

mod error;

pub use config::Config;
pub use error::{Category, Error};
pub use evaluate::Scores;
pub use load::model::LoadedModel;
pub use plan::Plan;
pub use report::Statement;
pub use run::outcome::Outcome;
pub use run::session::Session;
pub use run::{RunObserver, Silent};

pub use {
    accounting, audit, cpu, curator, data, distributed, engine, model, noise, optim, protocol, text,
};
