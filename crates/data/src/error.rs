//! What can be wrong with a data file. A message names the file, the line and what was expected; it
//! never shows what a row says, for rows are private.

use crate::format::Format;
use std::io;
use std::path::PathBuf;

/// Why a data file was refused.
///
/// A `line` is the line of the file on which the row begins, counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused, or a compressed file is damaged.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing is in the file but white space and headers.
    #[error("{}: no records", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A row is not text.
    #[error("{}, line {line}: expected UTF-8, got something else at byte {offset} of the \
        row", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// How many bytes of the row are good.
        offset: usize,
    },
    /// A row is longer than anyone should have to hold in memory.
    #[error("{}, line {line}: expected a row of at most {limit} bytes, got a longer \
        one", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// The most that is read.
        limit: usize,
    },
    /// A row of E2E has no separator.
    #[error("{}, line {line}: expected `||` between what is given and the text, got \
        none", path.display())]
    Separator {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
    },
    /// A row has more or fewer columns than the first.
    #[error("{}, line {line}: expected {expected} columns, got {got}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// As many as the first row has, or the most that are read.
        expected: usize,
        /// As many as this one has.
        got: usize,
    },
    /// Quotation marks in a CSV file do not match.
    #[error("{}, line {line}: {what}", path.display())]
    Quotes {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// What was expected and what was found.
        what: &'static str,
    },
    /// Not JSON, or not of the right shape.
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line of the fault.
        line: u64,
        /// The byte in that line, counted from 1.
        column: u64,
        /// What is wrong, without a word of the row.
        what: String,
    },
    /// A row of JSON says nothing, or something of the wrong kind, under a key.
    #[error("{}, line {line}: {key:?} must be {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// The key, or the keys of which one is needed.
        key: String,
        /// What would have a meaning.
        expected: &'static str,
        /// The kind of what is there.
        got: &'static str,
    },
    /// It is not clear which column holds what is needed.
    #[error("{}: expected a column {expected} for the {role}, got none: give its name, or its \
        number counted from 1", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// What the column is needed for: "text", "label", "group".
        role: &'static str,
        /// The names that were looked for.
        expected: String,
    },
    /// A row has an empty cell where there must be something.
    #[error("{}, line {line}: expected a {role}, got an empty cell", path.display())]
    EmptyCell {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        line: u64,
        /// What the cell should hold: "label", "group".
        role: &'static str,
    },
    /// A file of images or of their labels ends too early.
    #[error("{}: {part} must have {expected} bytes, got {got}: the file is cut \
        off", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// "the header", "image 7", "label 7".
        part: String,
        /// As many as it should have.
        expected: usize,
        /// As many as there are.
        got: usize,
    },
    /// A file of images or of their labels is not what it should be.
    #[error("{}: {part} must be {expected}, got {got}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// "the width", "the number of labels".
        part: &'static str,
        /// What would have a meaning.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A PNG file cannot be decoded.
    #[error("{}, image {image}: {what}", path.display())]
    Png {
        /// The file.
        path: PathBuf,
        /// The image that was to be read, counted from 1.
        image: u64,
        /// What the decoder said.
        what: String,
    },
    /// Images without labels.
    #[error("{}: expected a file of labels beside it ({tried}), got none: name \
        one", path.display())]
    NoLabels {
        /// The file of images.
        path: PathBuf,
        /// What was looked for.
        tried: String,
    },
    /// The file could be of several formats, or of none.
    #[error("{}: cannot tell its format, {}: say which with \
        --format", path.display(), candidates_in_words(candidates))]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// What it could be.
        candidates: Vec<Format>,
    },
    /// There is no format of this name.
    #[error("a format must be one of {}, got {got:?}", names(&Format::ALL))]
    UnknownFormat {
        /// What was asked for.
        got: String,
    },
    /// An option was given that says nothing about this format. It is refused rather than ignored:
    /// whoever names a group counts on it.
    #[error("the option \"{option}\" means nothing for the format {format}")]
    Option {
        /// The option.
        option: &'static str,
        /// The format.
        format: Format,
    },
    /// One source has more references than anyone should have to hold in memory.
    #[error("line {line}: expected at most {limit} bytes of references for one source, got more")]
    References {
        /// Where the first row with this source begins.
        line: u64,
        /// The most that are held.
        limit: usize,
    },
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

fn names(formats: &[Format]) -> String {
    formats.iter().map(Format::name).collect::<Vec<_>>().join(", ")
}

fn candidates_in_words(candidates: &[Format]) -> String {
    match candidates {
        [] => format!("it looks like none of {}", names(&Format::ALL)),
        [only] => format!("it could be {only}"),
        several => format!("it could be any of {}", names(several)),
    }
}
