//! Which way to go.

use crate::State;
use protocol::{Bound, GradientQuery, Noisy, Params, Refused};
use tensor::Array;

/// Makes whole what several processes have each a part of.
pub type Gather<'a> = &'a mut dyn FnMut(&mut Params) -> Result<(), Refused>;

/// Asks for a gradient and makes a direction of the answer.
pub trait Descent: Send {
    /// The clip bound and multiplier of each block: what every query of a run costs.
    fn bounds(&self) -> &[Bound];

    /// What to ask at these parameters.
    ///
    /// # Errors
    /// If there is no sensible question, such as at factors that have lost their rank.
    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused>;

    /// Makes a direction d of the answer: the step will be θ − rate · d. Called once for each
    /// answer. Where the answer is empty, so is the direction.
    ///
    /// What the next question needs of all tensors goes through `gather`.
    ///
    /// # Errors
    /// If the answer does not fit.
    fn direction(
        &mut self,
        at: &Params,
        answer: Noisy<Params>,
        gather: Gather<'_>,
    ) -> Result<Params, Refused>;

    /// What a tensor costs in [`direction`](Self::direction), in any unit: by it, tensors are
    /// divided among processes.
    fn work(&self, tensor: usize, at: &Params) -> f64 {
        at[tensor].len() as f64
    }

    /// Works on these tensors only, and remembers nothing of the others: other processes do. Called
    /// once, before anything else.
    fn keep(&mut self, own: &dyn Fn(usize) -> bool);

    /// Goes this far along a direction. At rate 0 the model does not change.
    ///
    /// # Errors
    /// If the step leads nowhere, such as to numbers that are not finite.
    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused>;

    /// Everything it remembers.
    fn save(&self) -> State;

    /// Remembers it again.
    ///
    /// # Errors
    /// If it is the state of something else.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// Forgets what belongs to tensors that are not its own: `tensors[i]` belongs to tensor `of(i)`.
pub(crate) fn forget<'a>(
    tensors: impl Iterator<Item = &'a mut Array>,
    of: impl Fn(usize) -> usize,
    own: &dyn Fn(usize) -> bool,
) {
    tensors
        .enumerate()
        .filter(|(i, _)| !own(of(*i)))
        .for_each(|(_, tensor)| *tensor = Array::default());
}

/// Something the user should know. It is made of public values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
