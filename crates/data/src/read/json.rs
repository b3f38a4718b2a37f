//! JSON objects of which only selected keys are kept, and errors without their content.

use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::path::Path;

/// The values of selected keys of an object. Other values are skipped and take no memory.
pub(super) struct SelectedKeys {
    keys: Vec<String>,
    values: Vec<Value>,
}

/// The value of one key.
pub(super) enum Value {
    Absent,
    Null,
    Text(String),
    /// An integer, as text.
    Integer(String),
    /// Another number, as text.
    Fraction(String),
    Bool(bool),
    /// A list of strings.
    Names(Vec<String>),
    /// Another list.
    List,
    Object,
    /// The key occurs more than once.
    Duplicate,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::Null => "null",
            Self::Text(_) => "a string",
            Self::Integer(_) | Self::Fraction(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::Names(_) | Self::List => "an array",
            Self::Object => "an object",
            Self::Duplicate => "two values",
        }
    }
}

impl SelectedKeys {
    pub(super) fn new<K: AsRef<str>>(text: &str, keys: &[K]) -> serde_json::Result<Self> {
        let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        let mut row = serde_json::Deserializer::from_str(text);
        let values = Object(&keys).deserialize(&mut row)?;
        row.end()?;
        Ok(Self { keys, values })
    }

    pub(super) fn get(&self, key: &str) -> &Value {
        self.keys
            .iter()
            .position(|one| one == key)
            .and_then(|at| self.values.get(at))
            .unwrap_or(&Value::Absent)
    }

    /// Whether the key has a value other than null.
    pub(super) fn has(&self, key: &str) -> bool {
        !matches!(self.get(key), Value::Absent | Value::Null)
    }

    /// Whether the object has the key.
    pub(super) fn is_present(&self, key: &str) -> bool {
        !matches!(self.get(key), Value::Absent)
    }

    /// The string of a key; `None` without the key, or if it is null.
    pub(super) fn text(&self, key: &str, path: &Path, line: u64) -> Result<Option<&str>> {
        match self.get(key) {
            Value::Text(text) => Ok(Some(text)),
            Value::Absent | Value::Null => Ok(None),
            _ => Err(self.wrong_type(key, "a string", path, line)),
        }
    }

    /// The name of a key: a string, an integer or a Boolean; `None` if it is missing or empty.
    pub(super) fn name(&self, key: &str, path: &Path, line: u64) -> Result<Option<String>> {
        match self.get(key) {
            Value::Text(text) => {
                Ok(Some(text.trim().into()).filter(|name: &String| !name.is_empty()))
            }
            Value::Integer(number) => Ok(Some(number.clone())),
            Value::Bool(value) => Ok(Some(value.to_string())),
            Value::Absent | Value::Null => Ok(None),
            _ => Err(self.wrong_type(key, "a string, an integer, true or false", path, line)),
        }
    }

    /// The names of a key as one text: a string, which may be empty, or a list of strings as JSON.
    pub(super) fn names(&self, key: &str, path: &Path, line: u64) -> Result<Option<String>> {
        match self.get(key) {
            Value::Text(text) => Ok(Some(text.trim().into())),
            Value::Names(names) => Ok(Some(serde_json::Value::from(names.clone()).to_string())),
            Value::Absent | Value::Null => Ok(None),
            _ => Err(self.wrong_type(key, "a string or a list of strings", path, line)),
        }
    }

    /// The number of a key, as text. A string is returned as it is.
    pub(super) fn number(&self, key: &str, path: &Path, line: u64) -> Result<Option<String>> {
        match self.get(key) {
            Value::Integer(text) | Value::Fraction(text) | Value::Text(text) => {
                Ok(Some(text.trim().into()).filter(|text: &String| !text.is_empty()))
            }
            Value::Absent | Value::Null => Ok(None),
            _ => Err(self.wrong_type(key, "a number", path, line)),
        }
    }

    /// The error for a value of another type.
    pub(super) fn wrong_type(
        &self,
        key: &str,
        expected: &'static str,
        path: &Path,
        line: u64,
    ) -> Error {
        Error::Key { path: path.into(), line, key: key.into(), expected, got: self.get(key).kind() }
    }
}

/// The keys of an object, in its order, for a message.
pub(super) fn key_names(text: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Keys(#[serde(deserialize_with = "keys")] Vec<String>);
    fn keys<'de, D: Deserializer<'de>>(row: D) -> std::result::Result<Vec<String>, D::Error> {
        row.deserialize_map(KeyNames)
    }
    serde_json::from_str(text).map(|Keys(names)| names).unwrap_or_default()
}

/// Largest number of keys that are collected for a message.
const MAX_KEYS: usize = 1024;

/// Deserializes the keys of an object.
struct KeyNames;

impl<'de> Visitor<'de> for KeyNames {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
            if names.len() < MAX_KEYS {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// The error for a row that begins at this line and column.
pub(super) fn malformed(error: &serde_json::Error, path: &Path, line: u64, column: u64) -> Error {
    let column = if error.line() <= 1 {
        column + (error.column() as u64).saturating_sub(1)
    } else {
        error.column() as u64
    };
    Error::Json {
        path: path.into(),
        line: line + (error.line() as u64).saturating_sub(1),
        column,
        what: redacted(error),
    }
}

/// The message of an error, without content of the data.
///
/// Syntax errors are fixed texts. Type errors can quote the data, but not after the last
/// "expected", nor where they name a known field.
fn redacted(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    if !error.is_data() {
        return format!("invalid JSON: {message}");
    }
    match message.rsplit_once(", expected ") {
        Some((_, expected)) => format!("expected {expected}, got another value"),
        None if message.starts_with("missing field `")
            || message.starts_with("duplicate field `") =>
        {
            message.to_owned()
        }
        None => "unexpected structure".to_owned(),
    }
}

/// Deserializes an object, keeping selected keys.
struct Object<'k>(&'k [String]);

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Vec<Value>;
    fn deserialize<D: Deserializer<'de>>(
        self,
        row: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        row.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut values: Vec<Value> = self.0.iter().map(|_| Value::Absent).collect();
        while let Some(at) = map.next_key_seed(KeyIndex(self.0))? {
            match at.and_then(|at| values.get_mut(at)) {
                Some(value @ Value::Absent) => *value = map.next_value_seed(SelectedValue)?,
                Some(value) => {
                    map.next_value::<IgnoredAny>()?;
                    *value = Value::Duplicate;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(values)
    }
}

/// Deserializes a key as its index among the selected keys.
struct KeyIndex<'k>(&'k [String]);

impl<'de> DeserializeSeed<'de> for KeyIndex<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(
        self,
        key: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyIndex<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> std::result::Result<Self::Value, E> {
        Ok(self.0.iter().position(|one| one == key))
    }
}

/// Deserializes the value of a selected key.
struct SelectedValue;

impl<'de> DeserializeSeed<'de> for SelectedValue {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> std::result::Result<Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SelectedValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E>(self, number: u64) -> std::result::Result<Value, E> {
        Ok(Value::Integer(number.to_string()))
    }
    fn visit_i64<E>(self, number: i64) -> std::result::Result<Value, E> {
        Ok(Value::Integer(number.to_string()))
    }
    fn visit_f64<E>(self, number: f64) -> std::result::Result<Value, E> {
        Ok(Value::Fraction(number.to_string()))
    }
    fn visit_str<E>(self, text: &str) -> std::result::Result<Value, E> {
        Ok(Value::Text(text.into()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Value, A::Error> {
        let mut names = Some(Vec::new());
        while let Some(value) = list.next_element_seed(SelectedValue)? {
            match (&mut names, value) {
                (Some(names), Value::Text(name)) => names.push(name),
                _ => names = None,
            }
        }
        Ok(names.map_or(Value::List, Value::Names))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object)
    }
}
