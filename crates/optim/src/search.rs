//! The search for the step size.

use crate::{Note, State};
use protocol::{Announcement, Oracle, Params, Positive, Refused};

/// Finds the learning rate of each step.
pub trait Search: Send {
    /// Returns whether it asks queries of its own in some steps.
    fn asks(&self) -> bool {
        false
    }

    /// Returns the kinds of steps among the first `steps`: an example of each kind, and its count.
    ///
    /// Steps of one kind announce the same. By default all steps are of one kind.
    fn kinds(&self, steps: u64) -> Vec<(u64, u64)> {
        vec![(0, steps)]
    }

    /// Returns the releases it makes from the gradient's lot: their multiplier and number.
    ///
    /// `step` is counted from 0.
    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        let _ = step;
        None
    }

    /// Returns the announcement of a lot of its own that it draws in step `step`.
    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        let _ = step;
        None
    }

    /// Finds the learning rate of step `step`. `trial(x)` returns the parameters after a step of
    /// rate x.
    ///
    /// # Errors
    /// If the oracle refuses.
    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<FoundRate, Refused>;

    /// Returns the state to be saved.
    fn save(&self) -> State;

    /// Restores a saved state.
    ///
    /// # Errors
    /// If the state is that of another search.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// A learning rate, with messages to the user about it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundRate {
    /// The learning rate.
    pub rate: f64,
    /// Messages to the user.
    pub notes: Vec<Note>,
}
