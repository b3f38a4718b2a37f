//! The private state that a curator needs to resume an interrupted run.
//!
//! It determines the lots, so it is as secret as the records.

use noise::Key;
use protocol::{Announcement, Positive, Refused};
use serde::{Deserialize, Serialize};

/// The number of lots drawn, the order of an unfinished epoch, and the state of the mechanism.
///
/// Its debug output hides it. The keys of the noise are not part of it: a resumed process derives
/// new ones.
#[derive(Clone, PartialEq)]
pub struct PrivateState {
    pub(crate) draws: u64,
    pub(crate) epoch: Option<SavedEpoch>,
    /// None if the mechanism has no state.
    pub(crate) mechanism: Option<MechanismState>,
}

/// The saved state of a noise mechanism, and the name of the mechanism.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MechanismState {
    pub(crate) name: String,
    pub(crate) state: Vec<u8>,
}

/// An unfinished epoch of shuffled lots.
#[derive(Clone, PartialEq)]
pub(crate) struct SavedEpoch {
    /// Key from which the order of the places was drawn.
    pub(crate) key: Key,
    /// Number of places that were in a lot.
    pub(crate) done: usize,
    /// The releases from each lot that were charged when the epoch began.
    pub(crate) paid: Announcement,
}

impl std::fmt::Debug for PrivateState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateState(…)")
    }
}

/// The serialized form of [`PrivateState`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    draws: u64,
    epoch: Option<EpochDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mechanism: Option<MechanismState>,
}

/// The serialized form of [`SavedEpoch`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochDocument {
    key: [u8; 32],
    done: usize,
    paid: Vec<(f64, u64)>,
}

/// Version of the serialized form.
const VERSION: u32 = 1;

impl PrivateState {
    /// Returns the number of lots drawn.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// Serializes the state as text, for a file that only its owner can read.
    ///
    /// # Errors
    /// If it cannot be serialized, which does not happen.
    pub fn to_text(&self) -> Result<String, Refused> {
        let paid = |paid: &Announcement| {
            paid.sigmas().iter().map(|&(sigma, count)| (sigma.get(), count)).collect()
        };
        let epoch = self.epoch.as_ref().map(|epoch| EpochDocument {
            key: *epoch.key.bytes(),
            done: epoch.done,
            paid: paid(&epoch.paid),
        });
        let mechanism = self.mechanism.clone();
        serde_json::to_string(&Document { version: VERSION, draws: self.draws, epoch, mechanism })
            .map_err(|error| Refused::Failed(error.to_string()))
    }

    /// Parses the state.
    ///
    /// # Errors
    /// If the text is invalid. The message does not show it.
    pub fn from_text(text: &str) -> Result<Self, Refused> {
        let refuse = |_| Refused::Query("the private state of a checkpoint is damaged".into());
        let document: Document = serde_json::from_str(text).map_err(refuse)?;
        if document.version != VERSION {
            return Err(Refused::Query(format!(
                "the private state of a checkpoint: expected version {VERSION}, got {}",
                document.version
            )));
        }
        let epoch = |epoch: EpochDocument| {
            let mut paid = Announcement::default();
            for (sigma, count) in epoch.paid {
                paid = paid.and(Positive::new("σ", sigma)?, count);
            }
            Ok::<_, Refused>(SavedEpoch { key: Key::new(epoch.key), done: epoch.done, paid })
        };
        Ok(Self {
            draws: document.draws,
            epoch: document.epoch.map(epoch).transpose()?,
            mechanism: document.mechanism,
        })
    }
}
