//! Errors of tokenizers, generation and metrics. No message shows a text.

use std::io;
use std::path::PathBuf;

/// An error of a tokenizer, of generation, or of a metric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tokenizer file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file is not a valid `tokenizer.json`.
    #[error("{}: not a tokenizer: {reason}", path.display())]
    InvalidTokenizer {
        /// The file.
        path: PathBuf,
        /// The message of the `tokenizers` crate, without control characters.
        reason: String,
    },
    /// A tokenizer cannot be written.
    #[error("{}: cannot write the tokenizer: {reason}", path.display())]
    SaveTokenizer {
        /// The file.
        path: PathBuf,
        /// The message of the `tokenizers` crate.
        reason: String,
    },
    /// The vocabulary of a new tokenizer is too small for all bytes and special tokens.
    #[error("the vocabulary of a new tokenizer must have at least {least} tokens, got {got}")]
    VocabTooSmall {
        /// The smallest size allowed.
        least: usize,
        /// The size given.
        got: usize,
    },
    /// Training of a tokenizer failed.
    #[error("cannot train a tokenizer: {0}")]
    TrainTokenizer(String),
    /// The tokenizer cannot encode a text.
    #[error("the tokenizer cannot encode a text; check that tokenizer.json is complete")]
    Encode,
    /// The tokenizer cannot decode tokens.
    #[error("the tokenizer cannot decode the tokens; check that it belongs to the model")]
    Decode,
    /// A prompt was requested for a model that does not generate text.
    #[error("the model does not generate text; a causal language model is needed")]
    NotCausal,
    /// A model has no usable chat template.
    #[error("the chat template of the model cannot be used: {reason}")]
    InvalidChatTemplate {
        /// What is wrong, without control characters.
        reason: String,
    },
    /// The chat template failed on a text.
    #[error("the chat template of the model cannot format a text")]
    FormatChat,
    /// An option of generation is out of range.
    #[error("{name} must be {expected}, got {got}")]
    Generation {
        /// The option.
        name: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// The model refused a prompt or failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// There is nothing to score.
    #[error("expected at least one hypothesis with its references, got none")]
    EmptyCorpus,
    /// The numbers of hypotheses and of lists of references differ.
    #[error(
        "expected as many hypotheses as lists of references, got {hypotheses} and {references}"
    )]
    Lengths {
        /// The number of hypotheses.
        hypotheses: usize,
        /// The number of lists of references.
        references: usize,
    },
    /// An item has no reference, not even an empty one.
    #[error("expected at least one reference for item {item}, got none")]
    NoReference {
        /// The item, counted from 1.
        item: u64,
    },
    /// A pseudo-count is out of range.
    #[error("a pseudo-count must be between 0 and 1, got {got}")]
    Pseudocount {
        /// The value given.
        got: f64,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
