//! A folder for one thread, in memory where the system has such: most readers want a path.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder that goes with it.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
}

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        Ok(Self { folder: tempfile::Builder::new().prefix("muffle-fuzz-").tempdir_in(place)? })
    }

    /// Where something lies.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file there, with the folders it is in.
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
