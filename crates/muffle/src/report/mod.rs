//! `report.html` from the folder of a run.

pub mod chart;
pub mod digits;
pub mod page;
pub mod plot;
pub mod statement;

use crate::Failed;
use crate::Statement;
use crate::config::{Config, Publicity};
use crate::report::digits::{short, up, up_e};
use crate::report::page::{Figure, Headline, Page, Panel, Sample, Section};
use crate::report::plot::{Axis, Line, Mark, Plot, Scale, Series};
use crate::run::folder::Folder;
use crate::run::history::{self, Look};
use crate::run::outcome::{self, RESULT, SAMPLES};
use accounting::{Cost, Delta, Unit};
use serde_json::Value;
use std::path::PathBuf;

/// The name of the file.
pub const FILE: &str = "report.html";

/// Writes the report of a finished run; where it is.
///
/// # Errors
/// If the run is not finished, or the folder is damaged.
pub fn write(folder: &Folder) -> Result<PathBuf, Failed> {
    let page = page(folder)?;
    folder.write(FILE, &page.html())?;
    Ok(folder.join(FILE))
}

/// The report as data.
///
/// # Errors
/// As [`write()`].
pub fn page(folder: &Folder) -> Result<Page, Failed> {
    let config = Config::read(&folder.join("config.toml")).map_err(Failed::Input)?;
    let Some(result) = folder.read(RESULT)? else {
        return Err(Failed::Input(format!(
            "{}: the run is not finished; go on with it: muffle resume {0}",
            folder.path().display()
        )));
    };
    let result: Value = serde_json::from_str(&result)
        .map_err(|error| Failed::Input(format!("{}: {error}", folder.join(RESULT).display())))?;
    let statement = outcome::statement(folder.path())?;
    let looks = history::read(folder, u64::MAX)?;
    let publicity = match config.data.publicity() {
        Publicity::Public => page::Publicity::Public,
        Publicity::Private => page::Publicity::NonPrivate,
    };
    let data = config.data.train.rsplit(['/', '\\']).next().unwrap_or_default();
    Ok(Page {
        title: format!("{} on {data}", config.optimizer.name()),
        headline: headline(&statement),
        words: statement.words(),
        covered: statement.covered.clone(),
        not_covered: statement.not_covered.clone(),
        warnings: warnings(&statement),
        figures: figures(&result, &statement, publicity),
        plots: plots(&statement, &looks, publicity)?,
        samples: samples(folder, publicity)?,
        sections: sections(&config, &statement, &result),
        configuration: config.print(),
    })
}

fn headline(statement: &Statement) -> Headline {
    match (statement.epsilon, statement.delta) {
        (Some(epsilon), Some(delta)) if statement.private => {
            Headline::Private { epsilon: up(epsilon, 3), delta: up_e(delta) }
        }
        (Some(_), Some(_)) => Headline::NonPrivate {
            why: "The seed of the noise was fixed and is written below: whoever reads this can \
                take the noise off."
                .into(),
        },
        _ => Headline::NonPrivate {
            why: "This model was trained by an optimizer that neither \
            clips nor adds noise."
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
            "δ = {delta:e} is not below 1/N: publishing one record at random would satisfy it."
        ));
    }
    list
}

fn figures(result: &Value, statement: &Statement, publicity: page::Publicity) -> Vec<Figure> {
    let metric = |name: &str, key: &str, digits: usize, factor: f64| {
        let value = result["metrics"][key].as_f64()?;
        Some(Figure { name: name.into(), value: format!("{:.digits$}", value * factor), publicity })
    };
    let public = |name: &str, value: String| {
        Some(Figure { name: name.into(), value, publicity: page::Publicity::Public })
    };
    [
        metric("NLL of a target", "nll", 4, 1.0),
        metric("perplexity", "perplexity", 2, 1.0),
        metric("accuracy, %", "accuracy", 1, 100.0),
        metric("BLEU", "bleu", 2, 1.0),
        metric("ROUGE-L", "rouge_l", 2, 1.0),
        public("steps", statement.steps.to_string()),
        public("records", statement.records.to_string()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn plots(
    statement: &Statement,
    looks: &[Look],
    publicity: page::Publicity,
) -> Result<Vec<Panel>, Failed> {
    let axis = |label: &str| Axis { label: label.into(), scale: Scale::Linear };
    let curve = |name: &str, of: &dyn Fn(&Look) -> Option<f64>| Series {
        name: name.into(),
        points: looks.iter().filter_map(|look| Some((look.step as f64, of(look)?))).collect(),
        spread: Vec::new(),
        line: Line::Solid,
    };
    let chart = |title: &str, y: &str, series: Vec<Series>, marks: Vec<Mark>| Plot {
        title: title.into(),
        x: axis("step"),
        y: axis(y),
        series,
        marks,
    };
    let mut panels = vec![Panel {
        plot: chart("Quality", "NLL", vec![curve("validation", &|look| look.nll)], Vec::new()),
        caption:
            "Mean negative log-likelihood of a target on the validation data. Lower is better."
                .into(),
        publicity,
    }];
    if let (Some(promised), Some(unit), Some(delta)) =
        (statement.promised_epsilon, statement.unit, statement.delta)
    {
        panels.push(Panel {
            plot: chart(
                "What was spent",
                "ε",
                vec![curve("spent", &|look| look.epsilon)],
                vec![Mark { name: "promised".into(), y: promised }],
            ),
            caption: format!(
                "ε after each step, at δ = {}. An upper bound at every point.",
                up_e(delta)
            ),
            publicity: page::Publicity::Public,
        });
        // There is no curve for lots of fixed size and people with several rows.
        if let Some(plot) = trade_off(statement, unit, delta)? {
            panels.push(Panel {
                plot,
                caption: format!(
                    "Somebody guesses {}, and raises a false alarm as often as the lower axis \
                     says. No test, however clever, is right more often than the curve says. On \
                     the dashed line the model tells nothing.",
                    match (unit.adjacency, unit.rows) {
                        (accounting::Adjacency::AddRemove, 1) =>
                            "whether a given record was in \
                            the data",
                        (accounting::Adjacency::AddRemove, _) =>
                            "whether a given person was in \
                            the data",
                        (accounting::Adjacency::ReplaceOne, _) =>
                            "which of two things somebody's \
                            record says",
                    }
                ),
                publicity: page::Publicity::Public,
            });
        }
    }
    panels.push(Panel {
        plot: chart(
            "Learning rate",
            "rate",
            vec![curve("rate", &|look| (look.step > 0).then_some(look.rate))],
            Vec::new(),
        ),
        caption: "How far each step went.".into(),
        publicity: page::Publicity::Public,
    });
    panels.retain(|panel| panel.plot.series.iter().any(|series| !series.points.is_empty()));
    Ok(panels)
}

fn trade_off(statement: &Statement, unit: Unit, delta: f64) -> Result<Option<Plot>, Failed> {
    let curve = match Cost::new(statement.ledger.events(), unit)?.trade_off(Delta::new(delta)?) {
        Ok(curve) => curve,
        Err(accounting::Error::Unsupported { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let rates: Vec<f64> = (0..=60).map(|i| 10f64.powf(-4.0 + f64::from(i) / 15.0)).collect();
    let series = |name: &str, line, of: &dyn Fn(f64) -> f64| Series {
        name: name.into(),
        points: rates.iter().map(|&fpr| (fpr, of(fpr))).collect(),
        spread: Vec::new(),
        line,
    };
    Ok(Some(Plot {
        title: "What an attacker can gain".into(),
        x: Axis { label: "false alarms".into(), scale: Scale::Log },
        y: Axis { label: "right".into(), scale: Scale::Linear },
        series: vec![
            series("at most", Line::Solid, &|fpr| curve.tpr(fpr)),
            series("guessing", Line::Dashed, &|fpr| fpr),
        ],
        marks: Vec::new(),
    }))
}

fn samples(folder: &Folder, publicity: page::Publicity) -> Result<Vec<Sample>, Failed> {
    let text = folder.read(SAMPLES)?.unwrap_or_else(|| "[]".into());
    let list: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| Failed::Input(format!("{}: {error}", folder.join(SAMPLES).display())))?;
    let of = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let sample = |value: &Value| Sample {
        prompt: of(&value["source"]),
        text: of(&value["text"]),
        reference: value["references"][0].as_str().map(Into::into),
        publicity,
    };
    Ok(list.iter().map(sample).collect())
}

fn sections(config: &Config, statement: &Statement, result: &Value) -> Vec<Section> {
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut privacy = vec![
        row("neighbours", statement.unit.map_or_else(|| "none".into(), |unit| unit.to_string())),
        row("sampling", statement.sampling.clone()),
    ];
    if let Some(sigma) = statement.noise_multiplier {
        privacy.push(row("noise multiplier σ", short(sigma)));
        privacy.push(row("clip bound of each block", short(config.optimizer.clip())));
        privacy.push(row(
            "accountant",
            statement.accountant.map_or_else(String::new, |accountant| accountant.to_string()),
        ));
        let what = if config.privacy.sampling == accounting::SamplingMethod::Shuffled {
            "epochs charged"
        } else {
            "lots charged"
        };
        privacy.push(row(what, statement.ledger.events().len().to_string()));
        privacy.push(row("noise and lots from", statement.randomness.clone()));
    }
    privacy.push(row("run", statement.run_id.clone()));
    privacy.push(row("sessions", statement.sessions.len().to_string()));
    privacy.push(row("ledger, head of its hash chain", statement.ledger_head.clone()));
    let training = vec![
        row("optimizer", config.optimizer.name().into()),
        row("model", config.model.source.clone()),
        row(
            "low-rank additions",
            if config.model.lora_rank == 0 {
                "none: everything is trained".into()
            } else {
                format!("rank {}", config.model.lora_rank)
            },
        ),
        row("lot size", short(statement.lot_size)),
        row("steps", format!("{}", statement.steps)),
        row(
            "figures on",
            if result["metrics"].as_object().is_some_and(|map| map.is_empty()) {
                "nothing".into()
            } else {
                evaluated(config)
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

fn evaluated(config: &Config) -> String {
    let name = match (&config.data.test, &config.data.validation) {
        (None, Some(_)) if config.data.train == "embedded" => "the embedded test part".into(),
        (Some(path), _) | (None, Some(path)) => {
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
        (None, None) => "the embedded test part".into(),
    };
    match config.data.publicity() {
        Publicity::Public => format!("{name}, declared public"),
        Publicity::Private => format!("{name}: people outside the guarantee"),
    }
}
