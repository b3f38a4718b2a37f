//! `muffle compare`: several optimizers side by side.

use super::error::Error;
use super::number::count;
use super::output::{Number, print, print_json};
use super::progress::Terminal;
use super::train::Changes;
use clap::Args;
use muffle::compare::{Comparison, Row};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Train with several optimizers, several times each, and compare
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle compare RUN.toml --optimizers \
        dp-sgd,dp-adam,dp-muon,dp-muon-bc --seeds 0,1,2\n  \
    muffle compare --optimizers dp-adam,dp-adam+hyfree --seeds 0 --set-for \
    dp-adam:optimizer.learning_rate=0.002 --out comparison\n\n\
    Every run keeps the same promise. Finished runs are not repeated; start an interrupted \
    comparison again to resume it.\n\
    The folder gets comparison.md, comparison.csv and comparison.svg, and a folder for each run.")]
pub(crate) struct Compare {
    /// The configuration of all runs; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    /// Names of optimizers; with the suffix +hyfree, HyFreeDP finds the learning rate
    #[arg(long, value_name = "A,B", value_delimiter = ',', required = true)]
    optimizers: Vec<String>,
    /// Public seeds of new parameters; the noise of each run is independent
    #[arg(
        long,
        value_name = "0,1,2",
        value_delimiter = ',',
        value_parser = count,
        default_value = "0,1,2"
    )]
    seeds: Vec<u64>,
    /// A key for one optimizer: --set-for dp-adam:optimizer.learning_rate=0.002
    #[arg(long, value_name = "NAME:KEY=VALUE")]
    set_for: Vec<String>,
    #[command(flatten)]
    changes: Changes,
    /// The folder of the comparison
    #[arg(long, short = 'o', value_name = "DIR", default_value = "muffle-comparison")]
    out: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    rows: Vec<Row>,
    together: Option<JointCost>,
    out: &'a Path,
}

/// The joint cost of all runs.
#[derive(Serialize)]
struct JointCost {
    epsilon: Number,
    delta: f64,
}

impl Compare {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.changes.optimizer.is_some() {
            return Err(Error::usage("--optimizer: use --optimizers with compare"));
        }
        let config = self.changes.apply(self.config.as_deref())?;
        let split = |text: &String| {
            let (optimizer, change) = text.split_once(':').ok_or_else(|| {
                Error::usage(format!("--set-for: expected NAME:KEY=VALUE, got {text:?}"))
            })?;
            match self.optimizers.iter().any(|name| name == optimizer) {
                true => Ok((optimizer.to_string(), change.to_string())),
                false => Err(Error::usage(format!(
                    "--set-for: expected one of --optimizers, got {optimizer:?}"
                ))),
            }
        };
        let changes = self.set_for.iter().map(split).collect::<Result<_, _>>()?;
        let comparison = Comparison {
            config,
            optimizers: self.optimizers.clone(),
            changes,
            seeds: self.seeds.clone(),
        };
        let compared =
            comparison.run(&self.out, &mut Terminal::new(1)).map_err(|error| match error {
                muffle::Error::Stopped => Error::Stopped { resume: "the same command".into() },
                other => other.into(),
            })?;
        if self.json {
            return print_json(&Output {
                rows: compared.rows(),
                together: compared
                    .joint
                    .map(|joint| JointCost { epsilon: joint.epsilon.into(), delta: joint.delta }),
                out: &self.out,
            });
        }
        print(compared.markdown().trim_end());
        Ok(())
    }
}
