//! `history.jsonl`: figures measured while a run trains, one entry per line.
//!
//! Every figure is public, or marked as not private. Unknown fields are refused.

use crate::Error;
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
    /// BLEU of texts for the validation sources, if parameters are selected by it.
    pub bleu: Option<f64>,
    /// RMSE on validation data, of a regression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rmse: Option<f64>,
}

/// Which of two figures is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The smaller one.
    Smaller,
    /// The larger one.
    Larger,
}

impl Better {
    /// Whether the first figure is better. A figure that is not finite is not.
    pub fn is_better(self, figure: f64, than: f64) -> bool {
        figure.is_finite()
            && match self {
                Self::Smaller => figure < than,
                Self::Larger => figure > than,
            }
    }
}

/// The best of several figures with their steps; of equal figures the first.
pub fn best(figures: impl Iterator<Item = (u64, f64)>, better: Better) -> Option<(u64, f64)> {
    figures
        .filter(|(_, figure)| figure.is_finite())
        .reduce(|known, next| if better.is_better(next.1, known.1) { next } else { known })
}

/// The best figures of the evaluations after the first step, each with its step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BestFigures {
    /// NLL of the last evaluation.
    pub last_nll: Option<f64>,
    /// The smallest NLL.
    pub nll: Option<(u64, f64)>,
    /// The largest accuracy.
    pub accuracy: Option<(u64, f64)>,
    /// The largest BLEU.
    pub bleu: Option<(u64, f64)>,
    /// The smallest RMSE.
    pub rmse: Option<(u64, f64)>,
}

impl BestFigures {
    /// Finds the best figures of a history.
    pub fn of(history: &[HistoryEntry]) -> Self {
        let best_of = |figure: fn(&HistoryEntry) -> Option<f64>, better| {
            let trained = history.iter().filter(|entry| entry.step > 0);
            best(trained.filter_map(|entry| Some((entry.step, figure(entry)?))), better)
        };
        Self {
            last_nll: history.last().and_then(|entry| entry.nll),
            nll: best_of(|entry| entry.nll, Better::Smaller),
            accuracy: best_of(|entry| entry.accuracy, Better::Larger),
            bleu: best_of(|entry| entry.bleu, Better::Larger),
            rmse: best_of(|entry| entry.rmse, Better::Smaller),
        }
    }
}

impl HistoryEntry {
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
