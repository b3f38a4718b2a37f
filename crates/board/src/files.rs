//! The files of a run that the board reads.
//!
//! Names come from the list below, never from a request. A symbolic link, a folder in place of a
//! file, or a file over its limit is an error. Folders with private state, checkpoints and data are
//! not in the list.

use muffle::report::{self, statement};
use muffle::run::{history, plan_file, result};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A file of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunFile {
    Config,
    Plan,
    History,
    Ledger,
    Result,
    Samples,
    Statement,
    Report,
}

const MEBIBYTE: u64 = 1 << 20;

impl RunFile {
    /// All files, as `verify` reads them.
    const ALL: [Self; 8] = [
        Self::Config,
        Self::Plan,
        Self::History,
        Self::Ledger,
        Self::Result,
        Self::Samples,
        Self::Statement,
        Self::Report,
    ];

    /// The path in the folder of a run.
    fn path(self) -> PathBuf {
        match self {
            Self::Config => "config.toml".into(),
            Self::Plan => plan_file::FILE.into(),
            Self::History => history::FILE.into(),
            Self::Ledger => "ledger.json".into(),
            Self::Result => result::RESULT.into(),
            Self::Samples => result::SAMPLES.into(),
            Self::Statement => Path::new("model").join(statement::FILE),
            Self::Report => report::FILE.into(),
        }
    }

    /// The largest size that is read, in bytes.
    fn limit(self) -> u64 {
        match self {
            Self::Config | Self::Plan | Self::Result => MEBIBYTE,
            Self::History | Self::Ledger | Self::Samples | Self::Statement => 16 * MEBIBYTE,
            Self::Report => 32 * MEBIBYTE,
        }
    }

    /// Reads the file from the folder of a run; `None` if it does not exist.
    ///
    /// # Errors
    /// What is wrong with the file, for the page.
    pub(crate) fn read(self, folder: &Path) -> Result<Option<String>, String> {
        let Some(file) = self.open(folder)? else { return Ok(None) };
        let mut text = String::new();
        let read = file.take(self.limit() + 1).read_to_string(&mut text);
        read.map_err(|error| self.problem(error))?;
        // It may have grown since its size was checked.
        if text.len() as u64 > self.limit() {
            return Err(self.too_large(text.len() as u64));
        }
        Ok(Some(text))
    }

    /// Whether the file exists and can be read.
    pub(crate) fn exists(self, folder: &Path) -> bool {
        matches!(self.open(folder), Ok(Some(_)))
    }

    /// Opens the file if it is a regular one below its limit.
    fn open(self, folder: &Path) -> Result<Option<File>, String> {
        let path = folder.join(self.path());
        // The folder is canonical: a path that is not was changed by a symbolic link.
        match path.canonicalize() {
            Ok(canonical) if canonical == path => {}
            Ok(_) => return Err(self.problem("symbolic links are not followed")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.problem(error)),
        }
        // Checked before it is opened: opening a pipe would wait for a writer.
        let metadata = fs::symlink_metadata(&path).map_err(|error| self.problem(error))?;
        if !metadata.is_file() {
            return Err(self.problem("expected a file"));
        }
        if metadata.len() > self.limit() {
            return Err(self.too_large(metadata.len()));
        }
        File::open(&path).map(Some).map_err(|error| self.problem(error))
    }

    /// Describes what is wrong with the file.
    pub(crate) fn problem(self, problem: impl std::fmt::Display) -> String {
        format!("{}: {problem}", self.path().display())
    }

    fn too_large(self, size: u64) -> String {
        self.problem(format!("expected at most {} bytes, got {size}", self.limit()))
    }
}

/// Checks the files that `verify` reads whole: their kind and size.
///
/// # Errors
/// What is wrong with the first of them.
pub(crate) fn check_for_verify(folder: &Path) -> Result<(), String> {
    RunFile::ALL.into_iter().try_for_each(|file| file.open(folder).map(|_| ()))
}
