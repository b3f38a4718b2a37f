//! Streaming readers of data files, one for each format.
//!
//! A reader holds one row in memory, whatever the size of the file; a row beyond
//! [`ReadOptions::max_row_bytes`] is refused before it is read to its end. No input makes a reader
//! panic or loop forever. After an error a reader ends: an incomplete data set is not used.
//!
//! Text is UTF-8. A byte order mark, CR LF line ends, a missing last line end and gzip or zstd
//! compression under any name are accepted. A blank line is a row of the format `lines`, without
//! text; in every other line-based format it is skipped, and counted in line numbers.

mod arrow;
mod cell;
mod columnar;
mod columns;
mod dart;
mod decode;
mod e2e;
mod folder;
mod images;
mod input;
mod instructions;
mod json;
mod jsonl;
mod labelled;
mod lines;
mod parquet;
mod table;

pub(crate) use self::parquet::is_parquet;
pub(crate) use arrow::is_arrow;
pub(crate) use e2e::is_header as is_e2e_header;
pub(crate) use folder::is_image_folder;
pub(crate) use labelled::header_separator;
pub use table::Separator;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::record::Record;
use columns::Role;
use input::Input;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest height and width to which images are scaled.
const MAX_SIDE: usize = 2048;

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
    /// The default is the first of `sentence`, `text`, `content`. For tables and jsonl.
    pub text: Option<String>,
    /// The column or key of the path of an image, relative to the file.
    ///
    /// Without a text, the default is the first of `image`, `image_path`, `file_name`, `path`. For
    /// tables and jsonl.
    pub image: Option<String>,
    /// The column or key of the label.
    ///
    /// The default is the first of `label`, `class`, `target`. For tables and jsonl.
    pub label: Option<String>,
    /// The column or key of the group (person) that owns a row.
    ///
    /// For tables, jsonl and instructions.
    pub group: Option<String>,
    /// The file with the labels of images; by default in the same directory.
    ///
    /// For idx and png-strip.
    pub labels: Option<PathBuf>,
    /// What labels are.
    pub label_rule: LabelRule,
    /// The separator of cells; by default that of a header with known names, or else a comma.
    ///
    /// For csv.
    pub separator: Option<Separator>,
    /// What happens to rows without a value in one of these columns.
    pub missing: Missing,
    /// The height, width and number of channels (1 or 3) to which images are scaled.
    ///
    /// By default images are not scaled, and must all have the same size.
    pub image_size: Option<[usize; 3]>,
    /// Largest number of bytes of a row.
    pub max_row_bytes: usize,
}

/// What the labels of rows are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LabelRule {
    /// The name of a class. In JSON, also an integer or a Boolean.
    #[default]
    Name,
    /// Any number of names ([`split_labels`](crate::split_labels)); the cell can be empty. In
    /// JSON, also a list of strings.
    Names,
    /// A number.
    Number,
    /// Labels are not read, and need not exist.
    ///
    /// A text is then [`Content::Text`](crate::Content::Text), and an image has
    /// [`Label::None`](crate::Label::None).
    Ignored,
}

/// What happens to rows without a value in a column that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// The file is refused.
    #[default]
    Error,
    /// They have no record ([`Content::Missing`](crate::Content::Missing)).
    Skip,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            text: None,
            image: None,
            label: None,
            group: None,
            labels: None,
            label_rule: LabelRule::Name,
            separator: None,
            missing: Missing::Error,
            image_size: None,
            max_row_bytes: 16 << 20,
        }
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
        self.check(options)?;
        match self {
            Self::ImageFolder => Ok(until_error(folder::ImageFolder::new(path, options)?, path)),
            Self::Parquet => {
                let file = parquet::Parquet::new(open(path)?, path, options)?;
                Ok(until_error(columnar::Columnar::new(file, path, options)?, path))
            }
            _ => self.read_from(open(path)?, path, options),
        }
    }

    /// Reads records from a stream of bytes.
    ///
    /// The path is used in messages, and to find the labels of images and the images of a list. A
    /// Parquet file and an image folder are not streams.
    pub fn read_from(
        self,
        bytes: impl Read + Send + 'static,
        path: impl AsRef<Path>,
        options: &ReadOptions,
    ) -> Result<RecordIter> {
        self.check(options)?;
        let path = path.as_ref();
        let input = Input::new(bytes, path, options.max_row_bytes)?;
        let table = |dialect, input| {
            until_error(labelled::LabelledTable::new(input, dialect, options), path)
        };
        Ok(match self {
            Self::E2e => until_error(e2e::E2e::new(input), path),
            Self::Dart => until_error(dart::Dart::new(input), path),
            Self::Lines => until_error(lines::Lines::new(input), path),
            Self::Instructions => {
                until_error(instructions::Instructions::new(input, options), path)
            }
            Self::Tsv => table(table::Dialect::Tsv, input),
            Self::Csv => table(table::Dialect::Csv(options.separator), input),
            Self::Jsonl => until_error(jsonl::Jsonl::new(input, options), path),
            Self::Idx => until_error(images::Idx::new(input, options)?, path),
            Self::PngStrip => until_error(images::PngStrip::new(input, options)?, path),
            Self::Arrow => {
                let stream = arrow::Arrow::new(input, options)?;
                until_error(columnar::Columnar::new(stream, path, options)?, path)
            }
            Self::Parquet | Self::ImageFolder => {
                return Err(Error::NotAStream { path: path.into(), format: self });
            }
        })
    }

    /// Checks that every option given applies to the format.
    fn check(self, options: &ReadOptions) -> Result<()> {
        let columns =
            matches!(self, Self::Tsv | Self::Csv | Self::Jsonl | Self::Parquet | Self::Arrow);
        let grouped = columns || self == Self::Instructions;
        let refused = [
            ("data.text_column", options.text.is_some() && !columns),
            ("data.image_column", options.image.is_some() && !columns),
            ("data.label_column", options.label.is_some() && !columns),
            ("data.group", options.group.is_some() && !grouped),
            ("data.separator", options.separator.is_some() && self != Self::Csv),
            (
                "the file of labels",
                options.labels.is_some() && !matches!(self, Self::Idx | Self::PngStrip),
            ),
        ];
        if options.text.is_some() && options.image.is_some() {
            return Err(Error::TextAndImage);
        }
        if let Some(got @ [height, width, channels]) = options.image_size {
            let sides = 1..=MAX_SIDE;
            if !sides.contains(&height) || !sides.contains(&width) || !matches!(channels, 1 | 3) {
                return Err(Error::ImageSize { limit: MAX_SIDE, got });
            }
        }
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
        &[instructions::KEYS, Role::Text.names(), Role::Image.names(), Role::Label.names()]
            .concat(),
    )
    .ok()?;
    let any = |role: Role| role.names().iter().any(|key| picked.has(key));
    let content = any(Role::Text) || any(Role::Image);
    Some((instructions::fits(&picked), content && any(Role::Label)))
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
