//! Objects of which only a few keys are kept, and errors that do not show what is in them.

use crate::error::{Error, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::path::Path;

/// What an object says under the keys that were asked for. All else in it is read over and takes no
/// memory.
pub(super) struct Picked {
    keys: Vec<String>,
    values: Vec<Value>,
}

/// What an object says under one key.
pub(super) enum Value {
    Absent,
    Null,
    Text(String),
    /// Without a fraction, written out.
    Whole(String),
    Fraction,
    Truth(bool),
    List,
    Object,
    /// Said more than once.
    Twice,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::Null => "null",
            Self::Text(_) => "a string",
            Self::Whole(_) | Self::Fraction => "a number",
            Self::Truth(_) => "true or false",
            Self::List => "an array",
            Self::Object => "an object",
            Self::Twice => "two values",
        }
    }
}

impl Picked {
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

    /// Whether there is anything under the key.
    pub(super) fn has(&self, key: &str) -> bool {
        !matches!(self.get(key), Value::Absent | Value::Null)
    }

    /// The string under a key.
    pub(super) fn text(&self, key: &str, path: &Path, line: u64) -> Result<&str> {
        match self.get(key) {
            Value::Text(text) => Ok(text),
            _ => Err(self.refused(key, "a string", path, line)),
        }
    }

    /// The name under a key, which can also be written as a number or a truth value.
    pub(super) fn name(&self, key: &str, path: &Path, line: u64) -> Result<String> {
        match self.get(key) {
            Value::Text(text) if !text.trim().is_empty() => Ok(text.trim().into()),
            Value::Whole(number) => Ok(number.clone()),
            Value::Truth(truth) => Ok(truth.to_string()),
            Value::Text(_) => Err(Error::Key {
                path: path.into(),
                line,
                key: key.into(),
                expected: "a name",
                got: "an empty string",
            }),
            _ => Err(self.refused(key, "a string, a whole number, true or false", path, line)),
        }
    }

    /// What is under the key is of another kind.
    pub(super) fn refused(
        &self,
        key: &str,
        expected: &'static str,
        path: &Path,
        line: u64,
    ) -> Error {
        Error::Key { path: path.into(), line, key: key.into(), expected, got: self.get(key).kind() }
    }
}

/// The error of a row that begins at this line and column.
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
        what: harmless(error),
    }
}

/// What an error says, without a word of the data.
///
/// Errors of syntax are fixed texts. Errors of shape can quote the data, but not after the last
/// "expected", nor where they name a key of ours.
fn harmless(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
    if !error.is_data() {
        return format!("not JSON: {said}");
    }
    match said.rsplit_once(", expected ") {
        Some((_, expected)) => format!("expected {expected}, got something else"),
        None if said.starts_with("missing field `") || said.starts_with("duplicate field `") => {
            said.to_owned()
        }
        None => "not of the expected shape".to_owned(),
    }
}

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
        while let Some(at) = map.next_key_seed(Place(self.0))? {
            match at.and_then(|at| values.get_mut(at)) {
                Some(value @ Value::Absent) => *value = map.next_value_seed(Kept)?,
                Some(value) => {
                    map.next_value::<IgnoredAny>()?;
                    *value = Value::Twice;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(values)
    }
}

/// Which of the keys it is.
struct Place<'k>(&'k [String]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(
        self,
        key: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, key: &str) -> std::result::Result<Self::Value, E> {
        Ok(self.0.iter().position(|one| one == key))
    }
}

struct Kept;

impl<'de> DeserializeSeed<'de> for Kept {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, value: D) -> std::result::Result<Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Kept {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, truth: bool) -> std::result::Result<Value, E> {
        Ok(Value::Truth(truth))
    }
    fn visit_u64<E>(self, number: u64) -> std::result::Result<Value, E> {
        Ok(Value::Whole(number.to_string()))
    }
    fn visit_i64<E>(self, number: i64) -> std::result::Result<Value, E> {
        Ok(Value::Whole(number.to_string()))
    }
    fn visit_f64<E>(self, _: f64) -> std::result::Result<Value, E> {
        Ok(Value::Fraction)
    }
    fn visit_str<E>(self, text: &str) -> std::result::Result<Value, E> {
        Ok(Value::Text(text.into()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::List)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object)
    }
}
