//! A seeded random number generator.

use noise::{PublicRandom, Rng};

/// A seeded random number generator.
pub struct Random {
    words: Box<dyn FnMut() -> u64>,
}

impl Random {
    /// A generator for one purpose, independent of those for other purposes.
    pub fn new(purpose: &str, seed: u64) -> Self {
        let label = purpose
            .bytes()
            .fold(0, |label: u64, byte| label.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte))
            >> 1;
        let mut words = PublicRandom::new("fuzz", seed).derive(label).words();
        Self { words: Box::new(move || words.next_u64()) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        (self.words)()
    }

    /// A number from 0 to `n` − 1; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// True with probability 1/n.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A random element.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// A random range within a length, of at most `most`.
    pub fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        let end = (start + 1 + self.below(most)).min(length);
        start.min(end)..end
    }
}

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random(…)")
    }
}
