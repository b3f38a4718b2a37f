//! Errors of models and model files.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why a model or one of its files was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The graph is invalid, does not fit its values, or is not supported by the device.
    #[error("{0}")]
    Graph(String),
    /// The engine returned an error.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An array has an invalid shape, or a matrix decomposition failed.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// A file operation failed.
    #[error("{}: cannot be {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation: "read" or "written".
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The contents of a file are invalid.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A required key of a configuration is missing.
    #[error("{}: the key \"{key}\" is missing", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key, with the names of the objects that contain it.
        key: String,
    },
    /// The value of a key is invalid or not supported.
    #[error("{}: \"{key}\" must be {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with the names of the objects that contain it.
        key: String,
        /// The expected value.
        expected: String,
        /// The value in the file.
        got: String,
    },
    /// A required tensor is missing.
    #[error("{}: there is no tensor {}", path.display(), quoted(names, " or "))]
    MissingTensor {
        /// The file, or the directory of a sharded checkpoint.
        path: PathBuf,
        /// The accepted names.
        names: Vec<String>,
    },
    /// A tensor has another shape than the model's parameter.
    #[error("{}: tensor {name:?} must have the shape {expected:?}, got {got:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape of the parameter.
        expected: Vec<usize>,
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// The elements of a tensor have an unsupported type.
    #[error("{}: tensor {name:?} must be of type F32, F16, BF16 or F64, got {got}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in the file.
        got: String,
    },
    /// An element is NaN or infinite, or overflows when it is rounded to the type of the file.
    #[error(
        "{}: tensor {name:?} must be finite in {dtype}, got {got} at index {index}",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in which the element is not finite.
        dtype: &'static str,
        /// Index of the element, row-major.
        index: usize,
        /// The element.
        got: f32,
    },
    /// Some tensors are not parameters of the model.
    #[error(
        "{}: {} tensor(s) are not parameters of the model: {}",
        path.display(), names.len(), first_names(names)
    )]
    Unused {
        /// The file, or the directory of a sharded checkpoint.
        path: PathBuf,
        /// Names of the tensors.
        names: Vec<String>,
    },
    /// The directory already contains a model.
    #[error(
        "{}: the directory already contains a model; choose another directory or replace it",
        path.display()
    )]
    Exists {
        /// A file of that model.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, action: "read", source }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, action: "written", source }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Display) -> Self {
        Self::Malformed { path: path.to_path_buf(), reason: excerpt(&reason.to_string(), 400) }
    }
}

/// Returns at most `max_chars` characters of a text, without control characters.
///
/// Text from a file can have any length and can contain terminal escape sequences.
pub(crate) fn excerpt(text: &str, max_chars: usize) -> String {
    let shown = text
        .chars()
        .take(max_chars)
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char });
    shown.chain(text.chars().nth(max_chars).map(|_| '…')).collect()
}

/// Returns the names in quotation marks, separated by `separator`.
fn quoted(names: &[String], separator: &str) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(separator)
}

/// Returns up to five of the names.
fn first_names(names: &[String]) -> String {
    let shown = quoted(&names[..names.len().min(5)], ", ");
    if names.len() > 5 { shown + ", …" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_short_and_have_no_control_characters() {
        assert_eq!(excerpt("äbc", 3), "äbc");
        assert_eq!(excerpt("äbcd", 3), "äbc…");
        assert_eq!(excerpt("a\u{1b}[2J\n", 9), "a\u{fffd}[2J\u{fffd}");
    }
}
