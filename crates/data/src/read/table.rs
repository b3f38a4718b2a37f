//! Rows of cells between tabs or commas.
//!
//! Between tabs nothing is quoted, as in the GLUE files: a quotation mark is a character like any
//! other. Between commas the rules are those of RFC 4180: a cell that begins with a quotation mark
//! goes to the next single one, whatever lies between; two in a row stand for one. What RFC 4180
//! does not allow is refused. Written here because a reader must not hold more than one row of a
//! file in which a quotation mark is never closed, and must say so: the `csv` crate takes all that
//! follows for one cell.

use super::input::{Input, Row};
use crate::error::{Error, Result};

/// More columns than this are taken for a damaged file.
const MOST_COLUMNS: usize = 4096;

/// What lies between two cells.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Separator {
    Tab,
    Comma,
}

/// One row of a table at a time.
pub(super) struct Table {
    separator: Separator,
    /// How many there must be, once that is known.
    columns: Option<usize>,
    row: Row,
    cells: Vec<String>,
}

/// Where in a cell the reading of a row is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Start,
    Bare,
    Quoted,
    /// After a quotation mark within a quoted cell: its end, or the first of two.
    Closed,
}

impl Table {
    /// The first row says how many columns there are.
    pub(super) fn new(separator: Separator) -> Self {
        Self { separator, columns: None, row: Row::default(), cells: Vec::new() }
    }

    pub(super) fn with_columns(separator: Separator, columns: usize) -> Self {
        Self { columns: Some(columns), ..Self::new(separator) }
    }

    /// Goes to the next row; `false` at the end.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<bool> {
        if !input.next_line(&mut self.row)? {
            return Ok(false);
        }
        if self.separator == Separator::Comma {
            self.close(input)?;
        }
        let most = self.columns.unwrap_or(MOST_COLUMNS);
        let text = input.text(&self.row)?;
        self.cells.clear();
        let got = match self.separator {
            Separator::Tab => {
                text.split('\t').inspect(|cell| keep(&mut self.cells, most, cell)).count()
            }
            Separator::Comma => split(text, |cell| keep(&mut self.cells, most, &cell)),
        };
        if got > most || self.columns.is_some_and(|columns| columns != got) {
            return Err(Error::Columns {
                path: input.path(),
                line: self.row.line,
                expected: most,
                got,
            });
        }
        self.columns = Some(got);
        Ok(true)
    }

    pub(super) fn cells(&self) -> &[String] {
        &self.cells
    }

    /// One of the cells. The caller has seen that there are so many.
    pub(super) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    pub(super) fn line(&self) -> u64 {
        self.row.line
    }

    /// Adds lines to the row until all its quotation marks are closed.
    fn close(&mut self, input: &mut Input) -> Result<()> {
        let refused =
            |input: &Input, line, what| Err(Error::Quotes { path: input.path(), line, what });
        let (mut place, mut read) = (Place::Start, 0);
        loop {
            let added = &self.row.bytes[read..];
            let end = added.strip_suffix(b"\n").unwrap_or(added);
            for &byte in end.strip_suffix(b"\r").unwrap_or(end) {
                place = match step(place, byte) {
                    Some(place) => place,
                    None => {
                        return refused(
                            input,
                            self.row.line,
                            "expected a comma after a quoted cell, got something else",
                        );
                    }
                };
            }
            if place != Place::Quoted {
                return Ok(());
            }
            read = self.row.bytes.len();
            if !input.append_line(&mut self.row)? {
                return refused(
                    input,
                    self.row.line,
                    "expected a quotation mark at the end of a quoted cell, got the end of the \
                     file",
                );
            }
        }
    }
}

/// Where the reading is after one more byte, or `None` if there must be no such byte.
fn step(place: Place, byte: u8) -> Option<Place> {
    match (place, byte) {
        (Place::Quoted, b'"') => Some(Place::Closed),
        (Place::Quoted, _) => Some(Place::Quoted),
        (Place::Start | Place::Closed, b'"') => Some(Place::Quoted),
        (_, b',') => Some(Place::Start),
        (Place::Closed, _) => None,
        _ => Some(Place::Bare),
    }
}

/// Cuts a row whose quotation marks are known to be right. Returns how many cells there are.
fn split(text: &str, mut cell: impl FnMut(String)) -> usize {
    let (mut place, mut start, mut count) = (Place::Start, 0, 0);
    for (at, byte) in text.bytes().chain([b',']).enumerate() {
        if place != Place::Quoted && byte == b',' {
            cell(unquoted(&text[start..at]));
            (start, count) = (at + 1, count + 1);
        }
        place = step(place, byte).unwrap_or(Place::Bare);
    }
    count
}

fn unquoted(cell: &str) -> String {
    match cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => cell.into(),
    }
}

fn keep(cells: &mut Vec<String>, most: usize, cell: &str) {
    if cells.len() < most {
        cells.push(cell.into());
    }
}
