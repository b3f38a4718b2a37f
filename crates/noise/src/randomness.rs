//! The keys of a run: for each draw, the keys of its lot and of its releases.

use crate::{Error, Key, Ratchet};
use zeroize::Zeroizing;

/// The secret from which the keys of all draws of a run are derived.
///
/// Taking the keys of a draw erases them and the keys of all earlier draws.
///
/// ```
/// use noise::{Origin, Randomness};
///
/// let mut randomness = Randomness::from_system()?;
/// assert_eq!(randomness.origin(), Origin::System);
/// let keys = randomness.draw(0)?;
/// assert_ne!(keys.lot, keys.tag);
/// // No draw is repeated.
/// assert!(randomness.draw(0).is_err());
/// # Ok::<(), noise::Error>(())
/// ```
#[derive(Debug)]
pub struct Randomness {
    draws: Ratchet,
    origin: Origin,
}

/// Where the secret of a run comes from. Every report states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operating system.
    System,
    /// A fixed seed, for tests and for reproducible runs on data that are not private.
    ///
    /// Anyone who knows the seed can subtract the noise.
    Fixed(u64),
}

/// The keys of one draw, independent of each other.
pub struct DrawKeys {
    /// Key from which the lot is drawn.
    pub lot: Key,
    /// Key that processes compare to check that they have the same secret. It is not used
    /// otherwise.
    pub tag: Key,
    /// Keys of the releases from the lot, in order. The keys of tensors are derived from them.
    pub releases: Ratchet,
}

/// Label of the key of the lot, derived from the key of a draw.
const LOT: u64 = 0;
/// Label of the key that processes compare.
const TAG: u64 = 1;
/// Label of the root of the keys of releases.
const RELEASES: u64 = 2;

impl Randomness {
    /// Creates the keys of a run from a new secret of the operating system.
    ///
    /// A restarted process has another secret, so no draw is repeated.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn from_system() -> Result<Self, Error> {
        Ok(Self::from_secret(*Self::system_secret()?))
    }

    /// Returns a new secret of the operating system, to be shared by the processes of a run.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn system_secret() -> Result<Zeroizing<[u8; 32]>, Error> {
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret).map_err(|error| Error::System(error.to_string()))?;
        Ok(secret)
    }

    /// Creates the keys of a run from a secret that [`system_secret`](Self::system_secret)
    /// returned.
    pub fn from_secret(secret: [u8; 32]) -> Self {
        Self { draws: Ratchet::new(&Key::new(secret)), origin: Origin::System }
    }

    /// Creates the keys of a run from a fixed seed.
    ///
    /// **There is no privacy against anyone who knows the seed.**
    pub fn fixed(seed: u64) -> Self {
        Self {
            draws: Ratchet::new(&Key::for_purpose("lots and noise", seed)),
            origin: Origin::Fixed(seed),
        }
    }

    /// Returns where the secret comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Takes the keys of a draw. They and the keys of earlier draws cannot be taken again.
    ///
    /// # Errors
    /// If the keys were already taken or skipped.
    pub fn draw(&mut self, draw: u64) -> Result<DrawKeys, Error> {
        let key = self.draws.take(draw)?;
        Ok(DrawKeys {
            lot: key.derive(LOT),
            tag: key.derive(TAG),
            releases: Ratchet::new(&key.derive(RELEASES)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The keys of lots, tags, releases and tensors are distinct.
    ///
    /// The numbers include those at which a counter of 16 or 32 bits would wrap around.
    #[test]
    fn every_key_of_a_run_is_distinct() {
        let numbers = || {
            (0..4u64)
                .chain([16, 32].into_iter().flat_map(|bits| (1u64 << bits) - 2..(1 << bits) + 3))
        };
        let mut randomness = Randomness::fixed(1);
        let (mut seen, mut count) = (HashSet::new(), 0);
        let mut record = |key: &Key| {
            seen.insert(*key.bytes());
            count += 1;
        };
        for draw in numbers() {
            let mut keys = randomness.draw(draw).unwrap();
            record(&keys.lot);
            record(&keys.tag);
            for release in numbers() {
                let key = keys.releases.take(release).unwrap();
                record(&key);
                numbers().for_each(|tensor| record(&key.derive(tensor)));
            }
        }
        assert_eq!((seen.len(), count), (14 * (2 + 14 * 15), 14 * (2 + 14 * 15)));
    }

    /// The keys of a draw depend on the secret and on its number, not on which draws were taken
    /// before. So they are the same in every process and after a restart.
    #[test]
    fn a_draw_depends_on_its_number_alone() {
        let lot = |randomness: &mut Randomness, draw| *randomness.draw(draw).unwrap().lot.bytes();
        let (mut every, mut some) = (Randomness::fixed(4), Randomness::fixed(4));
        let all: Vec<_> = (0..40).map(|draw| lot(&mut every, draw)).collect();
        assert_eq!(lot(&mut some, 12), all[12]);
        assert_eq!(lot(&mut some, 39), all[39]);
        assert!(some.draw(39).is_err() && some.draw(3).is_err());
        assert_ne!(lot(&mut Randomness::fixed(5), 0), all[0]);
        assert_eq!(
            (every.origin(), Randomness::from_system().unwrap().origin()),
            (Origin::Fixed(4), Origin::System)
        );
    }
}
