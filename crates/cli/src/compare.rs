//! `muffle compare`: several optimizers and settings side by side.

use super::error::Error;
use super::number::count;
use super::output::{Number, print, print_json, table};
use super::progress::Terminal;
use super::train::Changes;
use clap::Args;
use muffle::compare::{Cell, Comparison, PAGE, Row, RunRow, Table};
use muffle::config::{CompareSection, Config, Grid};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Train with several optimizers and settings, several times each, and compare
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle compare RUN.toml --optimizers \
        dp-sgd,dp-adam,dp-muon,dp-muon-bc --seeds 0,1,2\n  \
    muffle compare RUN.toml --optimizers dp-adam --grid optimizer.learning_rate=1e-3,2e-3,4e-3\n  \
    muffle compare --optimizers dp-adam,dp-adam+hyfree --seeds 0 --set-for \
    dp-adam:optimizer.learning_rate=0.002 --out comparison\n  \
    muffle compare TABLE.toml\n\n\
    Every run keeps the promise of its configuration. A choice among runs costs the joint ε, which \
    is printed. A non-private optimizer is a reference, and is not part of the joint ε.\n\
    Finished runs are not repeated; start an interrupted comparison again to resume it.\n\
    The folder gets comparison.html, comparison.md, comparison.csv, comparison.svg and curves.csv, and a folder for \
    each run.\n\n\
    The file may have a section [compare], which the options override:\n  \
    [compare]\n  \
    optimizers = [\"dp-sgd\", \"dp-adam\"]\n  \
    seeds = [0, 1, 2]\n  \
    grid.privacy.epsilon = [3, 8]\n  \
    grid_for.dp-adam.optimizer.learning_rate = [0.001, 0.002]\n  \
    set_for.dp-sgd.optimizer.learning_rate = 0.032\n  \
    base = \"RUN.toml\"    # instead of the other sections")]
pub(crate) struct Compare {
    /// The configuration of all runs; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    config: Option<PathBuf>,
    /// Names of optimizers; with the suffix +hyfree, HyFreeDP finds the learning rate
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    optimizers: Vec<String>,
    /// Public seeds of new parameters; the noise of each run is independent [default: 0,1,2]
    #[arg(long, value_name = "0,1,2", value_delimiter = ',', value_parser = count)]
    seeds: Vec<u64>,
    /// A key with several values: --grid privacy.epsilon=3,8; several grids are combined
    #[arg(long, value_name = "KEY=V1,V2")]
    grid: Vec<String>,
    /// A grid for one optimizer: --grid-for dp-adam:optimizer.learning_rate=0.001,0.002
    #[arg(long, value_name = "NAME:KEY=V1,V2")]
    grid_for: Vec<String>,
    /// A key for one optimizer: --set-for dp-adam:optimizer.learning_rate=0.002
    #[arg(long, value_name = "NAME:KEY=VALUE")]
    set_for: Vec<String>,
    /// The figure by which the best settings are marked: best_nll, nll, perplexity,
    /// best_accuracy, accuracy, macro_f1, micro_f1, auroc, best_rmse, rmse, mae, r2, bleu,
    /// rouge_l or slot_accuracy [default: the first of these that was measured]
    #[arg(long, value_name = "FIGURE")]
    metric: Option<String>,
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
    runs: Vec<RunRow>,
    /// The figure by which `best` is decided.
    metric: &'a str,
    together: Option<JointCost>,
    without_guarantee: Vec<String>,
    out: &'a Path,
}

/// The joint cost of all private runs.
#[derive(Serialize)]
struct JointCost {
    epsilon: Number,
    delta: f64,
}

/// A table for the terminal; the best means are marked.
fn terminal(of: &Table) -> String {
    let header: Vec<&str> = of.header.iter().map(String::as_str).collect();
    let cell = |cell: &Cell| format!("{}{}", cell.text, if cell.best { "*" } else { " " });
    let rows: Vec<Vec<String>> = of.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    table(&header, &rows)
}

impl Compare {
    /// The comparison of the file, with the options of the command line.
    fn comparison(&self) -> Result<Comparison, Error> {
        if self.changes.optimizer.is_some() {
            return Err(Error::usage("--optimizer: use --optimizers with compare"));
        }
        let (config, section) = match &self.config {
            Some(path) => Config::read_comparison(path)?,
            None => (Config::embedded(), CompareSection::default()),
        };
        let invalid = |error: muffle::config::ConfigError| Error::usage(error.to_string());
        let split = |text: &String| {
            let (optimizer, change) = text.split_once(':').ok_or_else(|| {
                Error::usage(format!("--set-for: expected NAME:KEY=VALUE, got {text:?}"))
            })?;
            Ok::<_, Error>((optimizer.to_string(), change.to_string()))
        };
        let given = self.grid.iter().map(|text| Grid::parse(text));
        let given_for = self.grid_for.iter().map(|text| Grid::parse_for(text));
        let grids = given.chain(given_for).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        let set_for = self.set_for.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        let seeds = [&self.seeds, &section.seeds, &vec![0, 1, 2]];
        let seeds = seeds.into_iter().find(|seeds| !seeds.is_empty()).cloned();
        let optimizers = match self.optimizers.is_empty() {
            true => section.optimizers.clone(),
            false => self.optimizers.clone(),
        };
        // What the file says about optimizers that the command line leaves out does not apply.
        let is_compared = |name: &String| self.optimizers.is_empty() || optimizers.contains(name);
        Ok(Comparison {
            config: self.changes.apply(config)?,
            changes: match set_for.is_empty() {
                true => {
                    let changes = section.changes().into_iter();
                    changes.filter(|(name, _)| is_compared(name)).collect()
                }
                false => set_for,
            },
            grids: match grids.is_empty() {
                true => {
                    let grids = section.grids().map_err(muffle::Error::from)?.into_iter();
                    grids.filter(|grid| grid.optimizer.iter().all(is_compared)).collect()
                }
                false => grids,
            },
            seeds: seeds.unwrap_or_default(),
            metric: self.metric.clone().or(section.metric),
            optimizers,
        })
    }

    pub(crate) fn run(self) -> Result<(), Error> {
        let comparison = self.comparison()?;
        if comparison.optimizers.is_empty() {
            return Err(Error::usage(
                "expected --optimizers A,B, or compare.optimizers in the file; got none",
            ));
        }
        let compared =
            comparison.run(&self.out, &mut Terminal::new(1)).map_err(|error| match error {
                muffle::Error::Stopped => Error::Stopped { resume: "the same command".into() },
                other => other.into(),
            })?;
        if self.json {
            return print_json(&Output {
                rows: compared.rows(),
                runs: compared.run_rows(),
                metric: compared.metric,
                together: compared
                    .joint
                    .map(|joint| JointCost { epsilon: joint.epsilon.into(), delta: joint.delta }),
                without_guarantee: compared.without_guarantee(),
                out: &self.out,
            });
        }
        let tables = compared.tables();
        print(&tables.introduction);
        print(&format!("\n{}\n", terminal(&tables.means)));
        tables.choice.iter().for_each(|choice| print(choice));
        print("*: the best mean of a column.");
        print(&format!("\n{}\n\nSingle runs:\n", tables.cost));
        print(&terminal(&tables.single_runs));
        print(&format!("\ncomparison  {}", self.out.join(PAGE).display()));
        Ok(())
    }
}
