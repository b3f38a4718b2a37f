//! The direction of a step.

use crate::State;
use protocol::{Bound, GradientQuery, Noisy, Params, Refused, TensorMap};

/// Replaces the values of tensors that another descent computes by that descent's values.
pub type GatherTensors<'a> = &'a mut dyn FnMut(&mut Params) -> Result<(), Refused>;

/// Asks for a gradient and turns the answer into a direction.
///
/// The caller may divide the tensors of a model among several descents, each of which gets the
/// answers for its own tensors. So state is created for a tensor when its first answer arrives, and
/// values that depend on more than one tensor are computed in [`synchronize`](Self::synchronize).
pub trait Descent: Send {
    /// Returns the clip bound and noise multiplier of each block, which decide the cost of a query.
    fn bounds(&self) -> &[Bound];

    /// Returns the query at these parameters.
    ///
    /// # Errors
    /// If there is none, such as at factors that have lost their rank.
    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused>;

    /// Turns the answer into a direction d for each of its tensors: the step will be θ − rate · d.
    ///
    /// Called once for each answer, always with the same tensors.
    ///
    /// # Errors
    /// If the answer does not fit the query.
    fn direction(&mut self, at: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused>;

    /// Computes what the next query needs of all tensors together. Called after
    /// [`direction`](Self::direction).
    ///
    /// `gather` replaces the values of tensors for which this descent gets no answers by up-to-date
    /// ones. By default there is nothing to compute.
    ///
    /// # Errors
    /// If the values of other tensors are not available.
    fn synchronize(&mut self, gather: GatherTensors<'_>) -> Result<(), Refused> {
        let _ = gather;
        Ok(())
    }

    /// Estimates the work for a tensor in [`direction`](Self::direction), in any unit.
    fn work(&self, tensor: usize, at: &Params) -> f64 {
        at[tensor].len() as f64
    }

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

    /// Returns the state to be saved.
    ///
    /// Its numbers must be the same in all descents of a model; its tensors may be those of this
    /// descent.
    ///
    /// # Errors
    /// If a part of the state is elsewhere and not available.
    fn save(&self) -> Result<State, Refused>;

    /// Restores a state that was saved after at least one step.
    ///
    /// # Errors
    /// If the state is that of another optimizer.
    fn load(&mut self, state: State) -> Result<(), Refused>;
}

/// A message to the user, made of public values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
