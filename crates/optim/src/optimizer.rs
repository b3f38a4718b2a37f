//! An optimizer: a descent and a search.

use crate::averaging::Averaging;
use crate::{Descent, Note, Search, State};
use protocol::{Announcement, Oracle, Params, Refused};

/// The name of the moving average's state.
const AVERAGING: &str = "averaging";

/// A descent (the direction of a step), a search (its size) and an average of the parameters.
pub struct Optimizer {
    descent: Box<dyn Descent>,
    search: Box<dyn Search>,
    averaging: Option<Averaging>,
    steps: u64,
}

/// The result of a step. All of it is public.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The learning rate.
    pub rate: f64,
    /// Messages to the user.
    pub notes: Vec<Note>,
}

impl Optimizer {
    /// Combines a descent and a search.
    pub fn new(descent: impl Descent + 'static, search: impl Search + 'static) -> Self {
        Self::boxed(Box::new(descent), Box::new(search))
    }

    /// Replaces the descent by a wrapper around it.
    #[must_use]
    pub fn wrap_descent(self, wrap: impl FnOnce(Box<dyn Descent>) -> Box<dyn Descent>) -> Self {
        Self { descent: wrap(self.descent), ..self }
    }

    /// Combines a boxed descent and a boxed search.
    pub(crate) fn boxed(descent: Box<dyn Descent>, search: Box<dyn Search>) -> Self {
        Self { descent, search, averaging: None, steps: 0 }
    }

    /// Also averages the parameters of all steps, which start at `params`.
    ///
    /// The average is an exponential moving average with this decay; see
    /// [`released`](Self::released).
    ///
    /// # Errors
    /// If the decay is not between 0 and 0.9999.
    pub fn with_averaging(self, decay: f64, params: &Params) -> Result<Self, Refused> {
        Ok(Self { averaging: Some(Averaging::new(decay, params)?), ..self })
    }

    /// Returns the parameters to release or to evaluate: their average, or, without averaging,
    /// `params`, those after the last step.
    pub fn released<'a>(&'a self, params: &'a Params) -> &'a Params {
        self.averaging.as_ref().map_or(params, Averaging::get)
    }

    /// Returns whether some steps probe the loss.
    pub fn probes(&self) -> bool {
        self.search.asks()
    }

    /// Returns the announcements of the first `steps` steps, each with its number of lots.
    ///
    /// Each announcement is listed once, in any order, because the cost does not depend on it.
    pub fn schedule(&self, steps: u64) -> Vec<(Announcement, u64)> {
        let mut schedule: Vec<(Announcement, u64)> = Vec::new();
        for (step, count) in self.search.kinds(steps) {
            for lot in self.lots(step) {
                match schedule.iter_mut().find(|(known, _)| *known == lot) {
                    Some((_, total)) => *total += count,
                    None => schedule.push((lot, count)),
                }
            }
        }
        schedule
    }

    /// Returns the announcement of each lot that a step, counted from 0, draws.
    ///
    /// They are known before anything is computed and do not depend on the data.
    pub fn lots(&self, step: u64) -> Vec<Announcement> {
        let gradient = Announcement::gradient(self.descent.bounds());
        let first = match self.search.same_lot(step) {
            Some((sigma, count)) => gradient.and(sigma, count),
            None => gradient,
        };
        std::iter::once(first).chain(self.search.fresh_lot(step)).collect()
    }

    /// Estimates the work for each tensor, in any unit.
    pub fn work(&self, params: &Params) -> Vec<f64> {
        (0..params.len()).map(|tensor| self.descent.work(tensor, params)).collect()
    }

    /// Returns the number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Changes initial parameters to those at which the first query is asked.
    ///
    /// The first [`step`](Self::step) calls it.
    ///
    /// # Errors
    /// If the parameters are unusable, such as values that are not finite.
    pub fn initialize(&self, params: &mut Params) -> Result<Vec<Note>, Refused> {
        self.descent.initialize(params)
    }

    /// Takes one step.
    ///
    /// # Errors
    /// If the oracle refuses. Then the parameters are unchanged, except that the first step may
    /// have [initialized](Self::initialize) them. The state of the optimizer may have changed:
    /// resume from a saved state.
    pub fn step(&mut self, params: &mut Params, oracle: &mut dyn Oracle) -> Result<Step, Refused> {
        let lots = self.lots(self.steps);
        let mut notes = Vec::new();
        if self.steps == 0 {
            notes = self.initialize(params)?;
            if let Some(averaging) = &mut self.averaging {
                averaging.start(params);
            }
        }
        let query = self.descent.query(params)?;
        oracle.draw(&lots[0])?;
        let answer = oracle.gradient(&query)?;
        let direction = self.descent.direction(params, answer)?.into_params(params.len())?;
        self.descent.synchronize(&mut |_| Ok(()))?;
        let descent = &self.descent;
        let mut trial = |rate: f64| {
            let mut moved = params.clone();
            descent.apply(&mut moved, &direction, rate).map(|_| moved)
        };
        let found = self.search.rate(self.steps, &mut trial, oracle)?;
        notes.extend(found.notes);
        notes.extend(self.descent.apply(params, &direction, found.rate)?);
        if let Some(averaging) = &mut self.averaging {
            averaging.add(self.steps, params);
        }
        self.steps += 1;
        Ok(Step { rate: found.rate, notes })
    }

    /// Returns the state to be saved.
    ///
    /// # Errors
    /// If a part of it is on another process that was lost.
    pub fn save(&self) -> Result<State, Refused> {
        let mut state = State::new("optimizer");
        state.set_number("steps", self.steps as f64);
        state.set_part("descent", self.descent.save()?);
        state.set_part("search", self.search.save());
        if let Some(averaging) = &self.averaging {
            state.set_part(AVERAGING, averaging.save());
        }
        Ok(state)
    }

    /// Returns the moving average of the parameters in a saved state, if there is one.
    pub fn saved_average(state: &State) -> Option<&Params> {
        state.parts.get(AVERAGING).and_then(Averaging::saved)
    }

    /// Restores a saved state.
    ///
    /// # Errors
    /// If the state is that of another optimizer. Then this one must not be used any more.
    pub fn load(&mut self, mut state: State) -> Result<(), Refused> {
        state.check_kind("optimizer")?;
        let steps = state.count("steps")?;
        let descent = state.part("descent")?;
        if steps > 0 {
            self.descent.load(descent)?;
        } else {
            // Before the first step there is nothing to restore.
            descent.check_kind(&self.descent.save()?.kind)?;
        }
        self.search.load(state.part("search")?)?;
        match &mut self.averaging {
            Some(averaging) => averaging.load(state.part(AVERAGING)?)?,
            None if Self::saved_average(&state).is_some() => {
                return Err(Refused::Query(
                    "optimizer.ema_decay: expected a decay, because the saved state has a moving \
                     average; got 0"
                        .into(),
                ));
            }
            None => {}
        }
        self.steps = steps;
        Ok(())
    }
}
