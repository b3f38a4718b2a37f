//! `lines`: each line is an example, as it stands, with nothing given before it. Blank lines are skipped.

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
        if !self.input.next_line(&mut self.row)? {
            return Ok(None);
        }
        let target = self.input.text(&self.row)?.to_owned();
        let content = Content::Text { source: None, target, references: Vec::new() };
        Ok(Some(Record { content, group: None, line: self.row.line }))
    }
}
