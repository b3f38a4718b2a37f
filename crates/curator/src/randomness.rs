//! Where chance comes from.

use protocol::Refused;
use ranks::Ranks;
use tensor::normal::Key;

/// The secret from which all draws of a curator come: one stream for lots, one for noise, each divided by what it is drawn for.
#[derive(Debug)]
pub struct Randomness {
    lots: Key,
    noise: Key,
    origin: Origin,
}

/// Where the secret came from. It belongs into every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operating system.
    System,
    /// A number somebody chose: whoever knows it can take the noise off. For tests and repetitions on data that is not private.
    Fixed(u64),
}

impl Randomness {
    /// Fresh from the operating system. A process that is started again draws anew, so that no draw is ever repeated.
    ///
    /// # Errors
    /// If the system has none to give.
    pub fn from_system() -> Result<Self, Refused> {
        Self::shared(&Ranks::alone())
    }

    /// Fresh from the operating system of the first process, which tells the others. Whoever can listen to them knows the secret, as he knows the sums.
    ///
    /// # Errors
    /// If the system has none to give, or a process is gone.
    pub fn shared(ranks: &Ranks) -> Result<Self, Refused> {
        let mut bytes = [0; 32];
        if ranks.is_first() {
            getrandom::fill(&mut bytes).map_err(|error| Refused::Failed(format!("the operating system gives no randomness: {error}")))?;
        }
        let said = ranks.first_says(bytes.to_vec()).map_err(|lost| Refused::Failed(lost.to_string()))?;
        let bytes = said.try_into().map_err(|_| Refused::Failed("the first process gave no secret".into()))?;
        Ok(Self::from_key(&Key::new(bytes), Origin::System))
    }

    /// The same draws every time. **There is no privacy for anybody who knows the seed.**
    pub fn fixed(seed: u64) -> Self {
        Self::from_key(&Key::for_purpose("lots and noise", seed), Origin::Fixed(seed))
    }

    fn from_key(root: &Key, origin: Origin) -> Self {
        Self { lots: root.derive(0), noise: root.derive(1), origin }
    }

    /// Where the secret came from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// For the draw of a lot.
    pub(crate) fn lot(&self, draw: u64) -> Key {
        self.lots.derive(draw)
    }

    /// For the noise of a release from a lot; each of its tensors derives a key of its own.
    pub(crate) fn release(&self, draw: u64, release: u64) -> Key {
        self.noise.derive(draw).derive(release)
    }
}
