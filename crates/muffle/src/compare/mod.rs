//! Comparison of optimizers on the same data at the same ε, with several runs each: a table (mean ±
//! sample standard deviation) and curves.
//!
//! Every run has its own folder and its own guarantee. The joint cost of all runs, which is higher,
//! is computed as well.

use crate::Error;
use crate::Plan;
use crate::Statement;
use crate::chart::{Axis, Chart, Series};
use crate::config::{Auto, Config, LearningRate};
use crate::report::Marking;
use crate::report::digits::{up, up_e};
use crate::run::folder::{self, Folder};
use crate::run::history;
use crate::run::result::{Metrics, RESULT, RunResult};
use crate::run::{self, RunObserver};
use crate::verify::spent::{Spent, joint};
use accounting::Guarantee;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The settings of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The configuration of all runs.
    pub config: Config,
    /// Names of optimizers; with the suffix `+hyfree`, HyFreeDP finds the learning rate.
    pub optimizers: Vec<String>,
    /// Changes for one optimizer: its name, and `section.key=value`.
    pub changes: Vec<(String, String)>,
    /// Public seeds of new parameters. The noise of each run is independent.
    pub seeds: Vec<u64>,
}

/// One finished run of a comparison.
#[derive(Clone, Debug)]
pub struct ComparedRun {
    /// The optimizer.
    pub optimizer: String,
    /// The seed.
    pub seed: u64,
    /// The folder of the run.
    pub folder: PathBuf,
    /// ε; `None` without privacy.
    pub epsilon: Option<f64>,
    /// Figures on evaluation data.
    pub metrics: Metrics,
    /// NLL against steps.
    pub curve: Vec<(f64, f64)>,
    spent: Spent,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonResult {
    /// In the order of optimizers, then seeds.
    pub runs: Vec<ComparedRun>,
    /// The joint cost of all runs on the same records; `None` if one of them has no guarantee.
    pub joint: Option<Guarantee>,
    /// Whether the figures are public.
    pub marking: Marking,
}

/// One column of the tables.
struct Column {
    key: &'static str,
    title: &'static str,
    digits: usize,
    smaller_is_better: bool,
    value: fn(&Metrics) -> Option<f64>,
}

const COLUMNS: [Column; 5] = [
    Column {
        key: "nll",
        title: "NLL ↓",
        digits: 4,
        smaller_is_better: true,
        value: |metrics| metrics.nll,
    },
    Column {
        key: "perplexity",
        title: "perplexity ↓",
        digits: 2,
        smaller_is_better: true,
        value: |metrics| metrics.perplexity,
    },
    Column {
        key: "accuracy",
        title: "accuracy ↑",
        digits: 4,
        smaller_is_better: false,
        value: |metrics| metrics.accuracy,
    },
    Column {
        key: "bleu",
        title: "BLEU ↑",
        digits: 2,
        smaller_is_better: false,
        value: |metrics| metrics.bleu,
    },
    Column {
        key: "rouge_l",
        title: "ROUGE-L ↑",
        digits: 2,
        smaller_is_better: false,
        value: |metrics| metrics.rouge_l,
    },
];

/// The figures of one optimizer over its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The optimizer.
    pub optimizer: String,
    /// The number of its runs.
    pub runs: usize,
    /// The largest ε of its runs; none if one of them has no guarantee.
    pub epsilon: Option<f64>,
    /// Whether the figures are public.
    pub figures: Marking,
    /// `<metric>_mean` and `<metric>_std` of each metric that was measured.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
}

impl Comparison {
    /// Trains all missing runs, resumes interrupted ones, and writes the tables.
    ///
    /// # Errors
    /// If a run fails, or the observer asks to stop.
    pub fn run(
        &self,
        out: &Path,
        observer: &mut dyn RunObserver,
    ) -> Result<ComparisonResult, Error> {
        if self.config.privacy.seed.is_some() {
            return Err(Error::config(
                "privacy.seed",
                "expected none, because repeated runs need independent noise",
            ));
        }
        let configs = self
            .optimizers
            .iter()
            .map(|name| self.config_of(name))
            .collect::<Result<Vec<_>, _>>()?;
        std::fs::create_dir_all(out).map_err(Error::io(out))?;
        self.refuse_other_configs(out, &configs)?;
        let mut runs = Vec::new();
        for (name, config) in self.optimizers.iter().zip(&configs) {
            for &seed in &self.seeds {
                let folder = out.join(format!("{name}-{seed}"));
                observer.message(&format!("── {name}, seed {seed}"));
                let mut config = config.clone();
                config.model.seed = seed;
                if run::resume::is_complete(&folder) {
                    // An interruption may have left private state that was being removed; opening
                    // the folder removes it.
                    Folder::open(&folder)?;
                    observer.message("already finished");
                } else if folder.join("config.toml").is_file() {
                    run::resume(&folder, observer)?;
                } else {
                    run::train(&config, &folder, observer)?;
                }
                runs.push(ComparedRun::read(name, seed, &folder)?);
            }
        }
        let result = ComparisonResult {
            joint: joint(&runs.iter().map(|run| run.spent.clone()).collect::<Vec<_>>())?,
            runs,
            marking: self.config.data.publicity().into(),
        };
        result.write(out)?;
        Ok(result)
    }

    /// The configuration of one optimizer.
    fn config_of(&self, name: &str) -> Result<Config, Error> {
        let (base, finds_rate) =
            name.strip_suffix("+hyfree").map_or((name, false), |base| (base, true));
        let mut config = self.config.with_optimizer(base)?;
        if finds_rate {
            config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
        }
        for (_, change) in self.changes.iter().filter(|(optimizer, _)| optimizer == name) {
            config = config.with(change)?;
        }
        Plan::check(&config)?;
        config.absolute()
    }

    /// Refuses a folder with runs of another configuration: they cannot be compared.
    fn refuse_other_configs(&self, out: &Path, configs: &[Config]) -> Result<(), Error> {
        for (name, config) in self.optimizers.iter().zip(configs) {
            for &seed in &self.seeds {
                let path = out.join(format!("{name}-{seed}")).join("config.toml");
                if !path.is_file() {
                    continue;
                }
                let mut expected = config.clone();
                expected.model.seed = seed;
                if Config::read(&path)? != expected {
                    return Err(Error::folder(
                        &path,
                        "the run has another configuration; choose another folder (--out)",
                    ));
                }
            }
        }
        Ok(())
    }
}

impl ComparedRun {
    /// Reads a finished run from its folder.
    fn read(optimizer: &str, seed: u64, folder: &Path) -> Result<Self, Error> {
        let run = Folder::open_read_only(folder)?;
        let result = RunResult::read(&run)?
            .ok_or_else(|| Error::folder(folder, format!("{RESULT} is missing")))?;
        let statement = Statement::of_run(folder)?;
        Ok(Self {
            optimizer: optimizer.into(),
            seed,
            folder: folder.into(),
            epsilon: statement.epsilon,
            metrics: result.metrics,
            curve: history::read(&run, u64::MAX)?
                .iter()
                .filter_map(|entry| Some((entry.step as f64, entry.nll?)))
                .collect(),
            spent: Spent { promise: statement.promise(), ledger: statement.ledger },
        })
    }
}

/// Mean and sample standard deviation; the latter is `None` for one value.
pub fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    mean.is_finite().then(|| (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())))
}

impl ComparisonResult {
    /// The names of the optimizers, in order.
    fn optimizers(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.optimizer.as_str()) {
                names.push(&run.optimizer);
            }
        }
        names
    }

    /// The runs of an optimizer.
    fn runs_of(&self, optimizer: &str) -> impl Iterator<Item = &ComparedRun> {
        self.runs.iter().filter(move |run| run.optimizer == optimizer)
    }

    /// The largest ε of an optimizer's runs; `None` if one of them has no guarantee.
    fn epsilon(&self, optimizer: &str) -> Option<f64> {
        self.runs_of(optimizer)
            .map(|run| run.epsilon)
            .try_fold(0.0f64, |largest, epsilon| Some(largest.max(epsilon?)))
    }

    /// Mean and deviation of a column over an optimizer's runs.
    fn summary(&self, optimizer: &str, column: &Column) -> Option<(f64, Option<f64>)> {
        let values = self.runs_of(optimizer).filter_map(|run| (column.value)(&run.metrics));
        mean_and_deviation(&values.collect::<Vec<_>>())
    }

    /// A row for each optimizer.
    pub fn rows(&self) -> Vec<Row> {
        let row = |optimizer: &&str| {
            let mut metrics = BTreeMap::new();
            for column in &COLUMNS {
                if let Some((mean, deviation)) = self.summary(optimizer, column) {
                    metrics.insert(format!("{}_mean", column.key), Some(mean));
                    metrics.insert(format!("{}_std", column.key), deviation);
                }
            }
            Row {
                optimizer: (*optimizer).into(),
                runs: self.runs_of(optimizer).count(),
                epsilon: self.epsilon(optimizer),
                figures: self.marking,
                metrics,
            }
        };
        self.optimizers().iter().map(row).collect()
    }

    /// The table as Markdown: the best mean of each column in bold.
    pub fn markdown(&self) -> String {
        let measured =
            |column: &&Column| self.runs.iter().any(|run| (column.value)(&run.metrics).is_some());
        let columns: Vec<&Column> = COLUMNS.iter().filter(measured).collect();
        let marked = match self.marking {
            Marking::NonPrivate => " (NON-PRIVATE: records outside the guarantee)",
            Marking::Public => "",
        };
        let mut text = format!(
            "Mean ± sample standard deviation over {} runs{marked}.\n\n| optimizer | ε |",
            self.runs.len() / self.optimizers().len().max(1)
        );
        columns.iter().for_each(|column| text += &format!(" {} |", column.title));
        text += &format!("\n|---|---|{}\n", "---|".repeat(columns.len()));
        for optimizer in self.optimizers() {
            let epsilon = self.epsilon(optimizer).map_or("∞".into(), |epsilon| up(epsilon, 3));
            text += &format!("| {optimizer} | {epsilon} |");
            for column in &columns {
                text += &self.cell(optimizer, column);
            }
            text.push('\n');
        }
        text += &match self.joint {
            Some(joint) => format!(
                "\nEach run keeps its own promise. The joint cost of all runs is ε = {} at δ = {}; \
                 choosing one of them by figures on private records costs more.\n",
                up(joint.epsilon, 2),
                up_e(joint.delta)
            ),
            None => "\nThe runs have no joint guarantee: one of them is not private, or they \
                protect different units.\n"
                .into(),
        };
        text
    }

    /// Mean and deviation of a column; in bold if no mean is better.
    fn cell(&self, optimizer: &str, column: &Column) -> String {
        let Some((mean, deviation)) = self.summary(optimizer, column) else {
            return " – |".into();
        };
        let digits = column.digits;
        let better = |other: f64| match column.smaller_is_better {
            true => other < mean,
            false => other > mean,
        };
        let is_best = self
            .optimizers()
            .iter()
            .filter_map(|other| self.summary(other, column))
            .all(|(other, _)| !better(other));
        let spread =
            deviation.map_or(String::new(), |deviation| format!(" ± {deviation:.digits$}"));
        let cell = format!("{mean:.digits$}{spread}");
        if is_best { format!(" **{cell}** |") } else { format!(" {cell} |") }
    }

    /// All runs as comma-separated values.
    pub fn csv(&self) -> String {
        let mut text = "optimizer,seed,figures,epsilon".to_string();
        COLUMNS.iter().for_each(|column| text += &format!(",{}", column.key));
        text.push('\n');
        for run in &self.runs {
            text += &format!(
                "{},{},{},{}",
                run.optimizer,
                run.seed,
                self.marking.name(),
                run.epsilon.map_or("inf".into(), |epsilon| epsilon.to_string())
            );
            for column in &COLUMNS {
                let value = (column.value)(&run.metrics);
                text += &value.map_or(",".into(), |value| format!(",{value}"));
            }
            text.push('\n');
        }
        text
    }

    /// A chart of NLL against steps, with the standard deviation over the seeds.
    pub fn chart(&self) -> Chart {
        let series = |optimizer: &&str| {
            let runs: Vec<&ComparedRun> = self.runs_of(optimizer).collect();
            let steps: Vec<f64> = runs
                .first()
                .map(|run| run.curve.iter().map(|point| point.0).collect())
                .unwrap_or_default();
            let nlls_at = |step: f64| {
                runs.iter()
                    .filter_map(|run| run.curve.iter().find(|point| point.0 == step))
                    .map(|point| point.1)
                    .collect::<Vec<_>>()
            };
            let summaries: Vec<(f64, (f64, Option<f64>))> = steps
                .iter()
                .filter_map(|&step| Some((step, mean_and_deviation(&nlls_at(step))?)))
                .collect();
            let points = summaries.iter().map(|(step, (mean, _))| (*step, *mean)).collect();
            Series {
                spread: if runs.len() > 1 {
                    summaries.iter().map(|(_, (_, deviation))| deviation.unwrap_or(0.0)).collect()
                } else {
                    Vec::new()
                },
                ..Series::new(*optimizer, points)
            }
        };
        let marked = if self.marking == Marking::NonPrivate { " (NON-PRIVATE)" } else { "" };
        Chart {
            title: format!("NLL on the validation data{marked}"),
            x: Axis::linear("step"),
            y: Axis::linear("NLL"),
            series: self.optimizers().iter().map(series).collect(),
            marks: Vec::new(),
        }
    }

    fn write(&self, out: &Path) -> Result<(), Error> {
        folder::write(&out.join("comparison.md"), self.markdown().as_bytes())?;
        folder::write(&out.join("comparison.csv"), self.csv().as_bytes())?;
        folder::write(&out.join("comparison.svg"), self.chart().svg().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_the_sample_standard_deviation() {
        // Table 1 of Kim and Fan (2026), DP-Adam: 0.4961 ± 0.0028 from the seeds of their Table 4.
        let (mean, deviation) = mean_and_deviation(&[0.497869, 0.492847, 0.497539]).unwrap();
        assert_eq!(
            (format!("{mean:.4}"), format!("{:.4}", deviation.unwrap())),
            ("0.4961".into(), "0.0028".into())
        );
        assert_eq!(mean_and_deviation(&[2.0]), Some((2.0, None)));
        assert_eq!(mean_and_deviation(&[]), None);
    }

    fn run(optimizer: &str, seed: u64, nll: f64) -> ComparedRun {
        let curve = vec![(0.0, 3.0), (10.0, nll)];
        ComparedRun {
            optimizer: optimizer.into(),
            seed,
            folder: PathBuf::new(),
            epsilon: Some(7.9991),
            metrics: Metrics { nll: Some(nll), bleu: Some(10.0 * nll), ..Metrics::default() },
            curve,
            spent: Spent { ledger: accounting::Ledger::new(), promise: None },
        }
    }

    #[test]
    fn tables_and_curves() {
        let runs = vec![run("a", 0, 1.0), run("a", 1, 2.0), run("b", 0, 3.0), run("b", 1, 3.0)];
        let compared = ComparisonResult { runs, joint: None, marking: Marking::NonPrivate };
        let text = compared.markdown();
        assert!(text.contains("| a | 8.000 | **1.5000 ± 0.7071** | 15.00 ± 7.07 |"), "{text}");
        assert!(
            text.contains("| b | 8.000 | 3.0000 ± 0.0000 | **30.00 ± 0.00** |")
                && text.contains("NON-PRIVATE"),
            "{text}"
        );
        assert_eq!(compared.csv().lines().nth(2), Some("a,1,NON-PRIVATE,7.9991,2,,,20,"));
        let chart = compared.chart();
        assert_eq!(chart.series[0].points, [(0.0, 3.0), (10.0, 1.5)]);
        assert!((chart.series[0].spread[1] - 0.5f64.sqrt()).abs() < 1e-12);
        let row = serde_json::to_value(&compared.rows()[1]).unwrap();
        assert_eq!((&row["nll_mean"], &row["figures"]), (&3.0.into(), &"NON-PRIVATE".into()));
    }
}
