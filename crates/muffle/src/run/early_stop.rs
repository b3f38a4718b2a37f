//! Early stopping: training ends when evaluations on public data do not improve any more.

use crate::Error;
use crate::config::{Evaluation, Select};
use crate::run::Run;
use crate::run::history::{HistoryEntry, best};
use crate::run::ledger_file::LedgerFile;
use crate::run::selection::figure;

/// Counts evaluations without improvement, to end training early.
///
/// # Claim
/// A run that ends early has the guarantee of the whole plan.
///
/// # Why
/// Whether to stop after a step is computed from the releases so far and from public validation
/// data, so that the shorter run is a function of the releases of the whole one. It does not have
/// the smaller ε of its own number of steps: that number depends on the releases, and so would
/// the ε that is stated. Therefore the steps that are not made are charged as well
/// (`Run::charge_remaining_steps`), and ledger, statement and joint costs count the whole plan.
///
/// # Checked by
/// `an_early_stop_needs_public_evaluations`, `a_run_that_stops_early_is_charged_as_planned`
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EarlyStop {
    /// Whose figure must improve; if the last parameters are released, NLL or RMSE.
    rule: Select,
    /// Evaluations in a row without improvement after which training ends; 0 for never.
    patience: u64,
    best: Option<(u64, f64)>,
    /// Evaluations since the best one.
    waited: u64,
}

impl EarlyStop {
    /// Starts to count, from the entries of a history.
    pub(crate) fn new(evaluation: &Evaluation, history: &[HistoryEntry]) -> Self {
        let Evaluation { select: rule, patience, .. } = *evaluation;
        let mut counter = Self { rule, patience, best: None, waited: 0 };
        history.iter().for_each(|entry| counter.add(entry));
        counter
    }

    /// Considers an evaluation. Untrained parameters are not considered.
    pub(crate) fn add(&mut self, entry: &HistoryEntry) {
        if entry.step == 0 {
            return;
        }
        let known = self.best;
        self.best = best(known.into_iter().chain(figure(self.rule, entry)), self.rule.order());
        self.waited = if self.best == known { self.waited + 1 } else { 0 };
    }

    /// Whether training ends.
    pub(crate) fn is_due(&self) -> bool {
        self.patience > 0 && self.waited >= self.patience
    }

    /// Says why training ends.
    pub(crate) fn message(&self, step: u64, steps: u64) -> String {
        format!(
            "stopped early after step {step} of {steps}: {} evaluations without improvement \
             (evaluation.patience); all {steps} steps stay charged, because the decision was made \
             from releases",
            self.waited
        )
    }
}

impl Run<'_> {
    /// Whether training ends early. The first process, which has the figures, decides.
    pub(super) fn agree_on_early_stop(&self) -> Result<bool, Error> {
        let due = self.early_stop.is_due();
        if self.ranks.count() == 1 || self.config.evaluation.patience == 0 {
            return Ok(due);
        }
        Ok(self.ranks.broadcast(vec![due.into()])? == [1])
    }

    /// Charges the planned steps that an early stop leaves out; see [`EarlyStop`].
    pub(crate) fn charge_remaining_steps(&self, ledger: &LedgerFile) -> Result<(), Error> {
        match self.early_stop.is_due() && self.session.plan().budget.is_some() {
            true => ledger.charge_remaining(&self.session.plan().events),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Marking;

    fn entry(step: u64, nll: f64) -> HistoryEntry {
        HistoryEntry {
            step,
            epsilon: None,
            learning_rate: 0.1,
            figures: Marking::Public,
            nll: Some(nll),
            accuracy: Some(-nll),
            bleu: Some(-nll),
            rmse: None,
        }
    }

    #[test]
    fn training_ends_after_evaluations_without_improvement() {
        let stops_at = |patience: u64, select: Select, figures: &[f64]| {
            let evaluation = Evaluation { patience, select, ..Evaluation::default() };
            let mut counter = EarlyStop::new(&evaluation, &[entry(0, 0.0)]);
            let mut seen = Vec::new();
            for (index, &figure) in figures.iter().enumerate() {
                let evaluated = entry(index as u64 + 1, figure);
                counter.add(&evaluated);
                seen.push(evaluated);
                // A resumed run counts the same.
                assert_eq!(counter, EarlyStop::new(&evaluation, &seen));
                if counter.is_due() {
                    return Some(index + 1);
                }
            }
            None
        };
        let figures = [5.0, 4.0, 4.0, 4.5, 3.0, 3.5, f64::NAN, 2.0];
        assert_eq!(stops_at(2, Select::Last, &figures), Some(4));
        assert_eq!(stops_at(3, Select::Last, &figures), None);
        assert_eq!(stops_at(2, Select::BestBleu, &figures), Some(4));
        assert_eq!(stops_at(1, Select::BestNll, &figures), Some(3));
        assert_eq!(stops_at(0, Select::Last, &figures), None);
    }
}
