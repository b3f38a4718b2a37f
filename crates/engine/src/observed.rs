//! The losses and norms of a micro-batch, and the weights that the curator computes from them.

/// Losses and squared norms of a micro-batch. They are private: debug output hides them.
pub struct Observed {
    losses: Vec<f64>,
    squared_norms: Vec<f64>,
    blocks: usize,
}

impl Observed {
    /// Takes the losses by example, and the squared norms by example and then by block.
    ///
    /// # Panics
    /// If a squared norm is missing.
    pub fn new(losses: Vec<f64>, squared_norms: Vec<f64>, blocks: usize) -> Self {
        assert_eq!(losses.len() * blocks, squared_norms.len(), "norms of every example and block");
        Self { losses, squared_norms, blocks }
    }

    /// Returns the number of examples.
    pub fn examples(&self) -> usize {
        self.losses.len()
    }

    /// Returns the number of clip blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the loss of an example.
    pub fn loss(&self, example: usize) -> f64 {
        self.losses[example]
    }

    /// Returns the L2 norm of an example's encoded gradient in a block; NaN if it is not known.
    pub fn norm(&self, example: usize, block: usize) -> f64 {
        // Rounding can make the square of a zero norm slightly negative. NaN is returned as it is.
        let square = self.squared_norms[example * self.blocks + block];
        if square < 0.0 { 0.0 } else { square.sqrt() }
    }

    /// Whether the loss and all norms of an example are finite. Otherwise its weight must be 0.
    pub fn is_sound(&self, example: usize) -> bool {
        let norms = &self.squared_norms[example * self.blocks..(example + 1) * self.blocks];
        self.losses[example].is_finite() && norms.iter().all(|square| square.is_finite())
    }
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observed({} examples)", self.examples())
    }
}

/// A weight for each example and block. They depend on private norms, so there is no debug output.
pub struct Weights {
    /// By block, then by example.
    values: Vec<f32>,
    examples: usize,
    blocks: usize,
}

impl Weights {
    /// Creates weights of 0 for every example and block.
    pub fn zeros(examples: usize, blocks: usize) -> Self {
        Self { values: vec![0.0; examples * blocks], examples, blocks }
    }

    /// Sets one weight, rounded to f32 towards zero.
    ///
    /// So no contribution exceeds its bound by rounding. A weight that is not finite, or too small
    /// for a normal f32, becomes 0.
    ///
    /// # Panics
    /// If the example or the block does not exist.
    pub fn set(&mut self, example: usize, block: usize, weight: f64) {
        assert!(example < self.examples, "example {example} of {}", self.examples);
        self.values[block * self.examples + example] = round_towards_zero(weight);
    }

    /// Returns the number of examples.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Returns the number of clip blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the weights of a block, by example.
    pub fn block(&self, block: usize) -> &[f32] {
        &self.values[block * self.examples..(block + 1) * self.examples]
    }

    /// Returns the sum of a block's weights. An affine encoding subtracts its center as often.
    pub fn total(&self, block: usize) -> f64 {
        self.block(block).iter().map(|&weight| f64::from(weight)).sum()
    }
}

/// Rounds to f32 towards zero; returns 0 if the result is not a normal number.
///
/// The relative rounding error of subnormal numbers is not bounded.
fn round_towards_zero(weight: f64) -> f32 {
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
            let near = f64::from(round_towards_zero(weight));
            prop_assert!(near.abs() <= weight.abs() || !weight.is_finite() && near == 0.0);
            if weight.abs() > 1.2e-38 && weight.abs() < 3.4e38 {
                prop_assert!((near - weight).abs() <= 1.2e-7 * weight.abs());
            }
        }
    }

    #[test]
    fn weights_that_are_not_normal_numbers_become_zero() {
        let mut weights = Weights::zeros(3, 2);
        for (example, weight) in [f64::NAN, f64::INFINITY, 1e-40].into_iter().enumerate() {
            weights.set(example, 0, 0.5);
            weights.set(example, 1, weight);
        }
        assert_eq!((weights.block(0), weights.total(0)), (&[0.5; 3][..], 1.5));
        assert_eq!((weights.block(1), weights.total(1)), (&[0.0; 3][..], 0.0));
        // Beyond the range of f32: the largest f32, with its sign.
        weights.set(2, 0, -1e39);
        assert_eq!(weights.block(0), [0.5, 0.5, f32::MIN]);
    }

    #[test]
    #[should_panic(expected = "example 2 of 2")]
    fn an_example_outside_the_micro_batch_cannot_be_weighted() {
        Weights::zeros(2, 2).set(2, 0, 1.0);
    }

    #[test]
    fn observations_do_not_print_and_tell_soundness() {
        let squares = vec![1.0, 4.0, f64::NAN, 0.0, -1e-9, f64::INFINITY];
        let observed = Observed::new(vec![0.5, 0.5, 0.5], squares, 2);
        assert_eq!(format!("{observed:?}"), "Observed(3 examples)");
        assert!(observed.is_sound(0) && !observed.is_sound(1) && !observed.is_sound(2));
        assert_eq!((observed.norm(0, 1), observed.norm(2, 0)), (2.0, 0.0));
        assert!(!Observed::new(vec![f64::NAN], vec![1.0], 1).is_sound(0));
    }
}
