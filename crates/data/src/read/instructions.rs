//! `instructions`: an object on each line, in one of three shapes. Blank lines are skipped, other
//! keys are ignored.
//!
//! - `messages`, an array of `{"role": …, "content": …}`. The target is the last, which must be the
//!   assistant's; the source is all before it, "role: content" on a line each, or none.
//! - `instruction`, perhaps `input` (or `context`), and `output` (or `response`). The source is the
//!   instruction, followed by a blank line and the input if there is any; the target is the output.
//! - `prompt` and `completion`: source and target.
//!
//! A row with the keys of several shapes is read as the first of them. Every row is one record,
//! however many turns it has: it is one person's. Texts stand as they are.

use super::input::{Input, Row};
use super::json::{self, Picked, Value};
use super::{ReadOptions, Rows};
use crate::error::{Error, Result};
use crate::record::{Content, Record};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::path::PathBuf;

/// Every key that is looked at.
pub(super) const KEYS: &[&str] =
    &["messages", "instruction", "input", "context", "output", "response", "prompt", "completion"];

/// Whether an object has one of the three shapes.
pub(super) fn fits(row: &Picked) -> bool {
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

    fn content(&self, text: &str, picked: &Picked) -> Result<(Option<String>, String)> {
        let (path, line) = (&self.path, self.row.line);
        let either = |first: &'static str, second: &'static str| {
            if picked.has(second) && !picked.has(first) { second } else { first }
        };
        if picked.has("messages") {
            if !matches!(picked.get("messages"), Value::List) {
                return Err(picked.refused("messages", "an array of messages", path, line));
            }
            let Conversation { source, last, role } = serde_json::from_str::<Messages>(text)
                .map_err(|error| json::malformed(&error, path, line, 1))?
                .messages;
            return match role.as_str() {
                "assistant" => Ok((source, last)),
                "" => Err(self.messages("an array of messages", "an empty one")),
                _ => Err(self.messages(
                    "an array that ends with the assistant's message",
                    "one that ends with another's",
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
        let key = "instruction or prompt or messages".to_owned();
        Err(Error::Key {
            path: path.clone(),
            line,
            key,
            expected: "one of the keys",
            got: "none of them",
        })
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
        let picked = Picked::new(text, &self.keys)
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

/// Messages, put together as they are read: a list of many short ones takes no more memory than the
/// row.
struct Conversation {
    source: Option<String>,
    last: String,
    /// Of the last one; empty if there is none.
    role: String,
}

impl<'de> Deserialize<'de> for Conversation {
    fn deserialize<D: Deserializer<'de>>(list: D) -> std::result::Result<Self, D::Error> {
        list.deserialize_seq(Turns)
    }
}

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
