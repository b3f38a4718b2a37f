//! Saving of a model to a directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use tensor::Array;

use super::dtype::{self, Dtype};
use super::staging::{self, Staging};
use super::{Config, config, header, index, weights};
use crate::Error;

/// Options of [`save()`].
#[derive(Clone, Debug, PartialEq)]
pub struct SaveOptions<'a> {
    /// Element type of the tensors.
    pub dtype: Dtype,
    /// Largest number of data bytes of a file. A larger tensor gets a file of its own.
    pub shard_bytes: u64,
    /// Whether a model in the directory is replaced.
    pub existing: ExistingModel,
    /// Directory from which the files of the tokenizer are copied.
    pub tokenizer: Option<&'a Path>,
}

/// float32 in files of at most 5 GB; existing models are not replaced; no tokenizer.
impl Default for SaveOptions<'_> {
    fn default() -> Self {
        Self {
            dtype: Dtype::F32,
            shard_bytes: 5_000_000_000,
            existing: ExistingModel::Refuse,
            tokenizer: None,
        }
    }
}

/// Whether a model in the directory is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExistingModel {
    /// Returns an error; nothing is written.
    #[default]
    Refuse,
    /// Replaces configuration and weights, and the tokenizer if another is given.
    ///
    /// Other files in the directory are not changed.
    Replace,
}

/// Files of a tokenizer and of the generation settings.
const TOKENIZER_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

/// Saves `config.json`, the weights (with an index if there are several files) and the tokenizer.
///
/// Files are first written to a temporary directory and moved when all of them are on disk. A new
/// directory appears atomically. In an existing directory, files are moved one by one: the old
/// `config.json` is removed first and the new one is moved last, so that a concurrent reader, or a
/// reader after a power failure, finds no model rather than parts of two models.
///
/// # Errors
/// If the configuration is invalid, if an element is not finite in the requested type, if two
/// tensors have the same name, if a model exists and must not be replaced, or if a file operation
/// fails. The old model is then unchanged, unless a file operation failed while files were moved.
pub fn save<S: AsRef<str>>(
    dir: impl AsRef<Path>,
    config: &Config,
    tensors: &[(S, &Array)],
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let dir = dir.as_ref();
    config.architecture.check()?;
    let old = staging::model_files(dir)?;
    if options.existing == ExistingModel::Refuse
        && let Some(file) = old.first()
    {
        return Err(Error::Exists { path: dir.join(file) });
    }
    let mut tensors: Vec<(&str, &Array)> =
        tensors.iter().map(|(name, array)| (name.as_ref(), *array)).collect();
    tensors.sort_by_key(|(name, _)| *name);
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::malformed(dir, format!("duplicate tensor {:?}", pair[0].0)));
    }

    let mut staging = Staging::new(dir)?;
    let mut obsolete = old;
    if let Some(source) = options.tokenizer {
        obsolete.extend(copy_tokenizer(source, &mut staging)?);
    }
    write_weights(&mut staging, &tensors, options)?;
    write_text(&mut staging, config::FILE, &config.to_json(options.dtype))?;
    staging.commit(&obsolete)
}

/// Writes the weights to one or several files.
fn write_weights(
    staging: &mut Staging,
    tensors: &[(&str, &Array)],
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let size = |array: &Array| array.len() as u64 * options.dtype.size() as u64;
    let mut shards: Vec<&[(&str, &Array)]> = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (i, (_, array)) in tensors.iter().enumerate() {
        if i > first && bytes + size(array) > options.shard_bytes {
            shards.push(&tensors[first..i]);
            (first, bytes) = (i, 0);
        }
        bytes += size(array);
    }
    shards.push(&tensors[first..]);
    if let [shard] = shards[..] {
        return write_shard(staging, weights::FILE, shard, options.dtype);
    }
    let mut shard_of = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = index::shard_name(i + 1, shards.len());
        write_shard(staging, &file, shard, options.dtype)?;
        shard_of.extend(shard.iter().map(|(name, _)| (*name, file.clone())));
    }
    let total = tensors.iter().map(|(_, array)| size(array)).sum();
    write_text(staging, index::FILE, &index::write(&shard_of, total))
}

/// Writes one safetensors file.
pub(super) fn write_shard(
    staging: &mut Staging,
    name: &str,
    tensors: &[(&str, &Array)],
    dtype: Dtype,
) -> Result<(), Error> {
    let path = staging.add(name);
    let shapes: Vec<(&str, &[usize])> =
        tensors.iter().map(|(name, array)| (*name, array.shape())).collect();
    let header = header::write(&path, dtype.stored(), &shapes)?;
    let mut file = BufWriter::new(File::create_new(&path).map_err(Error::writing(&path))?);
    file.write_all(&header).map_err(Error::writing(&path))?;
    let mut bytes = Vec::new();
    for (name, array) in tensors {
        for (chunk, elements) in array.data().chunks(dtype::CHUNK).enumerate() {
            bytes.clear();
            dtype::encode(dtype, elements, &mut bytes).map_err(|index| Error::NotFinite {
                path: path.clone(),
                name: (*name).into(),
                dtype: dtype.name(),
                index: chunk * dtype::CHUNK + index,
                got: elements[index],
            })?;
            file.write_all(&bytes).map_err(Error::writing(&path))?;
        }
    }
    let file = file.into_inner().map_err(|error| Error::writing(&path)(error.into_error()))?;
    file.sync_all().map_err(Error::writing(&path))
}

pub(super) fn write_text(staging: &mut Staging, name: &str, text: &str) -> Result<(), Error> {
    write_bytes(staging, name, text.as_bytes())
}

fn write_bytes(staging: &mut Staging, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let path = staging.add(name);
    let write = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    File::create_new(&path).and_then(write).map_err(Error::writing(&path))
}

/// Copies the files of a tokenizer.
///
/// Returns the names of files that the tokenizer does not have: such files in the target directory
/// belong to another tokenizer and are removed.
fn copy_tokenizer(source: &Path, staging: &mut Staging) -> Result<Vec<String>, Error> {
    fs::read_dir(source).map_err(Error::reading(source))?;
    let mut absent = Vec::new();
    for name in TOKENIZER_FILES {
        let path = source.join(name);
        if path.is_file() {
            // Only the contents are copied: a copy of a read-only file must be writable.
            let bytes = fs::read(&path).map_err(Error::reading(&path))?;
            write_bytes(staging, name, &bytes)?;
        } else {
            absent.push(name.to_string());
        }
    }
    Ok(absent)
}
