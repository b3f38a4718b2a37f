//! A file whose bytes appear in memory without being copied there first: models are read from such
//! files.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A read-only map of a whole file.
///
/// Nobody should write to the file meanwhile. If somebody shortens it, the system ends the program
/// when the missing part is read.
pub struct Mapped {
    /// None for an empty file.
    map: Option<memmap2::Mmap>,
}

impl Mapped {
    /// Maps the file.
    ///
    /// # Errors
    /// If it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        // Asked before opening: to open a pipe is to wait for its writer.
        let about = fs::metadata(&path)?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if about.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read-only, covers what the file holds now, and lives as long as the
        // slices taken from it. What no program can promise is that another process leaves the file
        // alone. Should one write to it, we see other bytes: every byte is a valid `u8`, they are
        // only ever converted to numbers, never taken for references or for types in which some
        // bits are invalid, and what was checked about them (the header of a model) was copied out
        // before. Should one shorten it, reading the missing pages raises a signal that ends the
        // program; it does not read foreign memory.
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
