//! Tables and curves of a comparison: means over seeds, single runs, NLL against steps.

use super::columns::{COLUMNS, Column};
use super::{ComparedRun, ComparisonResult};
use crate::Error;
use crate::chart::{Axis, Chart, Series};
use crate::report::Marking;
use crate::report::digits::{up, up_e};
use crate::run::folder;
use crate::run::result::Metrics;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The figures of one optimizer with some settings, over its seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The optimizer.
    pub optimizer: String,
    /// Keys that vary, with their values.
    pub settings: BTreeMap<String, String>,
    /// Whether the optimizer has no better settings at the same ε, by the chosen figure.
    pub best: bool,
    /// The number of its runs.
    pub runs: usize,
    /// The largest ε of its runs; none if one of them has no guarantee.
    pub epsilon: Option<f64>,
    /// Whether the figures, except for seconds, are public.
    pub figures: Marking,
    /// Durations depend on records.
    pub seconds_figures: Marking,
    /// `<metric>_mean` and `<metric>_std` of each metric that was measured.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// The figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRow {
    /// The optimizer.
    pub optimizer: String,
    /// Keys that vary, with their values.
    pub settings: BTreeMap<String, String>,
    /// The seed.
    pub seed: u64,
    /// ε; none without a guarantee.
    pub epsilon: Option<f64>,
    /// Figures on evaluation data.
    pub metrics: Metrics,
    /// Duration, if it is known. **Not private.**
    pub seconds: Option<f64>,
}

/// The page of a comparison.
pub const PAGE: &str = "comparison.html";

/// The tables of a comparison, with the sentences between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// What the figures are.
    pub introduction: String,
    /// Means over the seeds.
    pub means: Table,
    /// How the best settings are chosen; `None` if none vary.
    pub choice: Option<String>,
    /// The joint cost.
    pub cost: String,
    /// The runs.
    pub single_runs: Table,
}

/// A table of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The titles of the columns.
    pub header: Vec<String>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The text.
    pub text: String,
    /// Whether no other mean of the column is better.
    pub best: bool,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), best: false }
    }
}

/// Mean and sample standard deviation; the latter is `None` for one value.
pub(super) fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    mean.is_finite().then(|| (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())))
}

/// The runs of one optimizer with the same settings.
struct Group<'a> {
    optimizer: &'a str,
    settings: &'a [(String, String)],
    runs: Vec<&'a ComparedRun>,
}

impl Group<'_> {
    /// The largest ε of the runs; `None` if one of them has no guarantee.
    fn epsilon(&self) -> Option<f64> {
        let mut epsilons = self.runs.iter().map(|run| run.epsilon);
        epsilons.try_fold(0.0f64, |largest, epsilon| Some(largest.max(epsilon?)))
    }

    /// Mean and deviation of a column; `None` if a run has no figure.
    fn summary(&self, column: &Column) -> Option<(f64, Option<f64>)> {
        let values = self.runs.iter().map(|run| (column.value)(run)).collect::<Option<Vec<_>>>()?;
        mean_and_deviation(&values)
    }

    /// Whether another group is compared with this one when settings are chosen.
    ///
    /// A larger ε is not a better setting, so that groups at different ε are not compared.
    fn competes_with(&self, other: &Self) -> bool {
        let privacy = |group: &Self| {
            let keys = group.settings.iter().filter(|(key, _)| key.starts_with("privacy."));
            keys.cloned().collect::<Vec<_>>()
        };
        self.optimizer == other.optimizer && privacy(self) == privacy(other)
    }

    /// The settings in words, each with the last part of its key.
    fn settings_in_words(&self) -> String {
        settings_in_words(self.settings)
    }

    fn name(&self) -> String {
        match self.settings.is_empty() {
            true => self.optimizer.into(),
            false => format!("{} {}", self.optimizer, self.settings_in_words()),
        }
    }
}

fn settings_in_words(settings: &[(String, String)]) -> String {
    let setting = |(key, value): &(String, String)| {
        format!("{} = {value}", key.rsplit('.').next().unwrap_or_default())
    };
    settings.iter().map(setting).collect::<Vec<_>>().join(", ")
}

impl ComparisonResult {
    /// The runs by optimizer and settings, in order.
    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for run in &self.runs {
            let known = groups
                .iter_mut()
                .find(|group| group.optimizer == run.optimizer && group.settings == run.settings);
            match known {
                Some(group) => group.runs.push(run),
                None => groups.push(Group {
                    optimizer: &run.optimizer,
                    settings: &run.settings,
                    runs: vec![run],
                }),
            }
        }
        groups
    }

    /// Whether no group that competes with a group has a better mean of the chosen figure.
    fn is_best(&self, group: &Group<'_>, groups: &[Group<'_>]) -> bool {
        let Some(column) = COLUMNS.iter().find(|column| column.key == self.metric) else {
            return false;
        };
        let competitors = groups.iter().filter(|other| group.competes_with(other));
        is_best(column, group, competitors)
    }

    /// A row for each optimizer and its settings.
    pub fn rows(&self) -> Vec<Row> {
        let groups = self.groups();
        let row = |group: &Group<'_>| {
            let mut metrics = BTreeMap::new();
            for column in &COLUMNS {
                if let Some((mean, deviation)) = group.summary(column) {
                    metrics.insert(format!("{}_mean", column.key), Some(mean));
                    metrics.insert(format!("{}_std", column.key), deviation);
                }
            }
            Row {
                optimizer: group.optimizer.into(),
                settings: group.settings.iter().cloned().collect(),
                best: self.is_best(group, &groups),
                runs: group.runs.len(),
                epsilon: group.epsilon(),
                figures: self.marking,
                seconds_figures: Marking::NonPrivate,
                metrics,
            }
        };
        groups.iter().map(row).collect()
    }

    /// A row for each run.
    pub fn run_rows(&self) -> Vec<RunRow> {
        let row = |run: &ComparedRun| RunRow {
            optimizer: run.optimizer.clone(),
            settings: run.settings.iter().cloned().collect(),
            seed: run.seed,
            epsilon: run.epsilon,
            metrics: run.metrics.clone(),
            seconds: run.seconds,
        };
        self.runs.iter().map(row).collect()
    }

    /// The names of runs without a guarantee, without their seeds.
    pub fn without_guarantee(&self) -> Vec<String> {
        let groups = self.groups();
        let exposed = groups.iter().filter(|group| !group.runs.iter().all(|run| run.is_private()));
        exposed.map(Group::name).collect()
    }

    /// The tables: means with the best of each column, then single runs.
    pub fn tables(&self) -> Tables {
        let groups = self.groups();
        let has_grid = self.runs.iter().any(|run| !run.settings.is_empty());
        let measured = |column: &&Column| self.runs.iter().any(|run| (column.value)(run).is_some());
        let columns: Vec<&Column> = COLUMNS.iter().filter(measured).collect();
        let marked = match self.marking {
            Marking::NonPrivate => " (NON-PRIVATE: records outside the guarantee)",
            Marking::Public => "",
        };
        let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
        let settings = if has_grid { &["settings"][..] } else { &[] };
        let table = |before: &[&str], rows: Vec<Vec<Cell>>| Table {
            header: [&["optimizer"], settings, before, &titles]
                .concat()
                .into_iter()
                .map(String::from)
                .collect(),
            rows,
        };
        let of_group = |group: &Group<'_>| {
            let mut cells = vec![Cell::from(group.optimizer)];
            if has_grid {
                let is_choice = has_competitors(group, &groups) && self.is_best(group, &groups);
                let choice = if is_choice { " (best)" } else { "" };
                cells.push((group.settings_in_words() + choice).into());
            }
            cells.push(epsilon_cell(group.epsilon()));
            cells.extend(columns.iter().map(|column| cell(column, group, &groups)));
            cells
        };
        let of_run = |run: &ComparedRun| {
            let mut cells = vec![Cell::from(&*run.optimizer)];
            if has_grid {
                cells.push(settings_in_words(&run.settings).into());
            }
            cells.extend([run.seed.to_string().into(), epsilon_cell(run.epsilon)]);
            cells.extend(columns.iter().map(|column| {
                let digits = column.digits + 2;
                let value = (column.value)(run).map(|value| format!("{value:.digits$}"));
                value.map_or("–".into(), Cell::from)
            }));
            cells
        };
        Tables {
            introduction: format!(
                "Mean ± sample standard deviation over {} runs{marked}. \"Best\" figures are the \
                 best of the evaluations on the validation data during training; the others are \
                 those of the released model.",
                self.runs.len() / groups.len().max(1)
            ),
            means: table(&["ε"], groups.iter().map(of_group).collect()),
            choice: has_grid.then(|| {
                format!(
                    "\"(best)\": the best settings of an optimizer by the mean of {}, at the same \
                     privacy settings.",
                    self.metric
                )
            }),
            cost: self.cost(),
            single_runs: table(&["seed", "ε"], self.runs.iter().map(of_run).collect()),
        }
    }

    /// The joint cost of the private runs in words, and what a choice among them costs.
    fn cost(&self) -> String {
        let private = self.runs.iter().filter(|run| run.is_private()).count();
        let mut text = match self.joint {
            Some(joint) => format!(
                "Each run keeps its own promise. The joint cost of the {private} private runs is \
                 ε = {} at δ = {}. This is also the cost for the training records of a model or \
                 of settings that are chosen by these figures, even if the validation data are \
                 public: the figures depend on all runs.",
                up(joint.epsilon, 2),
                up_e(joint.delta)
            ),
            None if private > 0 => "The private runs have no joint guarantee, because they \
                protect different units."
                .into(),
            None => "No run has a guarantee.".into(),
        };
        if self.marking == Marking::NonPrivate {
            text += " The choice also reveals the validation and test records, which no guarantee \
                covers.";
        }
        let exposed = self.without_guarantee();
        if !exposed.is_empty() && private > 0 {
            text += &format!(
                " WITHOUT A GUARANTEE, and not part of the joint cost: {}. Their figures are for \
                 reference: a choice by them is not covered.",
                exposed.join("; ")
            );
        }
        text
    }

    /// All runs as comma-separated values.
    pub fn csv(&self) -> String {
        let mut text = "optimizer,settings,seed,figures,epsilon,best_nll_step".to_string();
        COLUMNS.iter().for_each(|column| {
            let marked = if column.key == "seconds" { "_NON-PRIVATE" } else { "" };
            text += &format!(",{}{marked}", column.key);
        });
        text.push('\n');
        for run in &self.runs {
            text += &format!(
                "{},{},{},{},{},{}",
                run.optimizer,
                quoted(&settings_in_words(&run.settings)),
                run.seed,
                self.marking.name(),
                run.epsilon.map_or("inf".into(), |epsilon| epsilon.to_string()),
                run.metrics.best_nll_step.map_or(String::new(), |step| step.to_string())
            );
            for column in &COLUMNS {
                let value = (column.value)(run);
                text += &value.map_or(",".into(), |value| format!(",{value}"));
            }
            text.push('\n');
        }
        text
    }

    /// The figure of the curves: NLL, or RMSE of a regression.
    fn curve_figure(&self) -> &'static str {
        match self.runs.iter().any(|run| run.metrics.best_rmse.is_some()) {
            true => "RMSE",
            false => "NLL",
        }
    }

    /// The validation NLL or RMSE of every evaluation of every run, as comma-separated values.
    pub fn curves_csv(&self) -> String {
        let figure = self.curve_figure().to_lowercase();
        let mut text = format!("optimizer,settings,seed,figures,step,{figure}\n");
        for run in &self.runs {
            let settings = quoted(&settings_in_words(&run.settings));
            for (step, nll) in &run.curve {
                text += &format!(
                    "{},{settings},{},{},{step},{nll}\n",
                    run.optimizer,
                    run.seed,
                    self.marking.name()
                );
            }
        }
        text
    }

    /// A chart of validation NLL or RMSE against steps: means with the standard deviation over the seeds.
    ///
    /// Of a grid, only the best settings of each optimizer are shown.
    pub fn chart(&self) -> Chart {
        let series = |group: &Group<'_>| {
            let runs = &group.runs;
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
                ..Series::new(group.name(), points)
            }
        };
        let groups = self.groups();
        let shown = groups
            .iter()
            .filter(|group| !has_competitors(group, &groups) || self.is_best(group, &groups));
        let marked = if self.marking == Marking::NonPrivate { " (NON-PRIVATE)" } else { "" };
        Chart {
            title: format!("Evaluation {} against training steps{marked}", self.curve_figure()),
            x: Axis::linear("training step"),
            y: Axis::linear(format!("evaluation {}", self.curve_figure())),
            series: shown.map(series).collect(),
            marks: Vec::new(),
        }
    }

    pub(super) fn write(&self, out: &Path) -> Result<(), Error> {
        folder::write(&out.join("comparison.md"), self.markdown().as_bytes())?;
        folder::write(&out.join(PAGE), self.html().as_bytes())?;
        folder::write(&out.join("comparison.csv"), self.csv().as_bytes())?;
        folder::write(&out.join("curves.csv"), self.curves_csv().as_bytes())?;
        folder::write(&out.join("comparison.svg"), self.chart().svg().as_bytes())
    }
}

/// Whether an optimizer has other settings at the same privacy settings.
fn has_competitors(group: &Group<'_>, groups: &[Group<'_>]) -> bool {
    groups.iter().filter(|other| group.competes_with(other)).count() > 1
}

/// Whether no other group has a better mean.
fn is_best<'a>(
    column: &Column,
    group: &Group<'_>,
    others: impl Iterator<Item = &'a Group<'a>>,
) -> bool {
    let (Some(better), Some((mean, _))) = (column.better, group.summary(column)) else {
        return false;
    };
    let mut means = others.filter_map(|other| Some(other.summary(column)?.0));
    means.all(|other| !better.is_better(other, mean))
}

/// Mean and deviation of a column.
fn cell(column: &Column, group: &Group<'_>, groups: &[Group<'_>]) -> Cell {
    let Some((mean, deviation)) = group.summary(column) else { return "–".into() };
    let digits = column.digits;
    let spread = deviation.map_or(String::new(), |deviation| format!(" ± {deviation:.digits$}"));
    let text = format!("{mean:.digits$}{spread}");
    Cell { text, best: is_best(column, group, groups.iter()) }
}

fn epsilon_cell(epsilon: Option<f64>) -> Cell {
    epsilon.map_or("∞".into(), |epsilon| up(epsilon, 3).into())
}

/// A text as a field of comma-separated values.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::metric;
    use super::*;
    use crate::verify::spent::Spent;
    use accounting::{Adjacency, Ledger};
    use std::path::PathBuf;

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
        ComparedRun {
            optimizer: optimizer.into(),
            settings: Vec::new(),
            seed,
            folder: PathBuf::new(),
            epsilon: Some(7.9991),
            metrics: Metrics {
                nll: Some(nll),
                best_nll: Some(0.5 * nll),
                best_nll_step: Some(5),
                bleu: Some(10.0 * nll),
                ..Metrics::default()
            },
            curve: vec![(0.0, 3.0), (10.0, nll)],
            seconds: Some(12.3),
            spent: Spent {
                ledger: Ledger::new(),
                promise: Some((Adjacency::AddRemove.into(), 1e-5)),
                persons: None,
            },
        }
    }

    fn compared(runs: Vec<ComparedRun>) -> ComparisonResult {
        ComparisonResult { runs, joint: None, marking: Marking::NonPrivate, metric: "best_nll" }
    }

    #[test]
    fn tables_and_curves() {
        let compared =
            compared(vec![run("a", 0, 1.0), run("a", 1, 2.0), run("b", 0, 3.0), run("b", 1, 3.0)]);
        let text = compared.markdown();
        for part in [
            "| optimizer | ε | best NLL ↓ | NLL ↓ | BLEU ↑ | seconds (NON-PRIVATE) |",
            "| a | 8.000 | **0.7500 ± 0.3536** | **1.5000 ± 0.7071** | 15.00 ± 7.07 | 12 ± 0 |",
            "| b | 8.000 | 1.5000 ± 0.0000 | 3.0000 ± 0.0000 | **30.00 ± 0.00** | 12 ± 0 |",
            "(NON-PRIVATE: records outside the guarantee)",
            "reveals the validation and test records",
            // Single runs have two more digits, as Tables 4 and 5 of the paper.
            "| a | 1 | 8.000 | 1.000000 | 2.000000 | 20.0000 | 12.30 |",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("settings") && !text.contains("(best)"), "{text}");
        let page = compared.html();
        assert_eq!(crate::chart::tests::well_formed(&page), Ok(()));
        for part in ["<td><strong>0.7500 ± 0.3536</strong></td>", "NON-PRIVATE</strong>", "<svg"] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(
            compared.csv().lines().nth(2),
            Some("a,,1,NON-PRIVATE,7.9991,5,1,2,,,,,,,,,,,20,,,12.3")
        );
        assert_eq!(compared.curves_csv().lines().nth(4), Some("a,,1,NON-PRIVATE,10,2"));
        let chart = compared.chart();
        assert_eq!(chart.series[0].points, [(0.0, 3.0), (10.0, 1.5)]);
        assert!((chart.series[0].spread[1] - 0.5f64.sqrt()).abs() < 1e-12);
        let row = serde_json::to_value(&compared.rows()[1]).unwrap();
        assert_eq!((&row["nll_mean"], &row["figures"]), (&3.0.into(), &"NON-PRIVATE".into()));
        assert_eq!(row["best_nll_mean"], 1.5);
    }

    /// The table of Appendix D of Kim and Fan (2026): one optimizer at several rates and ε.
    #[test]
    fn the_best_settings_of_an_optimizer_are_marked() {
        let at = |rate: &str, epsilon: &str, nll: f64| ComparedRun {
            settings: vec![
                ("optimizer.learning_rate".into(), rate.into()),
                ("privacy.epsilon".into(), epsilon.into()),
            ],
            ..run("a", 0, nll)
        };
        let mut compared = compared(vec![
            at("0.1", "3", 5.0),
            at("0.2", "3", 4.0),
            at("0.1", "8", 2.0),
            at("0.2", "8", 3.0),
            run("b", 0, 1.0),
        ]);
        let best = |compared: &ComparisonResult| -> Vec<bool> {
            compared.rows().iter().map(|row| row.best).collect()
        };
        // A larger ε is not a better setting: the best is marked at each ε.
        assert_eq!(best(&compared), [false, true, true, false, true]);
        let text = compared.markdown();
        assert!(text.contains("| a | learning_rate = 0.2, epsilon = 3 (best) | 8.000 |"), "{text}");
        assert!(text.contains("| a | learning_rate = 0.1, epsilon = 3 | 8.000 |"), "{text}");
        assert!(text.contains("| b |  | 8.000 |"), "{text}");
        assert_eq!(compared.chart().series.len(), 3);
        assert!(compared.csv().contains("a,\"learning_rate = 0.1, epsilon = 3\",0,"));
        // By another figure; one that was not measured marks nothing.
        compared.metric = metric("bleu").unwrap();
        assert_eq!(best(&compared), [true, false, false, true, true]);
        compared.metric = metric("rouge_l").unwrap();
        assert_eq!(best(&compared), [false; 5]);
        for name in ["seconds", "loss"] {
            let refused = metric(name).unwrap_err().to_string();
            assert!(refused.contains("expected one of best_nll, nll"), "{refused}");
        }
    }

    #[test]
    fn runs_without_a_guarantee_are_named() {
        let mut exposed = run("sgd", 0, 1.0);
        (exposed.epsilon, exposed.spent.promise) = (None, None);
        let mut compared = compared(vec![run("dp-sgd", 0, 2.0), exposed]);
        let text = compared.markdown();
        assert!(text.contains("| sgd | ∞ |") && text.contains("no joint guarantee"), "{text}");
        compared.joint = Some(accounting::Guarantee {
            epsilon: 9.871,
            delta: 1e-5,
            unit: Adjacency::AddRemove.into(),
            accountant: accounting::Accountant::Pld,
            order: None,
            estimate: false,
        });
        let text = compared.markdown();
        for part in [
            "joint cost of the 1 private runs is ε = 9.88 at δ = 1.00e-5",
            "WITHOUT A GUARANTEE, and not part of the joint cost: sgd.",
            "even if the validation data are public",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(compared.without_guarantee(), ["sgd"]);
        compared.runs.remove(0);
        assert!(ComparisonResult { joint: None, ..compared }.markdown().contains("No run has a"));
    }
}
