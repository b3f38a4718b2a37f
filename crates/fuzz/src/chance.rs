//! Reproducible random choices for a seed.

use noise::{PublicRandom, Rng};

/// A source of draws.
pub struct Chance {
    words: Box<dyn FnMut() -> u64>,
}

impl Chance {
    /// The draws of a seed for one purpose, which are independent of those for another.
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

    /// From 0 to `n` − 1; 0 if there is nothing to choose from.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// A range within a length, of at most so many.
    pub fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        let end = (start + 1 + self.below(most)).min(length);
        start.min(end)..end
    }
}

impl std::fmt::Debug for Chance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chance(…)")
    }
}
