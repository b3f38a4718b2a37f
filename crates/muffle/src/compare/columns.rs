//! The columns of the tables: figures of a run, in the order in which they are shown.

use super::ComparedRun;
use crate::Error;
use crate::run::history::Better;

/// One column of the tables.
pub(super) struct Column {
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// Decimal places of a mean; a single run has two more.
    pub(super) digits: usize,
    /// `None` if figures are not ranked.
    pub(super) better: Option<Better>,
    pub(super) value: fn(&ComparedRun) -> Option<f64>,
}

pub(super) const COLUMNS: [Column; 16] = [
    smaller("best_nll", "best NLL ↓", 4, |run| run.metrics.best_nll),
    smaller("nll", "NLL ↓", 4, |run| run.metrics.nll),
    smaller("perplexity", "perplexity ↓", 2, |run| run.metrics.perplexity),
    larger("best_accuracy", "best accuracy ↑", 4, |run| run.metrics.best_accuracy),
    larger("accuracy", "accuracy ↑", 4, |run| run.metrics.accuracy),
    larger("macro_f1", "macro-F1 ↑", 4, |run| run.metrics.macro_f1),
    larger("micro_f1", "micro-F1 ↑", 4, |run| run.metrics.micro_f1),
    larger("auroc", "AUROC ↑", 4, |run| run.metrics.auroc),
    smaller("best_rmse", "best RMSE ↓", 4, |run| run.metrics.best_rmse),
    smaller("rmse", "RMSE ↓", 4, |run| run.metrics.rmse),
    smaller("mae", "MAE ↓", 4, |run| run.metrics.mae),
    larger("r2", "R² ↑", 4, |run| run.metrics.r2),
    larger("bleu", "BLEU ↑", 2, |run| run.metrics.bleu),
    larger("rouge_l", "ROUGE-L ↑", 2, |run| run.metrics.rouge_l),
    larger("slot_accuracy", "slot accuracy ↑", 4, |run| run.metrics.slot_accuracy),
    Column {
        key: "seconds",
        title: "seconds (NON-PRIVATE)",
        digits: 0,
        better: None,
        value: |run| run.seconds,
    },
];

/// A column of figures of which smaller ones are better.
const fn smaller(
    key: &'static str,
    title: &'static str,
    digits: usize,
    value: fn(&ComparedRun) -> Option<f64>,
) -> Column {
    Column { key, title, digits, better: Some(Better::Smaller), value }
}

/// A column of figures of which larger ones are better.
const fn larger(
    key: &'static str,
    title: &'static str,
    digits: usize,
    value: fn(&ComparedRun) -> Option<f64>,
) -> Column {
    Column { key, title, digits, better: Some(Better::Larger), value }
}

/// The key of the first ranked figure that a run has.
pub(super) fn default_metric(runs: &[ComparedRun]) -> &'static str {
    let is_measured = |column: &&Column| {
        column.better.is_some() && runs.iter().any(|run| (column.value)(run).is_some())
    };
    COLUMNS.iter().find(is_measured).map_or(COLUMNS[0].key, |column| column.key)
}

/// The key of the figure with a name.
///
/// # Errors
/// If figures of this name are not ranked, or there are none.
pub(super) fn metric(name: &str) -> Result<&'static str, Error> {
    let ranked = || COLUMNS.iter().filter(|column| column.better.is_some()).map(|c| c.key);
    ranked().find(|key| *key == name).ok_or_else(|| {
        let known = ranked().collect::<Vec<_>>().join(", ");
        Error::config("compare.metric", format!("expected one of {known}; got {name:?}"))
    })
}
