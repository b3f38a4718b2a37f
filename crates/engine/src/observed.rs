//! What the curator learns about a micro-batch, and what it answers.

/// Losses and squared norms of a micro-batch. All of it is private: it does not print.
pub struct Observed {
    losses: Vec<f64>,
    squared_norms: Vec<f64>,
    blocks: usize,
}

impl Observed {
    /// Takes the losses by example and the squared norms, a row of `blocks` for each example.
    ///
    /// # Panics
    /// If a squared norm is missing.
    pub fn new(losses: Vec<f64>, squared_norms: Vec<f64>, blocks: usize) -> Self {
        assert_eq!(losses.len() * blocks, squared_norms.len(), "norms of every example and block");
        Self { losses, squared_norms, blocks }
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.losses.len()
    }

    /// Number of clip blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Loss of an example.
    pub fn loss(&self, example: usize) -> f64 {
        self.losses[example]
    }

    /// L2 norm of an example's encoded gradient in a block. NaN if it is not known.
    pub fn norm(&self, example: usize, block: usize) -> f64 {
        // Cancellation can leave a tiny negative number where the norm is zero; NaN stays.
        let square = self.squared_norms[example * self.blocks + block];
        if square < 0.0 { 0.0 } else { square.sqrt() }
    }

    /// Whether the loss and all norms of an example are finite. Other examples contribute nothing.
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

/// A weight for each example and block. Weights depend on norms: they do not print.
pub struct Weights {
    /// By block, then by example.
    values: Vec<f32>,
    examples: usize,
    blocks: usize,
}

impl Weights {
    /// Zero for every example and block.
    pub fn zeros(examples: usize, blocks: usize) -> Self {
        Self { values: vec![0.0; examples * blocks], examples, blocks }
    }

    /// Sets one weight, rounded towards zero to f32, so that no example counts more than asked for.
    ///
    /// A weight that is not finite, or too small for a normal f32, becomes 0.
    ///
    /// # Panics
    /// If the example or the block does not exist.
    pub fn set(&mut self, example: usize, block: usize, weight: f64) {
        assert!(example < self.examples, "example {example} of {}", self.examples);
        self.values[block * self.examples + example] = round_towards_zero(weight);
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Number of clip blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Weights of a block, by example.
    pub fn block(&self, block: usize) -> &[f32] {
        &self.values[block * self.examples..(block + 1) * self.examples]
    }

    /// Sum of a block's weights: what a geometry with a center subtracts.
    pub fn total(&self, block: usize) -> f64 {
        self.block(block).iter().map(|&weight| f64::from(weight)).sum()
    }
}

/// The nearest f32 that is not larger in size; 0 if it is not finite, or not normal: subnormal
/// numbers have too few bits for a bound.
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
