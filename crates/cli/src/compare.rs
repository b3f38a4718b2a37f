//! `muffle compare`: optimizers beside one another.

use super::error::Error;
use super::number::count;
use super::output::{json_number, print, print_json};
use super::progress::Terminal;
use super::train::Changes;
use clap::Args;
use muffle::compare::Comparison;
use serde_json::json;
use std::path::PathBuf;

/// Train with several optimizers, several times each, and compare
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle compare RUN.toml --optimizers \
        dp-sgd,dp-adam,dp-muon,dp-muon-bc --seeds 0,1,2\n  \
    muffle compare --optimizers dp-adam,dp-adam+hyfree --seeds 0 --set-for \
    dp-adam:optimizer.learning_rate=0.002 --out comparison\n\n\
    Every run keeps the same promise. What is there already is not done again; an interrupted \
    comparison goes on when it is started again.\n\
    The folder gets comparison.md, comparison.csv and comparison.svg, and a folder for each run.")]
pub(crate) struct Compare {
    /// What all runs have in common; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    /// Names of optimizers; +hyfree after a name finds its learning rate
    #[arg(long, value_name = "A,B", value_delimiter = ',', required = true)]
    optimizers: Vec<String>,
    /// Public seeds of new parameters; noise is always fresh
    #[arg(long, value_name = "0,1,2", value_delimiter = ',', value_parser = count, default_value = "0,1,2")]
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

impl Compare {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.changes.optimizer.is_some() {
            return Err(Error::usage("--optimizers names them; --optimizer is for train"));
        }
        let config = self.changes.apply(self.config.as_deref())?;
        let split = |text: &String| {
            let (whose, change) = text.split_once(':').ok_or_else(|| {
                Error::usage(format!("--set-for: NAME:KEY=VALUE expected, got {text:?}"))
            })?;
            match self.optimizers.iter().any(|name| name == whose) {
                true => Ok((whose.to_string(), change.to_string())),
                false => {
                    Err(Error::usage(format!("--set-for: {whose:?} is not among the optimizers")))
                }
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
            comparison.run(&self.out, &mut Terminal::new(1)).map_err(|failed| match failed {
                muffle::Error::Stopped => Error::Stopped { resume: "the same command".into() },
                other => other.into(),
            })?;
        if self.json {
            let together = compared.together.map(
                |total| json!({ "epsilon": json_number(total.epsilon), "delta": total.delta }),
            );
            print_json(&json!({ "rows": compared.rows(), "together": together, "out": self.out }));
        } else {
            print(compared.markdown().trim_end());
        }
        Ok(())
    }
}
