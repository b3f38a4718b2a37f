//! Randomness that is not secret.

use crate::{Key, Rng};

/// Public pseudo-random values, determined by a purpose and a seed.
///
/// For initial parameters, probe examples, generated text and made-up data. It is a type of its own
/// so that it cannot be used where a secret [`Key`] is needed:
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
    /// Makes the values of a seed for one purpose, independent of those for another purpose.
    ///
    /// # Panics
    /// If the purpose takes more than 24 bytes.
    pub fn new(purpose: &str, seed: u64) -> Self {
        Self(Key::for_purpose(purpose, seed))
    }

    /// Makes the values of a seed without a purpose, for tests and benchmarks.
    pub fn from_seed(seed: u64) -> Self {
        Self::new("", seed)
    }

    /// Derives values that are independent of these and of those with other labels.
    ///
    /// # Panics
    /// If the label takes more than 63 bits.
    #[must_use]
    pub fn derive(&self, label: u64) -> Self {
        Self(self.0.derive(label))
    }

    /// Returns a generator of uniform words.
    pub fn words(&self) -> impl Rng + use<> {
        self.0.words()
    }

    /// Writes the normal values from index `at` on.
    ///
    /// # Panics
    /// If `at` is not a multiple of [`CHUNK`](crate::CHUNK).
    pub fn normals(&self, at: u64, out: &mut [f32]) {
        self.0.normals(at, out);
    }

    /// Writes the normal values from index 0 on, with all threads.
    pub fn fill_normals(&self, out: &mut [f32]) {
        self.0.fill_normals(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Initial parameters and probes are the same in all versions.
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
