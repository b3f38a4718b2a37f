//! The step size.

use crate::{Note, State};
use protocol::{Announcement, Oracle, Params, Positive, Refused};

/// Finds the learning rate of each step.
pub trait Search: Send {
    /// Whether it asks queries of its own in any step.
    fn asks(&self) -> bool {
        false
    }

    /// The kinds of steps among the first `steps`: one step of each kind, and how many there are.
    /// Steps of one kind ask the same.
    fn kinds(&self, steps: u64) -> Vec<(u64, u64)> {
        vec![(0, steps)]
    }

    /// What it asks of the gradient's own lot in step `step`, counted from 0: the multiplier and
    /// the number of releases.
    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        let _ = step;
        None
    }

    /// What it asks of a lot of its own in step `step`.
    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        let _ = step;
        None
    }

    /// The learning rate of step `step`. `trial(x)` returns the parameters after a step of rate x.
    ///
    /// # Errors
    /// If the oracle refuses.
    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<FoundRate, Refused>;

    /// The state to be saved.
    fn save(&self) -> State;

    /// Restores a saved state.
    ///
    /// # Errors
    /// If the state is that of another search.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// A learning rate, and what the user should know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundRate {
    /// The learning rate.
    pub rate: f64,
    /// Messages to the user.
    pub notes: Vec<Note>,
}
