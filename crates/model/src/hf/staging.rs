//! A temporary directory for the files of a model until all of them are written.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{config, index, weights};
use crate::Error;

/// Returns the names of the model files in a directory, `config.json` first.
pub(super) fn model_files(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::reading(dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::reading(dir))?.file_name();
        names.extend(name.to_str().filter(|name| is_model_file(name)).map(String::from));
    }
    names.sort_by_key(|name| (name != config::FILE, name.clone()));
    Ok(names)
}

fn is_model_file(name: &str) -> bool {
    let is_shard =
        name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors");
    is_shard || [config::FILE, weights::FILE, index::FILE].contains(&name)
}

/// Files that will be moved to `dir`. They are removed if they are not moved.
pub(super) struct Staging {
    dir: PathBuf,
    /// Temporary directory, on the same file system as `dir`.
    path: PathBuf,
    /// Names of the files, in the order in which they are moved.
    files: Vec<String>,
}

impl Staging {
    /// Creates the temporary directory.
    pub(super) fn new(dir: &Path) -> Result<Self, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique =
            format!("saving-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = match dir.file_name() {
            _ if dir.is_dir() => dir.join(format!(".{unique}")),
            Some(name) => dir.with_file_name(format!(".{}.{unique}", name.to_string_lossy())),
            None => {
                return Err(Error::malformed(
                    dir,
                    "expected a path that ends with a directory name",
                ));
            }
        };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(Error::writing(parent))?;
        }
        fs::create_dir(&path).map_err(Error::writing(&path))?;
        Ok(Self { dir: dir.into(), path, files: Vec::new() })
    }

    /// Adds a file and returns the path at which to write it.
    pub(super) fn add(&mut self, name: &str) -> PathBuf {
        self.files.push(name.into());
        self.path.join(name)
    }

    /// Removes obsolete files from `dir`, then moves the new files there in the order of addition.
    pub(super) fn commit(self, obsolete: &[String]) -> Result<(), Error> {
        let dir = &self.dir;
        if !dir.is_dir() {
            fs::rename(&self.path, dir).map_err(Error::writing(dir))?;
            return sync(dir.parent().unwrap_or(dir));
        }
        for name in obsolete {
            let path = dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::writing(&path)(error));
                }
                _ => {}
            }
        }
        for name in &self.files {
            let path = dir.join(name);
            fs::rename(self.path.join(name), &path).map_err(Error::writing(&path))?;
        }
        sync(dir)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a move, nothing is left. An error here is ignored, because the error that prevented
        // the move was returned.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes moves durable across a power failure, where the system can open a directory.
fn sync(dir: &Path) -> Result<(), Error> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    match File::open(dir) {
        Ok(file) => file.sync_all().map_err(Error::writing(dir)),
        Err(_) => Ok(()),
    }
}
