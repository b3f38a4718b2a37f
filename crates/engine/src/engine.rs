//! The trait of engines, with the claims that an implementation must fulfil.

use crate::{CheckedQuery, Error, Example, Observed, Sum, SumPrecision, Weights};
use protocol::{GeometryKind, Params, Trainable};
use serde::{Deserialize, Serialize};

/// Computes per-example losses, norms and weighted sums of gradients, without showing a gradient.
///
/// One query on a lot is: [`load`](Self::load), [`start_sum`](Self::start_sum), then for each
/// micro-batch [`observe`](Self::observe) and [`accumulate`](Self::accumulate), then
/// [`take_sum`](Self::take_sum) and [`unload`](Self::unload). Meanwhile, parameters and the sum may
/// stay on the engine's own device.
///
/// # Claim
/// An example's loss, norms and contribution are functions of that example, the parameters and its
/// weight alone: the same bits whatever other examples there are, how many, how long, and in which
/// order. An engine for which this holds only up to rounding declares it ([`Isolation`]).
///
/// A reported norm covers the rounding of the gradient that is summed: the contribution of an
/// example with weight c has an L2 norm of at most c · norm, before it is rounded to the grid of
/// the sum. It is rounded to that grid as often as [`roundings`](Self::roundings) returns.
///
/// The curator relies on these claims (its PROOFS.md, 2 and 3). [`probe()`](crate::probe()) tests
/// them with synthetic examples before the engine sees a record.
pub trait Engine {
    /// Returns the trainable tensors, in the order of [`Params`].
    fn trainable(&self) -> Vec<Trainable>;

    /// Returns at least three synthetic examples for the probe.
    ///
    /// If the model accepts different lengths, the longest comes first, and the third is short.
    fn probe_examples(&self) -> Vec<Example>;

    /// Refuses an example that does not fit the model.
    ///
    /// The curator validates every record before anything is computed, so that no later refusal
    /// depends on which records are in a lot. An engine that computes examples of one part only
    /// refuses others here ([`Example::only_part`]).
    ///
    /// # Errors
    /// If the example does not fit.
    fn validate(&mut self, example: &Example) -> Result<(), Error>;

    /// Loads the parameters at which the following calls compute.
    ///
    /// # Errors
    /// If they are not of the shapes of the trainable tensors.
    fn load(&mut self, params: &Params) -> Result<(), Error>;

    /// Discards the loaded parameters, the sum, and the intermediate results of a micro-batch.
    fn unload(&mut self);

    /// Computes the loss of each example.
    ///
    /// # Errors
    /// If an example does not fit, or memory does not suffice.
    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error>;

    /// Starts a new sum at zero and discards the previous one.
    ///
    /// # Errors
    /// If the precision does not fit the trainable tensors.
    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error>;

    /// Computes losses and norms of the encoded gradients of a micro-batch.
    ///
    /// # Errors
    /// If an example does not fit, or memory does not suffice.
    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error>;

    /// Adds the weighted gradients of the observed examples to the sum.
    ///
    /// It adds Σ_i w_ik · g_ik to block k, where g_ik is the gradient of example i, *not encoded*:
    /// encodings are affine, so the curator encodes the sum. An example of weight 0 contributes
    /// nothing, even if its gradient is not finite.
    ///
    /// # Errors
    /// If no micro-batch was observed, or no sum started.
    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error>;

    /// Returns the sum and ends it.
    ///
    /// # Errors
    /// If no sum was started.
    fn take_sum(&mut self) -> Result<Sum, Error>;

    /// Returns how often an example's contribution to each tensor is rounded to the grid.
    ///
    /// That is once for each use of the tensor in the model, unless the engine adds up the uses
    /// before it rounds.
    fn roundings(&self) -> Vec<usize> {
        vec![1; self.trainable().len()]
    }

    /// Returns how far examples are isolated from each other.
    fn isolation(&self) -> Isolation {
        Isolation::Exact
    }

    /// Returns whether norms can be computed in this kind of geometry.
    fn supports(&self, geometry: GeometryKind) -> bool {
        let _ = geometry;
        true
    }
}

/// How far an engine isolates examples from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// An example's loss, norms and contribution are the same bits whatever other examples are
    /// computed with it.
    Exact,
    /// They are the same up to rounding.
    ///
    /// At a kink (ReLU, max-pooling) rounding can decide a whole gradient, so adversarial data
    /// could move a sum by more than its bound. The privacy statement says that this is not
    /// covered.
    UpToRounding,
}

impl<E: Engine + ?Sized> Engine for Box<E> {
    fn trainable(&self) -> Vec<Trainable> {
        (**self).trainable()
    }

    fn probe_examples(&self) -> Vec<Example> {
        (**self).probe_examples()
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        (**self).validate(example)
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        (**self).load(params)
    }

    fn unload(&mut self) {
        (**self).unload();
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        (**self).losses(examples)
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        (**self).start_sum(precision)
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        (**self).observe(examples, query)
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        (**self).accumulate(weights)
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        (**self).take_sum()
    }

    fn roundings(&self) -> Vec<usize> {
        (**self).roundings()
    }

    fn isolation(&self) -> Isolation {
        (**self).isolation()
    }

    fn supports(&self, geometry: GeometryKind) -> bool {
        (**self).supports(geometry)
    }
}

/// Sums the weighted gradients of one micro-batch, for benchmarks and tests of engines.
///
/// # Errors
/// Those of the engine.
pub fn weighted_sum(
    engine: &mut (impl Engine + ?Sized),
    params: &Params,
    examples: &[&Example],
    query: &CheckedQuery<'_>,
    precision: &SumPrecision,
    weigh: impl FnOnce(&Observed) -> Weights,
) -> Result<(Observed, Sum), Error> {
    engine.load(params)?;
    engine.start_sum(precision)?;
    let observed = engine.observe(examples, query)?;
    engine.accumulate(&weigh(&observed))?;
    let sum = engine.take_sum()?;
    engine.unload();
    Ok((observed, sum))
}
