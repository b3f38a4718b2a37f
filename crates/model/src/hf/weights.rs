//! Tensors of a model in safetensors files.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tensor::Array;

use super::header::{self, Entry};
use super::mapped::Mapped;
use super::{buffer, dtype, index};
use crate::Error;

/// Name of the file of a checkpoint that is not sharded.
pub(super) const FILE: &str = "model.safetensors";

/// The tensors of a model, in one or several memory-mapped files.
///
/// A tensor is read into memory by [`Weights::load`].
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

/// Whether a directory has weights in the format of Python's pickle.
fn has_pickled_weights(dir: &Path) -> bool {
    ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| dir.join(name).exists())
}

impl Weights {
    /// Opens the weights of a model: a directory, a safetensors file or an index of shards.
    ///
    /// # Errors
    /// If a file is missing or invalid, if a tensor name is duplicate, if an index does not match
    /// its shards, or if a directory contains both `model.safetensors` and an index.
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
                format!("expected {FILE} or {}, got both; open one of the files", index::FILE),
            )),
            (false, true) => Self::sharded(&index),
            (false, false) if has_pickled_weights(path) => Err(Error::malformed(
                path,
                format!(
                    "expected {FILE}, got pytorch_model.bin, which can run code when it is \
                     loaded; convert it in Python: \
                     AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
                ),
            )),
            // If there is neither, the error names the missing file.
            (_, false) => Self::single(&file),
        }
    }

    /// Opens a safetensors file in memory; `path` is used in errors.
    ///
    /// # Errors
    /// If the file is invalid.
    pub fn from_bytes(bytes: Vec<u8>, path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut weights = Self::empty(path.as_ref());
        weights.add(path.as_ref(), Bytes::Owned(bytes))?;
        Ok(weights)
    }

    /// The file or directory of the weights.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn empty(path: &Path) -> Self {
        Self { path: path.into(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    fn single(path: &Path) -> Result<Self, Error> {
        let mut weights = Self::empty(path);
        weights.add_file(path)?;
        Ok(weights)
    }

    fn sharded(path: &Path) -> Result<Self, Error> {
        let index = index::read(path)?;
        let mut weights = Self::empty(path);
        for (_, shard) in &index.shards {
            weights.add_file(shard)?;
        }
        for (name, shard) in &index.shard_of {
            let expected = index.shards.binary_search_by(|(known, _)| known.cmp(shard)).ok();
            if weights.tensors.get(name).map(|tensor| tensor.file) != expected {
                return Err(Error::malformed(
                    path,
                    format!("expected tensor {name:?} in {shard:?}, but it is not there"),
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
                    format!("duplicate tensor {name:?}: it is also in {other}"),
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

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns whether there is a tensor with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the shape of the tensor with this name, if there is one.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.entry.shape.as_slice())
    }

    /// Returns the first of several names that a tensor has.
    ///
    /// Names differ between checkpoints of a model: older ones of GPT-2 lack the prefix
    /// `transformer.`, some of BERT lack `bert.`.
    ///
    /// # Errors
    /// If no tensor has one of the names.
    pub fn find<'a>(&self, names: &[&'a str]) -> Result<&'a str, Error> {
        let missing = || Error::MissingTensor {
            path: self.path.clone(),
            names: names.iter().map(ToString::to_string).collect(),
        };
        names.iter().copied().find(|name| self.contains(name)).ok_or_else(missing)
    }

    /// Reads a tensor and converts it to f32.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape, is not of a floating-point type, or has an
    /// element that is not finite.
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
        let Some((elements, non_finite)) = dtype::decode(entry.dtype, &bytes[entry.bytes.clone()])
        else {
            return Err(Error::Type { path: path(), name: name(), got: entry.dtype.to_string() });
        };
        if let Some(index) = non_finite {
            return Err(Error::NotFinite {
                path: path(),
                name: name(),
                dtype: "float32",
                index,
                got: elements[index],
            });
        }
        let array = Array::new(expected, elements)
            .map_err(|error| Error::malformed(&path(), format!("tensor {:?}: {error}", name())))?;
        used.store(true, Ordering::Relaxed);
        Ok(array)
    }

    /// Leaves out tensors that the model does not use, by the beginning of their names.
    pub fn skip(&self, prefix: &str) {
        let skipped = self.tensors.iter().filter(|(name, _)| name.starts_with(prefix));
        skipped.for_each(|(_, tensor)| tensor.used.store(true, Ordering::Relaxed));
    }

    /// Returns the tensors that were not loaded.
    ///
    /// Buffers of older checkpoints (causal masks, position ids, rotary frequencies) are left out.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let is_unused = |(name, tensor): &(&String, &Tensor)| {
            !tensor.used.load(Ordering::Relaxed) && !buffer::is_buffer(name)
        };
        self.tensors.iter().filter(is_unused).map(|(name, _)| name.as_str())
    }

    /// Checks that all tensors were loaded, so that no parameter is silently ignored.
    ///
    /// # Errors
    /// If there are [unused](Weights::unused) tensors.
    pub fn check_all_used(&self) -> Result<(), Error> {
        let names: Vec<String> = self.unused().map(String::from).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(Error::Unused { path: self.path.clone(), names })
        }
    }
}
