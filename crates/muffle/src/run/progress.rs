//! Who is told how a run goes.

use crate::Plan;
use crate::config::Config;
use crate::load::data::LeftOut;
use crate::run::history::HistoryEntry;

/// Who is told how it goes, and may ask it to stop.
pub trait Watch {
    /// Something worth a line.
    fn said(&mut self, line: &str);
    /// The numbers are worked out and the first step is next.
    fn begun(&mut self, begun: &Begun<'_>);
    /// After each step.
    fn stepped(&mut self, progress: &Progress);
    /// Whether to stop after this step. What was done is put away.
    fn stops(&mut self) -> bool;
}

/// Says nothing, and never stops.
pub struct Silent;

impl Watch for Silent {
    fn said(&mut self, _: &str) {}
    fn begun(&mut self, _: &Begun<'_>) {}
    fn stepped(&mut self, _: &Progress) {}
    fn stops(&mut self) -> bool {
        false
    }
}

/// What a run begins with.
#[derive(Debug)]
pub struct Begun<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The numbers.
    pub plan: &'a Plan,
    /// Trained numbers, and all of them.
    pub parameters: (usize, usize),
    /// Records that are computed on at a time.
    pub micro_batch: usize,
    /// Processes that train together.
    pub processes: usize,
    /// The step it begins at: 0, or more after an interruption.
    pub step: u64,
    /// Rows without a record. **Not private**: to be shown only where that was asked for.
    pub left_out: LeftOut,
    /// About how many tokens a lot has, by the public validation data.
    pub lot_tokens: Option<f64>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps made.
    pub step: u64,
    /// The last entry of the history.
    pub latest: HistoryEntry,
    /// Whether the entry is of this step.
    pub fresh: bool,
    /// What the optimizer wants to be known.
    pub notes: Vec<String>,
}
