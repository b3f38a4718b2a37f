//! `instructions`: one JSON object per line, with one of three sets of keys.
//!
//! Blank lines are skipped, other keys are ignored.
//!
//! - `messages`, an array of `{"role": …, "content": …}`. The target is the last message, which
//!   must be the assistant's; the source is all before it, one line "role: content" each, or none.
//! - `instruction`, optionally `input` (or `context`), and `output` (or `response`). The source is
//!   the instruction, followed by a blank line and the input if there is any; the target is the
//!   output.
//! - `prompt` and `completion`: source and target.
//!
//! The first set of keys that a row has counts. Every row is one record, however many turns it has.
//! Texts are unchanged.

use super::input::{Input, Row};
use super::json::{self, SelectedKeys, Value};
use super::{ReadOptions, Rows, quoted};
use crate::error::{Error, Result};
use crate::record::{Content, Record};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::path::PathBuf;

/// All keys that are read.
pub(super) const KEYS: &[&str] =
    &["messages", "instruction", "input", "context", "output", "response", "prompt", "completion"];

/// Whether an object has one of the three sets of keys.
pub(super) fn fits(row: &SelectedKeys) -> bool {
    row.has("messages")
        || row.has("instruction") && (row.has("output") || row.has("response"))
        || row.has("prompt") && row.has("completion")
}

pub(super) struct Instructions {
    input: Input,
    row: Row,
    path: PathBuf,
    keys: Vec<String>,
    group: Option<String>,
}

impl Instructions {
    pub(super) fn new(input: Input, options: &ReadOptions) -> Self {
        let keys = KEYS.iter().map(|key| (*key).to_owned()).chain(options.group.clone()).collect();
        Self { path: input.path(), input, row: Row::default(), keys, group: options.group.clone() }
    }

    fn content(&self, text: &str, picked: &SelectedKeys) -> Result<(Option<String>, String)> {
        let (path, line) = (&self.path, self.row.line);
        let either = |first: &'static str, second: &'static str| {
            if picked.has(second) && !picked.has(first) { second } else { first }
        };
        if picked.has("messages") {
            if !matches!(picked.get("messages"), Value::List) {
                return Err(picked.wrong_type("messages", "an array of messages", path, line));
            }
            let Conversation { source, last, role } = serde_json::from_str::<Messages>(text)
                .map_err(|error| json::malformed(&error, path, line, 1))?
                .messages;
            return match role.as_str() {
                "assistant" => Ok((source, last)),
                "" => Err(self.messages("an array of messages", "an empty array")),
                _ => Err(self.messages(
                    "an array that ends with the assistant's message",
                    "another role at the end",
                )),
            };
        }
        if picked.has("instruction") {
            let mut source = picked.text("instruction", path, line)?.to_owned();
            let given = either("input", "context");
            if picked.has(given) {
                let given = picked.text(given, path, line)?;
                if !given.is_empty() {
                    source = format!("{source}\n\n{given}");
                }
            }
            return Ok((
                Some(source),
                picked.text(either("output", "response"), path, line)?.to_owned(),
            ));
        }
        if picked.has("prompt") {
            return Ok((
                Some(picked.text("prompt", path, line)?.to_owned()),
                picked.text("completion", path, line)?.to_owned(),
            ));
        }
        let expected = quoted(&["instruction", "prompt", "messages"]);
        Err(Error::MissingKey { path: path.clone(), line, expected })
    }

    fn messages(&self, expected: &'static str, got: &'static str) -> Error {
        Error::Key {
            path: self.path.clone(),
            line: self.row.line,
            key: "messages".into(),
            expected,
            got,
        }
    }
}

impl Rows for Instructions {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.input.next_line(&mut self.row)? {
            return Ok(None);
        }
        let (text, line) = (self.input.text(&self.row)?, self.row.line);
        let picked = SelectedKeys::new(text, &self.keys)
            .map_err(|error| json::malformed(&error, &self.path, line, 1))?;
        let (source, target) = self.content(text, &picked)?;
        let group =
            self.group.as_ref().map(|key| picked.name(key, &self.path, line)).transpose()?;
        Ok(Some(Record {
            content: Content::Text { source, target, references: Vec::new() },
            group,
            line,
        }))
    }
}

#[derive(Deserialize)]
struct Messages {
    messages: Conversation,
}

#[derive(Deserialize)]
#[serde(expecting = "a message with \"role\" and \"content\"")]
struct Message {
    role: String,
    content: String,
}

/// Messages, joined as they are read, so that memory is bounded by the row.
struct Conversation {
    source: Option<String>,
    last: String,
    /// The role of the last message; empty without messages.
    role: String,
}

impl<'de> Deserialize<'de> for Conversation {
    fn deserialize<D: Deserializer<'de>>(list: D) -> std::result::Result<Self, D::Error> {
        list.deserialize_seq(Turns)
    }
}

/// Deserializes an array of messages.
struct Turns;

impl<'de> Visitor<'de> for Turns {
    type Value = Conversation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Conversation, A::Error> {
        let mut source: Option<String> = None;
        let mut last: Option<Message> = None;
        while let Some(message) = list.next_element::<Message>()? {
            if let Some(before) = last.replace(message) {
                let turn = format!("{}: {}", before.role, before.content);
                match &mut source {
                    Some(source) => source.extend(["\n", &turn]),
                    None => source = Some(turn),
                }
            }
        }
        let (role, last) = last.map(|message| (message.role, message.content)).unwrap_or_default();
        Ok(Conversation { source, last, role })
    }
}
