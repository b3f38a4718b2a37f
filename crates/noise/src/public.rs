//! Pseudo-randomness that is not secret.

use crate::{Key, Rng};

/// A public pseudo-random generator, determined by a purpose and a seed.
///
/// It is used for initial parameters, probe examples, generated text and synthetic data. It is a
/// distinct type, so that it cannot be used in place of a secret [`Key`]:
///
/// ```compile_fail,E0308
/// noise::Ratchet::new(&noise::PublicRandom::new("probes", 1));
/// ```
///
/// ```
/// let (mut one, mut other) = ([0.0; 4], [0.0; 4]);
/// noise::PublicRandom::new("probes", 1).fill_normals(&mut one);
/// noise::PublicRandom::new("probes", 1).fill_normals(&mut other);
/// assert_eq!(one, other);
/// ```
#[derive(Clone, Debug)]
pub struct PublicRandom(Key);

impl PublicRandom {
    /// Creates a generator from a purpose and a seed.
    ///
    /// Generators with the same seed and different purposes are independent.
    ///
    /// # Panics
    /// If the purpose is longer than 24 bytes.
    pub fn new(purpose: &str, seed: u64) -> Self {
        Self(Key::for_purpose(purpose, seed))
    }

    /// Creates a generator from a seed without a purpose, for tests and benchmarks.
    pub fn from_seed(seed: u64) -> Self {
        Self::new("", seed)
    }

    /// Derives a generator that is independent of this one and of other labels.
    ///
    /// # Panics
    /// If the label is 2⁶³ or more.
    #[must_use]
    pub fn derive(&self, label: u64) -> Self {
        Self(self.0.derive(label))
    }

    /// Returns a generator of uniform words.
    pub fn words(&self) -> impl Rng + use<> {
        self.0.words()
    }

    /// Writes standard normal values from index `at` on.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`](crate::CHUNK).
    pub fn normals(&self, at: u64, out: &mut [f32]) {
        self.0.normals(at, out);
    }

    /// Writes standard normal values from index 0 on, with all threads.
    pub fn fill_normals(&self, out: &mut [f32]) {
        self.0.fill_normals(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Initial parameters and probe examples are the same in all versions.
    #[test]
    fn values_are_those_of_the_key_with_the_same_purpose_and_seed() {
        let (public, key) = (PublicRandom::new("probes", 5), Key::for_purpose("probes", 5));
        assert_eq!(public.words().next_u64(), key.words().next_u64());
        let (mut one, mut other) = ([0.0; 40], [0.0; 40]);
        public.derive(3).normals(0, &mut one);
        key.derive(3).fill_normals(&mut other);
        assert_eq!(one, other);
        PublicRandom::new("other", 5).fill_normals(&mut other);
        assert_ne!(one, other);
    }
}
