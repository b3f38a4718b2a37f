//! `model.safetensors.index.json`, the index of a sharded checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::json_file;
use super::tensor_map::TensorMap;
use crate::Error;

/// Name of the index file.
pub(super) const FILE: &str = "model.safetensors.index.json";

/// Largest number of shards: the system limits the number of memory maps.
const MAX_SHARDS: usize = 10_000;

/// The tensors of a checkpoint and their shards.
#[derive(Debug)]
pub(super) struct Index {
    /// File name of the shard of each tensor.
    pub(super) shard_of: BTreeMap<String, String>,
    /// File names and paths of the shards, sorted by name.
    pub(super) shards: Vec<(String, PathBuf)>,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: TensorMap<String>,
}

/// Reads an index. Its shards must be in the same directory.
pub(super) fn read(path: &Path) -> Result<Index, Error> {
    let IndexFile { weight_map: TensorMap(shard_of) } =
        serde_json::from_slice(&json_file::read(path)?)
            .map_err(|error| Error::malformed(path, error))?;
    let names: BTreeSet<&String> = shard_of.values().collect();
    if names.is_empty() || names.len() > MAX_SHARDS {
        return Err(Error::malformed(
            path,
            format!("expected 1 to {MAX_SHARDS} shards, got {}", names.len()),
        ));
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut shards = Vec::new();
    for name in names {
        if !is_file_name(name) {
            return Err(Error::malformed(
                path,
                format!("shard {name:?}: expected a file name without a directory"),
            ));
        }
        shards.push((name.clone(), directory.join(name)));
    }
    Ok(Index { shard_of, shards })
}

/// Returns whether a name is a file name without a directory, on every system.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_single = match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) => part == name,
        _ => false,
    };
    is_single && !name.contains(|char: char| char.is_control() || "/\\:".contains(char))
}

/// Returns the text of an index.
pub(super) fn write(shard_of: &BTreeMap<&str, String>, total_size: u64) -> String {
    format!("{:#}\n", json!({ "metadata": { "total_size": total_size }, "weight_map": shard_of }))
}

/// Returns the file name of shard `number` (from 1) of `count`.
pub(super) fn shard_name(number: usize, count: usize) -> String {
    format!("model-{number:05}-of-{count:05}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_file_names() {
        for name in ["model-00001-of-00002.safetensors", "x", "..x", "x..", "ä"] {
            assert!(is_file_name(name), "{name}");
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
            assert!(!is_file_name(name), "{name:?}");
        }
    }
}
