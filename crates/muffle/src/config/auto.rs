//! A value, or "auto": found from the others.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that may be left to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Auto<T> {
    /// To be found.
    #[default]
    Auto,
    /// Given.
    Value(T),
}

impl<T> Auto<T> {
    /// The value, if it is given.
    pub fn given(&self) -> Option<&T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(value),
        }
    }

    /// The value, or what is found.
    pub fn or_else(&self, find: impl FnOnce() -> T) -> T
    where
        T: Clone,
    {
        self.given().cloned().unwrap_or_else(find)
    }

    /// The value, or this one.
    pub fn or(&self, other: T) -> T
    where
        T: Clone,
    {
        self.given().cloned().unwrap_or(other)
    }
}

impl<T> From<Option<T>> for Auto<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Auto, Self::Value)
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Value(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Looked at as a TOML value first: "auto" is a string wherever it stands.
        let value = toml::Value::deserialize(deserializer)?;
        if value.as_str() == Some("auto") {
            return Ok(Self::Auto);
        }
        T::deserialize(value)
            .map(Self::Value)
            .map_err(|error| serde::de::Error::custom(error.to_string().replace('\n', " ")))
    }
}
