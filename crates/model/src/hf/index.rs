//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::text;
use super::unique::Unique;
use crate::Error;

/// The name of the index.
pub(super) const FILE: &str = "model.safetensors.index.json";

/// Beyond this the system may have no maps left.
const MOST_SHARDS: usize = 10_000;

/// Tensors and their shards.
#[derive(Debug)]
pub(super) struct Index {
    /// The shard of each tensor.
    pub(super) places: BTreeMap<String, String>,
    /// The shards, in order.
    pub(super) shards: Vec<(String, PathBuf)>,
}

#[derive(Deserialize)]
struct Text {
    weight_map: Unique<String>,
}

/// Reads an index. Its shards lie in its own directory and nowhere else.
pub(super) fn read(path: &Path) -> Result<Index, Error> {
    let Text { weight_map: Unique(places) } = serde_json::from_slice(&text::read(path)?)
        .map_err(|error| Error::malformed(path, error))?;
    let names: BTreeSet<&String> = places.values().collect();
    if names.is_empty() || names.len() > MOST_SHARDS {
        return Err(Error::malformed(
            path,
            format!("expected 1 to {MOST_SHARDS} shards, got {}", names.len()),
        ));
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut shards = Vec::new();
    for name in names {
        if !is_plain(name) {
            return Err(Error::malformed(
                path,
                format!("expected shards in its own directory, got {name:?}"),
            ));
        }
        shards.push((name.clone(), directory.join(name)));
    }
    Ok(Index { places, shards })
}

/// Whether this is the name of a file on every system, and no path.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    single && !name.contains(|letter: char| letter.is_control() || "/\\:".contains(letter))
}

/// The text of an index.
pub(super) fn write(places: &BTreeMap<&str, String>, total_size: u64) -> String {
    format!("{:#}\n", json!({ "metadata": { "total_size": total_size }, "weight_map": places }))
}

/// The name of shard `number` (from 1) of `count`.
pub(super) fn shard(number: usize, count: usize) -> String {
    format!("model-{number:05}-of-{count:05}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_files_are_plain() {
        for name in ["model-00001-of-00002.safetensors", "x", "..x", "x..", "ä"] {
            assert!(is_plain(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/x",
            "a/b",
            "a/../b",
            "./x",
            "x/",
            "..\\x",
            "C:x",
            "x\0",
            "x\n",
            "\u{1b}[2J",
        ] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
