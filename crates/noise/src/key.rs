//! Secret keys and the streams of words that they stand for.

use chacha20::rand_core::SeedableRng;
use chacha20::rand_core::block::Generator;
use chacha20::variants::Legacy;
use chacha20::{ChaCha20Rng, ChaChaCore, R20};
use zeroize::{Zeroize, ZeroizeOnDrop};

pub use chacha20::rand_core::Rng;

/// Words generated at a time.
pub(crate) const BLOCKS: usize = 64;

/// Values generated at a time, in one thread.
pub const CHUNK: usize = 8192;

/// A secret ChaCha20 key. It does not print, and its bytes are zeroed when it is dropped.
///
/// The state of the generator, which contains the key, is zeroed by `chacha20` (its feature
/// `zeroize`). Randomness that is not secret is a [`PublicRandom`](crate::PublicRandom).
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

/// ChaCha20 stream of the words from which values are made.
const WORDS: u64 = 0;
/// ChaCha20 stream that refines the tails of normal values.
pub(crate) const TAILS: u64 = 1;
/// ChaCha20 stream that gives the key of the discrete Gaussian values.
const DISCRETE: u64 = 1 << 62;
/// First of the ChaCha20 streams that give derived keys.
const KEYS: u64 = 1 << 63;

impl Key {
    /// Makes a key of 32 bytes, which should come from the operating system.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, which determine all values drawn from the key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Makes a key of a small number, for tests.
    pub fn from_seed(seed: u64) -> Self {
        Self::for_purpose("", seed)
    }

    /// Makes a key of a small number and a purpose.
    ///
    /// The same number serves several purposes without giving them the same draws.
    ///
    /// # Panics
    /// If the purpose takes more than 24 bytes.
    pub(crate) fn for_purpose(purpose: &str, seed: u64) -> Self {
        let mut key = Self([0; 32]);
        key.0[..8].copy_from_slice(&seed.to_le_bytes());
        key.0[8..8 + purpose.len()].copy_from_slice(purpose.as_bytes());
        key
    }

    /// Derives a key, independent of this key's values and of the keys with other labels.
    ///
    /// # Panics
    /// If the label takes more than 63 bits.
    #[must_use]
    pub fn derive(&self, label: u64) -> Self {
        assert!(label < KEYS, "a label of at most 63 bits");
        self.key_of_stream(KEYS | label)
    }

    /// Derives the key of the discrete Gaussian values.
    pub(crate) fn for_discrete(&self) -> Self {
        self.key_of_stream(DISCRETE)
    }

    fn key_of_stream(&self, stream: u64) -> Self {
        let mut key = Self([0; 32]);
        self.stream(stream, 0).fill_bytes(&mut key.0);
        key
    }

    /// Returns a generator of uniform words.
    pub fn words(&self) -> impl Rng + use<> {
        self.stream(WORDS, 0)
    }

    /// Writes the words from position `at` on.
    ///
    /// They come straight from the block function: a buffered generator would spend most of the
    /// time on copies.
    pub(crate) fn fill(&self, at: u64, words: &mut [u32]) {
        let mut blocks = ChaChaCore::<R20, Legacy>::from_seed(self.0);
        blocks.set_block_pos(at / 16);
        words.as_chunks_mut::<BLOCKS>().0.iter_mut().for_each(|words| blocks.generate(words));
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

    /// That dropping runs `zeroize` cannot be observed without `unsafe`; that it runs something,
    /// and what `zeroize` does, can.
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
    fn words_are_those_of_the_generator() {
        let key = Key::from_seed(4).derive(9);
        let mut words = vec![0; 4 * BLOCKS];
        for at in [0, CHUNK as u64] {
            key.fill(at, &mut words);
            let mut generator = key.stream(WORDS, at);
            assert!(words.iter().all(|&word| word == generator.next_u32()));
        }
    }

    /// Labels of all sizes give distinct keys, and none is the key itself.
    #[test]
    fn distant_labels_have_distinct_keys() {
        let key = Key::from_seed(7);
        let labels: std::collections::BTreeSet<u64> = (0..63)
            .flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1])
            .chain([KEYS - 1])
            .collect();
        let keys: std::collections::HashSet<[u8; 32]> =
            labels.iter().map(|&label| key.derive(label).0).chain([key.0]).collect();
        assert_eq!(keys.len(), labels.len() + 1);
    }
}
