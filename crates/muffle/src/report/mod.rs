//! The privacy statement and the report of a run.

pub mod digits;
pub mod model_card;
pub mod number;
pub mod page;
pub mod statement;

mod summary;

pub use number::Number;
pub use statement::Statement;

use crate::Error;
use crate::chart::{Axis, Chart, Mark, Series};
use crate::config::{Config, Publicity};
use crate::evaluate::GeneratedText;
use crate::report::digits::{short, up, up_e};
use crate::report::page::{Figure, Headline, Page, Panel, Sample, Section};
use crate::run::folder::Folder;
use crate::run::history::{self, BestFigures, HistoryEntry};
use crate::run::result::{self, Metrics, RunResult};
use accounting::{Adjacency, Cost, Delta, Unit};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The file name of the report.
pub const FILE: &str = "report.html";

/// Whether figures are public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Marking {
    /// They follow from private releases, or from public data and settings.
    #[serde(rename = "public")]
    Public,
    /// They were computed from records without protection.
    #[serde(rename = "NON-PRIVATE")]
    NonPrivate,
}

impl Marking {
    /// The name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::NonPrivate => "NON-PRIVATE",
        }
    }
}

impl From<Publicity> for Marking {
    fn from(publicity: Publicity) -> Self {
        match publicity {
            Publicity::Public => Self::Public,
            Publicity::Private => Self::NonPrivate,
        }
    }
}

/// Writes the report of a finished run and returns its path.
///
/// # Errors
/// If the run is not finished, or the folder is damaged.
pub fn write(folder: &Folder) -> Result<PathBuf, Error> {
    let page = page(folder)?;
    folder.write(FILE, &page.html())?;
    Ok(folder.join(FILE))
}

/// Builds the report from the folder of a run.
///
/// # Errors
/// As [`write()`].
pub fn page(folder: &Folder) -> Result<Page, Error> {
    let config = Config::read(&folder.join("config.toml"))?;
    let Some(result) = RunResult::read(folder)? else {
        return Err(Error::folder(
            folder.path(),
            format!(
                "the run is not finished; resume it: muffle resume {}",
                folder.path().display()
            ),
        ));
    };
    let statement = Statement::of_run(folder.path())?;
    let entries = history::read(folder, u64::MAX)?;
    let marking = config.data.publicity().into();
    let path = config.data.train.trim_end_matches(['/', '\\']);
    let data = path.rsplit(['/', '\\']).next().unwrap_or_default();
    Ok(Page {
        title: format!("{} on {data}", config.optimizer.name()),
        headline: headline(&statement),
        words: statement.words(),
        covered: statement.covered(),
        not_covered: statement.not_covered(),
        warnings: warnings(&statement),
        figures: figures(&result.metrics, &statement, marking),
        charts: charts(&statement, &entries, marking)?,
        samples: samples(folder, marking)?,
        sections: sections(&config, &statement, &result.metrics),
        configuration: config.print(),
    })
}

fn headline(statement: &Statement) -> Headline {
    match (statement.epsilon, statement.delta) {
        (Some(epsilon), Some(delta)) if statement.private => {
            Headline::Private { epsilon: up(epsilon, 3), delta: up_e(delta) }
        }
        (Some(_), Some(_)) => Headline::NonPrivate {
            reason: "The seed of the noise was fixed and is written below: every reader can \
                remove the noise."
                .into(),
        },
        _ => Headline::NonPrivate {
            reason: "This model was trained by an optimizer that neither clips nor adds noise."
                .into(),
        },
    }
}

fn warnings(statement: &Statement) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(epsilon) = statement.epsilon.filter(|epsilon| *epsilon > 10.0) {
        list.push(format!(
            "ε = {} is large: in the worst case an attacker can be almost certain.",
            up(epsilon, 1)
        ));
    }
    if let Some(delta) = statement.delta.filter(|delta| *delta >= 1.0 / statement.records as f64) {
        list.push(format!(
            "δ = {delta:e} is not below 1/N: publishing one random record would satisfy it."
        ));
    }
    list
}

fn figures(metrics: &Metrics, statement: &Statement, marking: Marking) -> Vec<Figure> {
    let metric = |name: &str, value: Option<f64>, digits: usize| {
        Some(Figure { name: name.into(), value: format!("{:.digits$}", value?), marking })
    };
    let public = |name: &str, value: String| {
        Some(Figure { name: name.into(), value, marking: Marking::Public })
    };
    [
        metric("NLL of a target", metrics.nll, 4),
        metric(&best_name("NLL", metrics.best_nll_step), metrics.best_nll, 4),
        metric("perplexity", metrics.perplexity, 2),
        metric("accuracy, %", metrics.accuracy.map(|share| 100.0 * share), 1),
        metric(
            &best_name("accuracy, %,", metrics.best_accuracy_step),
            metrics.best_accuracy.map(|share| 100.0 * share),
            1,
        ),
        metric("macro-F1", metrics.macro_f1, 4),
        metric("micro-F1", metrics.micro_f1, 4),
        metric("AUROC", metrics.auroc, 4),
        metric("RMSE", metrics.rmse, 4),
        metric(&best_name("RMSE", metrics.best_rmse_step), metrics.best_rmse, 4),
        metric("MAE", metrics.mae, 4),
        metric("R²", metrics.r2, 4),
        metric("BLEU", metrics.bleu, 2),
        metric(&best_name("BLEU", metrics.best_bleu_step), metrics.best_bleu, 2),
        metric("ROUGE-L", metrics.rouge_l, 2),
        metric("facts right, %", metrics.slot_accuracy.map(|share| 100.0 * share), 1),
        public("steps", statement.steps.to_string()),
        public("records", statement.records.to_string()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The name of a best figure of the evaluations during training.
fn best_name(figure: &str, step: Option<u64>) -> String {
    format!("best {figure} in validation, step {}", step.unwrap_or(0))
}

fn charts(
    statement: &Statement,
    entries: &[HistoryEntry],
    marking: Marking,
) -> Result<Vec<Panel>, Error> {
    let curve = |name: &str, value: &dyn Fn(&HistoryEntry) -> Option<f64>| {
        let point = |entry: &HistoryEntry| Some((entry.step as f64, value(entry)?));
        vec![Series::new(name, entries.iter().filter_map(point).collect())]
    };
    let chart = |title: &str, y: &str, series: Vec<Series>, marks: Vec<Mark>| Chart {
        title: title.into(),
        x: Axis::linear("step"),
        y: Axis::linear(y),
        series,
        marks,
    };
    let mut nll = curve("validation", &|entry| entry.nll);
    nll[0].highlight = BestFigures::of(entries).nll.map(|(step, _)| step as f64);
    let mut rmse = curve("validation", &|entry| entry.rmse);
    rmse[0].highlight = BestFigures::of(entries).rmse.map(|(step, _)| step as f64);
    // A regression has no NLL; other models have no RMSE.
    let quality = |figure: &str, words: &str, series| Panel {
        chart: chart("Quality", figure, series, Vec::new()),
        caption: format!(
            "{words} on the validation data. Lower is better; the best evaluation is highlighted."
        ),
        marking,
    };
    let mut panels = vec![
        quality("NLL", "Mean negative log-likelihood of a target", nll),
        quality("RMSE", "Root of the mean squared error", rmse),
    ];
    if let (Some(promised), Some(unit), Some(delta)) =
        (statement.promised_epsilon, statement.unit, statement.delta)
    {
        panels.push(Panel {
            chart: chart(
                "Privacy cost",
                "ε",
                curve("spent", &|entry| entry.epsilon),
                vec![Mark { name: "promised".into(), y: promised }],
            ),
            caption: format!(
                "ε after each step, at δ = {}. An upper bound at every point.",
                up_e(delta)
            ),
            marking: Marking::Public,
        });
        // Lots of fixed size with several rows per person have no curve.
        if let Some(chart) = trade_off(statement, unit, delta)? {
            panels.push(Panel {
                chart,
                caption: format!(
                    "An attacker guesses {}, with the false-positive rate of the horizontal axis. \
                     No test has a higher true-positive rate than the curve. On the dashed line \
                     the model reveals nothing.",
                    match (unit.adjacency, unit.rows) {
                        (Adjacency::AddRemove, 1) => "whether a given record was in the data",
                        (Adjacency::AddRemove, _) => "whether a given person was in the data",
                        (Adjacency::ReplaceOne, _) => "which of two values a record has",
                    }
                ),
                marking: Marking::Public,
            });
        }
    }
    panels.push(Panel {
        chart: chart(
            "Learning rate",
            "learning rate",
            curve("learning rate", &|entry| (entry.step > 0).then_some(entry.learning_rate)),
            Vec::new(),
        ),
        caption: "The learning rate of each step.".into(),
        marking: Marking::Public,
    });
    panels.retain(|panel| panel.chart.series.iter().any(|series| !series.points.is_empty()));
    Ok(panels)
}

fn trade_off(statement: &Statement, unit: Unit, delta: f64) -> Result<Option<Chart>, Error> {
    let curve = match Cost::new(statement.ledger.events(), unit)?.trade_off(Delta::new(delta)?) {
        Ok(curve) => curve,
        Err(accounting::Error::Unsupported { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rates = || (0..=60).map(|i| 10f64.powf(-4.0 + f64::from(i) / 15.0));
    Ok(Some(Chart {
        title: "Membership tests".into(),
        x: Axis::log("false-positive rate"),
        y: Axis::linear("true-positive rate"),
        series: vec![
            Series::new("at most", rates().map(|fpr| (fpr, curve.tpr(fpr))).collect()),
            Series::new("guessing", rates().map(|fpr| (fpr, fpr)).collect()).dashed(),
        ],
        marks: Vec::new(),
    }))
}

fn samples(folder: &Folder, marking: Marking) -> Result<Vec<Sample>, Error> {
    let sample = |generated: GeneratedText| Sample {
        prompt: generated.source,
        text: generated.text,
        reference: generated.references.into_iter().next(),
        marking,
    };
    Ok(result::samples(folder)?.into_iter().map(sample).collect())
}

fn sections(config: &Config, statement: &Statement, metrics: &Metrics) -> Vec<Section> {
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut privacy = vec![
        row("neighbours", statement.unit.map_or_else(|| "none".into(), |unit| unit.to_string())),
        row("sampling", statement.sampling_in_words()),
    ];
    if let Some(sigma) = statement.noise_multiplier {
        privacy.push(row("noise multiplier σ", short(sigma)));
        privacy.push(row("clip bound of each block", short(config.optimizer.clip())));
        privacy.push(row(
            "accountant",
            statement.accountant.map_or_else(String::new, |accountant| accountant.to_string()),
        ));
        let charge_label = if statement.sampling == accounting::SamplingMethod::Shuffled {
            "epochs charged"
        } else {
            "lots charged"
        };
        privacy.push(row(charge_label, statement.ledger.events().len().to_string()));
        privacy.push(row("noise and lots from", statement.randomness.to_string()));
    }
    privacy.push(row("run", statement.run_id.clone()));
    privacy.push(row("sessions", statement.sessions.len().to_string()));
    privacy.push(row("ledger, head of its hash chain", statement.ledger_head.clone()));
    let training = vec![
        row("optimizer", config.optimizer.name().into()),
        row("model", config.model.source.clone()),
        row(
            "low-rank adapters",
            if config.model.lora_rank == 0 {
                "none: all parameters are trained".into()
            } else {
                format!("rank {}", config.model.lora_rank)
            },
        ),
        row("lot size", short(statement.lot_size)),
        row("steps", format!("{}", statement.steps)),
        row(
            "parameters of the model",
            format!("after step {} ({})", statement.model_step, statement.selection.name()),
        ),
        row(
            "figures on",
            if *metrics == Metrics::default() {
                "nothing".into()
            } else {
                evaluation_data_label(config)
            },
        ),
    ];
    let environment = vec![
        row("software", statement.software.clone()),
        row("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        row("threads", rayon::current_num_threads().to_string()),
    ];
    let section = |title: &str, rows| Section { title: title.into(), rows };
    vec![
        section("Noise and clipping", privacy),
        section("Training", training),
        section("Environment", environment),
    ]
}

/// Names the data that the figures were computed on, and whether they are public.
fn evaluation_data_label(config: &Config) -> String {
    let name = match (&config.data.test, &config.data.validation) {
        (None, Some(_)) if config.data.train == "embedded" => "the embedded test part".into(),
        (Some(path), _) | (None, Some(path)) => {
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
        (None, None) => "the embedded test part".into(),
    };
    match config.data.publicity() {
        Publicity::Public => format!("{name}, declared public"),
        Publicity::Private => format!("{name}: records outside the guarantee"),
    }
}
