//! Writing a model's directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use tensor::Array;

use super::number::{self, Dtype};
use super::staging::{self, Staging};
use super::{Config, config, header, index, weights};
use crate::Error;

/// How a model is written.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveOptions<'a> {
    /// The type of the numbers.
    pub dtype: Dtype,
    /// Bytes of numbers in a file, beyond which another is begun. A larger tensor has a file of its
    /// own.
    pub shard_bytes: u64,
    /// What happens to a model that is there already.
    pub existing: Existing,
    /// The directory from which the tokenizer's files are copied.
    pub tokenizer: Option<&'a Path>,
}

/// float32 in files of 5 GB, replacing nothing, without a tokenizer.
impl Default for SaveOptions<'_> {
    fn default() -> Self {
        Self {
            dtype: Dtype::F32,
            shard_bytes: 5_000_000_000,
            existing: Existing::Refuse,
            tokenizer: None,
        }
    }
}

/// What happens to a model that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Existing {
    /// It stays, and nothing is written.
    #[default]
    Refuse,
    /// Its configuration and weights are removed, and its tokenizer if another is given. Other
    /// files of the directory stay.
    Replace,
}

/// Files that belong to a tokenizer or to how text is generated.
const TOKENIZER: [&str; 10] = [
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

/// Writes `config.json`, the weights (with an index if they need several files) and the tokenizer's
/// files.
///
/// Everything is written to a directory beside the old model first; only when all of it is on disk
/// does it take the place of the old one. A new directory appears all at once. In one that exists
/// already, files are moved one by one: `config.json` is removed first and comes last, so that
/// a concurrent reader, or one after a power failure, finds no model rather than half of each.
///
/// # Errors
/// If the configuration makes no sense, if a number is not finite in the type asked for, if two
/// tensors have one name, if there is a model already and replacing it was not asked for, or if the
/// system refuses. The old model is then as it was, unless the system refused in the middle of
/// moving.
pub fn save<S: AsRef<str>>(
    dir: impl AsRef<Path>,
    config: &Config,
    tensors: &[(S, &Array)],
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let dir = dir.as_ref();
    config.architecture.check()?;
    let old = staging::model_files(dir)?;
    if options.existing == Existing::Refuse
        && let Some(file) = old.first()
    {
        return Err(Error::Exists { path: dir.join(file) });
    }
    let mut tensors: Vec<(&str, &Array)> =
        tensors.iter().map(|(name, array)| (name.as_ref(), *array)).collect();
    tensors.sort_by_key(|(name, _)| *name);
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::malformed(
            dir,
            format!("expected tensors of different names, got {:?} twice", pair[0].0),
        ));
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

/// Writes the weights, in as many files as it takes.
fn write_weights(
    staging: &mut Staging,
    tensors: &[(&str, &Array)],
    options: &SaveOptions<'_>,
) -> Result<(), Error> {
    let size = |array: &Array| array.len() as u64 * options.dtype.size() as u64;
    let mut shards: Vec<&[(&str, &Array)]> = Vec::new();
    let (mut first, mut full) = (0, 0);
    for (i, (_, array)) in tensors.iter().enumerate() {
        if i > first && full + size(array) > options.shard_bytes {
            shards.push(&tensors[first..i]);
            (first, full) = (i, 0);
        }
        full += size(array);
    }
    shards.push(&tensors[first..]);
    if let [shard] = shards[..] {
        return write_shard(staging, weights::FILE, shard, options.dtype);
    }
    let mut places = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = index::shard(i + 1, shards.len());
        write_shard(staging, &file, shard, options.dtype)?;
        places.extend(shard.iter().map(|(name, _)| (*name, file.clone())));
    }
    let total = tensors.iter().map(|(_, array)| size(array)).sum();
    write_text(staging, index::FILE, &index::write(&places, total))
}

/// Writes one safetensors file.
fn write_shard(
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
        for (piece, numbers) in array.data().chunks(number::PIECE).enumerate() {
            bytes.clear();
            number::encode(dtype, numbers, &mut bytes).map_err(|index| Error::NotFinite {
                path: path.clone(),
                name: (*name).into(),
                dtype: dtype.torch(),
                index: piece * number::PIECE + index,
                got: numbers[index],
            })?;
            file.write_all(&bytes).map_err(Error::writing(&path))?;
        }
    }
    let file = file.into_inner().map_err(|error| Error::writing(&path)(error.into_error()))?;
    file.sync_all().map_err(Error::writing(&path))
}

fn write_text(staging: &mut Staging, name: &str, text: &str) -> Result<(), Error> {
    write_bytes(staging, name, text.as_bytes())
}

fn write_bytes(staging: &mut Staging, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let path = staging.add(name);
    let write = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    File::create_new(&path).and_then(write).map_err(Error::writing(&path))
}

/// Copies the files of a tokenizer that there are. The names of the others are returned: what lay
/// there under those names belonged to another tokenizer.
fn copy_tokenizer(source: &Path, staging: &mut Staging) -> Result<Vec<String>, Error> {
    fs::read_dir(source).map_err(Error::reading(source))?;
    let mut others = Vec::new();
    for name in TOKENIZER {
        let path = source.join(name);
        if path.is_file() {
            // Contents only: a read-only original does not make a read-only copy.
            let bytes = fs::read(&path).map_err(Error::reading(&path))?;
            write_bytes(staging, name, &bytes)?;
        } else {
            others.push(name.to_string());
        }
    }
    Ok(others)
}
