//! Where chance comes from.

use crate::ratchet::Ratchet;
use protocol::Refused;
use ranks::Ranks;
use tensor::normal::Key;
use zeroize::Zeroizing;

/// The secret from which all draws of a curator come. It moves forward with each draw: what was
/// used is forgotten.
#[derive(Debug)]
pub struct Randomness {
    draws: Ratchet,
    origin: Origin,
}

/// Where the secret came from. It belongs into every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operating system.
    System,
    /// A number somebody chose: whoever knows it can take the noise off. For tests and repetitions
    /// on data that is not private.
    Fixed(u64),
}

/// The keys of one draw, which have nothing to do with each other.
pub(crate) struct DrawKeys {
    /// For the draw of the lot.
    pub(crate) lot: Key,
    /// For nothing but to be compared: processes that have the same tag draw from the same secret.
    pub(crate) tag: Key,
    /// For the noise of the releases from the lot, one after the other; each of their tensors
    /// derives a key of its own.
    pub(crate) releases: Ratchet,
}

/// Labels of what is derived from the key of a draw.
const LOT: u64 = 0;
const TAG: u64 = 1;
const RELEASES: u64 = 2;

impl Randomness {
    /// Fresh from the operating system. A process that is started again draws anew, so that no draw
    /// is ever repeated.
    ///
    /// # Errors
    /// If the system has none to give.
    pub fn from_system() -> Result<Self, Refused> {
        Self::shared(&Ranks::alone())
    }

    /// Fresh from the operating system of the first process, which tells the others. Whoever can
    /// listen to them knows the secret, as he knows the sums.
    ///
    /// # Errors
    /// If the system has none to give, or a process is gone.
    pub fn shared(ranks: &Ranks) -> Result<Self, Refused> {
        let mut bytes = vec![0; 32];
        if ranks.is_first() {
            getrandom::fill(&mut bytes).map_err(|error| {
                Refused::Failed(format!("the operating system gives no randomness: {error}"))
            })?;
        }
        let said = Zeroizing::new(
            ranks.first_says(bytes).map_err(|lost| Refused::Failed(lost.to_string()))?,
        );
        let bytes = Zeroizing::new(
            <[u8; 32]>::try_from(&said[..])
                .map_err(|_| Refused::Failed("the first process gave no secret".into()))?,
        );
        Ok(Self { draws: Ratchet::new(&Key::new(*bytes)), origin: Origin::System })
    }

    /// The same draws every time. **There is no privacy for anybody who knows the seed.**
    pub fn fixed(seed: u64) -> Self {
        Self {
            draws: Ratchet::new(&Key::for_purpose("lots and noise", seed)),
            origin: Origin::Fixed(seed),
        }
    }

    /// Where the secret came from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The keys of a draw. Those of this draw and of the ones before it cannot be had again.
    ///
    /// # Errors
    /// If they were had before.
    pub(crate) fn draw(&mut self, draw: u64) -> Result<DrawKeys, Refused> {
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

    /// No two of all the keys that a run uses are the same: of lots, tags, releases and tensors,
    /// also where a counter of 16 or 32 bits would begin again.
    #[test]
    fn every_key_of_a_run_is_distinct() {
        let numbers = || {
            (0..4u64)
                .chain([16, 32].into_iter().flat_map(|bits| (1u64 << bits) - 2..(1 << bits) + 3))
        };
        let mut randomness = Randomness::fixed(1);
        let (mut seen, mut count) = (HashSet::new(), 0);
        let mut put = |key: &Key| {
            seen.insert(*key.bytes());
            count += 1;
        };
        for draw in numbers() {
            let mut keys = randomness.draw(draw).unwrap();
            put(&keys.lot);
            put(&keys.tag);
            for release in numbers() {
                let key = keys.releases.take(release).unwrap();
                put(&key);
                numbers().for_each(|tensor| put(&key.derive(tensor)));
            }
        }
        assert_eq!((seen.len(), count), (14 * (2 + 14 * 15), 14 * (2 + 14 * 15)));
    }

    /// The keys of a draw depend on the secret and on its number, not on the draws in between: any
    /// number of processes, and one that is started again, has the same.
    #[test]
    fn a_draw_depends_on_its_number_alone() {
        let lot = |randomness: &mut Randomness, draw| *randomness.draw(draw).unwrap().lot.bytes();
        let (mut each, mut some) = (Randomness::fixed(4), Randomness::fixed(4));
        let all: Vec<_> = (0..40).map(|draw| lot(&mut each, draw)).collect();
        assert_eq!(lot(&mut some, 12), all[12]);
        assert_eq!(lot(&mut some, 39), all[39]);
        assert!(some.draw(39).is_err() && some.draw(3).is_err());
        assert_ne!(lot(&mut Randomness::fixed(5), 0), all[0]);
        assert_eq!(
            (each.origin(), Randomness::from_system().unwrap().origin()),
            (Origin::Fixed(4), Origin::System)
        );
    }
}
