//! The direction of a step.

use crate::State;
use protocol::{Bound, GradientQuery, Noisy, Params, Refused};
use tensor::Array;

/// Gathers the parts of tensors that several processes hold.
pub type Gather<'a> = &'a mut dyn FnMut(&mut Params) -> Result<(), Refused>;

/// Asks for a gradient and turns the answer into a direction.
pub trait Descent: Send {
    /// The clip bound and multiplier of each block, which decide the cost of a query.
    fn bounds(&self) -> &[Bound];

    /// The query at these parameters.
    ///
    /// # Errors
    /// If there is none, such as at factors that have lost their rank.
    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused>;

    /// Turns the answer into a direction d: the step will be θ − rate · d. Called once for each
    /// answer. Where the answer is empty, so is the direction.
    ///
    /// What the next query needs of all tensors goes through `gather`.
    ///
    /// # Errors
    /// If the answer does not fit the query.
    fn direction(
        &mut self,
        at: &Params,
        answer: Noisy<Params>,
        gather: Gather<'_>,
    ) -> Result<Params, Refused>;

    /// The work for a tensor in [`direction`](Self::direction), in any unit: tensors are divided
    /// among processes by it.
    fn work(&self, tensor: usize, at: &Params) -> f64 {
        at[tensor].len() as f64
    }

    /// Restricts the work and the state to these tensors; other processes have the others. Called
    /// once, before anything else.
    fn keep(&mut self, own: &dyn Fn(usize) -> bool);

    /// Takes a step of this rate along a direction. At rate 0 the model does not change.
    ///
    /// # Errors
    /// If the result is unusable, such as parameters that are not finite.
    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused>;

    /// The state to be saved.
    fn save(&self) -> State;

    /// Restores a saved state.
    ///
    /// # Errors
    /// If the state is that of another optimizer.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// Clears the state of tensors of other processes: `tensors[i]` belongs to tensor `of(i)`.
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

/// A message to the user, made of public values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
