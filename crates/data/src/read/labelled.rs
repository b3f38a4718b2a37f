//! `tsv`, `csv` and `jsonl`: one text and its label per row.
//!
//! The columns (keys, in `jsonl`) are those named in the options, or else the first of `sentence`,
//! `text`, `content` and the first of `label`, `class`, `target` that the first row has. In a
//! table, capitals make no difference, and the first row is a header if it has one of these names
//! or of those in the options. A column can also be given by its number. A table of two columns
//! without a header needs no options if just one cell of its first row is a whole number: that is
//! the label.
//!
//! Text, label and group are trimmed: SST-2 ends its sentences with a space in the training set and
//! without one in the test set. A text can be empty, a label or a group cannot.
//! Labels stay names; indices are assigned later. Blank lines are skipped.

use super::input::{Input, Row};
use super::json::{self, SelectedKeys};
use super::table::{self, Separator};
use super::{ReadOptions, Rows, quoted};
use crate::error::{Error, Result};
use crate::record::{Content, Record};
use std::path::PathBuf;

/// Names of a column of texts.
pub(super) const TEXT: &[&str] = &["sentence", "text", "content"];
/// Names of a column of labels.
pub(super) const LABEL: &[&str] = &["label", "class", "target"];

/// Whether a row of cells is a header with a text and a label in it.
pub(crate) fn is_header<'c>(cells: impl Iterator<Item = &'c str>) -> bool {
    let cells: Vec<&str> = cells.collect();
    let any =
        |names: &[&str]| cells.iter().any(|cell| names.iter().any(|name| matches_name(cell, name)));
    any(TEXT) && any(LABEL)
}

fn matches_name(cell: &str, name: &str) -> bool {
    cell.trim().eq_ignore_ascii_case(name.trim())
}

/// A reader of labelled tables.
pub(super) struct Table {
    input: Input,
    table: table::Table,
    options: ReadOptions,
    columns: Option<Columns>,
}

#[derive(Clone, Copy)]
struct Columns {
    text: usize,
    label: usize,
    group: Option<usize>,
}

/// The index of a column, and whether the first row names it.
#[derive(Clone, Copy)]
struct ColumnMatch {
    at: usize,
    named: bool,
}

impl Table {
    pub(super) fn new(input: Input, separator: Separator, options: &ReadOptions) -> Self {
        Self { input, table: table::Table::new(separator), options: options.clone(), columns: None }
    }

    /// The columns, from the first row, and whether that row is a header.
    fn columns(&self) -> Result<(Columns, bool)> {
        let cells = self.table.cells();
        let text = self.find("text", self.options.text.as_deref(), TEXT)?;
        let label = self.find("label", self.options.label.as_deref(), LABEL)?;
        let group = self.find("group", self.options.group.as_deref(), &[])?;
        let header = [text, label, group].iter().flatten().any(|found| found.named);
        let columns = match (text, label) {
            (Some(text), Some(label)) => (text.at, label.at),
            (None, None) if !header && cells.len() == 2 => {
                match [0, 1].map(|at| cells[at].trim().parse::<i64>().is_ok()) {
                    [true, false] => (1, 0),
                    [false, true] => (0, 1),
                    _ => return Err(self.no_column("text", TEXT)),
                }
            }
            (None, _) => return Err(self.no_column("text", TEXT)),
            (_, None) => return Err(self.no_column("label", LABEL)),
        };
        Ok((
            Columns { text: columns.0, label: columns.1, group: group.map(|found| found.at) },
            header,
        ))
    }

    fn find(
        &self,
        role: &'static str,
        given: Option<&str>,
        names: &[&str],
    ) -> Result<Option<ColumnMatch>> {
        let cells = self.table.cells();
        let place = |name: &str| {
            cells
                .iter()
                .position(|cell| matches_name(cell, name))
                .map(|at| ColumnMatch { at, named: true })
        };
        let Some(given) = given else { return Ok(names.iter().find_map(|name| place(name))) };
        let numbered = || {
            let at = given.parse::<usize>().ok()?.checked_sub(1)?;
            let cell = cells.get(at)?;
            Some(ColumnMatch { at, named: names.iter().any(|name| matches_name(cell, name)) })
        };
        place(given).or_else(numbered).map(Some).ok_or_else(|| self.no_column(role, &[given]))
    }

    fn no_column(&self, role: &'static str, names: &[&str]) -> Error {
        Error::NoColumn { path: self.input.path(), role, expected: quoted(names) }
    }

    fn required_cell(&self, column: usize, role: &'static str) -> Result<String> {
        match self.table.cell(column).trim() {
            "" => Err(Error::EmptyCell { path: self.input.path(), line: self.table.line(), role }),
            cell => Ok(cell.into()),
        }
    }
}

impl Rows for Table {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.table.next(&mut self.input)? {
            return Ok(None);
        }
        let columns = match self.columns {
            Some(columns) => columns,
            None => {
                let (columns, header) = self.columns()?;
                self.columns = Some(columns);
                if header && !self.table.next(&mut self.input)? {
                    return Ok(None);
                }
                columns
            }
        };
        let content = Content::Labelled {
            text: self.table.cell(columns.text).trim().into(),
            label: self.required_cell(columns.label, "label")?,
        };
        let group = columns.group.map(|column| self.required_cell(column, "group")).transpose()?;
        Ok(Some(Record { content, group, line: self.table.line() }))
    }
}

/// A reader of one JSON object per line.
pub(super) struct Jsonl {
    input: Input,
    row: Row,
    path: PathBuf,
    text: Option<String>,
    label: Option<String>,
    group: Option<String>,
}

impl Jsonl {
    pub(super) fn new(input: Input, options: &ReadOptions) -> Self {
        let ReadOptions { text, label, group, .. } = options.clone();
        Self { path: input.path(), input, row: Row::default(), text, label, group }
    }

    /// The given key, or the first of `names` in the first row; the same for all rows.
    fn key(&self, given: &Option<String>, names: &[&str], picked: &SelectedKeys) -> Result<String> {
        let found = || names.iter().find(|name| picked.has(name)).map(|name| (*name).to_owned());
        given.clone().or_else(found).ok_or_else(|| Error::MissingKey {
            path: self.path.clone(),
            line: self.row.line,
            expected: quoted(names),
        })
    }
}

impl Rows for Jsonl {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.input.next_line(&mut self.row)? {
            return Ok(None);
        }
        let (row, line) = (self.input.text(&self.row)?, self.row.line);
        let given =
            [&self.text, &self.label, &self.group].into_iter().flatten().map(String::as_str);
        let keys: Vec<&str> = given.chain(TEXT.iter().chain(LABEL).copied()).collect();
        let picked = SelectedKeys::new(row, &keys)
            .map_err(|error| json::malformed(&error, &self.path, line, 1))?;
        let text = self.key(&self.text, TEXT, &picked)?;
        let label = self.key(&self.label, LABEL, &picked)?;
        let content = Content::Labelled {
            text: picked.text(&text, &self.path, line)?.trim().into(),
            label: picked.name(&label, &self.path, line)?,
        };
        let group =
            self.group.as_ref().map(|key| picked.name(key, &self.path, line)).transpose()?;
        (self.text, self.label) = (Some(text), Some(label));
        Ok(Some(Record { content, group, line }))
    }
}
