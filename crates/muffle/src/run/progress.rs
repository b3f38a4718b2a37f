//! Reports of the progress of a run to an observer.

use crate::Plan;
use crate::config::Config;
use crate::load::data::DroppedCounts;
use crate::run::history::HistoryEntry;

/// Receives the progress of a run and may ask it to stop.
pub trait RunObserver {
    /// Receives a message of one line.
    fn message(&mut self, line: &str);
    /// Called after planning, before the first step.
    fn started(&mut self, start: &RunStart<'_>);
    /// Called after each step.
    fn stepped(&mut self, progress: &Progress);
    /// Called from time to time while the released model is evaluated.
    ///
    /// `what` is done so far with `count` rows, such as "rows evaluated:".
    fn evaluating(&mut self, what: &str, count: u64) {
        let _ = (what, count);
    }
    /// Returns whether to stop, after this step or during the evaluation at the end. The run is
    /// saved.
    fn should_stop(&mut self) -> bool;
}

/// An observer that ignores progress and never stops the run.
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
    /// Numbers of rows without a record. **Not private**: shown only on request.
    pub dropped: DroppedCounts,
    /// Estimated number of tokens in a lot, from public validation data.
    pub lot_tokens: Option<f64>,
}

/// The progress of a run after a step.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Number of steps done.
    pub step: u64,
    /// The last entry of the history.
    pub latest: HistoryEntry,
    /// Whether the entry is of this step.
    pub fresh: bool,
    /// Messages of the optimizer.
    pub notes: Vec<String>,
}
