//! `lines`: each line is an example without a source, unchanged.
//!
//! A blank line is an example without text, so that the number of rows does not depend on their
//! content.

use super::Rows;
use super::input::{Input, Row};
use crate::error::Result;
use crate::record::{Content, Record};

pub(super) struct Lines {
    input: Input,
    row: Row,
}

impl Lines {
    pub(super) fn new(input: Input) -> Self {
        Self { input, row: Row::default() }
    }
}

impl Rows for Lines {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.input.next_line_or_blank(&mut self.row)? {
            return Ok(None);
        }
        let text = self.input.text(&self.row)?;
        let target = if text.trim_ascii().is_empty() { String::new() } else { text.to_owned() };
        let content = Content::Text { source: None, target, references: Vec::new() };
        Ok(Some(Record { content, group: None, line: self.row.line }))
    }
}
