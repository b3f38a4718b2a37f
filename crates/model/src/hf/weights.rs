//! The numbers of a model, as they lie on disk.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::mapped::Mapped;
use tensor::Array;

use super::header::{self, Entry};
use super::{buffer, index, number};
use crate::Error;

/// The name of weights in one piece.
pub(super) const FILE: &str = "model.safetensors";

/// The tensors of a model, in one file or several. Nothing is read into memory before
/// [`Weights::load`].
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<File>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mapped),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

#[derive(Debug)]
struct Tensor {
    file: usize,
    entry: Entry,
    used: AtomicBool,
}

impl Weights {
    /// Opens the weights of a model: its directory, with `model.safetensors` or shards and their
    /// index, or one such file by itself.
    ///
    /// # Errors
    /// If a file is missing or damaged, if a tensor comes twice, if an index and its shards
    /// contradict each other, or if a directory holds both one file and an index.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if !path.is_dir() {
            return if path.extension().is_some_and(|e| e == "json") {
                Self::sharded(path)
            } else {
                Self::single(path)
            };
        }
        let (file, index) = (path.join(FILE), path.join(index::FILE));
        match (file.exists(), index.exists()) {
            (true, true) => Err(Error::malformed(
                path,
                format!("expected {FILE} or {}, got both; name the one that is meant", index::FILE),
            )),
            (false, true) => Self::sharded(&index),
            // If there is none, the error names what was looked for.
            (_, false) => Self::single(&file),
        }
    }

    /// Reads a safetensors file that is in memory already; `path` is what errors call it.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn from_bytes(bytes: Vec<u8>, path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut weights = Self::none(path.as_ref());
        weights.add(path.as_ref(), Bytes::Owned(bytes))?;
        Ok(weights)
    }

    fn none(path: &Path) -> Self {
        Self { path: path.into(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    fn single(path: &Path) -> Result<Self, Error> {
        let mut weights = Self::none(path);
        weights.add_file(path)?;
        Ok(weights)
    }

    fn sharded(path: &Path) -> Result<Self, Error> {
        let index = index::read(path)?;
        let mut weights = Self::none(path);
        for (_, shard) in &index.shards {
            weights.add_file(shard)?;
        }
        for (name, place) in &index.places {
            let expected = index.shards.binary_search_by(|(shard, _)| shard.cmp(place)).ok();
            if weights.tensors.get(name).map(|tensor| tensor.file) != expected {
                return Err(Error::malformed(
                    path,
                    format!("expected tensor {name:?} in {place:?}, but it is not there"),
                ));
            }
        }
        Ok(weights)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        self.add(path, Bytes::Mapped(Mapped::open(path).map_err(Error::reading(path))?))
    }

    /// Adds the tensors of a file.
    fn add(&mut self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        for (name, entry) in header::read(path, &bytes)? {
            if let Some(other) = self.tensors.get(&name) {
                let other = self.files[other.file].path.display();
                return Err(Error::malformed(
                    path,
                    format!("tensor {name:?} is also in {other}; expected it in one of them"),
                ));
            }
            self.tensors.insert(
                name,
                Tensor { file: self.files.len(), entry, used: AtomicBool::new(false) },
            );
        }
        self.files.push(File { path: path.into(), bytes });
        Ok(())
    }

    /// The names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.entry.shape.as_slice())
    }

    /// The first of these names that there is. Checkpoints of one model differ: older ones of GPT-2
    /// lack `transformer.`, some of BERT lack `bert.`.
    ///
    /// # Errors
    /// If there is none.
    pub fn find<'a>(&self, names: &[&'a str]) -> Result<&'a str, Error> {
        let missing = || Error::MissingTensor {
            path: self.path.clone(),
            names: names.iter().map(ToString::to_string).collect(),
        };
        names.iter().copied().find(|name| self.contains(name)).ok_or_else(missing)
    }

    /// Reads a tensor, whatever the type of its numbers.
    ///
    /// # Errors
    /// If there is none of this name, if it has another shape, if its numbers are not
    /// floating-point numbers, or if one of them is not finite.
    pub fn load(&self, name: &str, expected: &[usize]) -> Result<Array, Error> {
        let Some(Tensor { file, entry, used }) = self.tensors.get(name) else {
            return Err(Error::MissingTensor { path: self.path.clone(), names: vec![name.into()] });
        };
        let File { path, bytes } = &self.files[*file];
        let (path, name) = (|| path.clone(), || name.to_string());
        if entry.shape != expected {
            return Err(Error::Shape {
                path: path(),
                name: name(),
                expected: expected.into(),
                got: entry.shape.clone(),
            });
        }
        let Some((numbers, wild)) = number::decode(entry.dtype, &bytes[entry.bytes.clone()]) else {
            return Err(Error::Type { path: path(), name: name(), got: entry.dtype.to_string() });
        };
        if let Some(index) = wild {
            return Err(Error::NotFinite {
                path: path(),
                name: name(),
                dtype: "float32",
                index,
                got: numbers[index],
            });
        }
        let array = Array::new(expected, numbers)
            .map_err(|error| Error::malformed(&path(), format!("tensor {:?}: {error}", name())))?;
        used.store(true, Ordering::Relaxed);
        Ok(array)
    }

    /// The tensors that were never loaded, without the buffers that older checkpoints carry along:
    /// causal masks, position numbers, rotary frequencies.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let idle = |(name, tensor): &(&String, &Tensor)| {
            !tensor.used.load(Ordering::Relaxed) && !buffer::is_harmless(name)
        };
        self.tensors.iter().filter(idle).map(|(name, _)| name.as_str())
    }

    /// Refuses weights of which some were never loaded. A loader asks this when it is done: a
    /// parameter that it did not know would otherwise be dropped in silence.
    ///
    /// # Errors
    /// If [`Weights::unused`] names any.
    pub fn all_used(&self) -> Result<(), Error> {
        let names: Vec<String> = self.unused().map(String::from).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(Error::Unused { path: self.path.clone(), names })
        }
    }
}
