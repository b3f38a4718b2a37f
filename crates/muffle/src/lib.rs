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
//! | a run with a folder: train, resume | [`run`] |
//! | a run in memory, with a model of your own | [`Session`] |
//! | what a run is: `RUN.toml` | [`config`] |
//! | steps, noise and price of a run | [`plan`] |
//! | the optimizers by name | [`optimizers`] |
//! | models and their tokenizers | [`subject`], [`hub`] |
//! | people's records, and rows without one | [`data`], [`corpus`] |
//! | how good a model is | [`mod@evaluate`] |
//! | what is promised: `privacy.json` | [`statement`] |
//! | whether its files agree with it, and who signed it | [`mod@verify`], [`signature`] |
//! | what several runs have spent together | [`spent`] |
//! | what is on disk | [`folder`], [`chain`], [`snapshot`], [`history`] |
//! | attacks on all of that | [`audits`] |
//! | several runs beside one another | [`compare`] |
//! | pages and charts | [`report`], [`page`], [`plot`], [`chart`] |
//! | the program | [`cli`] |

pub mod audits;
pub mod chain;
pub mod chart;
pub mod cli;
pub mod compare;
pub mod config;
pub mod corpus;
pub mod data;
pub mod ending;
pub mod evaluate;
pub mod folder;
pub mod history;
pub mod hub;
pub mod optimizers;
pub mod page;
pub mod plan;
pub mod plot;
pub mod report;
pub mod run;
pub mod session;
pub mod signature;
pub mod snapshot;
pub mod spent;
pub mod statement;
pub mod subject;
pub mod verify;

mod digits;
mod disk;
mod failed;
mod ledger_file;
mod memory;
mod resume;
mod sampler_file;
mod together;
mod watch;

pub use config::Config;
pub use ending::Outcome;
pub use evaluate::Scores;
pub use failed::Failed;
pub use plan::Plan;
pub use run::{Silent, Watch};
pub use session::Session;
pub use statement::Statement;
pub use subject::Subject;

pub use {accounting, audit, curator, model, optim, protocol, ranks, tasks};
