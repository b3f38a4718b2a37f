//! What a curator must remember to go on after an interruption, and nobody else may see: it tells
//! who is in which lot.

use protocol::{Announcement, Positive, Refused};
use serde::{Deserialize, Serialize};
use tensor::normal::Key;

/// How many lots were drawn, and the order of an epoch that is not over. It does not print.
///
/// The key of the noise is not in it: a process that is started again draws another.
#[derive(Clone, PartialEq)]
pub struct Sealed {
    pub(crate) draws: u64,
    pub(crate) epoch: Option<SealedEpoch>,
}

/// An epoch of shuffled lots.
#[derive(Clone, PartialEq)]
pub(crate) struct SealedEpoch {
    pub(crate) key: Key,
    pub(crate) done: usize,
    pub(crate) paid: Announcement,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealed(…)")
    }
}

/// The written form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    draws: u64,
    epoch: Option<WrittenEpoch>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEpoch {
    key: [u8; 32],
    done: usize,
    paid: Vec<(f64, u64)>,
}

const VERSION: u32 = 1;

impl Sealed {
    /// How many lots were drawn.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// As text, for a file that only its owner can read.
    ///
    /// # Errors
    /// If it has no written form, which does not happen.
    pub fn to_text(&self) -> Result<String, Refused> {
        let paid = |paid: &Announcement| {
            paid.sigmas().iter().map(|&(sigma, count)| (sigma.get(), count)).collect()
        };
        let epoch = self.epoch.as_ref().map(|epoch| WrittenEpoch {
            key: *epoch.key.bytes(),
            done: epoch.done,
            paid: paid(&epoch.paid),
        });
        serde_json::to_string(&Written { version: VERSION, draws: self.draws, epoch })
            .map_err(|error| Refused::Failed(error.to_string()))
    }

    /// From text.
    ///
    /// # Errors
    /// If it is something else. The message does not show it.
    pub fn from_text(text: &str) -> Result<Self, Refused> {
        let refuse = |_| Refused::Query("the sealed part of a checkpoint is damaged".into());
        let written: Written = serde_json::from_str(text).map_err(refuse)?;
        if written.version != VERSION {
            return Err(Refused::Query(format!(
                "the sealed part of a checkpoint has version {}, {VERSION} expected",
                written.version
            )));
        }
        let epoch = |epoch: WrittenEpoch| {
            let mut paid = Announcement::default();
            for (sigma, count) in epoch.paid {
                paid = paid.and(Positive::new("σ", sigma)?, count);
            }
            Ok::<_, Refused>(SealedEpoch { key: Key::new(epoch.key), done: epoch.done, paid })
        };
        Ok(Self { draws: written.draws, epoch: written.epoch.map(epoch).transpose()? })
    }
}
