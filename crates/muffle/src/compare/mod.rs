//! Several optimizers, several times each, on the same data at the same ε: the table (mean ± sample
//! standard deviation) and the curves.
//!
//! Every run has a folder of its own and its own guarantee. All of them together have spent more:
//! that is priced too.

use crate::Failed;
use crate::Plan;
use crate::config::{Auto, Config, LearningRate, Publicity};
use crate::report::digits::{up, up_e};
use crate::report::plot::{Axis, Line, Plot, Scale, Series};
use crate::run::folder::{self, Folder};
use crate::run::history;
use crate::run::outcome::{self, RESULT};
use crate::run::{self, Watch};
use crate::verify::spent::{Spent, joint};
use accounting::Guarantee;
use serde_json::{Value, json};
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
    /// Figures by name.
    pub figures: Vec<(&'static str, f64)>,
    /// NLL against steps.
    pub curve: Vec<(f64, f64)>,
    spent: Spent,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Compared {
    /// In the order of optimizers, then seeds.
    pub runs: Vec<Single>,
    /// What all runs together have spent on the same people; none if one of them has no guarantee.
    pub together: Option<Guarantee>,
    /// Whether figures are on public data.
    pub publicity: Publicity,
}

/// Figures of a table, with their digits.
const FIGURES: [(&str, &str, usize); 5] = [
    ("nll", "NLL ↓", 4),
    ("perplexity", "perplexity ↓", 2),
    ("accuracy", "accuracy ↑", 4),
    ("bleu", "BLEU ↑", 2),
    ("rouge_l", "ROUGE-L ↑", 2),
];

impl Comparison {
    /// Makes the runs that are not there yet, finishes those that were interrupted, and writes the
    /// tables.
    ///
    /// # Errors
    /// If a run fails, or it was asked to stop.
    pub fn run(&self, out: &Path, watch: &mut dyn Watch) -> Result<Compared, Failed> {
        if self.config.privacy.seed.is_some() {
            return Err(Failed::Input(
                "privacy.seed: several runs with the same noise are not several runs".into(),
            ));
        }
        let configs =
            self.optimizers.iter().map(|name| self.of(name)).collect::<Result<Vec<_>, _>>()?;
        std::fs::create_dir_all(out).map_err(Failed::at(out))?;
        self.same_as_before(out, &configs)?;
        let mut runs = Vec::new();
        for (name, config) in self.optimizers.iter().zip(&configs) {
            for &seed in &self.seeds {
                let folder = out.join(format!("{name}-{seed}"));
                watch.said(&format!("── {name}, seed {seed}"));
                let mut config = config.clone();
                config.model.seed = seed;
                if run::resume::is_complete(&folder) {
                    // Opened, it removes what an interruption at its very end may have left of the
                    // sealed part.
                    Folder::open(&folder)?;
                    watch.said("there already");
                } else if folder.join("config.toml").is_file() {
                    run::resume(&folder, watch)?;
                } else {
                    run::train(&config, &folder, watch)?;
                }
                runs.push(Single::read(name, seed, &folder)?);
            }
        }
        let compared = Compared {
            together: joint(&runs.iter().map(|single| single.spent.clone()).collect::<Vec<_>>())?,
            runs,
            publicity: self.config.data.publicity(),
        };
        compared.write(out)?;
        Ok(compared)
    }

    /// The configuration of one optimizer.
    fn of(&self, name: &str) -> Result<Config, Failed> {
        let (base, found) = name.strip_suffix("+hyfree").map_or((name, false), |base| (base, true));
        let mut config = self.config.with_optimizer(base).map_err(Failed::Input)?;
        if found {
            config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
        }
        for (_, change) in self.changes.iter().filter(|(whose, _)| whose == name) {
            config = config.with(change).map_err(Failed::Input)?;
        }
        Plan::check(&config)?;
        config.absolute()
    }

    /// Refuses a folder of another comparison: half of each would be no table.
    fn same_as_before(&self, out: &Path, configs: &[Config]) -> Result<(), Failed> {
        for (name, config) in self.optimizers.iter().zip(configs) {
            for &seed in &self.seeds {
                let path = out.join(format!("{name}-{seed}")).join("config.toml");
                if !path.is_file() {
                    continue;
                }
                let mut expected = config.clone();
                expected.model.seed = seed;
                if Config::read(&path).map_err(Failed::Input)? != expected {
                    return Err(Failed::Input(format!(
                        "{}: a run with another configuration; choose another folder (--out)",
                        path.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Single {
    fn read(optimizer: &str, seed: u64, folder: &Path) -> Result<Self, Failed> {
        let run = Folder::look_at(folder)?;
        let path = folder.join(RESULT);
        let result: Value = serde_json::from_str(&run.read(RESULT)?.unwrap_or_default())
            .map_err(|error| Failed::Input(format!("{}: {error}", path.display())))?;
        let statement = outcome::statement(folder)?;
        Ok(Self {
            optimizer: optimizer.into(),
            seed,
            folder: folder.into(),
            epsilon: statement.epsilon,
            figures: FIGURES
                .iter()
                .filter_map(|(key, _, _)| Some((*key, result["metrics"][*key].as_f64()?)))
                .collect(),
            curve: history::read(&run, u64::MAX)?
                .iter()
                .filter_map(|look| Some((look.step as f64, look.nll?)))
                .collect(),
            spent: Spent {
                promise: statement.unit.zip(statement.delta).filter(|_| statement.private),
                ledger: statement.ledger,
            },
        })
    }

    fn figure(&self, key: &str) -> Option<f64> {
        self.figures.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// Whether figures may be shown as they are.
fn marked(publicity: Publicity) -> &'static str {
    match publicity {
        Publicity::Public => "public",
        Publicity::Private => "NON-PRIVATE",
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

    fn summary(&self, optimizer: &str, key: &str) -> Option<(f64, Option<f64>)> {
        mean_and_deviation(
            &self.of(optimizer).filter_map(|single| single.figure(key)).collect::<Vec<_>>(),
        )
    }

    /// A row for each optimizer.
    pub fn rows(&self) -> Vec<Value> {
        let row = |optimizer: &&str| {
            let mut row = json!({ "optimizer": optimizer, "runs": self.of(optimizer).count(), "epsilon": self.epsilon(optimizer), "figures": marked(self.publicity) });
            for (key, _, _) in FIGURES {
                if let Some((mean, deviation)) = self.summary(optimizer, key) {
                    row[format!("{key}_mean")] = json!(mean);
                    row[format!("{key}_std")] = json!(deviation);
                }
            }
            row
        };
        self.optimizers().iter().map(row).collect()
    }

    /// The table as Markdown: the best mean of each column in bold.
    pub fn markdown(&self) -> String {
        let present: Vec<_> = FIGURES
            .iter()
            .filter(|(key, _, _)| self.runs.iter().any(|single| single.figure(key).is_some()))
            .collect();
        let marked = if self.publicity == Publicity::Private {
            " (NON-PRIVATE: people outside the guarantee)"
        } else {
            ""
        };
        let mut text = format!(
            "Mean ± sample standard deviation over {} runs{marked}.\n\n| optimizer | ε |",
            self.runs.len() / self.optimizers().len().max(1)
        );
        present.iter().for_each(|(_, title, _)| text += &format!(" {title} |"));
        text += &format!("\n|---|---|{}\n", "---|".repeat(present.len()));
        for optimizer in self.optimizers() {
            let epsilon = self.epsilon(optimizer).map_or("∞".into(), |epsilon| up(epsilon, 3));
            text += &format!("| {optimizer} | {epsilon} |");
            for (key, title, digits) in &present {
                let best = |better: &dyn Fn(f64, f64) -> bool, own: f64| {
                    self.optimizers()
                        .iter()
                        .filter_map(|other| self.summary(other, key))
                        .all(|(mean, _)| !better(mean, own))
                };
                text += &match self.summary(optimizer, key) {
                    None => " – |".into(),
                    Some((mean, deviation)) => {
                        let wins = if title.ends_with('↓') {
                            best(&|a, b| a < b, mean)
                        } else {
                            best(&|a, b| a > b, mean)
                        };
                        let spread = deviation
                            .map_or(String::new(), |deviation| format!(" ± {deviation:.digits$}"));
                        let cell = format!("{mean:.digits$}{spread}");
                        if wins { format!(" **{cell}** |") } else { format!(" {cell} |") }
                    }
                };
            }
            text.push('\n');
        }
        text += &match self.together {
            Some(total) => format!(
                "\nEvery run keeps its own promise. Whoever sees all of them sees what was bought \
                 for ε = {} at δ = {} together; choosing one of them by figures on people's data \
                 is not free either.\n",
                up(total.epsilon, 2),
                up_e(total.delta)
            ),
            None => "\nNot all of these runs have a guarantee that can be added up: whoever sees \
                all of them may see everything.\n"
                .into(),
        };
        text
    }

    /// Every run, for spreadsheets.
    pub fn csv(&self) -> String {
        let mut text = "optimizer,seed,figures,epsilon".to_string();
        FIGURES.iter().for_each(|(key, _, _)| text += &format!(",{key}"));
        text.push('\n');
        for single in &self.runs {
            text += &format!(
                "{},{},{},{}",
                single.optimizer,
                single.seed,
                marked(self.publicity),
                single.epsilon.map_or("inf".into(), |epsilon| epsilon.to_string())
            );
            FIGURES.iter().for_each(|(key, _, _)| {
                text += &single.figure(key).map_or(",".into(), |value| format!(",{value}"))
            });
            text.push('\n');
        }
        text
    }

    /// NLL against steps, the spread of the seeds around each mean.
    pub fn plot(&self) -> Plot {
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
            Series {
                name: (*optimizer).into(),
                points: summaries.iter().map(|(step, (mean, _))| (*step, *mean)).collect(),
                spread: if curves.len() > 1 {
                    summaries.iter().map(|(_, (_, deviation))| deviation.unwrap_or(0.0)).collect()
                } else {
                    Vec::new()
                },
                line: Line::Solid,
            }
        };
        let marked = if self.publicity == Publicity::Private { " (NON-PRIVATE)" } else { "" };
        let axis = |label: String| Axis { label, scale: Scale::Linear };
        Plot {
            title: format!("NLL on the validation data{marked}"),
            x: axis("step".into()),
            y: axis("NLL".into()),
            series: self.optimizers().iter().map(series).collect(),
            marks: Vec::new(),
        }
    }

    fn write(&self, out: &Path) -> Result<(), Failed> {
        folder::write(&out.join("comparison.md"), self.markdown().as_bytes())?;
        folder::write(&out.join("comparison.csv"), self.csv().as_bytes())?;
        folder::write(&out.join("comparison.svg"), self.plot().svg().as_bytes())
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
            figures: vec![("nll", nll), ("bleu", 10.0 * nll)],
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
        let compared = Compared { runs, together: None, publicity: Publicity::Private };
        let text = compared.markdown();
        assert!(text.contains("| a | 8.000 | **1.5000 ± 0.7071** | 15.00 ± 7.07 |"), "{text}");
        assert!(
            text.contains("| b | 8.000 | 3.0000 ± 0.0000 | **30.00 ± 0.00** |")
                && text.contains("NON-PRIVATE"),
            "{text}"
        );
        assert_eq!(compared.csv().lines().nth(2), Some("a,1,NON-PRIVATE,7.9991,2,,,20,"));
        let plot = compared.plot();
        assert_eq!(plot.series[0].points, [(0.0, 3.0), (10.0, 1.5)]);
        assert!((plot.series[0].spread[1] - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(compared.rows()[1]["nll_mean"], json!(3.0));
    }
}
