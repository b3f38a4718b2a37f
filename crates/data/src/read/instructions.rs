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
//! A text that is null or absent is a missing value ([`Missing`](super::Missing)). The first set of
//! keys that a row has counts. Every row is one record, however many turns it has.
//! Texts are unchanged.

use super::columns::{Column, Role, listed};
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
    options: ReadOptions,
    /// Whether no row has been read.
    first: bool,
}

/// Source and target, or the key of a missing text.
type SourceAndTarget = std::result::Result<(Option<String>, String), &'static str>;

fn pair(
    source: std::result::Result<String, &'static str>,
    target: std::result::Result<&str, &'static str>,
) -> SourceAndTarget {
    Ok((Some(source?), target?.to_owned()))
}

impl Instructions {
    pub(super) fn new(input: Input, options: &ReadOptions) -> Self {
        let keys = KEYS.iter().map(|key| (*key).to_owned()).chain(options.group.clone()).collect();
        let (path, options) = (input.path(), options.clone());
        Self { path, input, row: Row::default(), keys, options, first: true }
    }

    /// Source and target; `Err` is the key of a missing text.
    fn content(&self, text: &str, picked: &SelectedKeys) -> Result<SourceAndTarget> {
        let (path, line) = (&self.path, self.row.line);
        let required = |key: &'static str| Ok(picked.text(key, path, line)?.ok_or(key));
        let either = |first: &'static str, second: &'static str| {
            if picked.has(second) && !picked.has(first) { second } else { first }
        };
        if picked.has("messages") {
            if !matches!(picked.get("messages"), Value::List | Value::Names(_)) {
                return Err(picked.wrong_type("messages", "an array of messages", path, line));
            }
            let conversation = serde_json::from_str::<Messages>(text)
                .map_err(|error| json::malformed(&error, path, line, 1))?
                .messages;
            return match conversation.role() {
                Some("assistant") => Ok(Ok((conversation.source, conversation.last))),
                None => Err(self.messages("an array of messages", "an empty array")),
                _ => Err(self.messages(
                    "an array that ends with the assistant's message",
                    "another role at the end",
                )),
            };
        }
        if picked.has("instruction") {
            let given = either("input", "context");
            let given = picked.text(given, path, line)?.filter(|given| !given.is_empty());
            let source = required("instruction")?.map(|instruction| match given {
                Some(given) => format!("{instruction}\n\n{given}"),
                None => instruction.to_owned(),
            });
            return Ok(pair(source, required(either("output", "response"))?));
        }
        if picked.has("prompt") {
            let source = required("prompt")?.map(str::to_owned);
            return Ok(pair(source, required("completion")?));
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
        let column = |key: &str| Column { at: 0, name: key.into() };
        let group = match &self.options.group {
            None => None,
            Some(key) if self.first && !picked.is_present(key) => {
                let names = listed(&json::key_names(text));
                return Err(Role::Group.absent(&self.options, &self.path, names));
            }
            Some(key) => {
                let missing = || column(key).missing_group(&self.path, "line", line);
                Some(picked.name(key, &self.path, line)?.ok_or_else(missing)?)
            }
        };
        let content = match self.content(text, &picked)? {
            Ok((source, target)) => Content::Text { source, target, references: Vec::new() },
            Err(key) => {
                column(key).missing(&self.options, &self.path, "line", line)?;
                Content::Missing
            }
        };
        self.first = false;
        Ok(Some(Record { content, group, line }))
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
#[derive(Default)]
pub(super) struct Conversation {
    /// All messages before the last.
    pub(super) source: Option<String>,
    /// The last message.
    pub(super) last: String,
    /// The role of the last message.
    role: Option<String>,
}

impl Conversation {
    /// Adds a message.
    pub(super) fn push(&mut self, role: String, content: String) {
        let last = std::mem::replace(&mut self.last, content);
        if let Some(before) = self.role.replace(role) {
            let turn = format!("{before}: {last}");
            match &mut self.source {
                Some(source) => source.extend(["\n", &turn]),
                None => self.source = Some(turn),
            }
        }
    }

    /// The role of the last message; `None` without messages.
    pub(super) fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }
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
        let mut conversation = Conversation::default();
        while let Some(Message { role, content }) = list.next_element()? {
            conversation.push(role, content);
        }
        Ok(conversation)
    }
}
