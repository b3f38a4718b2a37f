//! The seam between the curator and whatever computes gradients.
//!
//! *Given parameters and a micro-batch: per-example losses, block norms, weighted sum.* Host arrays
//! in, host arrays out; nothing in it belongs to one engine.

use crate::Error;
use crate::example::Example;
use crate::sum::Sum;
use protocol::{Blocks, Geometry, Params, Trainable};
use serde::{Deserialize, Serialize};

/// What computes per-example gradients without showing them.
pub trait Engine {
    /// The trainable tensors, in the order of [`Params`].
    fn trainable(&self) -> Vec<Trainable>;

    /// A few made-up examples, of different sizes if the model takes such: nobody's records, for
    /// checks before training.
    fn stand_ins(&self) -> Vec<Example>;

    /// Whether the model takes these examples: asked once, before anything is computed, so that no
    /// later answer depends on it.
    ///
    /// # Errors
    /// If one does not fit the model; it is named by its place.
    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error>;

    /// Each example's loss.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error>;

    /// Adds Σ_i w_ik · g_ik to `sum`, where g_ik is the gradient of example i's own loss by block k
    /// and the weights are what `weigh` makes of the losses and the norms.
    ///
    /// The sum is of *gradients*, in every geometry: encodings are affine, so the caller encodes
    /// the sum. The norms are of the encoded gradients.
    ///
    /// # Claim
    /// An example whose loss or any of whose norms is not finite contributes nothing, whatever its
    /// weight. An example's loss, norms and contribution are functions of that example, the
    /// parameters and its weight alone: the same bits whatever other examples are there, how many,
    /// how long, and in which order. (An engine of which that is true up to rounding only says so:
    /// [`Isolation`].)
    ///
    /// A contribution is within c·(norm + rounding) ≤ C of what is added, where the norm that was
    /// reported includes the rounding, and is rounded to the grid of `sum` as often as
    /// [`uses`](Engine::uses) says.
    /// # Errors
    /// If an example does not fit the model, or the blocks or the geometry do not fit the
    /// parameters.
    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        geometry: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        sum: &mut Sum,
    ) -> Result<(), Error>;

    /// In how many places each trainable tensor enters the model: so often an example's share of
    /// its sum is rounded to the grid.
    fn uses(&self) -> Vec<usize> {
        vec![1; self.trainable().len()]
    }

    /// How far examples are kept apart.
    fn isolation(&self) -> Isolation {
        Isolation::Exact
    }
}

/// How far an engine keeps examples apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// An example's loss, norms and contribution are the same bits whatever other examples are
    /// computed with it.
    Exact,
    /// They are the same up to rounding. At a kink (ReLU, max-pooling) rounding can decide a whole
    /// gradient: data that were made for it could move a sum by more than its bound. Statements say
    /// that this is not covered.
    UpToRounding,
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

    /// Whether the loss and all norms are finite. An example of which they are not contributes
    /// nothing.
    pub fn is_sound(&self, example: usize) -> bool {
        self.losses[example].is_finite()
            && self.squares[example * self.blocks..(example + 1) * self.blocks]
                .iter()
                .all(|square| square.is_finite())
    }
}

/// A weight for each example and block. They tell of the norms: they do not print.
#[derive(Default)]
pub struct Weights {
    of: Vec<f32>,
    /// Examples that contribute nothing.
    void: Vec<bool>,
}

impl Weights {
    /// All zero.
    pub fn reset(&mut self, examples: usize, blocks: usize) {
        self.void.clear();
        self.void.resize(examples, false);
        self.of.clear();
        self.of.resize(examples * blocks, 0.0);
    }

    /// Takes an example out: its weights are 0, and stay 0 whatever is set.
    pub fn void(&mut self, example: usize) {
        self.void[example] = true;
        let examples = self.void.len();
        self.of.iter_mut().skip(example).step_by(examples).for_each(|weight| *weight = 0.0);
    }

    /// Sets one, rounded towards zero to f32, so that nobody counts more than was asked for. A
    /// weight that is not finite, or too small for a normal f32, counts as 0, and so does any
    /// weight of an example that is not sound.
    ///
    /// # Panics
    /// If there is no such example or block.
    pub fn set(&mut self, example: usize, block: usize, weight: f64) {
        let examples = self.void.len();
        assert!(example < examples, "example {example} of {examples}");
        self.of[block * examples + example] =
            if self.void[example] { 0.0 } else { towards_zero(weight) };
    }

    /// The weights of a block, by example, as they count.
    pub fn block(&self, block: usize) -> &[f32] {
        let examples = self.void.len();
        &self.of[block * examples..(block + 1) * examples]
    }

    /// Σ of a block's weights as they count: what a geometry with a center takes off.
    pub fn total(&self, block: usize) -> f64 {
        self.block(block).iter().map(|&weight| f64::from(weight)).sum()
    }
}

/// The nearest f32 that is not larger in size; 0 for what is not finite, and for what is not
/// normal: its few bits are too coarse for a bound.
fn towards_zero(weight: f64) -> f32 {
    let near = weight as f32;
    let near = if f64::from(near).abs() > weight.abs() {
        f32::from_bits(near.to_bits() - 1)
    } else {
        near
    };
    if weight.is_finite() && near.is_normal() { near } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn weights_are_rounded_towards_zero(weight: f64) {
            let near = f64::from(towards_zero(weight));
            prop_assert!(near.abs() <= weight.abs() || !weight.is_finite() && near == 0.0);
            if weight.abs() > 1.2e-38 && weight.abs() < 3.4e38 {
                prop_assert!((near - weight).abs() <= 1.2e-7 * weight.abs());
            }
        }
    }

    #[test]
    fn what_does_not_count() {
        let mut weights = Weights::default();
        weights.reset(3, 2);
        weights.void(1);
        for example in 0..3 {
            weights.set(example, 0, 0.5);
            weights.set(example, 1, [f64::NAN, 1.0, f64::INFINITY][example]);
        }
        assert_eq!((weights.block(0), weights.total(0)), (&[0.5, 0.0, 0.5][..], 1.0));
        assert_eq!((weights.block(1), weights.total(1)), (&[0.0; 3][..], 0.0));
        weights.set(0, 0, 1e-40);
        // More than f32 holds: the largest it holds. Negative ones as well.
        weights.set(2, 0, -1e39);
        assert_eq!(weights.block(0), [0.0, 0.0, f32::MIN]);
        weights.void(2);
        assert_eq!(weights.block(0), [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "example 2 of 2")]
    fn nobody_else_is_weighed() {
        let mut weights = Weights::default();
        weights.reset(2, 2);
        weights.set(2, 0, 1.0);
    }
}
