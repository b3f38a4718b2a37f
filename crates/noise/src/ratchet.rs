//! A forward-secure sequence of keys: each key can be taken once and is then erased.

use crate::{Error, Key};

/// A forward-secure sequence of 2⁴⁸ keys, derived from a secret.
///
/// The keys are the leaves of a binary tree (Goldreich, Goldwasser and Micali 1986). The root is
/// the secret, and both children of a node are derived from it by a one-way function. Only nodes
/// whose leaves are all unused are stored (Bellare and Yee, "Forward-security in private-key
/// cryptography", 2003). Any later key is reached with at most 48 derivations; a chain of keys
/// would need one derivation for every key in between.
///
/// # Claim
/// (PROOFS.md, forward security.) The state after key n was taken reveals nothing about the keys 0
/// to n.
///
/// # Why
/// A stored node has only leaves after n, so it is not an ancestor of an earlier key: each of those
/// is derived, under a distinct label, from a node that was overwritten with zeros. Computing it
/// from the state would require inverting ChaCha20.
///
/// # Checked by
/// `stored_nodes_have_only_later_keys`, `taken_keys_are_not_in_memory`,
/// `keys_are_the_leaves_of_the_tree`
///
/// ```
/// let mut keys = noise::Ratchet::new(&noise::Key::from_seed(1));
/// keys.take(5)?;
/// // Earlier keys are erased, too.
/// assert!(keys.take(3).is_err());
/// # Ok::<(), noise::Error>(())
/// ```
pub struct Ratchet {
    /// `nodes[h]` is the root of 2^h keys if bit h of `remaining` is set, and zero otherwise.
    ///
    /// Leaves of lower nodes come first in the sequence. The vector never grows, so reallocation
    /// leaves no copies of keys in memory.
    nodes: Vec<Key>,
    /// Number of available keys, which are the last ones of the sequence.
    remaining: u64,
}

/// Base-2 logarithm of the number of keys.
const HEIGHT: usize = 48;

/// Label of a node's first child.
const FIRST_HALF: u64 = 0;
/// Label of a node's second child.
const SECOND_HALF: u64 = 1;

impl std::fmt::Debug for Ratchet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ratchet(next: {})", self.next())
    }
}

impl Ratchet {
    /// Starts a sequence from a root key.
    pub fn new(root: &Key) -> Self {
        Self::with_height(root, HEIGHT)
    }

    fn with_height(root: &Key, height: usize) -> Self {
        let mut nodes = vec![zeros(); height + 1];
        nodes[height] = root.clone();
        Self { nodes, remaining: 1 << height }
    }

    /// Returns the number of the first available key.
    fn next(&self) -> u64 {
        self.count() - self.remaining
    }

    /// Returns the number of all keys of the sequence.
    fn count(&self) -> u64 {
        1 << (self.nodes.len() - 1)
    }

    /// Takes the next key.
    ///
    /// # Errors
    /// If no key is available.
    pub fn take_next(&mut self) -> Result<Key, Error> {
        self.take(self.next())
    }

    /// Takes the key with this number. It and all earlier keys cannot be taken again.
    ///
    /// # Errors
    /// If the key was already taken or skipped, or the number is too large.
    pub fn take(&mut self, number: u64) -> Result<Key, Error> {
        let unavailable = || Error::KeyUnavailable { number, next: self.next(), end: self.count() };
        // Number of keys available afterwards.
        let after = (self.count() - 1)
            .checked_sub(number)
            .filter(|&after| after < self.remaining)
            .ok_or_else(unavailable)?;
        // Erase subtrees whose keys are all before it.
        let mut height = self.remaining.trailing_zeros() as usize;
        while after < self.remaining - (1 << height) {
            self.nodes[height] = zeros();
            self.remaining -= 1 << height;
            height = self.remaining.trailing_zeros() as usize;
        }
        // Descend from the root of the subtree that contains it. Every assignment drops, and so
        // zeroes, the previous key.
        let mut key = self.nodes[height].clone();
        self.nodes[height] = zeros();
        for height in (0..height).rev() {
            if after & (1 << height) == 0 {
                key = key.derive(SECOND_HALF);
            } else {
                self.nodes[height] = key.derive(SECOND_HALF);
                key = key.derive(FIRST_HALF);
            }
        }
        self.remaining = after;
        Ok(key)
    }
}

fn zeros() -> Key {
    Key::new([0; 32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed};
    use std::collections::HashSet;

    fn config() -> Config {
        Config {
            cases: 64,
            rng_seed: RngSeed::Fixed(7),
            failure_persistence: None,
            ..Config::default()
        }
    }

    /// Derives the key with a number from the root.
    fn leaf(root: &Key, height: usize, number: u64) -> Key {
        (0..height).rev().fold(root.clone(), |key, bit| key.derive(number >> bit & 1))
    }

    /// Derives the ancestor of a leaf at a height above the leaves.
    fn ancestor(root: &Key, height: usize, number: u64, level: usize) -> Key {
        (level..height).rev().fold(root.clone(), |key, bit| key.derive(number >> bit & 1))
    }

    #[test]
    fn keys_are_the_leaves_of_the_tree() {
        let root = Key::from_seed(3);
        for height in [0, 1, 5] {
            let mut ratchet = Ratchet::with_height(&root, height);
            for number in 0..1 << height {
                assert_eq!(ratchet.take_next().unwrap(), leaf(&root, height, number));
            }
            assert!(ratchet.take_next().is_err());
        }
        // A key does not depend on skipped keys.
        for number in [0, 1, 65_535, 65_536, 1 << 32, (1 << HEIGHT) - 1] {
            assert_eq!(Ratchet::new(&root).take(number).unwrap(), leaf(&root, HEIGHT, number));
        }
    }

    #[test]
    fn no_key_is_taken_twice() {
        let mut ratchet = Ratchet::new(&Key::from_seed(3));
        ratchet.take(7).unwrap();
        for used in [0, 6, 7] {
            let error = ratchet.take(used).unwrap_err().to_string();
            assert!(
                error.contains(&format!("random draw {used}: expected a number from 8")),
                "{error}"
            );
        }
        for beyond in [1 << HEIGHT, u64::MAX] {
            assert!(ratchet.take(beyond).is_err());
        }
        // An error does not change the state.
        assert_eq!(ratchet.next(), 8);
        assert!(ratchet.take(8).is_ok());
        assert_eq!(format!("{ratchet:?}"), "Ratchet(next: 9)");
    }

    proptest! {
        #![proptest_config(config())]

        /// After any sequence of taken and skipped keys, the leaves of stored nodes are the later
        /// keys.
        #[test]
        fn stored_nodes_have_only_later_keys(
            steps in prop::collection::vec(0..40u64, 1..8),
            seed in 0..1000u64,
        ) {
            let (height, root) = (8, Key::from_seed(seed));
            let mut ratchet = Ratchet::with_height(&root, height);
            for step in steps {
                let number = ratchet.next() + step;
                if number >= 1 << height {
                    break;
                }
                ratchet.take(number).unwrap();
                let stored: Vec<Key> = ratchet
                    .nodes
                    .iter()
                    .enumerate()
                    .filter(|(h, _)| ratchet.remaining >> h & 1 == 1)
                    .flat_map(|(h, node)| (0..1 << h).map(move |number| leaf(node, h, number)))
                    .collect();
                let later: Vec<Key> =
                    (number + 1..1 << height).map(|number| leaf(&root, height, number)).collect();
                prop_assert_eq!(stored.len(), later.len());
                prop_assert!(stored.iter().all(|key| later.contains(key)));
            }
        }

        /// The state contains neither a taken key nor an ancestor of it; unused nodes are zero.
        #[test]
        fn taken_keys_are_not_in_memory(
            numbers in prop::collection::btree_set(0..1u64 << HEIGHT, 1..6),
            seed in 0..1000u64,
        ) {
            let root = Key::from_seed(seed);
            let mut ratchet = Ratchet::new(&root);
            for number in numbers {
                let taken = ratchet.take(number).unwrap();
                prop_assert!(!ratchet.nodes.contains(&taken));
                for level in 0..=HEIGHT {
                    let above = ancestor(&root, HEIGHT, number, level);
                    prop_assert!(!ratchet.nodes.contains(&above), "{number} {level}");
                    prop_assert_eq!(
                        ratchet.remaining >> level & 1 == 0,
                        ratchet.nodes[level] == zeros(),
                        "{} {}", number, level
                    );
                }
            }
        }
    }

    /// Around powers of 2, where a counter of too few bits would wrap around.
    #[test]
    fn distant_keys_are_distinct() {
        let around = |middle: u64| middle.saturating_sub(3)..(middle + 3).min(1 << HEIGHT);
        let numbers: Vec<u64> = (0..=HEIGHT)
            .flat_map(|bit| around(1 << bit))
            .chain(0..2000)
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut ratchet = Ratchet::new(&Key::from_seed(5));
        let keys: HashSet<[u8; 32]> =
            numbers.iter().map(|&number| *ratchet.take(number).unwrap().bytes()).collect();
        assert_eq!(keys.len(), numbers.len());
    }
}
