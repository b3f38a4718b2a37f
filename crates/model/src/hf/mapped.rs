//! A memory-mapped file of weights.

// The only `unsafe` code outside of the crate `tensor` (docs/supply-chain.md).
#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A read-only memory map of a whole file.
///
/// The file must not change while it is mapped. If it is truncated, the system terminates the
/// program when the missing part is read.
pub(super) struct Mapped {
    /// `None` for an empty file, which cannot be mapped.
    map: Option<memmap2::Mmap>,
}

impl Mapped {
    /// Maps the file.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is not a regular file.
    pub(super) fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        // Checked before opening, because opening a pipe blocks until it has a writer.
        let metadata = fs::metadata(&path)?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if metadata.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read-only, covers the current content of the file, and lives as long
        // as the slices taken from it. No program can guarantee that another process does not
        // change the file. If another process writes to it, other bytes are read: every byte is a
        // valid `u8`, bytes are only converted to numbers, never to references or to types with
        // invalid bit patterns, and validated data (the header) were copied before. If another
        // process truncates the file, reading the missing pages raises a signal that terminates the
        // program; no memory outside the map is read.
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
    fn the_map_has_the_bytes_of_the_file() {
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
