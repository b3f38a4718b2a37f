//! `tsv` and `csv`: one text or image and its label per row.
//!
//! The columns are those named in the options, or else the first of `sentence`, `text`, `content`
//! and the first of `label`, `class`, `target` that the first row has. Without a column of texts,
//! the first of `image`, `image_path`, `file_name`, `path` has the paths of images, relative to the
//! file. Capitals make no difference. The first row is then a header, and a file without these
//! names is refused. If all columns that are read are given by their numbers, there is no header.
//!
//! Cells are trimmed: SST-2 ends its sentences with a space in the training set and without one in
//! the test set. Labels stay names; indices are assigned later. Blank lines are skipped. A cell
//! without a value, such as an empty one or `NA`, is an error, or leaves the place of the row
//! vacant ([`Missing`](super::Missing)).
//!
//! If labels are not read ([`LabelRule::Ignored`]), a table of one column needs no header.

use super::columns::{Column, Columns, Header, is_missing};
use super::decode::ImageReader;
use super::input::Input;
use super::table::{Dialect, Separator, Table};
use super::{LabelRule, ReadOptions, Rows};
use crate::error::Result;
use crate::record::{Content, Label, Record};
use std::path::{Path, PathBuf};

/// The separator of a line, if it is a header with a text or image and a label in it.
pub(crate) fn header_separator(line: &str) -> Option<Separator> {
    let options = ReadOptions::default();
    Separator::of_header(line, |cells| known(cells, &options))
}

fn known(cells: &[&str], options: &ReadOptions) -> bool {
    Header { cells, certain: false, path: Path::new(""), options }.is_known()
}

/// A reader of labelled tables.
pub(super) struct LabelledTable {
    input: Input,
    path: PathBuf,
    table: Table,
    options: ReadOptions,
    columns: Option<Columns>,
    images: ImageReader,
}

impl LabelledTable {
    pub(super) fn new(input: Input, dialect: Dialect, options: &ReadOptions) -> Self {
        Self {
            path: input.path(),
            input,
            table: Table::new(dialect),
            options: options.clone(),
            columns: None,
            images: ImageReader::new(options),
        }
    }

    fn next_row(&mut self) -> Result<bool> {
        self.table.next(&mut self.input, |cells| known(cells, &self.options))
    }

    /// The cell of a column; `Err` is the column if the cell has no value.
    fn cell<'t>(&'t self, column: &'t Column) -> std::result::Result<&'t str, &'t Column> {
        let cell = self.table.cell(column.at);
        if is_missing(cell) { Err(column) } else { Ok(cell.trim()) }
    }
}

impl Rows for LabelledTable {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.next_row()? {
            return Ok(None);
        }
        let columns = match self.columns.take() {
            Some(columns) => columns,
            None => {
                let (path, options) = (&self.path, &self.options);
                let cells = self.table.cells();
                let (columns, header) =
                    Header { cells: &cells, certain: false, path, options }.columns()?;
                if header && !self.next_row()? {
                    return Ok(None);
                }
                columns
            }
        };
        let line = self.table.line();
        let group = match columns.group.as_ref().map(|column| self.cell(column)) {
            Some(Err(column)) => return Err(column.missing_group(&self.path, "line", line)),
            group => group.and_then(|group| group.ok()).map(String::from),
        };
        let label = match &columns.label {
            // No name is a list of names.
            Some(column) if self.options.label_rule == LabelRule::Names => {
                Ok(Some(self.table.cell(column.at).trim()))
            }
            Some(column) => self.cell(column).map(Some),
            None => Ok(None),
        };
        let record = match (self.cell(&columns.content), label) {
            (Ok(path), Ok(label)) if columns.image => {
                let label = label.map_or(Label::None, |label| Label::Name(label.into()));
                let content = self.images.listed(path, &self.path, line, label)?;
                Record { content, group, line }
            }
            (Ok(text), Ok(label)) => {
                let content = text_content(text.into(), label.map(String::from));
                Record { content, group, line }
            }
            (Err(column), _) | (_, Err(column)) => {
                column.missing(&self.options, &self.path, "line", line)?;
                Record { content: Content::Missing, group, line }
            }
        };
        self.columns = Some(columns);
        Ok(Some(record))
    }
}

/// A text with its label, if labels are read.
pub(super) fn text_content(text: String, label: Option<String>) -> Content {
    match label {
        Some(label) => Content::Labelled { text, label },
        None => Content::Text { source: None, target: text, references: Vec::new() },
    }
}
