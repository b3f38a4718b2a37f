//! Errors of the program and their exit codes.

use muffle::protocol::Refused;
use muffle::{Category, distributed, engine, model, text};
use std::path::{Path, PathBuf};

/// The exit code of faults of the program or the machine.
pub(crate) const FAULT: u8 = 5;

/// An error of a command, displayed on one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Arguments are missing, invalid or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A line of a file that an argument names is invalid.
    #[error("{}:{line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] muffle::Error),
    /// A claim is false: an audit or a verification found a contradiction.
    #[error("{0}")]
    Refuted(String),
    /// No check of a claim failed, but evidence is missing.
    #[error("{0}")]
    Incomplete(String),
    /// The board cannot start.
    #[error(transparent)]
    Board(#[from] board::Error),
    /// A run was asked to stop and can be resumed.
    #[error("stopped; resume with: {resume}")]
    Stopped {
        /// The command that resumes it.
        resume: String,
    },
}

/// Converts errors of other crates by way of `muffle::Error`.
macro_rules! from_library_errors {
    ($($error:ty),+) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Library(error.into())
            }
        })+
    };
}
from_library_errors!(
    engine::Error,
    model::Error,
    noise::Error,
    Refused,
    distributed::Error,
    text::Error,
    rayon::ThreadPoolBuildError
);

impl From<accounting::Error> for Error {
    /// Missing arguments are named as options: `--lot-size`.
    fn from(error: accounting::Error) -> Self {
        match error {
            accounting::Error::Missing(names) => {
                let is_name = |word: &str| {
                    ["delta", "dataset_size", "lot_size", "sampling_rate", "steps", "epochs"]
                        .contains(&word.trim_end_matches(','))
                };
                let word = |word: &str| match is_name(word) {
                    true => format!("--{}", word.replace('_', "-")),
                    false => word.into(),
                };
                Self::Usage(format!(
                    "give {}",
                    names.split(' ').map(word).collect::<Vec<_>>().join(" ")
                ))
            }
            other => Self::Library(other.into()),
        }
    }
}

impl Error {
    /// Makes an error about missing, invalid or contradictory arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Makes an error about an invalid line of a file.
    pub(crate) fn line(
        path: &Path,
        line: u64,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Line { path: path.into(), line, source: source.into() }
    }

    /// Converts the error of a run; if it was stopped, adds the command that resumes it.
    pub(crate) fn of_run(error: muffle::Error, folder: &Path) -> Self {
        match error {
            muffle::Error::Stopped => {
                Self::Stopped { resume: format!("muffle resume {}", folder.display()) }
            }
            other => Self::Library(other),
        }
    }

    /// The exit code, as `muffle --help` and the guide document it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Refuted(_) => 1,
            Self::Usage(_) | Self::Line { .. } => 2,
            Self::Board(board::Error::Randomness(_)) => FAULT,
            Self::Board(_) => 2,
            Self::Incomplete(_) => 4,
            Self::Stopped { .. } => 130,
            Self::Library(error) => match error.category() {
                Category::Input => 2,
                Category::Promise => 3,
                Category::Fault => FAULT,
                Category::Stopped => 130,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        let line = || "line".to_string();
        assert_eq!(Error::Refuted(line()).code(), 1);
        assert_eq!(Error::Usage(line()).code(), 2);
        assert_eq!(Error::from(Refused::Query(line())).code(), 2);
        assert_eq!(Error::from(Refused::Budget(line())).code(), 3);
        assert_eq!(Error::Incomplete(line()).code(), 4);
        assert_eq!(Error::from(Refused::Failed(line())).code(), 5);
        assert_eq!(Error::from(distributed::Error::Lost { rank: 1 }).code(), 5);
        assert_eq!(Error::Library(muffle::Error::Internal("line")).code(), 5);
        assert_eq!(Error::of_run(muffle::Error::Stopped, Path::new("run")).code(), 130);
        assert_eq!(
            Error::of_run(muffle::Error::Stopped, Path::new("run")).to_string(),
            "stopped; resume with: muffle resume run"
        );
    }
}
