//! Tables: rows of cells with a separator between them.
//!
//! In TSV nothing is quoted, as in the GLUE files. CSV follows RFC 4180: a cell that begins with a
//! quotation mark extends to the next single one, over line ends; two in a row stand for one,
//! and characters after the closing one belong to the cell.
//! `csv-core` splits the rows, which are read one line at a time: unlike `csv`, which it is the
//! parser of, it lets a row be refused before it is longer than its limit or has too many cells.

use super::input::{Input, Row};
use crate::error::{Error, Result};
use csv_core::{ReadRecordResult, ReaderBuilder, Terminator};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Largest number of columns; a row with more is refused as damaged.
const MAX_COLUMNS: usize = 4096;

/// The character between the cells of a CSV file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Separator {
    /// A comma.
    #[serde(rename = ",")]
    Comma,
    /// A semicolon.
    #[serde(rename = ";")]
    Semicolon,
    /// A tab.
    #[serde(rename = "\t")]
    Tab,
    /// A vertical bar.
    #[serde(rename = "|")]
    Pipe,
}

impl Separator {
    /// All separators, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::Comma, Self::Semicolon, Self::Tab, Self::Pipe];

    fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Tab => b'\t',
            Self::Pipe => b'|',
        }
    }

    /// The separator of a header: the first with which `is_header` knows the cells.
    ///
    /// The line may be a private row. So nothing else about it counts, and without a known header
    /// cells are separated by commas.
    pub(super) fn of_header(line: &str, is_header: impl Fn(&[&str]) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|separator| {
            let cells = line.split(char::from(separator.byte()));
            is_header(&cells.map(|cell| cell.trim().trim_matches('"')).collect::<Vec<_>>())
        })
    }
}

impl FromStr for Separator {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "," => Ok(Self::Comma),
            ";" => Ok(Self::Semicolon),
            "\t" | "\\t" | "tab" => Ok(Self::Tab),
            "|" => Ok(Self::Pipe),
            _ => Err(format!("expected \",\", \";\", \"\\t\" or \"|\", got {text:?}")),
        }
    }
}

/// How rows are divided into cells.
#[derive(Clone, Copy)]
pub(super) enum Dialect {
    /// Tabs, without quoting.
    Tsv,
    /// Quoted cells; without a separator, that of the header.
    Csv(Option<Separator>),
}

/// A table, read row by row.
pub(super) struct Table {
    dialect: Dialect,
    /// The parser, once the separator is known.
    parser: Option<csv_core::Reader>,
    /// The number of columns, once it is known.
    columns: Option<usize>,
    row: Row,
    /// The cells of the row, one after another, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    cells: usize,
}

impl Table {
    /// A table whose first row determines the number of columns.
    pub(super) fn new(dialect: Dialect) -> Self {
        let (row, text, ends) = (Row::default(), Vec::new(), vec![0; MAX_COLUMNS]);
        Self { dialect, parser: None, columns: None, row, text, ends, cells: 0 }
    }

    pub(super) fn with_columns(dialect: Dialect, columns: usize) -> Self {
        Self { columns: Some(columns), ..Self::new(dialect) }
    }

    /// Reads the next row; `false` at the end. `is_header` recognizes the cells of a header.
    pub(super) fn next(
        &mut self,
        input: &mut Input,
        is_header: impl Fn(&[&str]) -> bool,
    ) -> Result<bool> {
        // Tabs are separators: a line of tabs is a row of empty cells.
        let is_blank = |row: &Row| row.bytes.iter().all(|byte| b" \r\n".contains(byte));
        loop {
            if !input.next_line_or_blank(&mut self.row)? {
                return Ok(false);
            }
            if !is_blank(&self.row) {
                break;
            }
        }
        let mut parser = match self.parser.take() {
            Some(parser) => parser,
            None => self.dialect.parser(input.text(&self.row).unwrap_or_default(), is_header),
        };
        let got = self.split(&mut parser, input)?;
        self.parser = Some(parser);
        // Cells are parts of the row without quotation marks, so they are UTF-8 if the row is.
        input.text(&self.row)?;
        let max = self.columns.unwrap_or(MAX_COLUMNS);
        if got > max || self.columns.is_some_and(|columns| columns != got) {
            return Err(Error::Columns {
                path: input.path(),
                line: self.row.line,
                expected: max,
                got,
            });
        }
        (self.columns, self.cells) = (Some(got), got);
        Ok(true)
    }

    pub(super) fn cells(&self) -> Vec<&str> {
        (0..self.cells).map(|column| self.cell(column)).collect()
    }

    /// One of the cells; empty if there are fewer.
    pub(super) fn cell(&self, column: usize) -> &str {
        let bytes = || {
            let end = *self.ends[..self.cells].get(column)?;
            let start = column.checked_sub(1).map_or(0, |before| self.ends[before]);
            str::from_utf8(self.text.get(start..end)?).ok()
        };
        bytes().unwrap_or_default()
    }

    pub(super) fn line(&self) -> u64 {
        self.row.line
    }

    /// Splits the row into cells and returns their number.
    ///
    /// Appends lines to the row until all its quotation marks are closed.
    fn split(&mut self, parser: &mut csv_core::Reader, input: &mut Input) -> Result<usize> {
        let (mut read, mut written, mut cells) = (0, 0, 0);
        let mut ended = false;
        loop {
            // Without quotation marks, a row is not longer. The parser returns early where it has
            // no space left.
            self.text.resize(self.row.bytes.len() + 2, 0);
            let mut beyond = [0; 64];
            let ends = match self.ends.get_mut(cells..) {
                Some([]) | None => &mut beyond[..],
                Some(ends) => ends,
            };
            let rest = if ended { b"\n" } else { &self.row.bytes[read..] };
            let (result, bytes_read, bytes_written, ended_cells) =
                parser.read_record(rest, &mut self.text[written..], ends);
            written += bytes_written;
            cells += ended_cells;
            if !ended {
                read += bytes_read;
            }
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => break,
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {}
                ReadRecordResult::InputEmpty if ended => {
                    let what = "expected a quotation mark at the end of a quoted cell, got the \
                                end of the file";
                    return Err(Error::Quotes { path: input.path(), line: self.row.line, what });
                }
                ReadRecordResult::InputEmpty => ended = !input.append_line(&mut self.row)?,
            }
        }
        // A row ends with LF; the CR before it is not part of the last cell.
        let last = self.ends.get_mut(..cells).and_then(<[usize]>::last_mut);
        if let Some(last) = last
            && self.row.bytes.ends_with(b"\r\n")
            && self.text[..*last].ends_with(b"\r")
        {
            *last -= 1;
        }
        Ok(cells)
    }
}

impl Dialect {
    /// The parser of a table with this first line.
    fn parser(self, line: &str, is_header: impl Fn(&[&str]) -> bool) -> csv_core::Reader {
        let separator = match self {
            Self::Tsv => Separator::Tab,
            Self::Csv(Some(separator)) => separator,
            Self::Csv(None) => Separator::of_header(line, is_header).unwrap_or(Separator::Comma),
        };
        ReaderBuilder::new()
            .delimiter(separator.byte())
            .quoting(matches!(self, Self::Csv(_)))
            // A single CR is part of a cell.
            .terminator(Terminator::Any(b'\n'))
            .build()
    }
}
