//! Time and memory of a run on this machine, for `muffle plan --model` and `muffle train --dry-run`.

use super::bench::peak_memory;
use super::error::Error;
use super::output::{note, short};
use muffle::LoadedModel;
use muffle::config::Config;
use muffle::load::model::DataProperties;
use muffle::plan::estimate::{StepCost, measure};
use serde::Serialize;

/// A model whose steps are measured without a configuration.
pub(crate) struct Estimate<'a> {
    pub(crate) model: &'a str,
    pub(crate) length: Option<u64>,
}

/// The number of tokens of a record by default.
const DEFAULT_LENGTH: usize = 256;

impl Estimate<'_> {
    /// Loads the model and measures steps of DP-Adam, which has the usual state of an optimizer.
    pub(crate) fn measure(&self) -> Result<StepCost, Error> {
        let mut config =
            Config::default().with_optimizer("dp-adam").map_err(muffle::Error::from)?;
        self.model.clone_into(&mut config.model.source);
        let model =
            LoadedModel::open(&config, DataProperties::default(), &mut |line| note!("{line}"))?;
        let most = model.max_tokens();
        let length = match self.length {
            Some(length) if length < 2 || length > most as u64 => {
                return Err(Error::usage(format!(
                    "--length: expected 2 to {most} tokens, which the model takes; got {length}"
                )));
            }
            Some(length) => length as usize,
            None => DEFAULT_LENGTH.min(most),
        };
        Ok(measure(&config, &model, length)?)
    }
}

/// The cost of a run on this machine.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LocalCost {
    /// Seconds of all steps, without evaluations.
    pub(crate) seconds: f64,
    seconds_per_step: f64,
    records_per_second: f64,
    /// Peak memory of the process, without the records.
    memory_mb: Option<f64>,
    micro_batch: usize,
    length: Option<usize>,
    threads: usize,
}

impl LocalCost {
    /// The cost of a run of these lots and steps.
    pub(crate) fn new(step: &StepCost, lot: f64, steps: u64) -> Self {
        let seconds = step.step(lot);
        Self {
            seconds: seconds * steps as f64,
            seconds_per_step: seconds,
            records_per_second: lot / seconds,
            memory_mb: peak_memory().map(|mb| mb + step.further_bytes as f64 / (1 << 20) as f64),
            micro_batch: step.micro_batch,
            length: step.length,
            threads: rayon::current_num_threads(),
        }
    }

    /// The cost in a sentence.
    pub(crate) fn in_words(&self) -> String {
        let length = self.length.map_or(String::new(), |tokens| format!(" of {tokens} tokens"));
        let memory = self
            .memory_mb
            .map_or(String::new(), |mb| format!("; about {} MB of memory", short(mb.round())));
        format!(
            "On this machine, from a few steps on synthetic records{length}: {} per step ({} \
             records/s, {} threads), {} in all, without evaluations{memory}.",
            duration(self.seconds_per_step),
            short((self.records_per_second * 10.0).round() / 10.0),
            self.threads,
            duration(self.seconds)
        )
    }
}

/// A duration in words.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}
