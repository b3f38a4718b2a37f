//! A temporary folder for one thread, in memory where possible.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A temporary folder that is removed on drop.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
}

impl Scratch {
    /// Creates a folder.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        Ok(Self { folder: tempfile::Builder::new().prefix("muffle-fuzz-").tempdir_in(place)? })
    }

    /// The path of a file in the folder.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, with its parent folders.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.at(name);
        match File::create(&path) {
            Ok(mut file) => file.write_all(bytes)?,
            Err(_) => {
                fs::create_dir_all(path.parent().unwrap_or(&path))?;
                fs::write(&path, bytes)?;
            }
        }
        Ok(path)
    }
}
