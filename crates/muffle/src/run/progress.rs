//! Progress of a run, for observers.

use crate::Plan;
use crate::config::Config;
use crate::load::data::LeftOut;
use crate::run::history::HistoryEntry;

/// Receives the progress of a run and may ask it to stop.
pub trait RunObserver {
    /// A message of one line.
    fn message(&mut self, line: &str);
    /// The run is planned and the first step follows.
    fn started(&mut self, start: &RunStart<'_>);
    /// A step is done.
    fn stepped(&mut self, progress: &Progress);
    /// Whether to stop after this step. The run is saved.
    fn should_stop(&mut self) -> bool;
}

/// Ignores progress and never stops.
pub struct Silent;

impl RunObserver for Silent {
    fn message(&mut self, _: &str) {}
    fn started(&mut self, _: &RunStart<'_>) {}
    fn stepped(&mut self, _: &Progress) {}
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// Settings and sizes of a run at its start.
#[derive(Debug)]
pub struct RunStart<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The plan: steps, noise, cost.
    pub plan: &'a Plan,
    /// Number of trained and of all parameter elements.
    pub parameters: (usize, usize),
    /// Micro-batch size.
    pub micro_batch: usize,
    /// Number of processes.
    pub processes: usize,
    /// The step it starts at: 0, or more if it is resumed.
    pub step: u64,
    /// Rows without a record. **Not private**: shown only on request.
    pub left_out: LeftOut,
    /// Estimated number of tokens in a lot, from public validation data.
    pub lot_tokens: Option<f64>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Number of steps done.
    pub step: u64,
    /// The last entry of the history.
    pub latest: HistoryEntry,
    /// Whether the entry is of this step.
    pub fresh: bool,
    /// What the optimizer wants to be known.
    pub notes: Vec<String>,
}
