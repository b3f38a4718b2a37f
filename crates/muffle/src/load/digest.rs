//! Digests of data, which are not private.

use crate::Error;
use crate::config::{self, Config};
use crate::load::data::{Split, rows};
use crate::run::snapshot;
use data::{Content, Label, Record};
use engine::{Example, Input, Target};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Returns the SHA-256 of the training data. **Not private.**
///
/// # Errors
/// If the data cannot be read.
pub(crate) fn of_training_data(config: &Config) -> Result<String, Error> {
    of_split(&config.data, Split::Train)?.ok_or(Error::Internal("no training data"))
}

/// Returns the SHA-256 of the data of a split; `None` if there are none. **Not private.**
///
/// It is that of the file. A folder or a table of images refers to other files: there it is that of
/// all pixels and labels, so that a change of an image is detected.
///
/// # Errors
/// If the data cannot be read.
pub(crate) fn of_split(config: &config::Data, split: Split) -> Result<Option<String>, Error> {
    let path = match split {
        Split::Train if config.train == "embedded" => {
            return Ok(Some(snapshot::digest(b"embedded")));
        }
        Split::Train => Some(Path::new(&config.train)),
        Split::Validation => config.validation.as_deref(),
        Split::Test => config.test.as_deref(),
    };
    let Some(path) = path else { return Ok(None) };
    let mut records = rows(config, split)?.into_iter().flatten();
    let refers_to_files = |row: &data::Result<Record>| match row {
        Ok(Record { content: Content::Image { label: Label::Name(_), .. }, .. }) => Some(true),
        Ok(Record { content: Content::Missing, .. }) => None,
        _ => Some(false),
    };
    if records.find_map(|row| refers_to_files(&row)) != Some(true) {
        return Ok(Some(snapshot::digest_file(path)?));
    }
    let mut hasher = Sha256::new();
    for row in rows(config, split)?.into_iter().flatten() {
        match row?.content {
            Content::Image { pixels, height, width, label: Label::Name(label), .. } => {
                for size in [pixels.len(), height, width, label.len()] {
                    hasher.update((size as u64).to_le_bytes());
                }
                hasher.update(label.as_bytes());
                pixels.iter().for_each(|value| hasher.update(value.to_le_bytes()));
            }
            _ => hasher.update(u64::MAX.to_le_bytes()),
        }
    }
    Ok(Some(snapshot::hex(&hasher.finalize())))
}

/// Adds a place to a digest.
///
/// An example is added with the lengths of its parts, a vacant place as a length that no example
/// has.
pub(super) fn update_digest(hasher: &mut Sha256, place: Option<&Example>) {
    let Some(example) = place else { return hasher.update(u64::MAX.to_le_bytes()) };
    let mut add = |words: &mut dyn ExactSizeIterator<Item = u32>| {
        hasher.update((words.len() as u64).to_le_bytes());
        words.for_each(|word| hasher.update(word.to_le_bytes()));
    };
    // The number of parts, in one word.
    add(&mut std::iter::once(example.parts().len() as u32));
    for part in example.parts() {
        match &part.input {
            Input::Tokens(tokens) => add(&mut tokens.iter().copied()),
            Input::Features(values) => add(&mut values.iter().map(|x| x.to_bits())),
        }
        match &part.target {
            Target::Next(tokens) => add(&mut tokens.iter().copied()),
            Target::Class(class) => add(&mut std::iter::once(*class)),
            Target::Labels(labels) => add(&mut labels.iter().copied()),
            Target::Value(value) => add(&mut std::iter::once(value.to_bits())),
        }
    }
}
