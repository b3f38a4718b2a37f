//! `parquet` and `arrow`: records from the columns of record batches.
//!
//! One batch is in memory at a time. What a row holds follows from the names of the columns:
//!
//! - a text and a label, or an image and a label, in columns that the options name or that have a
//!   default name (see [`columns`](super::columns)); a text alone if there is no label;
//! - `messages`, `instruction` and `output`, `prompt` and `completion` (as in the format
//!   `instructions`), or `source` and `target`.
//!
//! Texts are strings. Labels and groups are strings, integers, whole numbers or Booleans. An image
//! is a binary value, a structure of `bytes` and `path` as the `datasets` library of Hugging Face
//! writes it, or a path relative to the file. Null is a missing value
//! ([`Missing`](super::Missing)), and so are a label without letters and a label that is NaN.

use super::cell::{Cell, cell, field, list};
use super::columns::{Column, Columns, Header, Role, listed};
use super::decode::ImageReader;
use super::instructions::Conversation;
use super::{LabelRule, ReadOptions, Rows};
use crate::error::{Error, Result};
use crate::record::{Content, Label, Record};
use arrow_array::{Array, RecordBatch};
use arrow_schema::ArrowError;
use std::path::{Path, PathBuf};

/// Reads batches until the end of a file.
pub(super) trait Batches: Send {
    /// The names of the columns, in the order of the batches' columns.
    fn names(&self) -> &[String];
    /// Reads only these columns; later batches have them in the order of the file.
    fn select(&mut self, columns: &[usize]) -> Result<()>;
    /// The next batch.
    fn next(&mut self) -> Result<Option<RecordBatch>>;
}

/// A reader of the rows of batches.
pub(super) struct Columnar<B> {
    batches: B,
    layout: Layout,
    batch: Option<RecordBatch>,
    /// The next row of the batch.
    next: usize,
    /// Rows read.
    row: u64,
    path: PathBuf,
    options: ReadOptions,
    images: ImageReader,
}

/// The columns of a record. Indices are those of the selected columns.
struct Layout {
    content: ContentColumns,
    group: Option<Column>,
}

enum ContentColumns {
    Text(Column),
    Labelled { text: Column, label: Column },
    Image { image: Column, label: Option<Column> },
    Pair { source: Column, input: Option<Column>, target: Column },
    Messages(Column),
}

/// The content of a row; `Err` is the column without a value.
type RowContent<'l> = std::result::Result<Content, &'l Column>;

impl<B: Batches> Columnar<B> {
    pub(super) fn new(mut batches: B, path: &Path, options: &ReadOptions) -> Result<Self> {
        let mut layout = Layout::new(batches.names(), path, options)?;
        let mut used: Vec<usize> = layout.columns().map(|column| column.at).collect();
        used.sort_unstable();
        used.dedup();
        batches.select(&used)?;
        for column in layout.columns_mut() {
            column.at = used.partition_point(|at| *at < column.at);
        }
        Ok(Self {
            batches,
            layout,
            batch: None,
            next: 0,
            row: 0,
            path: path.into(),
            options: options.clone(),
            images: ImageReader::new(options),
        })
    }

    fn cell<'b>(&self, batch: &'b RecordBatch, column: &Column) -> Cell<'b> {
        batch.columns().get(column.at).map_or(Cell::Missing, |array| cell(array, self.next))
    }

    /// The text of a column; `None` if it is missing.
    fn text(&self, batch: &RecordBatch, column: &Column) -> Result<Option<String>> {
        match self.cell(batch, column) {
            Cell::Missing => Ok(None),
            Cell::Text(text) if text.len() > self.options.max_row_bytes => Err(self.long_value()),
            Cell::Text(text) => Ok(Some(text.into())),
            other => Err(self.wrong_type(column, "a string", &other)),
        }
    }

    /// The name in a column; `None` if it is missing.
    fn name(&self, batch: &RecordBatch, column: &Column) -> Result<Option<String>> {
        let value = self.cell(batch, column);
        match value.name() {
            Some(name) if name.trim().is_empty() => Ok(None),
            Some(name) => Ok(Some(name.trim().into())),
            None if matches!(value, Cell::Missing) => Ok(None),
            None => Err(self.wrong_type(column, "a string, a whole number or a Boolean", &value)),
        }
    }

    /// The label in a column; `None` if it is missing.
    fn label(&self, batch: &RecordBatch, column: &Column) -> Result<Option<String>> {
        let value = self.cell(batch, column);
        match (self.options.label_rule, &value) {
            // No name is a list of names.
            (LabelRule::Names, Cell::Text(text)) => Ok(Some(text.trim().into())),
            (LabelRule::Names, Cell::List(array, row)) => {
                let names = list(array, *row);
                let mut texts = Vec::new();
                for row in 0..names.as_ref().map_or(0, |names| names.len()) {
                    match names.as_ref().map_or(Cell::Missing, |names| cell(names, row)) {
                        Cell::Text(text) => texts.push(text.to_owned()),
                        other => return Err(self.wrong_type(column, "a list of strings", &other)),
                    }
                }
                Ok(Some(serde_json::Value::from(texts).to_string()))
            }
            (LabelRule::Number, Cell::Real(number)) => Ok(Some(number.to_string())),
            _ => self.name(batch, column),
        }
    }

    fn long_value(&self) -> Error {
        let limit = self.options.max_row_bytes;
        Error::LongValue { path: self.path.clone(), row: self.row, limit }
    }

    fn wrong_type(&self, column: &Column, expected: &'static str, got: &Cell<'_>) -> Error {
        Error::ColumnType {
            path: self.path.clone(),
            row: self.row,
            column: column.name.clone(),
            expected,
            got: got.kind(),
        }
    }

    fn content<'l>(&self, batch: &RecordBatch, layout: &'l Layout) -> Result<RowContent<'l>> {
        let text = |column: &'l Column| Ok::<_, Error>(self.text(batch, column)?.ok_or(column));
        Ok(match &layout.content {
            ContentColumns::Text(column) => text(column)?.map(|target| pair(None, target)),
            ContentColumns::Labelled { text: column, label } => {
                match (text(column)?, self.label(batch, label)?.ok_or(label)) {
                    (Ok(text), Ok(label)) => {
                        Ok(Content::Labelled { text: text.trim().into(), label })
                    }
                    (Err(column), _) | (_, Err(column)) => Err(column),
                }
            }
            ContentColumns::Image { image, label } => {
                let label = match label {
                    Some(column) => self.label(batch, column)?.ok_or(column).map(Label::Name),
                    None => Ok(Label::None),
                };
                match label {
                    Ok(label) => self.image(batch, image, label)?.ok_or(image),
                    Err(column) => Err(column),
                }
            }
            ContentColumns::Pair { source, input, target } => {
                let input = match input {
                    Some(column) => self.text(batch, column)?.filter(|input| !input.is_empty()),
                    None => None,
                };
                match (text(source)?, text(target)?, input) {
                    (Ok(source), Ok(target), None) => Ok(pair(Some(source), target)),
                    (Ok(source), Ok(target), Some(input)) => {
                        Ok(pair(Some(format!("{source}\n\n{input}")), target))
                    }
                    (Err(column), ..) | (_, Err(column), _) => Err(column),
                }
            }
            ContentColumns::Messages(column) => self.messages(batch, column)?.ok_or(column),
        })
    }

    /// The image of a column; `None` if it is missing.
    fn image(&self, batch: &RecordBatch, column: &Column, label: Label) -> Result<Option<Content>> {
        let value = match self.cell(batch, column) {
            Cell::Struct(array, row) => match field(array, row, "bytes") {
                Cell::Missing => field(array, row, "path"),
                bytes => bytes,
            },
            other => other,
        };
        match value {
            Cell::Missing => Ok(None),
            Cell::Bytes(bytes) => {
                let place = || format!("{}, row {}", self.path.display(), self.row);
                self.images.decode(bytes, label, place).map(Some)
            }
            Cell::Text(path) => self.images.listed(path, &self.path, self.row, label).map(Some),
            other => Err(self.wrong_type(column, "an image: bytes or a path", &other)),
        }
    }

    /// The source and target of a list of messages; `None` if it is missing.
    fn messages(&self, batch: &RecordBatch, column: &Column) -> Result<Option<Content>> {
        let messages = match self.cell(batch, column) {
            Cell::Missing => return Ok(None),
            Cell::List(array, row) => list(array, row),
            other => return Err(self.wrong_type(column, "a list of messages", &other)),
        };
        let (mut conversation, mut bytes) = (Conversation::default(), 0);
        for row in 0..messages.as_ref().map_or(0, |messages| messages.len()) {
            let message = messages.as_ref().map_or(Cell::Missing, |list| cell(list, row));
            let Cell::Struct(array, row) = message else {
                return Err(self.wrong_type(column, "a list of structures", &message));
            };
            match (field(array, row, "role"), field(array, row, "content")) {
                (Cell::Text(role), Cell::Text(content)) => {
                    bytes += role.len() + content.len();
                    conversation.push(role.into(), content.into());
                }
                (Cell::Missing, _) | (_, Cell::Missing) => return Ok(None),
                (other, _) => return Err(self.wrong_type(column, "texts of messages", &other)),
            }
            if bytes > self.options.max_row_bytes {
                return Err(self.long_value());
            }
        }
        match conversation.role() {
            Some("assistant") => Ok(Some(pair(conversation.source, conversation.last))),
            _ => Err(Error::ColumnType {
                path: self.path.clone(),
                row: self.row,
                column: column.name.clone(),
                expected: "messages that end with the assistant's",
                got: "another role at the end",
            }),
        }
    }

    /// The record of the next row of a batch.
    fn record(&self, batch: &RecordBatch) -> Result<Record> {
        let group = match &self.layout.group {
            Some(column) => {
                let missing = || column.missing_group(&self.path, "row", self.row);
                Some(self.name(batch, column)?.ok_or_else(missing)?)
            }
            None => None,
        };
        let content = match self.content(batch, &self.layout)? {
            Ok(content) => content,
            Err(column) => {
                column.missing(&self.options, &self.path, "row", self.row)?;
                Content::Missing
            }
        };
        Ok(Record { content, group, line: self.row })
    }
}

/// The kind of an error, without content of the file.
pub(super) fn described(error: &ArrowError) -> String {
    match error {
        ArrowError::NotYetImplemented(what) => format!("not supported: {what}"),
        ArrowError::IoError(..) => "the file cannot be read".into(),
        _ => "the file is damaged".into(),
    }
}

fn pair(source: Option<String>, target: String) -> Content {
    Content::Text { source, target, references: Vec::new() }
}

impl<B: Batches> Rows for Columnar<B> {
    fn next(&mut self) -> Result<Option<Record>> {
        let batch = loop {
            match self.batch.take() {
                Some(batch) if self.next < batch.num_rows() => break batch,
                _ => {
                    self.next = 0;
                    self.batch = self.batches.next()?;
                    if self.batch.is_none() {
                        return Ok(None);
                    }
                }
            }
        };
        self.row += 1;
        let record = self.record(&batch)?;
        self.next += 1;
        self.batch = Some(batch);
        Ok(Some(record))
    }
}

impl Layout {
    /// The layout that the names of the columns determine.
    fn new(names: &[String], path: &Path, options: &ReadOptions) -> Result<Self> {
        let cells: Vec<&str> = names.iter().map(String::as_str).collect();
        let header = Header { cells: &cells, certain: true, path, options };
        let find = |name: &str| {
            let at = names.iter().position(|other| other.eq_ignore_ascii_case(name))?;
            Some(Column { at, name: names[at].clone() })
        };
        let either = |first: &str, second: &str| find(first).or_else(|| find(second));
        let pair = |source: Option<Column>, input: Option<Column>, target: Option<Column>| {
            let (source, target) = source.zip(target)?;
            Some(ContentColumns::Pair { source, input, target })
        };
        let prompts = find("messages")
            .map(ContentColumns::Messages)
            .or_else(|| {
                let input = either("input", "context");
                pair(find("instruction"), input, either("output", "response"))
            })
            .or_else(|| pair(find("prompt"), None, find("completion")))
            .or_else(|| pair(find("source"), None, find("target")));
        let given =
            [Role::Text, Role::Image, Role::Label].iter().any(|role| role.given(options).is_some());
        match prompts.filter(|_| !given) {
            Some(_) if header.is_known() => {
                Err(Error::AmbiguousColumns { path: path.into(), got: listed(names) })
            }
            Some(content) => {
                let group = match &options.group {
                    None => None,
                    Some(name) => Some(
                        find(name)
                            .ok_or_else(|| Role::Group.absent(options, path, listed(names)))?,
                    ),
                };
                Ok(Self { content, group })
            }
            None => {
                let (Columns { content, image, label, group }, _) = header.columns()?;
                let content = match label {
                    label if image => ContentColumns::Image { image: content, label },
                    Some(label) => ContentColumns::Labelled { text: content, label },
                    None => ContentColumns::Text(content),
                };
                Ok(Self { content, group })
            }
        }
    }

    fn columns(&self) -> impl Iterator<Item = &Column> {
        let content: Vec<&Column> = match &self.content {
            ContentColumns::Text(column) | ContentColumns::Messages(column) => vec![column],
            ContentColumns::Labelled { text, label } => vec![text, label],
            ContentColumns::Image { image, label } => {
                [Some(image), label.as_ref()].into_iter().flatten().collect()
            }
            ContentColumns::Pair { source, input, target } => {
                [Some(source), input.as_ref(), Some(target)].into_iter().flatten().collect()
            }
        };
        content.into_iter().chain(&self.group)
    }

    fn columns_mut(&mut self) -> impl Iterator<Item = &mut Column> {
        let content: Vec<&mut Column> = match &mut self.content {
            ContentColumns::Text(column) | ContentColumns::Messages(column) => vec![column],
            ContentColumns::Labelled { text, label } => vec![text, label],
            ContentColumns::Image { image, label } => {
                [Some(image), label.as_mut()].into_iter().flatten().collect()
            }
            ContentColumns::Pair { source, input, target } => {
                [Some(source), input.as_mut(), Some(target)].into_iter().flatten().collect()
            }
        };
        content.into_iter().chain(&mut self.group)
    }
}
