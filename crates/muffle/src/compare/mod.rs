//! Several optimizers, several times each, on the same data at the same ε: the table (mean ± sample
//! standard deviation) and the curves.
//!
//! Every run has a folder of its own and its own guarantee. All of them together have spent more:
//! that is priced too.

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

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What all runs have in common.
    pub config: Config,
    /// Optimizers by name; `+hyfree` after a name finds its rate by HyFreeDP.
    pub optimizers: Vec<String>,
    /// Changes for one of them: its name, and `section.key=value`.
    pub changes: Vec<(String, String)>,
    /// Public seeds of new parameters; noise is always fresh.
    pub seeds: Vec<u64>,
}

/// One finished run.
#[derive(Clone, Debug)]
pub struct Single {
    /// Its optimizer.
    pub optimizer: String,
    /// Its seed.
    pub seed: u64,
    /// Where it is.
    pub folder: PathBuf,
    /// ε; none without privacy.
    pub epsilon: Option<f64>,
    /// Its figures.
    pub metrics: Metrics,
    /// NLL against steps.
    pub curve: Vec<(f64, f64)>,
    spent: Spent,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Compared {
    /// In the order of optimizers, then seeds.
    pub runs: Vec<Single>,
    /// The joint cost of all runs on the same records; none if one of them has no guarantee.
    pub together: Option<Guarantee>,
    /// Whether the figures are public.
    pub marking: Marking,
}

/// One column of the tables.
struct Column {
    key: &'static str,
    title: &'static str,
    digits: usize,
    smaller_is_better: bool,
    of: fn(&Metrics) -> Option<f64>,
}

const COLUMNS: [Column; 5] = [
    Column {
        key: "nll",
        title: "NLL ↓",
        digits: 4,
        smaller_is_better: true,
        of: |metrics| metrics.nll,
    },
    Column {
        key: "perplexity",
        title: "perplexity ↓",
        digits: 2,
        smaller_is_better: true,
        of: |metrics| metrics.perplexity,
    },
    Column {
        key: "accuracy",
        title: "accuracy ↑",
        digits: 4,
        smaller_is_better: false,
        of: |metrics| metrics.accuracy,
    },
    Column {
        key: "bleu",
        title: "BLEU ↑",
        digits: 2,
        smaller_is_better: false,
        of: |metrics| metrics.bleu,
    },
    Column {
        key: "rouge_l",
        title: "ROUGE-L ↑",
        digits: 2,
        smaller_is_better: false,
        of: |metrics| metrics.rouge_l,
    },
];

/// The figures of one optimizer over its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The optimizer.
    pub optimizer: String,
    /// Its runs.
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
    /// Makes the runs that are not there yet, finishes those that were interrupted, and writes the
    /// tables.
    ///
    /// # Errors
    /// If a run fails, or it was asked to stop.
    pub fn run(&self, out: &Path, observer: &mut dyn RunObserver) -> Result<Compared, Error> {
        if self.config.privacy.seed.is_some() {
            return Err(Error::config(
                "privacy.seed: expected none, because repeated runs need independent noise",
            ));
        }
        let configs =
            self.optimizers.iter().map(|name| self.of(name)).collect::<Result<Vec<_>, _>>()?;
        std::fs::create_dir_all(out).map_err(Error::io(out))?;
        self.same_as_before(out, &configs)?;
        let mut runs = Vec::new();
        for (name, config) in self.optimizers.iter().zip(&configs) {
            for &seed in &self.seeds {
                let folder = out.join(format!("{name}-{seed}"));
                observer.message(&format!("── {name}, seed {seed}"));
                let mut config = config.clone();
                config.model.seed = seed;
                if run::resume::is_complete(&folder) {
                    // Opened, it removes what an interruption at its very end may have left of the
                    // sealed part.
                    Folder::open(&folder)?;
                    observer.message("already finished");
                } else if folder.join("config.toml").is_file() {
                    run::resume(&folder, observer)?;
                } else {
                    run::train(&config, &folder, observer)?;
                }
                runs.push(Single::read(name, seed, &folder)?);
            }
        }
        let compared = Compared {
            together: joint(&runs.iter().map(|single| single.spent.clone()).collect::<Vec<_>>())?,
            runs,
            marking: self.config.data.publicity().into(),
        };
        compared.write(out)?;
        Ok(compared)
    }

    /// The configuration of one optimizer.
    fn of(&self, name: &str) -> Result<Config, Error> {
        let (base, found) = name.strip_suffix("+hyfree").map_or((name, false), |base| (base, true));
        let mut config = self.config.with_optimizer(base).map_err(Error::config)?;
        if found {
            config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
        }
        for (_, change) in self.changes.iter().filter(|(whose, _)| whose == name) {
            config = config.with(change)?;
        }
        Plan::check(&config)?;
        config.absolute()
    }

    /// Refuses a folder of another comparison: half of each would be no table.
    fn same_as_before(&self, out: &Path, configs: &[Config]) -> Result<(), Error> {
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
                        "a run with another configuration; choose another folder (--out)",
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Single {
    fn read(optimizer: &str, seed: u64, folder: &Path) -> Result<Self, Error> {
        let run = Folder::look_at(folder)?;
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

/// Mean and sample standard deviation; none of the latter for one value.
pub fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    mean.is_finite().then(|| (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())))
}

impl Compared {
    /// The optimizers, in order.
    fn optimizers(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for single in &self.runs {
            if !names.contains(&single.optimizer.as_str()) {
                names.push(&single.optimizer);
            }
        }
        names
    }

    fn of(&self, optimizer: &str) -> impl Iterator<Item = &Single> {
        self.runs.iter().filter(move |single| single.optimizer == optimizer)
    }

    /// The largest of its runs; none if one of them has no guarantee.
    fn epsilon(&self, optimizer: &str) -> Option<f64> {
        self.of(optimizer)
            .map(|single| single.epsilon)
            .try_fold(0.0f64, |most, epsilon| Some(most.max(epsilon?)))
    }

    fn summary(&self, optimizer: &str, column: &Column) -> Option<(f64, Option<f64>)> {
        let values = self.of(optimizer).filter_map(|single| (column.of)(&single.metrics));
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
                runs: self.of(optimizer).count(),
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
            |column: &&Column| self.runs.iter().any(|run| (column.of)(&run.metrics).is_some());
        let present: Vec<&Column> = COLUMNS.iter().filter(measured).collect();
        let marked = match self.marking {
            Marking::NonPrivate => " (NON-PRIVATE: records outside the guarantee)",
            Marking::Public => "",
        };
        let mut text = format!(
            "Mean ± sample standard deviation over {} runs{marked}.\n\n| optimizer | ε |",
            self.runs.len() / self.optimizers().len().max(1)
        );
        present.iter().for_each(|column| text += &format!(" {} |", column.title));
        text += &format!("\n|---|---|{}\n", "---|".repeat(present.len()));
        for optimizer in self.optimizers() {
            let epsilon = self.epsilon(optimizer).map_or("∞".into(), |epsilon| up(epsilon, 3));
            text += &format!("| {optimizer} | {epsilon} |");
            for column in &present {
                text += &self.cell(optimizer, column);
            }
            text.push('\n');
        }
        text += &match self.together {
            Some(total) => format!(
                "\nEach run keeps its own promise. All of them together cost ε = {} at δ = {}; \
                 choosing one of them by figures on private records costs more.\n",
                up(total.epsilon, 2),
                up_e(total.delta)
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
        let wins = self
            .optimizers()
            .iter()
            .filter_map(|other| self.summary(other, column))
            .all(|(other, _)| !better(other));
        let spread =
            deviation.map_or(String::new(), |deviation| format!(" ± {deviation:.digits$}"));
        let cell = format!("{mean:.digits$}{spread}");
        if wins { format!(" **{cell}** |") } else { format!(" {cell} |") }
    }

    /// Every run, for spreadsheets.
    pub fn csv(&self) -> String {
        let mut text = "optimizer,seed,figures,epsilon".to_string();
        COLUMNS.iter().for_each(|column| text += &format!(",{}", column.key));
        text.push('\n');
        for single in &self.runs {
            text += &format!(
                "{},{},{},{}",
                single.optimizer,
                single.seed,
                self.marking.name(),
                single.epsilon.map_or("inf".into(), |epsilon| epsilon.to_string())
            );
            for column in &COLUMNS {
                let value = (column.of)(&single.metrics);
                text += &value.map_or(",".into(), |value| format!(",{value}"));
            }
            text.push('\n');
        }
        text
    }

    /// NLL against steps, the spread of the seeds around each mean.
    pub fn chart(&self) -> Chart {
        let series = |optimizer: &&str| {
            let curves: Vec<&Single> = self.of(optimizer).collect();
            let steps: Vec<f64> = curves
                .first()
                .map(|single| single.curve.iter().map(|point| point.0).collect())
                .unwrap_or_default();
            let at = |step: f64| {
                curves
                    .iter()
                    .filter_map(|single| single.curve.iter().find(|point| point.0 == step))
                    .map(|point| point.1)
                    .collect::<Vec<_>>()
            };
            let summaries: Vec<(f64, (f64, Option<f64>))> = steps
                .iter()
                .filter_map(|&step| Some((step, mean_and_deviation(&at(step))?)))
                .collect();
            let points = summaries.iter().map(|(step, (mean, _))| (*step, *mean)).collect();
            Series {
                spread: if curves.len() > 1 {
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
    fn the_deviation_is_that_of_a_sample() {
        // Table 1 of Kim and Fan (2026), DP-Adam: 0.4961 ± 0.0028 from the seeds of their Table 4.
        let (mean, deviation) = mean_and_deviation(&[0.497869, 0.492847, 0.497539]).unwrap();
        assert_eq!(
            (format!("{mean:.4}"), format!("{:.4}", deviation.unwrap())),
            ("0.4961".into(), "0.0028".into())
        );
        assert_eq!(mean_and_deviation(&[2.0]), Some((2.0, None)));
        assert_eq!(mean_and_deviation(&[]), None);
    }

    fn single(optimizer: &str, seed: u64, nll: f64) -> Single {
        let curve = vec![(0.0, 3.0), (10.0, nll)];
        Single {
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
        let runs = vec![
            single("a", 0, 1.0),
            single("a", 1, 2.0),
            single("b", 0, 3.0),
            single("b", 1, 3.0),
        ];
        let compared = Compared { runs, together: None, marking: Marking::NonPrivate };
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
