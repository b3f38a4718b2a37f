//! A memory-mapped file, from which the weights of a model are read.

// The one use of `unsafe` outside of the crate `tensor` (docs/supply-chain.md).
#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A read-only map of a whole file.
///
/// The file must not be changed meanwhile. If it is truncated, the system ends the program when the
/// missing part is read.
pub(super) struct Mapped {
    /// None for an empty file.
    map: Option<memmap2::Mmap>,
}

impl Mapped {
    /// Maps the file.
    ///
    /// # Errors
    /// If it cannot be opened or mapped, or is not a regular file.
    pub(super) fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        // Checked before opening: opening a pipe waits for its writer.
        let metadata = fs::metadata(&path)?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if metadata.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read-only, covers the present content of the file, and lives as long as
        // the slices taken from it. No program can guarantee that another process does not change
        // the file. If one writes to it, other bytes are read: every byte is a valid `u8`, bytes are
        // only ever converted to numbers, never to references or to types in which some bits are
        // invalid, and what was validated (the header of a model) was copied before. If one
        // truncates it, reading the missing pages raises a signal that ends the program; it does not
        // read foreign memory.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map: Some(map) })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("muffle-mapped-{}", std::process::id()));
        for bytes in [&b""[..], b"a", &[7; 100_000]] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(&*Mapped::open(&path).unwrap(), bytes);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(Mapped::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Mapped::open(std::env::temp_dir()).is_err());
    }
}
