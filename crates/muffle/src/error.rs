//! Errors of the library and their categories.

use crate::config::ConfigError;
use crate::hub::HubError;
use crate::run::chain::ChainError;
use crate::run::snapshot::SnapshotError;
use crate::verify::signature::KeyError;
use protocol::Refused;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// An error of the library, displayed on one line.
///
/// A message can quote a file: control characters are replaced when the error is displayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of a configuration is unknown, or its value is invalid or contradicts another.
    #[error("{}{}", path_prefix(path.as_deref()), printable(source))]
    Config {
        /// The file, if the configuration came from one.
        path: Option<PathBuf>,
        /// The key, what was expected, and what was given.
        source: ConfigError,
    },
    /// The system refused an operation on a file or a folder.
    #[error("{}: {source}", printable_path(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is not valid JSON, or not of the expected structure.
    #[error("{}: invalid JSON: {}", printable_path(path), printable(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// A file is damaged, contradicts itself, or belongs to another run.
    #[error("{}: {}", printable_path(path), printable(message))]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        message: String,
    },
    /// A ledger is damaged or older than another file, or an entry cannot be added.
    #[error(
        "{}: {}",
        path.as_deref().map_or_else(|| "ledger".into(), printable_path),
        printable(source)
    )]
    Ledger {
        /// The file, if the ledger or a position in it came from one.
        path: Option<PathBuf>,
        /// What is wrong with it.
        source: ChainError,
    },
    /// A checkpoint is damaged.
    #[error("{}: damaged: {}", printable_path(path), printable(source))]
    Snapshot {
        /// The folder of the checkpoint.
        path: PathBuf,
        /// What is damaged.
        source: SnapshotError,
    },
    /// The folder of a run is not in the state that the operation needs.
    #[error("{}: {}", printable_path(path), printable(message))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Its state, and what to do.
        message: String,
    },
    /// A data file was refused.
    #[error("{}", printable(.0))]
    Data(#[from] data::Error),
    /// Rows of a data file do not fit the configuration or the model.
    #[error("{}: {}", printable(place), printable(message))]
    Rows {
        /// The file or the configuration's key, and the line.
        place: String,
        /// What was expected. Rows are not shown.
        message: String,
    },
    /// A tokenizer was refused, or texts cannot be encoded, generated or scored.
    #[error("{}", printable(.0))]
    Text(#[from] text::Error),
    /// A model, its files or an example was refused.
    #[error("{}", printable(.0))]
    Model(#[from] model::Error),
    /// The engine refused the model, or could not compute.
    #[error("{}", printable(.0))]
    Engine(#[from] engine::Error),
    /// Keys or noise could not be made.
    #[error("{}", printable(.0))]
    Noise(#[from] noise::Error),
    /// A model cannot be fetched from the hub.
    #[error("{}", printable(.0))]
    Hub(#[from] HubError),
    /// A number is out of range, or an accountant does not support an event.
    #[error("{}", printable(.0))]
    Accounting(#[source] accounting::Error),
    /// No noise, number of steps or lot size keeps the promise.
    #[error("{}", printable(.0))]
    Promise(#[source] accounting::Error),
    /// The curator or the optimizer refused a query.
    #[error("{}", printable(.0))]
    Refused(#[from] Refused),
    /// An audit was refused.
    #[error("{}", printable(.0))]
    Auditing(#[source] audit::Error),
    /// An audit cannot be run with these settings.
    #[error("{}", printable(.0))]
    Audit(String),
    /// A signing key or a public key was refused. The key is not shown.
    #[error("{}: {}", printable_path(path), printable(source))]
    Key {
        /// The file of the key.
        path: PathBuf,
        /// What was expected.
        source: KeyError,
    },
    /// The processes of a run were started with different inputs.
    #[error("rank {rank} has another {what} than rank 0; start all processes with the same")]
    RanksDiffer {
        /// The first process that differs.
        rank: usize,
        /// What differs.
        what: String,
    },
    /// The parameters of two processes are no longer the same.
    #[error(
        "the parameters of rank {rank} differ from those of rank 0 (different processors, or \
         faulty memory); resume from the last checkpoint with muffle resume"
    )]
    RanksDiverged {
        /// The first process that differs.
        rank: usize,
    },
    /// Another process is gone, or does not answer.
    #[error("{}", printable(.0))]
    Distributed(#[from] distributed::Error),
    /// A document or a message between processes cannot be converted to or from JSON.
    #[error("JSON of a document or of a message between processes: {0}")]
    Encoding(#[source] serde_json::Error),
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness: {0}")]
    Randomness(#[from] getrandom::Error),
    /// Threads cannot be started.
    #[error("threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A bug in the program.
    #[error("internal error: {0}")]
    Internal(&'static str),
    /// The run was asked to stop; it is saved and can be resumed.
    #[error("stopped")]
    Stopped,
}

/// The category of an error, which decides the exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// An argument, a file or its content is invalid.
    Input,
    /// A promise of privacy cannot be kept, or its budget is spent.
    Promise,
    /// The program, the machine or another process failed.
    Fault,
    /// The run was asked to stop.
    Stopped,
}

impl Error {
    /// Returns the category of the error.
    pub fn category(&self) -> Category {
        match self {
            Self::Stopped => Category::Stopped,
            Self::Promise(_) | Self::Refused(Refused::Budget(_)) => Category::Promise,
            Self::Io { source, .. }
            | Self::Data(data::Error::Io { source, .. })
            | Self::Model(model::Error::Io { source, .. }) => io_category(source),
            Self::Hub(error) => error.kind.category(),
            Self::Refused(Refused::Failed(_))
            | Self::Ledger { source: ChainError::Randomness(_), .. }
            | Self::Engine(
                engine::Error::OutOfMemory { .. }
                | engine::Error::Order(_)
                | engine::Error::Device(_),
            )
            | Self::Noise(_)
            | Self::RanksDiverged { .. }
            | Self::Distributed(_)
            | Self::Encoding(_)
            | Self::Randomness(_)
            | Self::Threads(_)
            | Self::Internal(_) => Category::Fault,
            Self::Config { .. }
            | Self::Json { .. }
            | Self::Format { .. }
            | Self::Ledger { .. }
            | Self::Snapshot { .. }
            | Self::Folder { .. }
            | Self::Data(_)
            | Self::Rows { .. }
            | Self::Text(_)
            | Self::Model(_)
            | Self::Engine(_)
            | Self::Accounting(_)
            | Self::Refused(Refused::Query(_))
            | Self::Audit(_)
            | Self::Auditing(_)
            | Self::Key { .. }
            | Self::RanksDiffer { .. } => Category::Input,
        }
    }

    /// Makes an error about a key of a configuration that did not come from a file.
    pub(crate) fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        ConfigError::Value { key: key.into(), message: message.into() }.into()
    }

    /// Returns a function that adds a path to an error of the system.
    pub fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path: path.clone(), source }
    }

    /// Returns a function that adds a path to an error of the JSON parser.
    pub(crate) fn json(path: &Path) -> impl Fn(serde_json::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Json { path: path.clone(), source }
    }

    /// Returns a function that adds a path to an error of a ledger.
    pub(crate) fn ledger(path: &Path) -> impl Fn(ChainError) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Ledger { path: Some(path.clone()), source }
    }

    /// Makes an error about a damaged or contradictory file.
    pub(crate) fn format(path: &Path, message: impl Into<String>) -> Self {
        Self::Format { path: path.into(), message: message.into() }
    }

    /// Makes an error about a folder in the wrong state.
    pub(crate) fn folder(path: &Path, message: impl Into<String>) -> Self {
        Self::Folder { path: path.into(), message: message.into() }
    }
}

impl From<ConfigError> for Error {
    fn from(source: ConfigError) -> Self {
        Self::Config { path: None, source }
    }
}

impl From<ChainError> for Error {
    fn from(source: ChainError) -> Self {
        Self::Ledger { path: None, source }
    }
}

impl From<accounting::Error> for Error {
    fn from(error: accounting::Error) -> Self {
        match error {
            accounting::Error::Unreachable { .. } => Self::Promise(error),
            other => Self::Accounting(other),
        }
    }
}

impl From<audit::Error> for Error {
    fn from(error: audit::Error) -> Self {
        match error {
            audit::Error::Accounting(error) => error.into(),
            audit::Error::Refused(refused) => refused.into(),
            other => Self::Auditing(other),
        }
    }
}

/// The category of a system error: a wrong or forbidden path is input, anything else a fault.
fn io_category(error: &io::Error) -> Category {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::AlreadyExists
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::DirectoryNotEmpty
        | Kind::ReadOnlyFilesystem
        | Kind::InvalidInput
        | Kind::InvalidData
        | Kind::InvalidFilename
        | Kind::UnexpectedEof => Category::Input,
        _ => Category::Fault,
    }
}

/// Replaces control characters, so that the text is one line and cannot control a terminal.
fn printable(text: impl Display) -> String {
    text.to_string().replace(char::is_control, "\u{fffd}")
}

fn printable_path(path: &Path) -> String {
    printable(path.display())
}

fn path_prefix(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("{}: ", printable_path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn messages_have_no_control_characters() {
        assert_eq!(
            Error::config("x", "unknown field `\u{1b}[2J`\n").to_string(),
            "x: unknown field `\u{fffd}[2J`\u{fffd}"
        );
        let path = Path::new("a\u{1b}[2J");
        let refused = serde_json::from_str::<u32>("").unwrap_err();
        for error in [
            Error::folder(path, "x\ny"),
            Error::json(path)(refused),
            Error::io(path)(io::Error::other("x")),
            Error::Refused(Refused::Query("\u{1b}".into())),
        ] {
            assert!(!error.to_string().contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn errors_have_sources_and_categories() {
        let path = Path::new("f");
        let json = Error::json(path)(serde_json::from_str::<u32>("x").unwrap_err());
        assert!(json.source().unwrap().is::<serde_json::Error>());
        assert_eq!(json.category(), Category::Input);
        let absent = Error::io(path)(io::ErrorKind::NotFound.into());
        assert!(absent.source().unwrap().is::<io::Error>());
        assert_eq!(absent.category(), Category::Input);
        let full = Error::io(path)(io::ErrorKind::StorageFull.into());
        assert_eq!(full.category(), Category::Fault);
        let unreachable = accounting::Error::Unreachable {
            parameter: "noise multiplier",
            epsilon: 1.0,
            delta: 1e-5,
            reason: String::new(),
        };
        let promise = Error::from(unreachable);
        assert_eq!(promise.category(), Category::Promise);
        assert!(promise.source().unwrap().is::<accounting::Error>());
        assert_eq!(Error::from(accounting::Error::TooMany).category(), Category::Input);
        assert_eq!(Error::from(Refused::Budget("b".into())).category(), Category::Promise);
        assert_eq!(Error::from(Refused::Query("q".into())).category(), Category::Input);
        assert_eq!(Error::from(Refused::Failed("f".into())).category(), Category::Fault);
        assert_eq!(Error::from(distributed::Error::Lost { rank: 1 }).category(), Category::Fault);
        assert_eq!(Error::Stopped.category(), Category::Stopped);
    }
}
