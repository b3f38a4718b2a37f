//! Streaming readers of data files, one for each format.
//!
//! A reader holds one row in memory, whatever the size of the file; a row beyond
//! [`ReadOptions::max_row_bytes`] is refused before it is read to its end. No input makes a reader
//! panic or loop forever. After an error a reader ends: an incomplete data set is not used.
//!
//! Text is UTF-8. A byte order mark, CR LF line ends, a missing last line end and gzip compression
//! under any name are accepted. A blank line is a row of the format `lines`, without text; in every
//! other line-based format it is skipped, and counted in line numbers.

mod dart;
mod e2e;
mod images;
mod input;
mod instructions;
mod json;
mod labelled;
mod lines;
mod table;

pub(crate) use e2e::is_header as is_e2e_header;
pub(crate) use labelled::is_header;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::record::Record;
use input::Input;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Options of a reader.
///
/// ```
/// use data::{Content, Format, ReadOptions};
///
/// let table = "review\tstars\nfine\t5\n";
/// let options = ReadOptions {
///     text: Some("review".into()),
///     label: Some("stars".into()),
///     ..ReadOptions::default()
/// };
/// let mut records = Format::Tsv.read_from(table.as_bytes(), "reviews.tsv", &options)?;
/// let Some(Ok(record)) = records.next() else { panic!("one record") };
/// assert!(matches!(record.content, Content::Labelled { label, .. } if label == "5"));
/// # Ok::<(), data::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The column or key of the text: a name or, for tables, a number counted from 1.
    ///
    /// The default is the first of `sentence`, `text`, `content`. For tsv, csv and jsonl.
    pub text: Option<String>,
    /// The column or key of the label.
    ///
    /// The default is the first of `label`, `class`, `target`. For tsv, csv and jsonl.
    pub label: Option<String>,
    /// The column or key of the group (person) that owns a row.
    ///
    /// For tsv, csv, jsonl and instructions.
    pub group: Option<String>,
    /// The file with the labels of images; by default in the same directory.
    ///
    /// For idx and png-strip.
    pub labels: Option<PathBuf>,
    /// Largest number of bytes of a row.
    pub max_row_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { text: None, label: None, group: None, labels: None, max_row_bytes: 16 << 20 }
    }
}

/// Records in the order of the file. The iterator ends after the first error.
pub type RecordIter = Box<dyn Iterator<Item = Result<Record>> + Send>;

impl Format {
    /// Reads the records of a file.
    ///
    /// # Errors
    /// If the file as a whole is invalid; errors in a row are returned when the row is reached. A
    /// file without records gives [`Error::Empty`].
    pub fn read(self, path: impl AsRef<Path>, options: &ReadOptions) -> Result<RecordIter> {
        let path = path.as_ref();
        self.read_from(open(path)?, path, options)
    }

    /// Reads records from a stream of bytes.
    ///
    /// The path is used in messages, and to find the labels of images.
    pub fn read_from(
        self,
        bytes: impl Read + Send + 'static,
        path: impl AsRef<Path>,
        options: &ReadOptions,
    ) -> Result<RecordIter> {
        self.check(options)?;
        let path = path.as_ref();
        let input = Input::new(bytes, path, options.max_row_bytes)?;
        Ok(match self {
            Self::E2e => until_error(e2e::E2e::new(input), path),
            Self::Dart => until_error(dart::Dart::new(input), path),
            Self::Lines => until_error(lines::Lines::new(input), path),
            Self::Instructions => {
                until_error(instructions::Instructions::new(input, options), path)
            }
            Self::Tsv => {
                until_error(labelled::Table::new(input, table::Separator::Tab, options), path)
            }
            Self::Csv => {
                until_error(labelled::Table::new(input, table::Separator::Comma, options), path)
            }
            Self::Jsonl => until_error(labelled::Jsonl::new(input, options), path),
            Self::Idx => until_error(images::Idx::new(input, options)?, path),
            Self::PngStrip => until_error(images::PngStrip::new(input, options)?, path),
        })
    }

    /// Checks that every option given applies to the format.
    fn check(self, options: &ReadOptions) -> Result<()> {
        let columns = matches!(self, Self::Tsv | Self::Csv | Self::Jsonl);
        let refused = [
            ("text", options.text.is_some() && !columns),
            ("label", options.label.is_some() && !columns),
            ("group", options.group.is_some() && !(columns || self == Self::Instructions)),
            ("labels", options.labels.is_some() && !matches!(self, Self::Idx | Self::PngStrip)),
        ];
        match refused.into_iter().find(|(_, refused)| *refused) {
            Some((option, _)) => Err(Error::Option { option, format: self }),
            None => Ok(()),
        }
    }
}

/// The first bytes of a file, decompressed and without a byte order mark.
pub(crate) fn head(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    let mut input = Input::new(open(path)?, path, bytes)?;
    let mut head = Vec::new();
    input.up_to(bytes, &mut head)?;
    Ok(head)
}

/// Whether a JSON object has the keys of instructions, and those of a labelled text.
///
/// `None` if the line is not an object.
pub(crate) fn json_kinds(first: &str) -> Option<(bool, bool)> {
    let picked = json::SelectedKeys::new(
        first,
        &[instructions::KEYS, labelled::TEXT, labelled::LABEL].concat(),
    )
    .ok()?;
    let any = |keys: &[&str]| keys.iter().any(|key| picked.has(key));
    Some((instructions::fits(&picked), any(labelled::TEXT) && any(labelled::LABEL)))
}

/// The names in quotation marks, joined by "or".
fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ")
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Io { path: path.into(), source })
}

/// A reader of one format: returns one record at a time, `None` at the end.
trait Rows: Send {
    fn next(&mut self) -> Result<Option<Record>>;
}

fn until_error(rows: impl Rows + 'static, path: &Path) -> RecordIter {
    Box::new(UntilError { rows: Some(rows), path: path.into(), any: false })
}

/// Ends after an error, and refuses a file without records.
struct UntilError<R> {
    rows: Option<R>,
    path: PathBuf,
    any: bool,
}

impl<R: Rows> Iterator for UntilError<R> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.rows.as_mut()?.next().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.rows = None;
        }
        match next {
            None if !self.any => Some(Err(Error::Empty { path: self.path.clone() })),
            next => {
                self.any = true;
                next
            }
        }
    }
}
