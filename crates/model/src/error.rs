//! Errors of models and their files.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why a model or one of its files was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A graph or its values are inconsistent, or a device cannot compute it.
    #[error("{0}")]
    Graph(String),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An array or a decomposition was refused.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// The system refused.
    #[error("{}: cannot be {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: "read", "written".
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name says, or contradicts itself.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A configuration lacks a key.
    #[error("{}: the key \"{key}\" is missing", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key, with those it lies within.
        key: String,
    },
    /// A configuration says something that has no meaning here.
    #[error("{}: \"{key}\" must be {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with those it lies within.
        key: String,
        /// What would have a meaning.
        expected: String,
        /// What it says.
        got: String,
    },
    /// The weights lack a tensor.
    #[error("{}: there is no tensor {}", path.display(), names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or "))]
    MissingTensor {
        /// The file, or the directory of several.
        path: PathBuf,
        /// The names it could have had.
        names: Vec<String>,
    },
    /// A tensor has another shape.
    #[error("{}: tensor {name:?} must have the shape {expected:?}, got {got:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape the model needs.
        expected: Vec<usize>,
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// A tensor's numbers are of a kind that is not read.
    #[error("{}: tensor {name:?} must be of type F32, F16, BF16 or F64, got {got}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in the file.
        got: String,
    },
    /// A number is NaN or infinite, or would be once rounded to the type asked for.
    #[error("{}: tensor {name:?} must be finite in {dtype}, got {got} at index \
        {index}", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type in which it is not finite.
        dtype: &'static str,
        /// Which number, counted row after row.
        index: usize,
        /// What it is.
        got: f32,
    },
    /// Tensors that no part of the model asked for.
    #[error("{}: the model has no place for {} tensor(s): \
        {}", path.display(), names.len(), listed(names))]
    Unused {
        /// The file, or the directory of several.
        path: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// There is a model already.
    #[error("{}: a model is there already; expected none, as replacing was not asked \
        for", path.display())]
    Exists {
        /// The file that was found.
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
        Self::Malformed { path: path.to_path_buf(), reason: short(&reason.to_string(), 400) }
    }
}

/// The beginning of a text that came out of a file: it may be of any length, and have in it what a
/// terminal obeys.
pub(crate) fn short(text: &str, longest: usize) -> String {
    let shown = text
        .chars()
        .take(longest)
        .map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter });
    shown.chain(text.chars().nth(longest).map(|_| '…')).collect()
}

/// The first few names.
fn listed(names: &[String]) -> String {
    let mut text =
        names.iter().take(5).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if names.len() > 5 {
        text += ", …";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_out_of_a_file_is_cut_and_cannot_move_the_cursor() {
        assert_eq!(short("äbc", 3), "äbc");
        assert_eq!(short("äbcd", 3), "äbc…");
        assert_eq!(short("a\u{1b}[2J\n", 9), "a\u{fffd}[2J\u{fffd}");
    }
}
