//! A run in a folder on an engine in Python.

use crate::engine::{PythonEngine, Raised, record};
use crate::error::{Error, exception, invalid};
use crate::runs::{config_with, text};
use curator::Records;
use muffle::Category;
use muffle::config::Auto;
use muffle::run::result::Metrics;
use muffle::run::{EngineRun, RunInputs};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use serde_json::json;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A run whose engine, records, evaluation and model are in Python.
#[pyclass(frozen, module = "muffle")]
pub(crate) struct EngineSession {
    run: Mutex<Option<EngineRun<PythonEngine>>>,
    raised: Raised,
    /// The process that created it. A forked one would draw the same noise for other queries.
    process: u32,
}

/// The inputs by which a resumed run is recognised, after checks in micro-batches of the run.
fn inputs(
    config: &muffle::Config,
    seam: &Py<PyAny>,
    raised: &Raised,
) -> Result<RunInputs, muffle::Error> {
    let examples = match config.training.micro_batch {
        Auto::Value(examples) => Some(examples),
        Auto::Auto => None,
    };
    Python::attach(|py| {
        let asked = seam.call_method1(py, "inputs", (examples,));
        let asked = asked.and_then(|inputs| inputs.extract(py));
        let (records, frozen): (String, u64) = asked.map_err(|error| {
            let reason = error.value(py).to_string();
            raised.set(error);
            muffle::Error::Engine(engine::Error::Device(reason.into()))
        })?;
        Ok(RunInputs { records, frozen })
    })
}

/// One example for each record.
fn records(count: u32) -> Records {
    Records::new((0..count).map(record).collect())
}

/// The message of a failed step. That of the engine may have content of records.
const FAILED_STEP: &str = "the engine failed in a step, which stays charged; the cause (__cause__) is \
                           NON-PRIVATE: it can show content of records, and which are in the lot";

impl EngineSession {
    fn new(run: EngineRun<PythonEngine>, raised: Raised) -> Self {
        Self { run: Mutex::new(Some(run)), raised, process: std::process::id() }
    }

    /// Refuses a forked process.
    fn check_process(&self) -> PyResult<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(invalid(
                "this process was forked from that of the run, and would repeat its noise; resume \
                 the run instead",
            )),
        }
    }

    /// Runs a function of the run without the interpreter lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut EngineRun<PythonEngine>) -> Result<T, muffle::Error> + Send,
    ) -> PyResult<T> {
        self.check_process()?;
        self.raised.take();
        let result = py.detach(|| match self.lock().as_mut() {
            Some(run) => call(run).map_err(Some),
            None => Err(None),
        });
        let value = result.map_err(|error| match error {
            Some(error) => caused(py, error, &self.raised),
            None => invalid("the run is finished"),
        })?;
        // Ctrl-C while the engine discarded a sum, which cannot fail.
        match self.raised.take() {
            Some(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(error),
            _ => Ok(value),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<EngineRun<PythonEngine>>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hides the message of an exception of the engine, which stays the cause.
fn without_content(py: Python<'_>, error: PyErr) -> PyErr {
    match error.cause(py) {
        Some(cause) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => {
            let hidden = exception("FaultError", FAILED_STEP.into());
            hidden.set_cause(py, Some(cause));
            hidden
        }
        _ => error,
    }
}

/// Converts an error of a run. An exception of the engine is its cause, and KeyboardInterrupt is
/// raised as it is.
fn caused(py: Python<'_>, error: muffle::Error, raised: &Raised) -> PyErr {
    match raised.take() {
        None => Error::from(error).into(),
        Some(cause) if cause.is_instance_of::<PyKeyboardInterrupt>(py) => cause,
        Some(cause) => {
            let class = match error.category() {
                Category::Input => "InputError",
                Category::Promise => "PromiseError",
                Category::Fault | Category::Stopped => "FaultError",
            };
            let class = if cause.is_instance_of::<pyo3::exceptions::PyValueError>(py) {
                "InputError"
            } else {
                class
            };
            // A refusal of the engine is not a failure: its message is enough.
            let message = match &error {
                muffle::Error::Engine(engine::Error::Device(reason)) => reason.to_string(),
                other => other.to_string(),
            };
            let raised = exception(class, message);
            raised.set_cause(py, Some(cause));
            raised
        }
    }
}

#[pymethods]
impl EngineSession {
    /// Starts a run in a new folder: probes the engine and validates all records.
    #[staticmethod]
    #[pyo3(signature = (seam, count, out, *, optimizer=None, changes=Vec::new()))]
    fn create(
        py: Python<'_>,
        seam: Py<PyAny>,
        count: u32,
        out: PathBuf,
        optimizer: Option<&str>,
        changes: Vec<String>,
    ) -> PyResult<Self> {
        let config = external(optimizer, &changes)?;
        let raised = Raised::default();
        let engine = PythonEngine::new(seam.clone_ref(py), raised.clone())?;
        let params = engine.params()?;
        let started = py.detach(|| {
            EngineRun::create(&config, engine, params, records(count), &out, &|config| {
                inputs(config, &seam, &raised)
            })
        });
        let run = started.map_err(|error| caused(py, error, &raised))?;
        Ok(Self::new(run, raised))
    }

    /// Resumes an interrupted run.
    #[staticmethod]
    fn resume(py: Python<'_>, seam: Py<PyAny>, count: u32, out: PathBuf) -> PyResult<Self> {
        let raised = Raised::default();
        let engine = PythonEngine::new(seam.clone_ref(py), raised.clone())?;
        let params = engine.params()?;
        let started = py.detach(|| {
            EngineRun::resume(&out, engine, params, records(count), &|config| {
                inputs(config, &seam, &raised)
            })
        });
        let run = started.map_err(|error| caused(py, error, &raised))?;
        Ok(Self::new(run, raised))
    }

    /// Takes one step; returns its notes, or `None` if all steps are done.
    fn step(&self, py: Python<'_>) -> PyResult<Option<Vec<String>>> {
        self.with(py, |run| {
            let step = run.step()?;
            Ok(step.map(|step| step.notes.iter().map(ToString::to_string).collect()))
        })
        .map_err(|error| without_content(py, error))
    }

    /// The plan and the number of steps, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let document = self.with(py, |run| {
            let (session, price) = (run.session(), run.session().plan().price);
            let plan = session.plan();
            Ok(json!({
                "step": session.steps(),
                "steps": plan.steps,
                "records": plan.records,
                "lot_size": plan.lot_size(),
                "noise_multiplier": plan.budget.map(|_| plan.sigma.gradient),
                "delta": price.map(|price| price.delta),
                "planned_epsilon": price.map(|price| price.epsilon),
                "trained_parameters": session.params().elements(),
                "model_folder": run.model_folder(),
            }))
        })?;
        text(&document)
    }

    /// The number of steps that were completed.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |run| Ok(run.session().steps()))
    }

    /// ε spent so far; infinite without privacy.
    fn epsilon(&self, py: Python<'_>) -> PyResult<f64> {
        self.with(py, |run| Ok(run.session().guarantee()?.epsilon))
    }

    /// The names of the tensors that have their initial values.
    fn unchanged(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |run| Ok(run.unchanged_tensors()))
    }

    /// Returns the released values of a tensor, as f32.
    fn released<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyByteArray>> {
        let values = self.with(py, |run| {
            let params = run.session().released_params();
            Ok((index < params.len()).then(|| params[index].data().to_vec()))
        })?;
        let values = values.ok_or_else(|| invalid("index: no tensor has it"))?;
        Ok(PyByteArray::new(py, bytemuck::cast_slice(&values)))
    }

    /// Appends figures on evaluation data to the history; returns the entry as JSON.
    fn record(&self, py: Python<'_>, figures: &str) -> PyResult<String> {
        let figures = metrics(figures)?;
        let entry = self.with(py, |run| run.record(&figures))?;
        text(&entry)
    }

    /// Saves a snapshot from which the run can be resumed.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, EngineRun::save)
    }

    /// Releases the folder, so that the run can be resumed.
    fn close(&self, py: Python<'_>) {
        let run = self.lock().take();
        py.detach(|| drop(run));
    }

    /// Writes statement, figures and report; returns `result.json`.
    fn finish(&self, py: Python<'_>, figures: &str) -> PyResult<String> {
        let figures = metrics(figures)?;
        self.check_process()?;
        let run = self.lock().take().ok_or_else(|| invalid("the run is finished"))?;
        let finished = py.detach(|| run.finish(figures));
        text(&finished.map_err(|error| caused(py, error, &self.raised))?)
    }
}

/// Reads figures; other names than those of `result.json` are refused.
fn metrics(figures: &str) -> PyResult<Metrics> {
    serde_json::from_str(figures).map_err(|error| invalid(format!("figures: {error}")))
}

/// The default configuration of a model and records of a program, with changes.
fn external(optimizer: Option<&str>, changes: &[String]) -> PyResult<muffle::Config> {
    let mut config = muffle::Config::default();
    config.data.train = "external".into();
    config.evaluation.samples = 0;
    config_with(config, optimizer, changes)
}
