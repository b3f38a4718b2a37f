//! The folder of a run: its files, its lock, and atomic writes.

use crate::Error;
use crate::run::disk::{self, Access};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The folder of a run.
///
/// | file | content |
/// |---|---|
/// | `config.toml` | the complete configuration |
/// | `plan.json` | steps, lot size, noise and promised ε, fixed before the first step |
/// | `ledger.json` | all charges, as a hash chain; written before anything is computed |
/// | `history.jsonl` | figures measured while the run trains |
/// | `events.out.tfevents…` | the same for TensorBoard, if it is configured |
/// | `checkpoints/` | parameters and the optimizer's state; public |
/// | `sealed/` | private state of the curator; removed when the run is finished |
/// | `model/` | the model in the Hugging Face layout, with `privacy.json` |
/// | `model/privacy.json.sig` | the signature of the privacy statement, if it was signed |
/// | `result.json`, `samples.json` | figures and generated texts |
/// | `report.html` | the report |
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as this process works in the folder.
    _lock: Option<File>,
}

impl Folder {
    /// Creates the folder of a new run and locks it for this process.
    ///
    /// # Errors
    /// If the folder is not empty, or cannot be created.
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

    /// Removes a folder that [`create`](Self::create) made and in which no run started.
    pub(crate) fn discard(self) {
        // It was empty before, so that only our own files are in it. If removing fails, the error
        // that led here matters more.
        let _ = fs::remove_dir_all(&self.path);
    }

    /// Opens the folder of a run and locks it for this process.
    ///
    /// # Errors
    /// If there is no run in it, or another process has locked it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_read_only(path)?;
        let folder = Self { path: path.into(), _lock: Some(lock(path)?) };
        // An interruption may have left a directory that was being removed.
        disk::finish_removals(path).map_err(Error::io(path))?;
        Ok(folder)
    }

    /// Opens the folder of a run without locking it, for reading.
    ///
    /// # Errors
    /// If there is no run in it.
    pub fn open_read_only(path: &Path) -> Result<Self, Error> {
        if path.join("config.toml").is_file() {
            return Ok(Self { path: path.into(), _lock: None });
        }
        Err(Error::folder(path, "not the folder of a run (config.toml is missing)"))
    }

    /// The path of a file in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a file atomically.
    ///
    /// # Errors
    /// If the system refuses; the old file is then unchanged.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        write(&self.join(name), text.as_bytes())
    }

    /// Reads a file; `None` if it does not exist.
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

    /// The path of the folder for private state, which only its owner can open.
    pub fn sealed(&self) -> PathBuf {
        self.join("sealed")
    }

    /// Removes the private state atomically, when the run is finished.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove_sealed(&self) -> Result<(), Error> {
        disk::remove_dir(&self.sealed()).map_err(Error::io(&self.sealed()))
    }
}

/// The source of a model for inference: the model of a run, if `source` is the folder of one.
///
/// # Errors
/// If the run is not finished.
pub(crate) fn model_source(source: &str) -> Result<String, Error> {
    let (folder, model) = (Path::new(source), Path::new(source).join("model"));
    if model.join("config.json").is_file() {
        return Ok(model.to_string_lossy().into_owned());
    }
    match folder.join("config.toml").is_file() {
        true => Err(Error::folder(
            folder,
            format!(
                "the run is not finished and has no model yet; resume it: muffle resume {source}"
            ),
        )),
        false => Ok(source.into()),
    }
}

/// Replaces a file atomically. In a folder named `sealed`, only its owner can read it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let sealed = path.parent().is_some_and(|folder| folder.ends_with("sealed"));
    disk::replace(path, bytes, if sealed { Access::Owner } else { Access::Default })
        .map_err(Error::io(path))
}

/// Whether a process works on the run in this folder.
///
/// The lock is tested with a shared lock that is released at once, so that the file must only be
/// readable. A process that starts to work on the run in that moment tries again.
///
/// # Errors
/// If the lock cannot be read, or is not a file.
pub fn is_in_use(path: &Path) -> std::io::Result<bool> {
    let lock = path.join(LOCK);
    match fs::symlink_metadata(&lock) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(std::io::Error::other("expected a file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    match File::open(&lock)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The file that a process locks while it works on the run.
const LOCK: &str = ".lock";

/// How often the lock is tried: [`is_in_use`] may hold it for an instant.
const LOCK_TRIES: u32 = 5;

/// The time between two tries.
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

fn lock(path: &Path) -> Result<File, Error> {
    let lock = path.join(LOCK);
    let file = disk::create_lock(&lock).map_err(Error::io(&lock))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(Error::io(&lock)(error)),
        }
    }
    Err(Error::folder(path, "another process is working on this run"))
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
        // A folder with other files is refused.
        let theirs = place.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("thesis.txt"), "x").unwrap();
        assert!(Folder::create(&theirs).unwrap_err().to_string().contains("not empty"));
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
        let empty = place.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(Folder::create(&empty).is_ok());
    }

    #[test]
    fn a_locked_folder_is_in_use() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        assert!(!is_in_use(&path).unwrap());
        let folder = Folder::create(&path).unwrap();
        assert!(is_in_use(&path).unwrap());
        drop(folder);
        assert!(!is_in_use(&path).unwrap());
        fs::remove_file(path.join(LOCK)).unwrap();
        fs::create_dir(path.join(LOCK)).unwrap();
        assert!(is_in_use(&path).is_err());
    }

    #[test]
    fn a_test_of_the_lock_does_not_stop_a_run_from_starting() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        drop(Folder::create(&path).unwrap());
        fs::write(path.join("config.toml"), "").unwrap();
        let tested = File::open(path.join(LOCK)).unwrap();
        tested.lock_shared().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LOCK_PAUSE);
                drop(tested);
            });
            assert!(Folder::open(&path).is_ok());
        });
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_private_state() {
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
        // A directory where the temporary file would be.
        fs::create_dir(path.with_extension("writing")).unwrap();
        assert!(write(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
