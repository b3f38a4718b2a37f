//! Errors of a configuration.

use super::wording::{one_line, syntax};

/// An error of a configuration, on one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not TOML, or not of the expected structure.
    #[error("{}", syntax(&.0.to_string()))]
    Syntax(#[from] toml::de::Error),
    /// A key does not exist.
    #[error("{key}: unknown key; {hint}")]
    UnknownKey {
        /// The key with its section.
        key: String,
        /// A similar key, or all keys.
        hint: String,
    },
    /// The optimizer does not read a key of `[optimizer]`.
    #[error("{key}: {}; {hint}", unread_key_message(optimizer, readers))]
    UnreadKey {
        /// The key with its section.
        key: String,
        /// The name of the optimizer.
        optimizer: &'static str,
        /// The optimizers that read the key.
        readers: Vec<&'static str>,
        /// A similar key, or all keys.
        hint: String,
    },
    /// The value of a key is invalid, or contradicts another.
    #[error("{key}: {message}")]
    Value {
        /// The key with its section.
        key: String,
        /// What was expected, and what was given.
        message: String,
    },
    /// A change is not of the form `KEY=VALUE`.
    #[error("expected KEY=VALUE, got {0:?}")]
    Change(String),
    /// The values of a grid are not of the form `KEY=V1,V2`.
    #[error("expected KEY=V1,V2 (after NAME: for one optimizer), got {0:?}")]
    Grid(String),
    /// A configuration has no TOML form.
    #[error("{}", one_line(&.0.to_string()))]
    Print(#[from] toml::ser::Error),
}

fn unread_key_message(optimizer: &str, readers: &[&str]) -> String {
    match readers {
        [] => format!("not a key of {optimizer}"),
        names => format!("not read by {optimizer}, only by {}", names.join(", ")),
    }
}
