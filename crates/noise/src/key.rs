//! Secret keys and their pseudo-random streams.

use chacha20::rand_core::SeedableRng;
use chacha20::rand_core::block::Generator;
use chacha20::variants::Legacy;
use chacha20::{ChaCha20Rng, ChaChaCore, R20};
use zeroize::{Zeroize, ZeroizeOnDrop};

pub use chacha20::rand_core::Rng;

/// Words that one call of the block function generates.
pub(crate) const WORDS_PER_CALL: usize = 64;

/// Values that one thread generates at a time.
pub const CHUNK: usize = 8192;

/// A secret ChaCha20 key, zeroed on drop and hidden in debug output.
///
/// `chacha20` zeroes the state of its generators, which contains the key (feature `zeroize`).
/// Randomness that is not secret has the type [`PublicRandom`](crate::PublicRandom).
///
/// ```
/// let key = noise::Key::from_seed(1);
/// assert_ne!(key.derive(0), key.derive(1));
/// assert_eq!(format!("{key:?}"), "Key(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Zeroize for Key {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for Key {}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// ChaCha20 stream of the uniform words.
const WORD_STREAM: u64 = 0;
/// ChaCha20 stream of the additional bits for the tails of normal values.
pub(crate) const TAIL_STREAM: u64 = 1;
/// ChaCha20 stream from which the key of the discrete Gaussian is derived.
const DISCRETE_STREAM: u64 = 1 << 62;
/// First of the ChaCha20 streams from which keys with labels are derived.
const FIRST_KEY_STREAM: u64 = 1 << 63;

impl Key {
    /// Creates a key from 32 bytes, which should come from the operating system.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, which determine all values drawn from the key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Creates a key from a seed, for tests.
    pub fn from_seed(seed: u64) -> Self {
        Self::for_purpose("", seed)
    }

    /// Creates a key from a purpose and a seed.
    ///
    /// Keys with the same seed and different purposes are independent.
    ///
    /// # Panics
    /// If the purpose is longer than 24 bytes.
    pub(crate) fn for_purpose(purpose: &str, seed: u64) -> Self {
        let mut key = Self([0; 32]);
        key.0[..8].copy_from_slice(&seed.to_le_bytes());
        key.0[8..8 + purpose.len()].copy_from_slice(purpose.as_bytes());
        key
    }

    /// Derives a key that is independent of this key's stream and of other labels.
    ///
    /// # Panics
    /// If the label is 2⁶³ or more.
    #[must_use]
    pub fn derive(&self, label: u64) -> Self {
        assert!(label < FIRST_KEY_STREAM, "label: expected a number below 2^63, got {label}");
        self.key_from_stream(FIRST_KEY_STREAM | label)
    }

    /// Derives the key of the discrete Gaussian.
    pub(crate) fn for_discrete(&self) -> Self {
        self.key_from_stream(DISCRETE_STREAM)
    }

    fn key_from_stream(&self, stream: u64) -> Self {
        let mut key = Self([0; 32]);
        self.stream(stream, 0).fill_bytes(&mut key.0);
        key
    }

    /// Returns a generator of uniform words.
    pub fn words(&self) -> impl Rng + use<> {
        self.stream(WORD_STREAM, 0)
    }

    /// Writes the uniform words from position `at` on.
    ///
    /// It calls the block function directly, because a buffered generator would spend most of its
    /// time copying.
    pub(crate) fn fill_words(&self, at: u64, words: &mut [u32]) {
        let mut blocks = ChaChaCore::<R20, Legacy>::from_seed(self.0);
        blocks.set_block_pos(at / 16);
        words
            .as_chunks_mut::<WORDS_PER_CALL>()
            .0
            .iter_mut()
            .for_each(|words| blocks.generate(words));
    }

    /// Returns a generator of the words of one stream, from position `word` on.
    pub(crate) fn stream(&self, stream: u64, word: u64) -> ChaCha20Rng {
        let mut generator = ChaCha20Rng::from_seed(self.0);
        generator.set_stream(stream);
        if word > 0 {
            generator.set_word_pos(u128::from(word));
        }
        generator
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without `unsafe`, a test can observe only that a destructor exists and what `zeroize` does.
    #[test]
    fn a_dropped_key_is_zeroed() {
        fn is_zeroed_on_drop<T: ZeroizeOnDrop>() -> bool {
            std::mem::needs_drop::<T>()
        }
        assert!(
            is_zeroed_on_drop::<Key>()
                && is_zeroed_on_drop::<ChaChaCore<R20, Legacy>>()
                && is_zeroed_on_drop::<ChaCha20Rng>()
        );
        let mut key = Key::from_seed(4).derive(9);
        assert!(key.0.iter().any(|&byte| byte != 0));
        key.zeroize();
        assert_eq!(key.0, [0; 32]);
    }

    #[test]
    fn fill_words_equals_the_buffered_generator() {
        let key = Key::from_seed(4).derive(9);
        let mut words = vec![0; 4 * WORDS_PER_CALL];
        for at in [0, CHUNK as u64] {
            key.fill_words(at, &mut words);
            let mut generator = key.stream(WORD_STREAM, at);
            assert!(words.iter().all(|&word| word == generator.next_u32()));
        }
    }

    /// Labels of all sizes give distinct keys, which also differ from the original key.
    #[test]
    fn distant_labels_have_distinct_keys() {
        let key = Key::from_seed(7);
        let labels: std::collections::BTreeSet<u64> = (0..63)
            .flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1])
            .chain([FIRST_KEY_STREAM - 1])
            .collect();
        let keys: std::collections::HashSet<[u8; 32]> =
            labels.iter().map(|&label| key.derive(label).0).chain([key.0]).collect();
        assert_eq!(keys.len(), labels.len() + 1);
    }
}
