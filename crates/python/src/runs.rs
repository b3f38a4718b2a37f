//! Runs with a folder on disk, as the program makes them.

use crate::error::{Error, invalid};
use muffle::data::{Missing, Task};
use muffle::evaluate::Prediction;
use muffle::generate::TextOptions;
use muffle::load::data;
use muffle::optim::registry;
use muffle::predict::Predictor;
use muffle::run::{self, Progress, RunObserver, RunStart};
use muffle::text::generate::{Search, Stopping};
use muffle::verify::signature::PublicKey;
use muffle::verify::{UncheckedReason, verify_signed};
use muffle::{Config, LoadedModel, Outcome};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Reports progress to a function of Python, and stops the run on Ctrl-C.
struct Observer {
    report: Option<Py<PyAny>>,
    /// The exception with which the run is stopped.
    raised: Option<PyErr>,
}

impl Observer {
    /// Calls the function with a kind of report and its content.
    fn report(&mut self, kind: &str, content: Value) {
        let Some(report) = &self.report else { return };
        if self.raised.is_none() {
            let called = Python::attach(|py| report.call1(py, (kind, content.to_string())));
            self.raised = called.err();
        }
    }

    /// Converts the result of a run; an exception of the function comes first.
    fn outcome(self, result: Result<Outcome, muffle::Error>) -> PyResult<String> {
        match (self.raised, result) {
            (Some(error), Err(muffle::Error::Stopped)) => Err(error),
            (_, Err(error)) => Err(Error::from(error).into()),
            (_, Ok(outcome)) => text(&outcome.result()),
        }
    }
}

impl RunObserver for Observer {
    fn message(&mut self, line: &str) {
        self.report("message", json!(line));
    }

    fn started(&mut self, start: &RunStart<'_>) {
        let (trained, all) = start.parameters;
        let price = start.plan.price;
        self.report(
            "started",
            json!({
                "optimizer": start.config.optimizer.name(),
                "steps": start.plan.steps,
                "step": start.step,
                "lot_size": start.plan.lot_size(),
                "records": start.plan.records,
                "noise_multiplier": start.plan.budget.map(|_| start.plan.sigma.gradient),
                "epsilon": price.map(|price| price.epsilon),
                "delta": price.map(|price| price.delta),
                "trained_parameters": trained,
                "parameters": all,
                "micro_batch": start.micro_batch,
            }),
        );
    }

    fn stepped(&mut self, progress: &Progress) {
        let entry = serde_json::to_value(progress.latest).unwrap_or(Value::Null);
        self.report(
            "step",
            json!({"step": progress.step, "fresh": progress.fresh, "notes": progress.notes,
                "latest": entry}),
        );
    }

    fn evaluating(&mut self, what: &str, count: u64) {
        self.report("evaluating", json!({"what": what, "count": count}));
    }

    fn should_stop(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| py.check_signals()).err();
        }
        self.raised.is_some()
    }
}

/// A document as JSON.
pub(crate) fn text(document: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(document)
        .map_err(|error| Error::from(muffle::Error::Encoding(error)).into())
}

/// Reads a configuration, or the embedded one, with an optimizer and changes like `key=value`.
pub(crate) fn config(
    path: Option<&Path>,
    optimizer: Option<&str>,
    changes: &[String],
) -> PyResult<Config> {
    let config = match path {
        Some(path) => Config::read(path).map_err(Error::from)?,
        None => Config::embedded(),
    };
    config_with(config, optimizer, changes)
}

/// Changes a configuration: its optimizer, then single keys like `key=value`.
pub(crate) fn config_with(
    mut config: Config,
    optimizer: Option<&str>,
    changes: &[String],
) -> PyResult<Config> {
    if let Some(name) = optimizer {
        config = config.with_optimizer(name).map_err(|error| invalid(error.to_string()))?;
    }
    for change in changes {
        config = config.with(change).map_err(Error::from)?;
    }
    Ok(config)
}

/// Trains a model; returns `result.json`.
#[pyfunction]
#[pyo3(signature = (path, out, *, optimizer=None, changes=Vec::new(), report=None))]
pub(crate) fn train(
    py: Python<'_>,
    path: Option<PathBuf>,
    out: PathBuf,
    optimizer: Option<&str>,
    changes: Vec<String>,
    report: Option<Py<PyAny>>,
) -> PyResult<String> {
    let config = config(path.as_deref(), optimizer, &changes)?;
    let mut observer = Observer { report, raised: None };
    let result = py.detach(|| run::train(&config, &out, &mut observer));
    observer.outcome(result)
}

/// Resumes an interrupted run; returns `result.json`.
#[pyfunction]
#[pyo3(signature = (folder, *, report=None))]
pub(crate) fn resume(
    py: Python<'_>,
    folder: PathBuf,
    report: Option<Py<PyAny>>,
) -> PyResult<String> {
    let mut observer = Observer { report, raised: None };
    let result = py.detach(|| run::resume(&folder, &mut observer));
    observer.outcome(result)
}

/// Checks the inputs of a run and computes steps, noise, privacy, time and memory.
#[pyfunction]
#[pyo3(signature = (path=None, *, optimizer=None, changes=Vec::new()))]
pub(crate) fn plan(
    py: Python<'_>,
    path: Option<PathBuf>,
    optimizer: Option<&str>,
    changes: Vec<String>,
) -> PyResult<String> {
    let config = config(path.as_deref(), optimizer, &changes)?;
    let dry = py.detach(|| run::dry::dry_run(&config, &mut |_| ())).map_err(Error::from)?;
    let price = dry.plan.price;
    text(&json!({
        "optimizer": config.optimizer.name(),
        "records": dry.plan.records,
        "steps": dry.plan.steps,
        "lot_size": dry.plan.lot_size(),
        "noise_multiplier": dry.plan.budget.map(|_| dry.plan.sigma.gradient),
        "epsilon": price.map(|price| price.epsilon),
        "delta": price.map(|price| price.delta),
        "trained_parameters": dry.parameters.0,
        "parameters": dry.parameters.1,
    }))
}

/// Verifies a privacy statement by recomputing it.
#[pyfunction]
#[pyo3(signature = (path, *, key=None))]
pub(crate) fn verify(py: Python<'_>, path: PathBuf, key: Option<PathBuf>) -> PyResult<String> {
    let verdict = py.detach(|| {
        let key = key.as_deref().map(PublicKey::read).transpose()?;
        verify_signed(&path, key.as_ref())
    });
    let verdict = verdict.map_err(Error::from)?;
    let stated = verdict.statement.as_ref();
    let unchecked = verdict.unchecked.iter().map(|unchecked| {
        json!({
            "name": unchecked.name,
            "missing": unchecked.reason == UncheckedReason::Missing,
            "detail": unchecked.detail,
        })
    });
    text(&json!({
        "consistent": verdict.consistent(),
        "complete": verdict.missing().next().is_none(),
        "private": verdict.consistent() && stated.is_some_and(|statement| statement.private),
        "epsilon": verdict.price.map(|price| muffle::report::Number(price.epsilon)),
        "delta": stated.and_then(|statement| statement.delta),
        "epsilon_stated": stated.and_then(|statement| statement.epsilon),
        "run_id": stated.map(|statement| &statement.run_id),
        "signer": verdict.signer,
        "checks": verdict.checks,
        "unchecked": unchecked.collect::<Vec<_>>(),
        "sentence": verdict.sentence(),
    }))
}

/// Continues prompts, or generates texts for sources.
#[pyfunction]
#[pyo3(signature = (
    model, *, prompts=Vec::new(), sources=Vec::new(), beams=1, length_penalty=1.0,
    temperature=None, top_k=0, top_p=1.0, seed=0, max_new_tokens=100, min_new_tokens=0,
    one_line=false
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn generate(
    py: Python<'_>,
    model: &str,
    prompts: Vec<String>,
    sources: Vec<String>,
    beams: usize,
    length_penalty: f64,
    temperature: Option<f64>,
    top_k: usize,
    top_p: f64,
    seed: u64,
    max_new_tokens: usize,
    min_new_tokens: usize,
    one_line: bool,
) -> PyResult<Vec<String>> {
    let search = match (temperature, beams) {
        (Some(temperature), _) => Search::Sample { temperature, top_k, top_p, seed },
        (None, 1) => Search::Greedy,
        (None, beams) => Search::Beam { beams, length_penalty, stopping: Stopping::Early },
    };
    let options = TextOptions { max_new_tokens, min_new_tokens, one_line, search };
    let texts = py.detach(|| {
        let model = LoadedModel::open_for_inference(model, &mut |_| ())?;
        muffle::generate::generate(&model, &prompts, &sources, &options)
    });
    Ok(texts.map_err(Error::from)?.into_iter().map(|text| text.text).collect())
}

/// Predicts the rows of a file; returns a list of objects.
#[pyfunction]
#[pyo3(signature = (model, path, *, labels=Vec::new(), changes=Vec::new()))]
pub(crate) fn predict(
    py: Python<'_>,
    model: &str,
    path: PathBuf,
    labels: Vec<String>,
    changes: Vec<String>,
) -> PyResult<String> {
    let mut config = Config::default();
    for change in &changes {
        config = config.with(change).map_err(Error::from)?;
    }
    let mut config = config.data;
    // Such a row has no prediction, as an empty one.
    config.missing = Missing::Skip;
    let rows = py.detach(|| -> Result<Vec<Value>, muffle::Error> {
        let model = LoadedModel::open_for_inference(model, &mut |_| ())?;
        let mut predictor = Predictor::new(&model, labels)?;
        config.image_size = model.image_size();
        let names = predictor.labels().to_vec();
        let several = model.task() == Task::MultiLabel;
        let mut rows = Vec::new();
        predictor.rows(data::rows_without_labels(&config, &path)?, &mut |row| {
            let predicted = |prediction: &Prediction| -> Vec<&String> {
                prediction.classes().into_iter().map(|class| &names[class]).collect()
            };
            rows.push(match &row.prediction {
                None => json!({"row": row.row}),
                Some(Prediction::Value(value)) => json!({"row": row.row, "value": value}),
                Some(
                    prediction @ (Prediction::Class(values) | Prediction::Labels(values)),
                ) => {
                    let of = predicted(prediction);
                    let probabilities: serde_json::Map<String, Value> =
                        names.iter().cloned().zip(values.iter().map(|p| json!(p))).collect();
                    match several {
                        true => json!({"row": row.row, "labels": of, "probabilities": probabilities}),
                        false => json!({"row": row.row, "label": of.first(), "probabilities": probabilities}),
                    }
                }
            });
            Ok(())
        })?;
        Ok(rows)
    });
    text(&rows.map_err(Error::from)?)
}

/// The names of all optimizers.
#[pyfunction]
pub(crate) fn optimizers() -> Vec<&'static str> {
    registry::names().collect()
}

/// The version of the package.
#[pyfunction]
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
