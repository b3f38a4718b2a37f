//! Selection of the released parameters among those of all steps, by figures on public data.
//!
//! # Claim
//! The selected parameters have the guarantee of the run, without a further charge.
//!
//! # Why
//! The charges of a run cover the releases of every step, and the parameters of every step are
//! computed from those releases: all of them could be published together. A selection reads them
//! and the validation data. These are declared public (`Evaluation::check` refuses others), so
//! that the choice is computed from releases and public values only. The ledger still has the
//! charges of all steps, also of those after the selected one.
//!
//! # Checked by
//! `selection_needs_public_evaluations`, `a_run_releases_the_selected_parameters`

use crate::config::{Evaluation, Select};
use crate::run::history::{Better, HistoryEntry, best};
use protocol::Params;

/// The parameters that are released, as far as they are selected.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// What is selected; not [`Select::Last`].
    pub rule: Select,
    /// The step and the figure of the best evaluation.
    pub best: Option<(u64, f64)>,
    /// The selected parameters.
    pub chosen: Option<StepParams>,
    /// The last regular checkpoint, if checkpoints are selected.
    pub latest: Option<StepParams>,
}

/// Parameters after a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepParams {
    /// Number of steps completed.
    pub step: u64,
    /// The trained tensors.
    pub params: Params,
}

impl Selection {
    /// Starts a selection; `None` if the last parameters are released.
    pub fn new(evaluation: &Evaluation) -> Option<Self> {
        let rule = evaluation.select;
        let selects = rule != Select::Last;
        selects.then_some(Self { rule, best: None, chosen: None, latest: None })
    }

    /// Considers an evaluation of the current parameters.
    pub fn add_evaluation(&mut self, entry: &HistoryEntry, params: &Params) {
        let known = self.best;
        self.best = best(known.into_iter().chain(figure(self.rule, entry)), self.rule.order());
        if self.best == known {
            return;
        }
        // Of all checkpoints so far, the last one is the nearest to this evaluation.
        self.chosen = match self.rule {
            Select::NearestBestNll => self.latest.clone(),
            _ => Some(StepParams { step: entry.step, params: params.clone() }),
        };
    }

    /// Considers a checkpoint.
    pub fn add_checkpoint(&mut self, step: u64, params: &Params) {
        if self.rule != Select::NearestBestNll {
            return;
        }
        let checkpoint = StepParams { step, params: params.clone() };
        self.latest = Some(checkpoint.clone());
        let Some((best, _)) = self.best else { return };
        let distance = |chosen: &StepParams| chosen.step.abs_diff(best);
        if self.chosen.as_ref().is_none_or(|chosen| distance(&checkpoint) < distance(chosen)) {
            self.chosen = Some(checkpoint);
        }
    }

    /// Says which parameters are released, for the end of a run.
    pub(crate) fn message(&self, step: u64) -> String {
        match (self.best, &self.chosen) {
            (Some((best, figure)), Some(_)) => format!(
                "the model has the parameters of step {step} (evaluation.select = {:?}; the best \
                 evaluation is {figure:.4} at step {best})",
                self.rule.name()
            ),
            _ => format!(
                "warning: no evaluation has a finite figure (evaluation.select = {:?}); the model \
                 has the parameters of step {step}, the last one",
                self.rule.name()
            ),
        }
    }
}

/// The step that a finished run must have selected, from its history.
///
/// `None` if the last parameters are released, or without a figure.
pub(crate) fn selected_step(
    rule: Select,
    history: &[HistoryEntry],
    checkpoint_every: u64,
    last: u64,
) -> Option<u64> {
    if rule == Select::Last {
        return None;
    }
    let evaluations = history.iter().filter_map(|entry| figure(rule, entry));
    let (best, _) = best(evaluations, rule.order())?;
    if rule != Select::NearestBestNll {
        return Some(best);
    }
    let every = checkpoint_every.max(1);
    let before = best / every * every;
    [before, before.saturating_add(every), last]
        .into_iter()
        .filter(|step| (1..=last).contains(step))
        .min_by_key(|step| (step.abs_diff(best), *step))
}

/// The figure by which a rule selects or training ends early, with its step.
///
/// Untrained parameters are not selected.
pub(super) fn figure(rule: Select, entry: &HistoryEntry) -> Option<(u64, f64)> {
    let value = match rule {
        Select::Last => entry.nll.or(entry.rmse),
        Select::BestNll | Select::NearestBestNll => entry.nll,
        Select::BestAccuracy => entry.accuracy,
        Select::BestRmse => entry.rmse,
        Select::BestBleu => entry.bleu,
    };
    value.filter(|_| entry.step > 0).map(|value| (entry.step, value))
}

impl Select {
    /// Which figures are better.
    pub(super) fn order(self) -> Better {
        match self {
            Self::BestAccuracy | Self::BestBleu => Better::Larger,
            Self::Last | Self::BestNll | Self::BestRmse | Self::NearestBestNll => Better::Smaller,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Marking;
    use tensor::Array;

    fn entry(step: u64, nll: f64, bleu: f64) -> HistoryEntry {
        HistoryEntry {
            step,
            epsilon: None,
            learning_rate: 0.1,
            figures: Marking::Public,
            nll: Some(nll),
            accuracy: Some(bleu),
            bleu: Some(bleu),
            rmse: Some(2.0 * nll),
        }
    }

    fn params(step: u64) -> Params {
        Params::new(vec![Array::from_fn([1], |_| step as f32)])
    }

    /// Runs a selection as a training run does, and returns the selected step.
    fn run(rule: Select, figures: &[f64], evaluate_every: u64, checkpoint_every: u64) -> u64 {
        let last = figures.len() as u64;
        let evaluation = Evaluation { select: rule, ..Evaluation::default() };
        let mut selection = Selection::new(&evaluation).unwrap();
        let mut history = vec![entry(0, 0.0, 100.0)];
        for step in 1..=last {
            if step.is_multiple_of(evaluate_every) || step == last {
                let figure = figures[step as usize - 1];
                let evaluated = entry(step, figure, -figure);
                selection.add_evaluation(&evaluated, &params(step));
                history.push(evaluated);
            }
            if step.is_multiple_of(checkpoint_every) || step == last {
                selection.add_checkpoint(step, &params(step));
            }
        }
        let chosen = selection.chosen.unwrap();
        assert_eq!(chosen.params, params(chosen.step));
        assert_eq!(selected_step(rule, &history, checkpoint_every, last), Some(chosen.step));
        chosen.step
    }

    #[test]
    fn the_best_evaluation_is_selected() {
        // Step 3 is not evaluated; of equal figures the first counts, and step 0 never does.
        let figures = [5.0, 3.0, 1.0, 2.0, 4.0, 2.0, 6.0];
        assert_eq!(run(Select::BestNll, &figures, 2, 1), 4);
        assert_eq!(run(Select::BestBleu, &figures, 2, 1), 4);
        assert_eq!(run(Select::BestAccuracy, &figures, 2, 1), 4);
        assert_eq!(run(Select::BestRmse, &figures, 2, 1), 4);
        assert_eq!(run(Select::BestNll, &figures, 1, 5), 3);
    }

    #[test]
    fn the_nearest_checkpoint_is_selected() {
        let best_at = |best: usize, steps: usize| {
            let mut figures = vec![2.0; steps];
            figures[best - 1] = 1.0;
            figures
        };
        // Checkpoints at 4, 8 and 10; of 4 and 8, which are both two steps from 6, the earlier.
        for (best, nearest) in [(1, 4), (4, 4), (5, 4), (6, 4), (7, 8), (8, 8), (9, 8), (10, 10)] {
            assert_eq!(run(Select::NearestBestNll, &best_at(best, 10), 1, 4), nearest, "{best}");
        }
        assert_eq!(run(Select::NearestBestNll, &best_at(2, 3), 1, 50), 3);
    }

    #[test]
    fn figures_that_are_not_finite_are_not_selected() {
        let evaluation = Evaluation { select: Select::BestNll, ..Evaluation::default() };
        let mut selection = Selection::new(&evaluation).unwrap();
        selection.add_evaluation(&entry(1, f64::NAN, 0.0), &params(1));
        assert_eq!(selection.chosen, None);
        selection.add_evaluation(&entry(2, 3.0, 0.0), &params(2));
        selection.add_evaluation(&entry(3, f64::NAN, 0.0), &params(3));
        assert_eq!(selection.chosen.unwrap().step, 2);
        assert_eq!(selected_step(Select::BestNll, &[entry(1, f64::NAN, 0.0)], 1, 1), None);
        assert_eq!(Selection::new(&Evaluation::default()), None);
    }
}
