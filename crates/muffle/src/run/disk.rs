//! All operations by which a run changes files, so that tests can interrupt it at each.
//!
//! In builds with debug assertions the environment variable `MUFFLE_ABORT_AT=n` aborts the process
//! at the n-th operation, without any clean-up, as a kill does. Release builds do not read it.
//! Unit tests use `fault::fail_from` instead.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Permissions of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The default of the system.
    Default,
    /// Only the owner can read it.
    Owner,
}

/// Replaces a file atomically: a reader finds the old or the new content, also after a power
/// failure.
///
/// # Errors
/// If the system refuses; the old file is then unchanged.
pub(crate) fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let temporary = path.with_extension("writing");
    let write_and_rename = || {
        let mut file = create(&temporary, access)?;
        write(&mut file, bytes)?;
        sync(&file)?;
        rename(&temporary, path)?;
        sync_dir(path.parent().unwrap_or(Path::new(".")))
    };
    write_and_rename().inspect_err(|_| {
        // The first error matters more than one of the clean-up.
        let _ = remove_file(&temporary);
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

/// Calls a function that writes one file, and syncs the file to disk.
pub(crate) fn write_with<E>(
    path: &Path,
    write_file: impl FnOnce() -> Result<(), E>,
    to_error: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    fault::operation().map_err(&to_error)?;
    write_file()?;
    fault::interrupt_after(|| {
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(file.metadata()?.len() / 2))
    })
    .map_err(&to_error)?;
    File::open(path).and_then(|file| sync(&file)).map_err(to_error)
}

/// Creates an empty file, or truncates an existing one.
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
    fault::interrupt_after(|| file.write_all(&bytes[..bytes.len() / 2]))?;
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

/// Syncs a directory, so that a rename survives a power failure, if the system can open it.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    let Ok(directory) = File::open(path) else { return Ok(()) };
    sync(&directory)
}

/// Creates a directory and its parents.
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

/// The prefix of the name of a directory while its files are being removed.
const REMOVING: &str = ".removing-";

/// Removes a directory atomically, if it exists: renames it, then removes its files.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    let renamed = removal_path(path);
    remove_tree(&renamed)?;
    match rename(path, &renamed) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    remove_tree(&renamed)
}

/// The name of a directory while its files are being removed.
fn removal_path(path: &Path) -> PathBuf {
    path.with_file_name(format!(
        "{REMOVING}{}",
        path.file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Removes what is left of directories whose removal was interrupted.
pub(crate) fn finish_removals(within: &Path) -> io::Result<()> {
    for entry in fs::read_dir(within)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVING)) {
            remove_tree(&path)?;
        }
    }
    Ok(())
}

/// Removes a directory file by file, if it exists. Not atomic.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    fault::operation()?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A point before or after writes of other crates, at which tests can interrupt a run.
pub(crate) fn interruption_point() -> io::Result<()> {
    fault::operation()
}

/// Injected interruptions, for tests.
pub(crate) mod fault {
    use std::io;

    #[cfg(test)]
    thread_local! {
        /// Number of operations of this thread that still succeed.
        static REMAINING: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
    }

    /// Lets every operation of this thread fail from the n-th on, as if the process was killed.
    /// `None` switches this off.
    #[cfg(test)]
    pub(crate) fn fail_from(operation: Option<u64>) {
        REMAINING.set(operation);
    }

    /// Returns an error if this operation must fail.
    #[cfg(test)]
    fn injected_error() -> Option<io::Error> {
        let remaining = REMAINING.get()?;
        REMAINING.set(Some(remaining.saturating_sub(1)));
        (remaining == 0).then(|| io::Error::other("interrupted on purpose"))
    }

    /// Returns an error if the process must abort at this operation.
    #[cfg(all(debug_assertions, not(test)))]
    fn injected_error() -> Option<io::Error> {
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
    fn injected_error() -> Option<io::Error> {
        None
    }

    /// Called before each operation; interrupts it if that is due.
    #[inline]
    pub(super) fn operation() -> io::Result<()> {
        interrupt_after(|| Ok(()))
    }

    /// Called before an operation; if an interruption is due, does `half` of its work first.
    #[inline]
    pub(super) fn interrupt_after(half: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(error) = injected_error() else { return Ok(()) };
        // Whether the half succeeds makes no difference to an interruption.
        let _ = half();
        if cfg!(test) { Err(error) } else { std::process::abort() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After an interruption at any operation, a file has its old content or the new one.
    #[test]
    fn a_file_is_replaced_atomically() {
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
    fn a_directory_is_removed_atomically() {
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
        assert!(!removal_path(&path).exists());
        remove_dir(&path).unwrap();
        fs::create_dir(removal_path(&path)).unwrap();
        finish_removals(place.path()).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_secret_is_not_written_over_a_file() {
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
