//! `e2e`: the E2E data set (Novikova, Dušek and Rieser 2017), in its two published forms.
//!
//! - Lines `MR||text`, tokenised: everything before the first `||` is the source, unchanged; the
//!   text is trimmed. Blank lines are skipped.
//! - The organisers' CSV with the header `mr,ref`: fields can be quoted, a quoted field can hold
//!   commas, doubled quotation marks and ends of lines.
//!
//! Every row is a record. The rows of one meaning representation are consecutive in the validation
//! and test sets: [`merge_by_source`](crate::record::merge_by_source) merges them.

use super::Rows;
use super::input::{Input, Row};
use super::table::{Dialect, Separator, Table};
use crate::error::{Error, Result};
use crate::record::{Content, Record};

pub(super) struct E2e {
    input: Input,
    row: Row,
    /// Present after the header of the CSV form.
    table: Option<Table>,
    started: bool,
}

impl E2e {
    pub(super) fn new(input: Input) -> Self {
        Self { input, row: Row::default(), table: None, started: false }
    }
}

impl Rows for E2e {
    fn next(&mut self) -> Result<Option<Record>> {
        if let Some(table) = &mut self.table {
            if !table.next(&mut self.input, |_| false)? {
                return Ok(None);
            }
            return Ok(Some(record(table.cell(0), table.cell(1), table.line())));
        }
        if !self.input.next_line(&mut self.row)? {
            return Ok(None);
        }
        let text = self.input.text(&self.row)?;
        if !self.started && is_header(text) {
            self.table = Some(Table::with_columns(Dialect::Csv(Some(Separator::Comma)), 2));
            return self.next();
        }
        self.started = true;
        let line = self.row.line;
        let (source, target) = text
            .split_once("||")
            .ok_or_else(|| Error::Separator { path: self.input.path(), line })?;
        Ok(Some(record(source, target, line)))
    }
}

/// Whether a line is the header of the CSV form.
pub(crate) fn is_header(line: &str) -> bool {
    line.split_once(',').is_some_and(|(mr, text)| named(mr, "mr") && named(text, "ref"))
}

fn named(cell: &str, name: &str) -> bool {
    let cell = cell.trim();
    cell.strip_prefix('"')
        .and_then(|cell| cell.strip_suffix('"'))
        .unwrap_or(cell)
        .eq_ignore_ascii_case(name)
}

fn record(source: &str, target: &str, line: u64) -> Record {
    let content = Content::Text {
        source: Some(source.into()),
        target: target.trim().into(),
        references: Vec::new(),
    };
    Record { content, group: None, line }
}
