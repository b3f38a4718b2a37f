//! An optimizer: a descent and a search.

use crate::{Descent, Note, Search, State};
use protocol::{Announcement, Oracle, Params, Refused};

/// Which way, and how far.
pub struct Optimizer {
    descent: Box<dyn Descent>,
    search: Box<dyn Search>,
    steps: u64,
}

/// What a step did. All of it is public.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How far it went.
    pub rate: f64,
    /// What the user should know.
    pub notes: Vec<Note>,
}

impl Optimizer {
    /// Puts the two together.
    pub fn new(descent: impl Descent + 'static, search: impl Search + 'static) -> Self {
        Self { descent: Box::new(descent), search: Box::new(search), steps: 0 }
    }

    /// The lots that a step (counted from 0) draws, and what it asks of each: known before anything
    /// is computed, and the same for any data.
    pub fn lots(&self, step: u64) -> Vec<Announcement> {
        let own = Announcement::gradient(self.descent.bounds());
        let own = match self.search.same_lot(step) {
            Some((sigma, count)) => own.and(sigma, count),
            None => own,
        };
        std::iter::once(own).chain(self.search.fresh_lot(step)).collect()
    }

    /// What each tensor costs, in any unit: by it, tensors are divided among processes.
    pub fn work(&self, params: &Params) -> Vec<f64> {
        (0..params.len()).map(|tensor| self.descent.work(tensor, params)).collect()
    }

    /// Works on these tensors only: other processes work on the others, and the oracle answers and
    /// gathers accordingly. Called before anything else.
    pub fn keep(&mut self, own: &dyn Fn(usize) -> bool) {
        self.descent.keep(own);
    }

    /// How many steps it has made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One step.
    ///
    /// # Errors
    /// If the oracle refuses. The parameters are then what they were; what the optimizer remembers
    /// may have moved on, so go on from a state that was put away.
    pub fn step(&mut self, params: &mut Params, oracle: &mut dyn Oracle) -> Result<Step, Refused> {
        let lots = self.lots(self.steps);
        let query = self.descent.query(params)?;
        oracle.draw(&lots[0])?;
        let answer = oracle.gradient(&query)?;
        let mut direction =
            self.descent.direction(params, answer, &mut |parts| oracle.gather(parts))?;
        oracle.gather(&mut direction)?;
        let descent = &self.descent;
        let mut trial = |rate: f64| {
            let mut there = params.clone();
            descent.apply(&mut there, &direction, rate).map(|_| there)
        };
        let found = self.search.rate(self.steps, &mut trial, oracle)?;
        let mut notes = found.notes;
        notes.extend(self.descent.apply(params, &direction, found.rate)?);
        self.steps += 1;
        Ok(Step { rate: found.rate, notes })
    }

    /// Everything it remembers.
    pub fn save(&self) -> State {
        let mut state = State::new("optimizer");
        state.set_number("steps", self.steps as f64);
        state.set_part("descent", self.descent.save());
        state.set_part("search", self.search.save());
        state
    }

    /// Remembers it again.
    ///
    /// # Errors
    /// If it is the state of something else. The optimizer may then have forgotten its own, and
    /// must not be used.
    pub fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.is_of("optimizer")?;
        let steps = state.count("steps")?;
        self.descent.load(state.part("descent")?)?;
        self.search.load(state.part("search")?)?;
        self.steps = steps;
        Ok(())
    }
}
