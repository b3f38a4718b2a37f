//! A directory in which a model is written before it takes its place.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{config, index, weights};
use crate::Error;

/// The files of a directory that make up a model, `config.json` first.
pub(super) fn model_files(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::reading(dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::reading(dir))?.file_name();
        found.extend(name.to_str().filter(|name| is_model_file(name)).map(String::from));
    }
    found.sort_by_key(|name| (name != config::FILE, name.clone()));
    Ok(found)
}

fn is_model_file(name: &str) -> bool {
    let shard =
        name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors");
    shard || [config::FILE, weights::FILE, index::FILE].contains(&name)
}

/// Files on their way to `dir`. If they do not get there, they are removed.
pub(super) struct Staging {
    dir: PathBuf,
    /// Where they lie until then, on the same disk.
    path: PathBuf,
    /// Their names, in the order in which they move.
    files: Vec<String>,
}

impl Staging {
    pub(super) fn new(dir: &Path) -> Result<Self, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique =
            format!("saving-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = match dir.file_name() {
            _ if dir.is_dir() => dir.join(format!(".{unique}")),
            Some(name) => dir.with_file_name(format!(".{}.{unique}", name.to_string_lossy())),
            None => {
                return Err(Error::malformed(dir, "expected the name of a directory, got none"));
            }
        };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(Error::writing(parent))?;
        }
        fs::create_dir(&path).map_err(Error::writing(&path))?;
        Ok(Self { dir: dir.into(), path, files: Vec::new() })
    }

    /// The path at which a file of this name is to be written.
    pub(super) fn add(&mut self, name: &str) -> PathBuf {
        self.files.push(name.into());
        self.path.join(name)
    }

    /// Moves everything to its place, in the order in which it was added, after removing what is
    /// obsolete.
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
        // Nothing is left there after a move. If removing fails, the error that led here matters
        // more.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes moved files survive a power failure, where the system can open a directory.
fn sync(dir: &Path) -> Result<(), Error> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    match File::open(dir) {
        Ok(file) => file.sync_all().map_err(Error::writing(dir)),
        Err(_) => Ok(()),
    }
}
