//! What could be seen on the way, a line for each look. All of it is public, or marked.

use crate::Error;
use crate::Scores;
use crate::config::Publicity;
use crate::run::disk;
use crate::run::folder::Folder;
use serde::{Deserialize, Serialize};

/// The name of the file.
pub const FILE: &str = "history.jsonl";

/// A look at the run after a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Steps that were made.
    pub step: u64,
    /// ε spent by then; none without privacy.
    pub epsilon: Option<f64>,
    /// How far the last step went.
    pub rate: f64,
    /// Whether the figures are on public data.
    pub figures: Publicity,
    /// Mean NLL on validation data.
    pub nll: Option<f64>,
    /// The share of targets that come out first.
    pub accuracy: Option<f64>,
}

impl Look {
    /// With figures on validation data, if there were any.
    pub fn with(mut self, scores: Option<Scores>) -> Self {
        self.nll = scores.map(|scores| scores.nll);
        self.accuracy = scores.map(|scores| scores.accuracy);
        self
    }

    /// Adds it to a folder's history.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(&self, folder: &Folder) -> Result<(), Error> {
        let path = folder.join(FILE);
        let line = serde_json::to_string(self).map_err(Error::Encoding)? + "\n";
        disk::append(&path, line.as_bytes()).map_err(Error::io(&path))
    }
}

/// The history up to a step. A last line that was not finished does not count.
///
/// # Errors
/// If it cannot be read.
pub fn read(folder: &Folder, up_to: u64) -> Result<Vec<Look>, Error> {
    let text = folder.read(FILE)?.unwrap_or_default();
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str::<Look>(line).ok())
        .filter(|look| look.step <= up_to)
        .collect())
}

/// Forgets what came after a step: it is being made again.
///
/// # Errors
/// If it cannot be written.
pub fn cut(folder: &Folder, up_to: u64) -> Result<(), Error> {
    let mut text = String::new();
    for look in read(folder, up_to)? {
        text += &serde_json::to_string(&look).map_err(Error::Encoding)?;
        text.push('\n');
    }
    folder.write(FILE, &text)
}
