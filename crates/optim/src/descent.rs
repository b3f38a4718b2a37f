//! The direction of a step.

use crate::{State, elementwise};
use protocol::{Bound, GradientQuery, Noisy, Params, Refused, TensorMap};

/// Replaces the values of tensors that other descents compute by those descents' values.
pub type GatherTensors<'a> = &'a mut dyn FnMut(&mut Params) -> Result<(), Refused>;

/// Asks for a gradient and turns the answer into a direction.
///
/// In a distributed run, each process has its own descent, which gets the answers for the tensors
/// that the process owns. So the state of a tensor is created when its first answer arrives, and
/// values that depend on several tensors are computed in [`synchronize`](Self::synchronize).
pub trait Descent: Send {
    /// Returns the clip bound and noise multiplier of each block, which decide the cost of a query.
    fn bounds(&self) -> &[Bound];

    /// Changes the initial parameters to those at which the first query is asked.
    ///
    /// Called before the first query of a run, and not when a run is resumed after it. The model
    /// should remain the same function. The result depends on the parameters and public randomness
    /// only. By default nothing changes.
    ///
    /// # Errors
    /// If the parameters are unusable, such as values that are not finite.
    fn initialize(&self, params: &mut Params) -> Result<Vec<Note>, Refused> {
        let _ = params;
        Ok(Vec::new())
    }

    /// Returns the query at these parameters.
    ///
    /// # Errors
    /// If no query is possible, such as at factors without full rank.
    fn query<'a>(&'a mut self, at: &'a Params) -> Result<GradientQuery<'a>, Refused>;

    /// Turns the answer into a direction d for each of its tensors.
    ///
    /// The step is θ − rate · d. Called once for each answer, always with the same tensors.
    ///
    /// # Errors
    /// If the answer does not fit the query.
    fn direction(&mut self, at: &Params, answer: Noisy<TensorMap>) -> Result<TensorMap, Refused>;

    /// Computes the values of the next query that depend on all tensors.
    ///
    /// Called after [`direction`](Self::direction). `gather` replaces the values of tensors for
    /// which this descent gets no answers by those of their owners. By default it does nothing.
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

    /// Returns the decoupled weight decay of a tensor; none by default.
    fn weight_decay(&self, tensor: usize) -> f64 {
        let _ = tensor;
        0.0
    }

    /// Takes a step of this learning rate along a direction d. At rate 0 the model does not change.
    ///
    /// By default θ ← (1 − rate · decay) θ − rate · d.
    ///
    /// # Errors
    /// If the result is unusable, such as parameters that are not finite.
    fn apply(
        &self,
        params: &mut Params,
        direction: &Params,
        rate: f64,
    ) -> Result<Vec<Note>, Refused> {
        for (k, (param, direction)) in params.iter_mut().zip(direction.iter()).enumerate() {
            elementwise::step(param, direction, rate, self.weight_decay(k));
        }
        Ok(Vec::new())
    }

    /// Returns the state to be saved.
    ///
    /// Its numbers must be the same in all descents of a model. Its tensors may be only those for
    /// which this descent gets answers.
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
