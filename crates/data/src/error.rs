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
    #[error("{}, line {line}: expected a key {expected}, got none; set data.format if the rows are \
        of another format", path.display())]
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
    #[error("{}: expected a column {expected} for the {role}, got {got}; set {key} to a name, or \
        in a table to a number counted from 1", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The role: "text", "image", "label", "group".
        role: &'static str,
        /// The key of a configuration that names the column.
        key: &'static str,
        /// The names tried.
        expected: String,
        /// The columns that exist.
        got: String,
    },
    /// A column is given by its number, but the first row has its default name there.
    #[error("{}: {key} is a number, so the first row is a record, but it has the name {name:?} in \
        that column; set {key} to the name, or remove the first row", path.display())]
    NumberedHeader {
        /// The file.
        path: PathBuf,
        /// The key of a configuration that names the column.
        key: &'static str,
        /// The default name.
        name: &'static str,
    },
    /// A row has no value in a column.
    #[error("{}, {unit} {line}: {column:?} has no value; complete the row, or set data.missing = \
        \"skip\" to leave its place vacant", path.display())]
    MissingCell {
        /// The file.
        path: PathBuf,
        /// "line", or "row" if the file has no lines.
        unit: &'static str,
        /// The first line of the row, or its index counted from 1.
        line: u64,
        /// The name of the column or key.
        column: String,
    },
    /// A row does not name its group.
    ///
    /// It is not skipped, because the number of groups would then depend on it.
    #[error("{}, {unit} {line}: {column:?} (data.group) has no value; expected the name of a \
        person in every row, also with data.missing = \"skip\"", path.display())]
    MissingGroup {
        /// The file.
        path: PathBuf,
        /// "line", or "row" if the file has no lines.
        unit: &'static str,
        /// The first line of the row, or its index counted from 1.
        line: u64,
        /// The name of the column or key.
        column: String,
    },
    /// A file of columns is damaged or of an unsupported kind.
    #[error("{}: {what}", path.display())]
    Columnar {
        /// The file.
        path: PathBuf,
        /// What is wrong, without content of the file.
        what: String,
    },
    /// A value in a file of columns has the wrong type.
    #[error("{}, row {row}: {column:?} must be {expected}, got {got}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The name of the column.
        column: String,
        /// The expected type.
        expected: &'static str,
        /// The type found.
        got: &'static str,
    },
    /// A value in a file of columns exceeds the limit of a row.
    #[error("{}, row {row}: expected a value of at most {limit} bytes, got a longer \
        one", path.display())]
    LongValue {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1.
        row: u64,
        /// The largest number of bytes allowed.
        limit: usize,
    },
    /// A file of columns has those of labelled rows and those of prompts.
    #[error("{}: expected a text and a label, or a prompt and an answer, got {got}; set \
        data.text_column and data.label_column, or remove one of these pairs", path.display())]
    AmbiguousColumns {
        /// The file.
        path: PathBuf,
        /// The columns.
        got: String,
    },
    /// A folder is not one of images.
    #[error("{}: {what}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What was expected, and what was found.
        what: String,
    },
    /// An image cannot be read, or has another size than the others.
    #[error("{place}: {what}")]
    Image {
        /// The file of the image, or the file and row that names it.
        place: String,
        /// What was expected, without content of the image.
        what: String,
    },
    /// The size to which images are scaled is invalid.
    #[error(
        "data.image_size: expected height and width from 1 to {limit} and 1 or 3 channels, \
        got {got:?}"
    )]
    ImageSize {
        /// The largest height and width.
        limit: usize,
        /// The size given.
        got: [usize; 3],
    },
    /// Columns of texts and of images are both given.
    #[error("expected data.text_column or data.image_column, got both")]
    TextAndImage,
    /// The format is not read from a stream.
    #[error("{}: the format {format} must be read from a file or folder", path.display())]
    NotAStream {
        /// The path.
        path: PathBuf,
        /// The format.
        format: Format,
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
    #[error("{}: expected a file of labels beside it ({tried}), got none; put it \
        there", path.display())]
    NoLabels {
        /// The file of images.
        path: PathBuf,
        /// The names tried.
        tried: String,
    },
    /// The format of the file cannot be detected.
    #[error("{}: cannot detect the format, {}; set data.format \
        (--format)", path.display(), describe(candidates))]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The formats that match.
        candidates: Vec<Format>,
    },
    /// The name of a format is unknown.
    #[error("data.format: expected one of {}, got {got:?}", names(&Format::ALL))]
    UnknownFormat {
        /// The name given.
        got: String,
    },
    /// An option does not apply to the format.
    ///
    /// It is refused rather than ignored, because the guarantee may depend on it (groups).
    #[error("{option} does not apply to the format {format}; remove it")]
    Option {
        /// The key of the option in a configuration.
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
