//! The operations by which a run changes files. All of them are here, so that tests can interrupt a
//! run at each.
//!
//! In builds with debug assertions the environment variable `MUFFLE_ABORT_AT=n` ends the process,
//! without any clean-up, at the n-th operation: what a kill does. Release builds do not read it.
//! Unit tests use `fault::fail_from` instead.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// As the system's defaults say.
    Default,
    /// The owner only.
    Owner,
}

/// Replaces a file in one step: a reader finds the old content or the new one, whole, also after a
/// power failure.
///
/// # Errors
/// If the system refuses; the old file is then unchanged.
pub(crate) fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let beside = path.with_extension("writing");
    let put = || {
        let mut file = create(&beside, access)?;
        write(&mut file, bytes)?;
        sync(&file)?;
        rename(&beside, path)?;
        sync_dir(path.parent().unwrap_or(Path::new(".")))
    };
    put().inspect_err(|_| {
        // The first error matters more than one of the clean-up.
        let _ = remove_file(&beside);
    })
}

/// Writes a file that must not exist yet, for its owner only.
///
/// # Errors
/// If it exists, or the system refuses.
pub(crate) fn create_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fault::operation()?;
    let mut file = options(Access::Owner).create_new(true).open(path)?;
    write(&mut file, bytes)?;
    sync(&file)
}

/// Appends to a file, which is created if it does not exist.
pub(crate) fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fault::operation()?;
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    write(&mut file, bytes)
}

/// Runs a function that writes one file by itself, and forces the file onto the disk.
pub(crate) fn produce<E>(
    path: &Path,
    make: impl FnOnce() -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    fault::operation().map_err(&failed)?;
    make()?;
    fault::torn(|| {
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(file.metadata()?.len() / 2))
    })
    .map_err(&failed)?;
    File::open(path).and_then(|file| sync(&file)).map_err(failed)
}

/// An empty file, or an existing one without its content.
fn create(path: &Path, access: Access) -> io::Result<File> {
    fault::operation()?;
    options(access).create(true).truncate(true).open(path)
}

/// Creates a file that is only locked, never written.
pub(crate) fn create_lock(path: &Path) -> io::Result<File> {
    create(path, Access::Default)
}

fn options(access: Access) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    if access == Access::Owner {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = access;
    options
}

fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    fault::torn(|| file.write_all(&bytes[..bytes.len() / 2]))?;
    file.write_all(bytes)
}

fn sync(file: &File) -> io::Result<()> {
    fault::operation()?;
    file.sync_all()
}

/// Renames a file or a directory.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::operation()?;
    fs::rename(from, to)
}

/// Makes a rename survive a power failure, where the system can open a directory.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    let Ok(directory) = File::open(path) else { return Ok(()) };
    sync(&directory)
}

/// Creates a directory and those above it.
pub(crate) fn create_dir_all(path: &Path) -> io::Result<()> {
    fault::operation()?;
    fs::create_dir_all(path)
}

/// Creates a directory that only its owner can open.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    fault::operation()?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Removes a file.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    fault::operation()?;
    fs::remove_file(path)
}

/// How the name of a directory begins while its files are being removed.
const REMOVING: &str = ".removing-";

/// Removes a directory in one step, if it exists: it gets another name, and is then removed file by
/// file.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    let doomed = doomed(path);
    clear(&doomed)?;
    match rename(path, &doomed) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    clear(&doomed)
}

fn doomed(path: &Path) -> PathBuf {
    path.with_file_name(format!(
        "{REMOVING}{}",
        path.file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Removes the rest of directories whose removal was interrupted.
pub(crate) fn finish_removals(within: &Path) -> io::Result<()> {
    for entry in fs::read_dir(within)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVING)) {
            clear(&path)?;
        }
    }
    Ok(())
}

/// Removes a directory that is not in use, if it exists, file by file.
pub(crate) fn clear(path: &Path) -> io::Result<()> {
    fault::operation()?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A moment before or after writes that other crates make by themselves.
pub(crate) fn moment() -> io::Result<()> {
    fault::operation()
}

/// Interruptions on purpose, for tests.
pub(crate) mod fault {
    use std::io;

    #[cfg(test)]
    thread_local! {
        /// Operations of this thread that still succeed.
        static LEFT: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    }

    /// From the n-th operation of this thread on, none succeeds: for the files this is a kill.
    /// `None` ends it.
    #[cfg(test)]
    pub(crate) fn fail_from(operation: Option<u64>) {
        LEFT.set(operation);
    }

    /// Whether the interruption is at this operation or was before it.
    #[cfg(test)]
    fn due() -> Option<io::Error> {
        let left = LEFT.get()?;
        LEFT.set(Some(left.saturating_sub(1)));
        (left == 0).then(|| io::Error::other("interrupted on purpose"))
    }

    /// Whether the process must end at this operation.
    #[cfg(all(debug_assertions, not(test)))]
    fn due() -> Option<io::Error> {
        use std::sync::LazyLock;
        use std::sync::atomic::{AtomicU64, Ordering};
        static AT: LazyLock<Option<u64>> =
            LazyLock::new(|| std::env::var("MUFFLE_ABORT_AT").ok()?.parse().ok());
        static DONE: AtomicU64 = AtomicU64::new(0);
        let at = (*AT)?;
        (DONE.fetch_add(1, Ordering::Relaxed) + 1 == at)
            .then(|| io::Error::other("interrupted on purpose"))
    }

    #[cfg(not(any(debug_assertions, test)))]
    #[inline(always)]
    fn due() -> Option<io::Error> {
        None
    }

    /// An operation comes next.
    #[inline]
    pub(super) fn operation() -> io::Result<()> {
        torn(|| Ok(()))
    }

    /// An operation comes next that, if it is interrupted, does half of its work.
    #[inline]
    pub(super) fn torn(half: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(error) = due() else { return Ok(()) };
        // Whether the half succeeds makes no difference to an interruption.
        let _ = half();
        if cfg!(test) { Err(error) } else { std::process::abort() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ResumeState at any operation, a file has its old content or the new one.
    #[test]
    fn a_file_is_replaced_in_one_step() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file.json");
        let mut outcomes = Vec::new();
        for operation in 0.. {
            fs::write(&path, "old").unwrap();
            fault::fail_from(Some(operation));
            let done = replace(&path, b"new content", Access::Default).is_ok();
            fault::fail_from(None);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text == "old" || text == "new content", "{operation}: {text}");
            outcomes.push(text);
            if done {
                break;
            }
        }
        // Create, write, sync, rename, sync the directory; then none was interrupted.
        assert_eq!(outcomes, ["old", "old", "old", "old", "new content", "new content"]);
    }

    #[test]
    fn a_directory_is_removed_in_one_step() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sealed");
        for operation in 0.. {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("a"), "1").unwrap();
            fs::write(path.join("b"), "2").unwrap();
            fault::fail_from(Some(operation));
            let done = remove_dir(&path).is_ok();
            fault::fail_from(None);
            assert!(
                !path.exists() || path.join("a").exists() && path.join("b").exists(),
                "{operation}"
            );
            if done {
                break;
            }
        }
        assert!(!doomed(&path).exists());
        remove_dir(&path).unwrap();
        fs::create_dir(doomed(&path)).unwrap();
        finish_removals(place.path()).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_secret_does_not_replace_anything() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        create_secret(&path, b"a").unwrap();
        assert_eq!(create_secret(&path, b"b").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"a");
        #[cfg(unix)]
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions())
                & 0o777,
            0o600
        );
    }
}
