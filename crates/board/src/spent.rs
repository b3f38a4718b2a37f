//! ε that an unfinished run has spent, by the accountant from its ledger.
//!
//! A step is charged before it is computed, so that ε grows between two evaluations. The figure of
//! the last evaluation would be too small.

use crate::state::RunState;
use accounting::{Cost, Delta};

/// The largest number of different charges in a row for which ε is computed.
const MAX_RUNS_OF_EVENTS: usize = 200;

/// Spent ε, and the evaluation that stated it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpentEpsilon {
    /// `None` without privacy, or before the first evaluation.
    pub(crate) epsilon: Option<f64>,
    /// The step of the evaluation; `None` if ε is that of all charges.
    pub(crate) at_step: Option<u64>,
}

/// The last result, as long as no charge is added.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    known: Option<(u64, f64)>,
}

impl Spent {
    /// ε of all charges; of the last evaluation if it cannot be computed.
    pub(crate) fn epsilon(&mut self, run: &RunState) -> SpentEpsilon {
        if let Some(result) = &run.result {
            let epsilon = Some(result.epsilon.0).filter(|epsilon| epsilon.is_finite());
            return SpentEpsilon { epsilon, at_step: None };
        }
        let charges = run.events.len();
        let known = self.known.filter(|(count, _)| *count == charges).map(|(_, epsilon)| epsilon);
        if let Some(epsilon) = known.or_else(|| price(run)) {
            self.known = Some((charges, epsilon));
            return SpentEpsilon { epsilon: Some(epsilon), at_step: None };
        }
        let last = run.history.last().filter(|entry| entry.epsilon.is_some());
        SpentEpsilon {
            epsilon: last.and_then(|entry| entry.epsilon),
            at_step: last.map(|entry| entry.step),
        }
    }
}

/// The cost of all charges, and at most what was promised: the plan is fixed beforehand.
fn price(run: &RunState) -> Option<f64> {
    let config = run.config.as_ref().filter(|config| config.optimizer.is_private())?;
    if run.events.is_empty() {
        return Some(0.0);
    }
    if run.events.runs().len() > MAX_RUNS_OF_EVENTS {
        return None;
    }
    let cost = Cost::new(&run.events, config.unit()).ok()?;
    let price = cost.epsilon(config.privacy.accountant, Delta::new(run.delta()?).ok()?).ok()?;
    let epsilon = run.promised().map_or(price.epsilon, |promised| promised.min(price.epsilon));
    (!price.estimate && epsilon.is_finite()).then_some(epsilon)
}
