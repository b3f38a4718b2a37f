//! The privacy statement and the report of a run.

pub mod digits;
pub mod model_card;
pub mod number;
pub mod page;
mod redaction;
pub mod statement;

mod summary;

pub use number::Number;
pub use redaction::{Part, Redaction};
pub use statement::Statement;

use crate::Error;
use crate::chart::{Axis, Chart, Mark, Series};
use crate::config::{Auto, Config, Publicity};
use crate::evaluate::GeneratedText;
use crate::report::digits::{short, up, up_e};
use crate::report::page::{Figure, Headline, Page, Panel, Sample, Section};
use crate::run::folder::Folder;
use crate::run::history::{self, BestFigures, HistoryEntry};
use crate::run::result::{self, Metrics, RunResult};
use crate::run::snapshot;
use accounting::{Accountant, Adjacency, Composition, Cost, Delta, SamplingMethod, TradeOff, Unit};
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

/// The section of the machine.
const ENVIRONMENT: &str = "Environment";

/// Writes the report of a finished run, without the hidden parts, and returns its path.
///
/// # Errors
/// If the run is not finished, or the folder is damaged.
pub fn write(folder: &Folder, hidden: &Redaction) -> Result<PathBuf, Error> {
    let page = page(folder, hidden)?;
    folder.write(FILE, &page.html())?;
    Ok(folder.join(FILE))
}

/// Builds the report from the folder of a run.
///
/// # Errors
/// As [`write()`].
pub fn page(folder: &Folder, hidden: &Redaction) -> Result<Page, Error> {
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
    let mut statement = Statement::of_run(folder.path())?;
    let checksum = snapshot::digest(statement.canonical()?.as_bytes());
    if hidden.hides(Part::Names) {
        statement.person_column = statement.person_column.map(|_| redaction::HIDDEN.into());
    }
    let entries = history::read(folder, u64::MAX)?;
    // Without a guarantee, everything that the model says may reveal its training data.
    let marking = match statement.private {
        true => config.data.publicity().into(),
        false => Marking::NonPrivate,
    };
    let data = hidden.name(data_name(&config));
    let about = about(&config, &statement, &data, checksum, hidden);
    Ok(hidden.apply(Page {
        title: format!("{} on {data}", config.optimizer.name()),
        headline: headline(&statement),
        words: statement.words(),
        covered: statement.covered(),
        not_covered: statement.not_covered(),
        about,
        warnings: warnings(&statement),
        figures: figures(&result.metrics, &statement, marking),
        charts: charts(&statement, &entries, marking)?,
        samples: samples(folder, marking)?,
        sections: sections(&config, &statement, &result.metrics, hidden),
        configuration: config.print(),
        hidden: Redaction::default(),
    }))
}

/// The name of the training data: the configured one, or that of the file.
fn data_name(config: &Config) -> &str {
    let path = config.data.train.trim_end_matches(['/', '\\']);
    let file = path.rsplit(['/', '\\']).next().unwrap_or_default();
    config.about.data.as_deref().unwrap_or(file)
}

/// What identifies the run, and how to verify this page.
fn about(
    config: &Config,
    statement: &Statement,
    data: &str,
    checksum: String,
    hidden: &Redaction,
) -> Section {
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut rows = vec![row("training data", data.into())];
    if let Some(owner) = &config.about.owner {
        rows.push(row("owner", hidden.name(owner)));
    }
    if let Some(purpose) = &config.about.purpose {
        rows.push(row("purpose", hidden.name(purpose)));
    }
    let dates: Vec<&str> = statement.sessions.iter().map(|entry| &*entry.started).collect();
    if let (Some(first), Some(last)) = (dates.first(), dates.last()) {
        let resumed =
            if first == last { String::new() } else { format!(", last resumed on {last}") };
        rows.push(row("training started on", format!("{first} (UTC){resumed}")));
    }
    rows.push(row("run", statement.run_id.clone()));
    for (name, sum) in &statement.weights_sha256 {
        rows.push(row(&format!("SHA-256 of {name}"), sum.clone()));
    }
    rows.push(row("SHA-256 of the statement, as in ledger.json", checksum));
    rows.push(row(
        "to verify",
        "muffle verify DIR, where DIR is the folder of the run: it recomputes ε from all charges, \
         and compares the weights and this page, without the parts that are hidden. With --key KEY \
         it also checks who signed the statement."
            .into(),
    ));
    Section { title: "About this run".into(), rows }
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
    if !statement.private {
        return list;
    }
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
    if let (Some(promised), Some((unit, delta))) = (statement.promised_epsilon, statement.promise())
    {
        let charged =
            if statement.sampling == SamplingMethod::Shuffled { "epochs" } else { "lots" };
        panels.push(Panel {
            chart: Chart {
                title: "Privacy cost".into(),
                x: Axis::linear(format!("{charged} charged")),
                y: Axis::from_zero("ε"),
                series: vec![Series::new("spent", spent(statement, unit, delta)?).steps()],
                marks: vec![Mark { name: "promised".into(), y: promised }],
            },
            caption: format!(
                "ε of the first {charged}, at δ = {}: an upper bound everywhere. Between two \
                 computed numbers of {charged}, the line has the later, higher value.",
                up_e(delta)
            ),
            marking: Marking::Public,
        });
        // Some kinds of lots have no curve for several rows of a person.
        if let Some(chart) = trade_off(statement, unit, delta)? {
            panels.push(Panel {
                chart,
                caption: format!(
                    "An attacker guesses {}, with the false-positive rate of the horizontal axis. \
                     No test has a higher true-positive rate than the curve. On the dashed line \
                     the model reveals nothing.",
                    match (unit.adjacency, statement.person_column.is_some()) {
                        (Adjacency::AddRemove, false) => "whether a given record was in the data",
                        (Adjacency::AddRemove, true) => "whether a given person was in the data",
                        (Adjacency::ReplaceOne, false) => "which of two contents a record has",
                        (Adjacency::ReplaceOne, true) =>
                            "which of two contents a person's rows have",
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

/// The maximum number of points of a curve of ε.
const SPENT_POINTS: u64 = 24;

/// (charges, ε of the first charges): all of them, or some if there are many.
fn spent(statement: &Statement, unit: Unit, delta: f64) -> Result<Vec<(f64, f64)>, Error> {
    let events = statement.ledger.events();
    let all = events.len();
    // The curve is steep at its start.
    let early = (0..).map(|power| 1 << power).take_while(|&charges| charges < all / SPENT_POINTS);
    let share = |i: u64| (u128::from(i) * u128::from(all)).div_ceil(u128::from(SPENT_POINTS));
    let even = (1..=SPENT_POINTS).map(|i| share(i) as u64);
    let mut points: Vec<u64> = early.chain(even).collect();
    points.sort_unstable();
    points.dedup();
    let accountant = statement.accountant.unwrap_or(Accountant::Best);
    let point = |charges: u64| {
        let cost = Cost::new(&first_charges(events, charges)?, unit)?;
        let epsilon = cost.epsilon(accountant, Delta::new(delta)?)?.epsilon;
        // A part reveals no more than the whole.
        Ok((charges as f64, statement.epsilon.map_or(epsilon, |whole| epsilon.min(whole))))
    };
    points.into_iter().map(point).collect()
}

/// The first charges of a ledger.
fn first_charges(events: &Composition, charges: u64) -> Result<Composition, Error> {
    let (mut first, mut remaining) = (Composition::new(), charges);
    for (event, count) in events.runs() {
        let count = remaining.min(*count);
        first.push(event.clone(), count)?;
        remaining -= count;
    }
    Ok(first)
}

fn trade_off(statement: &Statement, unit: Unit, delta: f64) -> Result<Option<Chart>, Error> {
    let curve = match Cost::new(statement.ledger.events(), unit)?.trade_off(Delta::new(delta)?) {
        Ok(curve) => curve,
        Err(accounting::Error::Unsupported { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(trade_off_chart(&curve, unit.adjacency)))
}

/// The chart of the true-positive rate that a test can have at each false-positive rate.
pub fn trade_off_chart(curve: &TradeOff, adjacency: Adjacency) -> Chart {
    let rates = || (0..=60).map(|i| 10f64.powf(-4.0 + f64::from(i) / 15.0));
    Chart {
        title: match adjacency {
            Adjacency::AddRemove => "Membership tests".into(),
            Adjacency::ReplaceOne => "Tests of the content".into(),
        },
        x: Axis::log("false-positive rate"),
        y: Axis::log("true-positive rate"),
        series: vec![
            Series::new("at most", rates().map(|fpr| (fpr, curve.tpr(fpr))).collect()),
            Series::new("guessing", rates().map(|fpr| (fpr, fpr)).collect()).dashed(),
        ],
        marks: Vec::new(),
    }
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

fn sections(
    config: &Config,
    statement: &Statement,
    metrics: &Metrics,
    hidden: &Redaction,
) -> Vec<Section> {
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut privacy = vec![
        row("neighbours", statement.neighbours_in_words()),
        row("sampling", statement.sampling_in_words()),
    ];
    if let Some(sigma) = statement.noise_multiplier {
        privacy.push(row("noise multiplier σ", short(sigma)));
        let clip = short(config.optimizer.clip());
        let clip = match config.optimizer.given_clip() {
            Auto::Auto if config.optimizer.entry().label_clip => {
                format!("{clip}; for labels ½ √(inputs of the head)")
            }
            _ => clip,
        };
        privacy.push(row("clip bound of each block", clip));
        privacy.push(row(
            "accountant",
            statement.accountant.map_or_else(String::new, |accountant| accountant.to_string()),
        ));
        let charge_label = if statement.sampling == SamplingMethod::Shuffled {
            "epochs charged"
        } else {
            "lots charged"
        };
        privacy.push(row(charge_label, statement.ledger.events().len().to_string()));
        privacy.push(row("noise and lots from", statement.randomness.to_string()));
    }
    privacy.push(row("sessions", statement.sessions.len().to_string()));
    privacy.push(row("ledger, head of its hash chain", statement.ledger_head.clone()));
    let training = vec![
        row("optimizer", config.optimizer.name().into()),
        row("model", hidden.name(&config.model.source)),
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
                evaluation_data_label(config, hidden)
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
        section(ENVIRONMENT, environment),
    ]
}

/// Names the data that the figures were computed on, and whether they are public.
fn evaluation_data_label(config: &Config, hidden: &Redaction) -> String {
    let name = match (&config.data.test, &config.data.validation) {
        (None, Some(_)) if config.data.train == "embedded" => "the embedded test part".into(),
        (Some(path), _) | (None, Some(path)) => {
            hidden.name(&path.file_name().unwrap_or_default().to_string_lossy())
        }
        (None, None) => "the embedded test part".into(),
    };
    match config.data.publicity() {
        Publicity::Public => format!("{name}, declared public"),
        Publicity::Private => format!("{name}: records outside the guarantee"),
    }
}
