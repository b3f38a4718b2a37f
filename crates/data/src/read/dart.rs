//! `dart`: the DART data set (Nan et al. 2021).
//!
//! It is a JSON array of entries `{"tripleset": [[s, r, o], …], "annotations": [{"text": …}, …]}`.
//!
//! Each annotation is a record. Its source is the triples as "subject : relation : object | …" with
//! the relation in lower case (the DP-Muon paper, Appendix D); subjects and objects are unchanged.
//! The text is trimmed. An entry without annotations gives no record. The records of an entry are
//! consecutive: [`merge_by_source`](crate::record::merge_by_source) merges them.
//!
//! The array is split into entries by counting brackets outside of strings, so that one entry at a
//! time is in memory; `serde_json` then parses the entry and refuses mismatched brackets.

use super::Rows;
use super::input::Input;
use super::json;
use crate::error::{Error, Result};
use crate::record::{Content, Record};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(expecting = "an entry with \"tripleset\" and \"annotations\"")]
struct Entry {
    tripleset: Vec<[String; 3]>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
#[serde(expecting = "an annotation with \"text\"")]
struct Annotation {
    text: String,
}

pub(super) struct Dart {
    input: Input,
    stage: Stage,
    at: Position,
    entry: Vec<u8>,
    /// The source of the current entry.
    source: String,
    texts: std::vec::IntoIter<Annotation>,
    line: u64,
}

/// The position in the array.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Start,
    Bracket,
    Entry,
    End,
}

/// The position of the next byte, counted from 1.
#[derive(Clone, Copy)]
struct Position {
    line: u64,
    column: u64,
}

impl Position {
    fn advance(&mut self, byte: u8) {
        *self = if byte == b'\n' {
            Self { line: self.line + 1, column: 1 }
        } else {
            Self { line: self.line, column: self.column + 1 }
        };
    }
}

impl Dart {
    pub(super) fn new(input: Input) -> Self {
        let at = Position { line: 1, column: 1 };
        Self {
            input,
            stage: Stage::Start,
            at,
            entry: Vec::new(),
            source: String::new(),
            texts: Vec::new().into_iter(),
            line: 1,
        }
    }

    /// Reads the next entry; `false` at the end of the array.
    fn next_entry(&mut self) -> Result<bool> {
        if self.stage == Stage::Start {
            match self.skip_space()? {
                None => return Ok(false),
                Some(b'[') => self.stage = Stage::Bracket,
                Some(_) => return Err(self.error("expected an array, got another character")),
            }
            self.skip();
        }
        let mut next = self.skip_space()?;
        if next == Some(b',') && self.stage == Stage::Entry {
            self.skip();
            next = self.skip_space()?;
        } else if next == Some(b']') {
            self.skip();
            self.stage = Stage::End;
            return if self.skip_space()?.is_none() {
                Ok(false)
            } else {
                Err(self.error("expected nothing after the array, got more"))
            };
        } else if next.is_some() && self.stage == Stage::Entry {
            return Err(
                self.error("expected a comma or the end of the array, got another character")
            );
        }
        match next {
            Some(b'{') => {}
            Some(_) => return Err(self.error("expected an object, got another character")),
            None => {
                return Err(self
                    .error("expected an object or the end of the array, got the end of the file"));
            }
        }
        self.stage = Stage::Entry;
        let start = self.at;
        self.copy_object(start)?;
        let text = str::from_utf8(&self.entry);
        let text = text.map_err(|error| Error::NotUtf8 {
            path: self.input.path(),
            line: start.line,
            offset: error.valid_up_to(),
        })?;
        let entry: Entry = serde_json::from_str(text).map_err(|error| {
            json::malformed(&error, &self.input.path(), start.line, start.column)
        })?;
        let triples = entry.tripleset.iter().map(|[subject, relation, object]| {
            format!("{subject} : {} : {object}", relation.to_lowercase())
        });
        self.source = triples.collect::<Vec<_>>().join(" | ");
        self.texts = entry.annotations.into_iter();
        self.line = start.line;
        Ok(true)
    }

    /// Copies an object, from its opening bracket to the matching one.
    fn copy_object(&mut self, start: Position) -> Result<()> {
        self.entry.clear();
        let (mut depth, mut quoted, mut escaped) = (0_u64, false, false);
        loop {
            let bytes = self.input.fill()?;
            let mut used = 0;
            for &byte in bytes {
                used += 1;
                self.at.advance(byte);
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    b'{' | b'[' if !quoted => depth += 1,
                    b'}' | b']' if !quoted => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            self.entry.extend_from_slice(&bytes[..used]);
            self.input.consume(used);
            if used == 0 {
                return Err(self.error("expected the end of an object, got the end of the file"));
            }
            if self.entry.len() > self.input.max_row_bytes() {
                return Err(self.input.too_long(start.line));
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Skips white space and returns the next byte without consuming it.
    fn skip_space(&mut self) -> Result<Option<u8>> {
        loop {
            match self.input.fill()?.first().copied() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.skip(),
                other => return Ok(other),
            }
        }
    }

    /// Consumes the next byte.
    fn skip(&mut self) {
        if let Ok([byte, ..]) = self.input.fill() {
            let byte = *byte;
            self.at.advance(byte);
            self.input.consume(1);
        }
    }

    fn error(&self, what: &str) -> Error {
        Error::Json {
            path: self.input.path(),
            line: self.at.line,
            column: self.at.column,
            what: what.into(),
        }
    }
}

impl Rows for Dart {
    fn next(&mut self) -> Result<Option<Record>> {
        loop {
            if let Some(Annotation { text }) = self.texts.next() {
                let content = Content::Text {
                    source: Some(self.source.clone()),
                    target: text.trim().into(),
                    references: Vec::new(),
                };
                return Ok(Some(Record { content, group: None, line: self.line }));
            }
            if self.stage == Stage::End || !self.next_entry()? {
                return Ok(None);
            }
        }
    }
}
