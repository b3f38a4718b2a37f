//! What the curator must remember over an interruption, in the sealed folder, with the position of
//! the ledger it belongs to.

use crate::Error;
use crate::run::chain::{Chain, Mark};
use crate::run::folder::{self, Folder};
use curator::PrivateState;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of the file.
pub(crate) const SAMPLER: &str = "sealed/sampler.json";

/// The written form. It does not print.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    ledger: Mark,
    sampler: String,
}

/// Writes it.
pub(crate) fn write(path: &Path, ledger: &Mark, sealed: &PrivateState) -> Result<(), Error> {
    let written = Written { ledger: ledger.clone(), sampler: sealed.to_text()? };
    let text = serde_json::to_string(&written).map_err(Error::Encoding)?;
    folder::write(path, text.as_bytes())
}

/// Reads it, if it is there; what [`PrivateState::from_text`] reads.
///
/// # Errors
/// If it is damaged, which the message does not show, or belongs to another ledger.
pub(crate) fn read(folder: &Folder, chain: &Chain) -> Result<Option<String>, Error> {
    let Some(text) = folder.read(SAMPLER)? else { return Ok(None) };
    let at = |what: &str| Error::format(&folder.join(SAMPLER), what);
    let written: Written = serde_json::from_str(&text)
        .map_err(|_| at("the sealed part of a checkpoint is damaged"))?;
    chain.check(&written.ledger, "the sealed sampler").map_err(|what| at(&what))?;
    Ok(Some(written.sampler))
}
