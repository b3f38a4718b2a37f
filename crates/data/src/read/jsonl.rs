//! `jsonl`: one JSON object per line with a text or the path of an image, and a label.
//!
//! The keys are those named in the options, or the first default name of a column
//! ([`labelled`](super::labelled)) that the row has. A key that a row does not have, null and a label
//! without letters are missing values ([`Missing`]); an empty text is not. Blank
//! lines are skipped.
//!
//! No row determines how another is read: the first row may be a private record.

use super::columns::{Column, Role, listed};
use super::decode::ImageReader;
use super::input::{Input, Row};
use super::json::{self, SelectedKeys};
use super::labelled::text_content;
use super::{LabelRule, Missing, ReadOptions, Rows};
use crate::error::Result;
use crate::record::{Content, Label, Record};
use std::path::PathBuf;

pub(super) struct Jsonl {
    input: Input,
    row: Row,
    path: PathBuf,
    options: ReadOptions,
    /// The keys that may be read.
    candidates: Vec<String>,
    /// Whether a row has been read.
    started: bool,
    images: ImageReader,
}

struct Keys {
    content: Column,
    image: bool,
    /// `None` if labels are not read.
    label: Option<Column>,
    group: Option<Column>,
}

impl Jsonl {
    pub(super) fn new(input: Input, options: &ReadOptions) -> Self {
        let names = |role: Role| match role.given(options) {
            Some(given) => vec![given.to_owned()],
            None => role.names().iter().map(|name| (*name).to_owned()).collect(),
        };
        let roles = [Role::Text, Role::Image, Role::Label, Role::Group];
        Self {
            path: input.path(),
            input,
            row: Row::default(),
            options: options.clone(),
            candidates: roles.into_iter().flat_map(names).collect(),
            started: false,
            images: ImageReader::new(options),
        }
    }

    /// The keys of a row; where it has none, the names of those that could be read.
    ///
    /// # Errors
    /// If the first row does not have them, unless rows without a value are skipped. The names of
    /// its keys are shown.
    fn keys(&self, text: &str, picked: &SelectedKeys) -> Result<Keys> {
        let refuses = !self.started && self.options.missing == Missing::Error;
        let find = |role: Role| {
            let present = |name: &&str| picked.is_present(name);
            match role.given(&self.options) {
                Some(given) => Some(given).filter(present),
                None => role.names().iter().copied().find(present),
            }
        };
        let key = |role: Role| match (find(role), role.given(&self.options)) {
            (None, _) if refuses || role == Role::Group && !self.started => {
                Err(role.absent(&self.options, &self.path, listed(&json::key_names(text))))
            }
            (Some(name), _) | (None, Some(name)) => Ok(Column { at: 0, name: name.into() }),
            // No row has a key of this name.
            (None, None) => Ok(Column { at: 0, name: role.names().join(" or ") }),
        };
        let role = match (&self.options.image, &self.options.text) {
            (Some(_), _) => Role::Image,
            (None, None) if find(Role::Text).is_none() && find(Role::Image).is_some() => {
                Role::Image
            }
            _ => Role::Text,
        };
        Ok(Keys {
            group: self.options.group.as_ref().map(|_| key(Role::Group)).transpose()?,
            content: key(role)?,
            image: role == Role::Image,
            label: match self.options.label_rule {
                LabelRule::Ignored => None,
                _ => Some(key(Role::Label)?),
            },
        })
    }
}

impl Rows for Jsonl {
    fn next(&mut self) -> Result<Option<Record>> {
        if !self.input.next_line(&mut self.row)? {
            return Ok(None);
        }
        let (row, line) = (self.input.text(&self.row)?, self.row.line);
        let picked = SelectedKeys::new(row, &self.candidates)
            .map_err(|error| json::malformed(&error, &self.path, line, 1))?;
        let keys = self.keys(row, &picked)?;
        self.started = true;
        let name = |key: &Column| picked.name(&key.name, &self.path, line);
        let group = match &keys.group {
            Some(key) => {
                let missing = || key.missing_group(&self.path, "line", line);
                Some(name(key)?.ok_or_else(missing)?)
            }
            None => None,
        };
        let value = |key: &Column| match self.options.label_rule {
            LabelRule::Names => picked.names(&key.name, &self.path, line),
            LabelRule::Number => picked.number(&key.name, &self.path, line),
            _ => name(key),
        };
        let label = match &keys.label {
            Some(key) => value(key)?.ok_or(key).map(Some),
            None => Ok(None),
        };
        let content = picked.text(&keys.content.name, &self.path, line)?.ok_or(&keys.content);
        let content = match (content, label) {
            (Ok(path), Ok(label)) if keys.image => {
                let label = label.map_or(Label::None, Label::Name);
                self.images.listed(path.trim(), &self.path, line, label)?
            }
            (Ok(text), Ok(label)) => text_content(text.trim().into(), label),
            (Err(key), _) | (_, Err(key)) => {
                key.missing(&self.options, &self.path, "line", line)?;
                Content::Missing
            }
        };
        Ok(Some(Record { content, group, line }))
    }
}
