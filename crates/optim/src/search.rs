//! How far to go.

use crate::{Note, State};
use protocol::{Announcement, Oracle, Params, Positive, Refused};

/// Finds the rate of a step.
pub trait Search: Send {
    /// What it will ask in step `step` (counted from 0) of the gradient's own lot: a multiplier and
    /// how many releases.
    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        let _ = step;
        None
    }

    /// What it will ask in step `step` of a lot of its own.
    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        let _ = step;
        None
    }

    /// The rate of step `step`. `trial(x)` is where a rate of x would lead.
    ///
    /// # Errors
    /// If the oracle refuses.
    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<Found, Refused>;

    /// Everything it remembers.
    fn save(&self) -> State;

    /// Remembers it again.
    ///
    /// # Errors
    /// If it is the state of something else.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// A rate, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The rate.
    pub rate: f64,
    /// What the user should know.
    pub notes: Vec<Note>,
}

impl Search for Box<dyn Search> {
    fn same_lot(&self, step: u64) -> Option<(Positive, u64)> {
        (**self).same_lot(step)
    }

    fn fresh_lot(&self, step: u64) -> Option<Announcement> {
        (**self).fresh_lot(step)
    }

    fn rate(
        &mut self,
        step: u64,
        trial: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        oracle: &mut dyn Oracle,
    ) -> Result<Found, Refused> {
        (**self).rate(step, trial, oracle)
    }

    fn save(&self) -> State {
        (**self).save()
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        (**self).load(state)
    }
}
