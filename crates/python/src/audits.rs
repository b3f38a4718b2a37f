//! Attacks on a claim.

use crate::error::{Error, invalid};
use crate::runs::{config, text};
use muffle::audits::{
    AuditFolder, AuditKind, MechanismSettings, OneRunSettings, OtherRecords, ReplaySettings,
};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The least time between two looks at signals during long computations.
const SIGNALS: Duration = Duration::from_millis(100);

/// Attacks the mechanism, a run, or its sensitivity; returns the document of the audit.
#[pyfunction]
#[pyo3(signature = (
    kind, path=None, *, optimizer=None, changes=Vec::new(), noise_multiplier=1.0, steps=None,
    sampling_rate=1.0, per_tensor=false, delta=1e-5, trials=100_000, canaries=None, folder=None,
    real_records=false, confidence=0.99, seed=0
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn audit(
    py: Python<'_>,
    kind: &str,
    path: Option<PathBuf>,
    optimizer: Option<&str>,
    changes: Vec<String>,
    noise_multiplier: f64,
    steps: Option<u64>,
    sampling_rate: f64,
    per_tensor: bool,
    delta: f64,
    trials: u64,
    canaries: Option<u64>,
    folder: Option<PathBuf>,
    real_records: bool,
    confidence: f64,
    seed: u64,
) -> PyResult<String> {
    let mut raised = None;
    let mut last = Instant::now();
    let mut progress = |_: u64, _: u64| {
        if raised.is_none() && last.elapsed() > SIGNALS {
            last = Instant::now();
            raised = Python::attach(|py| py.check_signals()).err();
        }
    };
    let read = || {
        let file = path.as_deref().map(|path| match path.is_dir() {
            true => path.join("config.toml"),
            false => path.to_path_buf(),
        });
        let config = config(file.as_deref(), optimizer, &changes)?;
        Ok::<_, PyErr>(config.absolute().map_err(Error::from)?)
    };
    let (kind, result) = match kind {
        "mechanism" if path.is_some() => {
            return Err(invalid(
                "the audit of the mechanism uses its own model: expected no configuration",
            ));
        }
        "mechanism" => {
            let steps = steps.unwrap_or(1);
            let rate = sampling_rate;
            let sigma = noise_multiplier;
            let settings =
                MechanismSettings { sigma, steps, rate, per_tensor, delta, trials, confidence };
            (AuditKind::Mechanism, py.detach(|| settings.run(&mut progress)))
        }
        "run" => {
            let config = read()?;
            let canaries = canaries.unwrap_or(1000) as usize;
            let settings = OneRunSettings { canaries, confidence, seed };
            let audited = path.as_deref().unwrap_or(Path::new(""));
            let missing = folder.is_none() && !audited.is_dir();
            if missing {
                return Err(invalid("folder: expected the new folder of the audit's ledger"));
            }
            let folder = AuditFolder::choose(audited, folder.as_deref(), &config, PathBuf::new)
                .map_err(Error::from)?;
            (AuditKind::Run, py.detach(|| settings.run(&config, &folder, &mut progress)))
        }
        "replay" => {
            let config = read()?;
            let records = canaries.unwrap_or(4).max(1) as usize;
            let settings = ReplaySettings { steps: steps.unwrap_or(6), records, seed };
            let others = match real_records {
                true => OtherRecords::Real,
                false => OtherRecords::Synthetic,
            };
            (AuditKind::Replay, py.detach(|| settings.run(&config, others, &mut progress)))
        }
        other => {
            return Err(invalid(format!(
                "kind: expected \"mechanism\", \"run\" or \"replay\"; got {other:?}"
            )));
        }
    };
    if let Some(error) = raised {
        return Err(error);
    }
    text(&result.map_err(Error::from)?.document(kind))
}
