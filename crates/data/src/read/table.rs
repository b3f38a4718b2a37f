//! Tables: rows of cells separated by tabs or commas.
//!
//! In TSV nothing is quoted, as in the GLUE files. CSV follows RFC 4180: a cell that begins with a
//! quotation mark extends to the next single one; two in a row stand for one. Other input is
//! refused. The `csv` crate is not used because it reads the rest of a file with an unclosed
//! quotation mark into one cell; this reader holds one row at a time and reports the error.

use super::input::{Input, Row};
use crate::error::{Error, Result};

/// Largest number of columns; a row with more is refused as damaged.
const MAX_COLUMNS: usize = 4096;

/// The separator of cells.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Separator {
    Tab,
    Comma,
}

/// A table, read row by row.
pub(super) struct Table {
    separator: Separator,
    /// The number of columns, once it is known.
    columns: Option<usize>,
    row: Row,
    cells: Vec<String>,
}

/// The state of the CSV parser.
#[derive(Clone, Copy, PartialEq)]
enum CsvState {
    Start,
    Bare,
    Quoted,
    /// After a quotation mark within a quoted cell: its end, or the first of two.
    Closed,
}

impl Table {
    /// A table whose first row determines the number of columns.
    pub(super) fn new(separator: Separator) -> Self {
        Self { separator, columns: None, row: Row::default(), cells: Vec::new() }
    }

    pub(super) fn with_columns(separator: Separator, columns: usize) -> Self {
        Self { columns: Some(columns), ..Self::new(separator) }
    }

    /// Reads the next row; `false` at the end.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<bool> {
        if !input.next_line(&mut self.row)? {
            return Ok(false);
        }
        if self.separator == Separator::Comma {
            self.complete_quotes(input)?;
        }
        let max = self.columns.unwrap_or(MAX_COLUMNS);
        let text = input.text(&self.row)?;
        self.cells.clear();
        let got = match self.separator {
            Separator::Tab => {
                text.split('\t').inspect(|cell| push_up_to(&mut self.cells, max, cell)).count()
            }
            Separator::Comma => split(text, |cell| push_up_to(&mut self.cells, max, &cell)),
        };
        if got > max || self.columns.is_some_and(|columns| columns != got) {
            return Err(Error::Columns {
                path: input.path(),
                line: self.row.line,
                expected: max,
                got,
            });
        }
        self.columns = Some(got);
        Ok(true)
    }

    pub(super) fn cells(&self) -> &[String] {
        &self.cells
    }

    /// One of the cells; empty if there are fewer.
    pub(super) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    pub(super) fn line(&self) -> u64 {
        self.row.line
    }

    /// Appends lines to the row until all its quotation marks are closed.
    fn complete_quotes(&mut self, input: &mut Input) -> Result<()> {
        let error =
            |input: &Input, line, what| Err(Error::Quotes { path: input.path(), line, what });
        let (mut state, mut read) = (CsvState::Start, 0);
        loop {
            let added = &self.row.bytes[read..];
            let end = added.strip_suffix(b"\n").unwrap_or(added);
            for &byte in end.strip_suffix(b"\r").unwrap_or(end) {
                state = match step(state, byte) {
                    Some(state) => state,
                    None => {
                        return error(
                            input,
                            self.row.line,
                            "expected a comma after a quoted cell, got another character",
                        );
                    }
                };
            }
            if state != CsvState::Quoted {
                return Ok(());
            }
            read = self.row.bytes.len();
            if !input.append_line(&mut self.row)? {
                return error(
                    input,
                    self.row.line,
                    "expected a quotation mark at the end of a quoted cell, got the end of the \
                     file",
                );
            }
        }
    }
}

/// The state after one more byte; `None` if the byte is not allowed.
fn step(state: CsvState, byte: u8) -> Option<CsvState> {
    match (state, byte) {
        (CsvState::Quoted, b'"') => Some(CsvState::Closed),
        (CsvState::Quoted, _) => Some(CsvState::Quoted),
        (CsvState::Start | CsvState::Closed, b'"') => Some(CsvState::Quoted),
        (_, b',') => Some(CsvState::Start),
        (CsvState::Closed, _) => None,
        _ => Some(CsvState::Bare),
    }
}

/// Splits a row with valid quotation marks; returns the number of cells.
fn split(text: &str, mut cell: impl FnMut(String)) -> usize {
    let (mut state, mut start, mut count) = (CsvState::Start, 0, 0);
    for (at, byte) in text.bytes().chain([b',']).enumerate() {
        if state != CsvState::Quoted && byte == b',' {
            cell(unquoted(&text[start..at]));
            (start, count) = (at + 1, count + 1);
        }
        state = step(state, byte).unwrap_or(CsvState::Bare);
    }
    count
}

fn unquoted(cell: &str) -> String {
    match cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => cell.into(),
    }
}

fn push_up_to(cells: &mut Vec<String>, max: usize, cell: &str) {
    if cells.len() < max {
        cells.push(cell.into());
    }
}
