//! `history.jsonl`: figures measured while a run trains, one entry per line.
//!
//! Every figure is public, or marked as not private. Unknown fields are refused.

use crate::Error;
use crate::Scores;
use crate::report::Marking;
use crate::run::disk;
use crate::run::folder::Folder;
use serde::{Deserialize, Serialize};

/// The name of the file.
pub const FILE: &str = "history.jsonl";

/// Figures after a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryEntry {
    /// Steps completed.
    pub step: u64,
    /// ε spent so far; none without privacy.
    pub epsilon: Option<f64>,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// Whether the figures are public.
    pub figures: Marking,
    /// Mean NLL on validation data.
    pub nll: Option<f64>,
    /// The share of validation targets predicted correctly.
    pub accuracy: Option<f64>,
}

impl HistoryEntry {
    /// Adds figures on validation data, if there are any.
    #[must_use]
    pub fn with_scores(mut self, scores: Option<Scores>) -> Self {
        self.nll = scores.map(|scores| scores.nll);
        self.accuracy = scores.map(|scores| scores.accuracy);
        self
    }

    /// Appends the entry to the history of a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(&self, folder: &Folder) -> Result<(), Error> {
        let path = folder.join(FILE);
        disk::append(&path, self.line()?.as_bytes()).map_err(Error::io(&path))
    }

    fn line(&self) -> Result<String, Error> {
        Ok(serde_json::to_string(self).map_err(Error::Encoding)? + "\n")
    }
}

/// Parses every line of a history.
///
/// # Errors
/// If a line is not a complete entry.
pub fn parse(text: &str) -> Result<Vec<HistoryEntry>, serde_json::Error> {
    text.lines().map(serde_json::from_str).collect()
}

/// Reads the history up to a step. An unfinished last line is left out.
///
/// # Errors
/// If it cannot be read.
pub fn read(folder: &Folder, up_to: u64) -> Result<Vec<HistoryEntry>, Error> {
    let text = folder.read(FILE)?.unwrap_or_default();
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str::<HistoryEntry>(line).ok())
        .filter(|entry| entry.step <= up_to)
        .collect())
}

/// Removes the entries after a step, from which the run is resumed.
///
/// # Errors
/// If it cannot be written.
pub fn truncate(folder: &Folder, up_to: u64) -> Result<(), Error> {
    let lines = read(folder, up_to)?.iter().map(HistoryEntry::line).collect::<Result<String, _>>();
    folder.write(FILE, &lines?)
}
