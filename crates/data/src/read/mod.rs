//! The readers: from the bytes of a file to its records, one by one.
//!
//! A reader holds one row in memory, whatever the size of the file; a row beyond
//! [`ReadOptions::max_row_bytes`] is refused before it is read to its end. No bytes make a reader panic or go
//! on for ever. After a refusal a reader ends: half a data set is no data set.
//!
//! All text is UTF-8. A byte order mark at the beginning, lines that end in CR LF and a last line
//! without an end are fine, and so is any file compressed with gzip, whatever its name. A blank
//! line is a row of `lines`, without text; in every other format of lines it is no row: it is
//! skipped, and counted.

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

/// What is to be known about a file beyond its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The column or key of the text: a name, or for a table its number counted from 1. By itself
    /// it is found as `sentence`, `text` or `content`. For tsv, csv and jsonl.
    pub text: Option<String>,
    /// The column or key of the label. By itself it is found as `label`, `class` or `target`. For
    /// tsv, csv and jsonl.
    pub label: Option<String>,
    /// The column or key that holds the person a row belongs to. For tsv, csv, jsonl and
    /// instructions.
    pub group: Option<String>,
    /// The file with the labels of the images. By itself it is found beside the images. For idx and
    /// png-strip.
    pub labels: Option<PathBuf>,
    /// A row with more bytes than this is refused.
    pub max_row_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { text: None, label: None, group: None, labels: None, max_row_bytes: 16 << 20 }
    }
}

/// RecordIter in the order of the file. It ends after the first refusal.
pub type RecordIter = Box<dyn Iterator<Item = Result<Record>> + Send>;

impl Format {
    /// The records of a file.
    ///
    /// What is wrong with the file as a whole is refused here, what is wrong with a row when the
    /// row is reached. A file without a single record gives [`Error::Empty`].
    pub fn read(self, path: impl AsRef<Path>, options: &ReadOptions) -> Result<RecordIter> {
        let path = path.as_ref();
        self.read_from(open(path)?, path, options)
    }

    /// The same from any stream of bytes. The path is for messages, and to find the labels of
    /// images.
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
            Self::E2e => checked(e2e::E2e::new(input), path),
            Self::Dart => checked(dart::Dart::new(input), path),
            Self::Lines => checked(lines::Lines::new(input), path),
            Self::Instructions => checked(instructions::Instructions::new(input, options), path),
            Self::Tsv => checked(labelled::Table::new(input, table::Separator::Tab, options), path),
            Self::Csv => {
                checked(labelled::Table::new(input, table::Separator::Comma, options), path)
            }
            Self::Jsonl => checked(labelled::Jsonl::new(input, options), path),
            Self::Idx => checked(images::Idx::new(input, options)?, path),
            Self::PngStrip => checked(images::PngStrip::new(input, options)?, path),
        })
    }

    /// Every option that was given must mean something.
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

/// The first bytes of a file, no longer compressed and without a byte order mark.
pub(crate) fn head(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    let mut input = Input::new(open(path)?, path, bytes)?;
    let mut head = Vec::new();
    input.up_to(bytes, &mut head)?;
    Ok(head)
}

/// Whether the first line of a file of JSON objects looks like instructions, and whether like
/// labelled text. `None` if it is no object.
pub(crate) fn json_shapes(first: &str) -> Option<(bool, bool)> {
    let picked =
        json::Picked::new(first, &[instructions::KEYS, labelled::TEXT, labelled::LABEL].concat())
            .ok()?;
    let any = |keys: &[&str]| keys.iter().any(|key| picked.has(key));
    Some((instructions::fits(&picked), any(labelled::TEXT) && any(labelled::LABEL)))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Io { path: path.into(), source })
}

/// One row after another, until there are no more.
trait Rows: Send {
    fn next(&mut self) -> Result<Option<Record>>;
}

fn checked(rows: impl Rows + 'static, path: &Path) -> RecordIter {
    Box::new(Checked { rows: Some(rows), path: path.into(), any: false })
}

/// Ends after a refusal, and refuses a file without records.
struct Checked<R> {
    rows: Option<R>,
    path: PathBuf,
    any: bool,
}

impl<R: Rows> Iterator for Checked<R> {
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
