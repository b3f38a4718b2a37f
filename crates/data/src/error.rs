//! Errors of data files.
//!
//! A message names the file, the line and what was expected. It never shows the content of a row,
//! because rows are private; for the same reason errors of decoders are not kept as sources.

use crate::format::Format;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// An error in a data file or in the options of its reader.
///
/// A `line` is the line of the file on which the row begins, counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, or its compression is damaged.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system or of the decompressor.
        source: io::Error,
    },
    /// The file has no records.
    #[error("{}: no records", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A row is not valid UTF-8.
    #[error("{}, line {line}: expected UTF-8, got an invalid byte at offset {offset} of the \
        row", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The number of valid bytes before the error.
        offset: usize,
    },
    /// A row exceeds the limit [`max_row_bytes`](crate::ReadOptions::max_row_bytes).
    #[error("{}, line {line}: expected a row of at most {limit} bytes, got a longer \
        one", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The largest number of bytes allowed.
        limit: usize,
    },
    /// A row of E2E has no separator.
    #[error("{}, line {line}: expected `||` between source and text, got none", path.display())]
    Separator {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
    },
    /// A row has more or fewer columns than the first.
    #[error("{}, line {line}: expected {expected} columns, got {got}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The number of columns of the first row, or the largest number allowed.
        expected: usize,
        /// The number of columns of this row.
        got: usize,
    },
    /// Quotation marks in a CSV row do not match.
    #[error("{}, line {line}: {what}", path.display())]
    Quotes {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// What was expected, and what was found.
        what: &'static str,
    },
    /// Invalid JSON, or JSON of another structure.
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line of the error.
        line: u64,
        /// The byte in that line, counted from 1.
        column: u64,
        /// The error, without content of the row.
        what: String,
    },
    /// A JSON row has none of the keys that are needed.
    #[error("{}, line {line}: expected a key {expected}, got none", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The keys, one of which is needed.
        expected: String,
    },
    /// The value of a key in a JSON row is missing or has the wrong type.
    #[error("{}, line {line}: {key:?} must be {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The type found.
        got: &'static str,
    },
    /// The column for a role cannot be determined.
    #[error("{}: expected a column {expected} for the {role}, got none; give its name, or its \
        number counted from 1", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The role: "text", "label", "group".
        role: &'static str,
        /// The names tried.
        expected: String,
    },
    /// A required cell is empty.
    #[error("{}, line {line}: expected a {role}, got an empty cell", path.display())]
    EmptyCell {
        /// The file.
        path: PathBuf,
        /// The first line of the row.
        line: u64,
        /// The role of the cell: "label", "group".
        role: &'static str,
    },
    /// A file of images or labels is truncated.
    #[error("{}: {part} must have {expected} bytes, got {got}; the file is \
        truncated", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// "the header", "image 7", "label 7".
        part: String,
        /// The number of bytes expected.
        expected: usize,
        /// The number of bytes found.
        got: usize,
    },
    /// A property of a file of images or labels is invalid.
    #[error("{}: {part} must be {expected}, got {got}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// "the width", "the number of labels".
        part: &'static str,
        /// The valid values.
        expected: String,
        /// The value found.
        got: String,
    },
    /// A PNG file cannot be decoded.
    #[error("{}, image {image}: {what}", path.display())]
    Png {
        /// The file.
        path: PathBuf,
        /// The image, counted from 1.
        image: u64,
        /// The error of the decoder, without content of the file.
        what: String,
    },
    /// The file of labels for images is not found.
    #[error("{}: expected a file of labels beside it ({tried}), got none; give \
        its path", path.display())]
    NoLabels {
        /// The file of images.
        path: PathBuf,
        /// The names tried.
        tried: String,
    },
    /// The format of the file cannot be detected.
    #[error("{}: cannot detect the format, {}; choose one with \
        --format", path.display(), describe(candidates))]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The formats that match.
        candidates: Vec<Format>,
    },
    /// The name of a format is unknown.
    #[error("a format must be one of {}, got {got:?}", names(&Format::ALL))]
    UnknownFormat {
        /// The name given.
        got: String,
    },
    /// An option does not apply to the format.
    ///
    /// It is refused rather than ignored, because the guarantee may depend on it (groups).
    #[error("the option \"{option}\" does not apply to the format {format}; remove it")]
    Option {
        /// The option.
        option: &'static str,
        /// The format.
        format: Format,
    },
    /// The scattering transform is not defined for images of this shape.
    #[error("scattering features: expected images of {} to {} rows and columns and {} to {} \
        channels, got {} × {} × {}", sides.start(), sides.end(), channels.start(), channels.end(),
        got[0], got[1], got[2])]
    ScatteringShape {
        /// The allowed heights and widths.
        sides: RangeInclusive<usize>,
        /// The allowed numbers of channels.
        channels: RangeInclusive<usize>,
        /// Height, width and channels.
        got: [usize; 3],
    },
    /// The references of one source exceed the limit.
    #[error("line {line}: expected at most {limit} bytes of references for one source, got more")]
    References {
        /// The first line of the first row with this source.
        line: u64,
        /// The largest number of bytes allowed.
        limit: usize,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

fn names(formats: &[Format]) -> String {
    formats.iter().map(Format::name).collect::<Vec<_>>().join(", ")
}

fn describe(candidates: &[Format]) -> String {
    match candidates {
        [] => format!("it looks like none of {}", names(&Format::ALL)),
        [only] => format!("it could be {only}"),
        several => format!("it could be any of {}", names(several)),
    }
}
