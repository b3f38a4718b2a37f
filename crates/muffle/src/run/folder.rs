//! The folder of a run, and how files get there: all at once, or not at all.

use crate::Error;
use crate::run::disk::{self, Access};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The folder of a run.
///
/// | file | what |
/// |---|---|
/// | `config.toml` | the complete configuration |
/// | `ledger.json` | what was charged, as a hash chain; written before anything is computed |
/// | `history.jsonl` | what could be seen on the way |
/// | `checkpoints/` | parameters and the optimizer's memory; public |
/// | `sealed/` | private state of the curator; removed when the run is over |
/// | `model/` | the result, in the Hugging Face layout, with `privacy.json` and, if it was signed, `privacy.json.sig` |
/// | `result.json`, `samples.json` | figures and texts |
/// | `report.html` | all of it, to be read |
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as this process works in it.
    _lock: Option<File>,
}

impl Folder {
    /// A new one, for this process alone.
    ///
    /// # Errors
    /// If there is a run in it already, or it cannot be made.
    pub fn create(path: &Path) -> Result<Self, Error> {
        if path.join("config.toml").exists() {
            return Err(Error::folder(
                path,
                format!(
                    "the folder holds a run; resume it (muffle resume {}) or choose another \
                     folder (--out)",
                    path.display()
                ),
            ));
        }
        match fs::read_dir(path).map(Iterator::count) {
            Ok(0) => {}
            Ok(_) => {
                return Err(Error::folder(
                    path,
                    "the folder is not empty; choose another one (--out)",
                ));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                disk::create_dir_all(path).map_err(Error::io(path))?
            }
            Err(error) => return Err(Error::io(path)(error)),
        }
        let folder = Self { path: path.into(), _lock: Some(lock(path)?) };
        let checkpoints = folder.join("checkpoints");
        disk::create_dir_all(&checkpoints).map_err(Error::io(&checkpoints))?;
        disk::create_private_dir(&folder.sealed()).map_err(Error::io(&folder.sealed()))?;
        Ok(folder)
    }

    /// Takes back what [`create`](Self::create) made: no run began in it.
    pub(crate) fn discard(self) {
        // It was empty before, so that only our own files are in it. If removing fails, the reason
        // for it matters more.
        let _ = fs::remove_dir_all(&self.path);
    }

    /// One that is there, for this process alone.
    ///
    /// # Errors
    /// If there is no run in it, or another process is at work in it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::look_at(path)?;
        let folder = Self { path: path.into(), _lock: Some(lock(path)?) };
        // An interruption may have left what was being removed.
        disk::finish_removals(path).map_err(Error::io(path))?;
        Ok(folder)
    }

    /// One that is there, to be read.
    ///
    /// # Errors
    /// If there is no run in it.
    pub fn look_at(path: &Path) -> Result<Self, Error> {
        if path.join("config.toml").is_file() {
            return Ok(Self { path: path.into(), _lock: None });
        }
        Err(Error::folder(path, "not the folder of a run (config.toml is missing)"))
    }

    /// Where something lies.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a file: a reader finds the old content or the new one, whole.
    ///
    /// # Errors
    /// If the system refuses; the old one is then as it was.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        write(&self.join(name), text.as_bytes())
    }

    /// What lies there, if anything does.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path)(error)),
        }
    }

    /// The folder that only its owner can open.
    pub fn sealed(&self) -> PathBuf {
        self.join("sealed")
    }

    /// Removes what is sealed, in one step: the run is over.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove_sealed(&self) -> Result<(), Error> {
        disk::remove_dir(&self.sealed()).map_err(Error::io(&self.sealed()))
    }
}

/// Replaces a file in one step; a sealed one can be read by its owner only.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let sealed = path.parent().is_some_and(|folder| folder.ends_with("sealed"));
    disk::replace(path, bytes, if sealed { Access::Owner } else { Access::Default })
        .map_err(Error::io(path))
}

fn lock(path: &Path) -> Result<File, Error> {
    let place = path.join(".lock");
    let file = disk::create_lock(&place).map_err(Error::io(&place))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::folder(path, "another process is working on this run"))
        }
        Err(TryLockError::Error(error)) => Err(Error::io(&place)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_and_one_process_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        assert!(Folder::open(&path).is_err());
        let folder = Folder::create(&path).unwrap();
        folder.write("config.toml", "a").unwrap();
        folder.write("config.toml", "b").unwrap();
        assert_eq!(folder.read("config.toml").unwrap().as_deref(), Some("b"));
        assert_eq!(folder.read("nothing").unwrap(), None);
        assert!(Folder::open(&path).unwrap_err().to_string().contains("another process"));
        assert!(Folder::create(&path).unwrap_err().to_string().contains("muffle resume"));
        drop(folder);
        assert!(Folder::open(&path).is_ok());
        // A folder with other files is not taken over.
        let theirs = place.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("thesis.txt"), "x").unwrap();
        assert!(Folder::create(&theirs).unwrap_err().to_string().contains("not empty"));
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
        let empty = place.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(Folder::create(&empty).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_sealed_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::create(&place.path().join("run")).unwrap();
        folder.write("sealed/sampler.json", "x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&folder.sealed()), mode(&folder.join("sealed/sampler.json"))),
            (0o700, 0o600)
        );
        folder.remove_sealed().unwrap();
        assert!(!folder.sealed().exists());
        folder.remove_sealed().unwrap();
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file.json");
        write(&path, b"old").unwrap();
        // A folder in the place of the file that is written first.
        fs::create_dir(path.with_extension("writing")).unwrap();
        assert!(write(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
