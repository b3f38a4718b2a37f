//! `sealed/sampler.json`: the private state of the curator, with the position of the ledger at
//! which it was written.

use crate::Error;
use crate::run::chain::{Chain, Mark};
use crate::run::folder::{self, Folder};
use curator::PrivateState;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The path of the file in the folder of a run.
pub(crate) const SAMPLER: &str = "sealed/sampler.json";

/// The content of the file. It has no `Debug`: the state is private.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplerDocument {
    ledger: Mark,
    sampler: String,
}

/// Writes the private state of the curator and the position of the ledger.
pub(crate) fn write(path: &Path, ledger: &Mark, state: &PrivateState) -> Result<(), Error> {
    let document = SamplerDocument { ledger: ledger.clone(), sampler: state.to_text()? };
    let text = serde_json::to_string(&document).map_err(Error::Encoding)?;
    folder::write(path, text.as_bytes())
}

/// Reads the text for [`PrivateState::from_text`]; `None` if the file does not exist.
///
/// # Errors
/// If it is damaged, or belongs to another ledger. The message does not show its content.
pub(crate) fn read(folder: &Folder, chain: &Chain) -> Result<Option<String>, Error> {
    let Some(text) = folder.read(SAMPLER)? else { return Ok(None) };
    let path = folder.join(SAMPLER);
    let document: SamplerDocument = serde_json::from_str(&text)
        .map_err(|_| Error::format(&path, "damaged: not the state of a sampler"))?;
    chain.check(&document.ledger, "the sealed sampler").map_err(Error::ledger(&path))?;
    Ok(Some(document.sampler))
}
