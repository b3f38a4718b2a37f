//! The seam between the curator and whatever computes gradients.
//!
//! *Given parameters and a micro-batch: per-example losses, block norms, weighted sum.* Host arrays in, host arrays out; nothing in it belongs to one engine.

use crate::Error;
use crate::example::Example;
use protocol::{Blocks, Geometry, Params, Trainable};

/// What computes per-example gradients without showing them.
pub trait Engine {
    /// The trainable tensors, in the order of [`Params`].
    fn trainable(&self) -> Vec<Trainable>;

    /// Whether the model takes these examples: asked once, before anything is computed, so that no later answer depends on it.
    ///
    /// # Errors
    /// If one does not fit the model; it is named by its place.
    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error>;

    /// Each example's loss.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error>;

    /// Adds Σ_i w_ik · g_ik to `sum`, where g_ik is the gradient of example i's own loss by block k and the weights are what `weigh` makes of the losses
    /// and the norms.
    ///
    /// The sum is of *gradients*, in every geometry: encodings are affine, so the caller encodes the sum. The norms are of the encoded gradients.
    ///
    /// # Claim
    /// An example whose loss or any of whose norms is not finite contributes nothing, whatever its weight. No example's loss, norms or contribution depends
    /// on another example.
    /// # Errors
    /// If an example does not fit the model, or the blocks or the geometry do not fit the parameters.
    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        geometry: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        sum: &mut Params,
    ) -> Result<(), Error>;
}

/// What is known of a micro-batch before it is summed. All of it is private.
pub struct Observed<'a> {
    losses: &'a [f64],
    squares: &'a [f64],
    blocks: usize,
}

impl<'a> Observed<'a> {
    /// `squares` has a row of `blocks` squared norms for each example.
    pub fn new(losses: &'a [f64], squares: &'a [f64], blocks: usize) -> Self {
        assert_eq!(losses.len() * blocks, squares.len(), "norms of every example and block");
        Self { losses, squares, blocks }
    }

    /// How many examples.
    pub fn examples(&self) -> usize {
        self.losses.len()
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// An example's loss.
    pub fn loss(&self, example: usize) -> f64 {
        self.losses[example]
    }

    /// The L2 norm of an example's encoded gradient in a block. NaN if it is not known.
    pub fn norm(&self, example: usize, block: usize) -> f64 {
        // Cancellation can leave a tiny negative number where the norm is zero; NaN stays.
        let square = self.squares[example * self.blocks + block];
        if square < 0.0 { 0.0 } else { square.sqrt() }
    }

    /// Whether the loss and all norms are finite. An example of which they are not contributes nothing.
    pub fn is_sound(&self, example: usize) -> bool {
        self.losses[example].is_finite()
            && self.squares[example * self.blocks..(example + 1) * self.blocks].iter().all(|square| square.is_finite())
    }
}

/// A weight for each example and block. They tell of the norms: they do not print.
#[derive(Default)]
pub struct Weights {
    of: Vec<f32>,
    examples: usize,
}

impl Weights {
    /// All zero.
    pub fn reset(&mut self, examples: usize, blocks: usize) {
        self.examples = examples;
        self.of.clear();
        self.of.resize(examples * blocks, 0.0);
    }

    /// Sets one. A weight that is not finite counts as 0.
    pub fn set(&mut self, example: usize, block: usize, weight: f32) {
        self.of[block * self.examples + example] = if weight.is_finite() { weight } else { 0.0 };
    }

    /// The weights of a block, by example.
    pub fn block(&self, block: usize) -> &[f32] {
        &self.of[block * self.examples..(block + 1) * self.examples]
    }

    /// Takes an example out.
    pub fn void(&mut self, example: usize) {
        self.of.iter_mut().skip(example).step_by(self.examples.max(1)).for_each(|weight| *weight = 0.0);
    }
}
