//! A value, or "auto": derived from the rest of the configuration.

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::marker::PhantomData;

/// A value, or `"auto"` if it is to be derived from the rest of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Auto<T> {
    /// The value is to be derived.
    #[default]
    Auto,
    /// The value is given.
    Value(T),
}

impl<T> Auto<T> {
    /// Returns the value, if it is given.
    pub fn given(&self) -> Option<&T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(value),
        }
    }

    /// Returns the value, or the result of `derive`.
    pub fn or_else(&self, derive: impl FnOnce() -> T) -> T
    where
        T: Clone,
    {
        self.given().cloned().unwrap_or_else(derive)
    }

    /// Returns the value, or `default`.
    pub fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.given().cloned().unwrap_or(default)
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
        deserializer.deserialize_any(AutoVisitor(PhantomData))
    }
}

/// Reads the string "auto", and anything else as a `T`.
struct AutoVisitor<T>(PhantomData<T>);

impl<T> AutoVisitor<T> {
    fn value<'de, E: Error>(value: impl IntoDeserializer<'de, E>) -> Result<Auto<T>, E>
    where
        T: Deserialize<'de>,
    {
        T::deserialize(value.into_deserializer()).map(Auto::Value)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AutoVisitor<T> {
    type Value = Auto<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value or \"auto\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Auto<T>, E> {
        if text == "auto" { Ok(Auto::Auto) } else { Self::value(text) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Auto<T>, E> {
        Self::value(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Auto<T>, E> {
        Self::value(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Auto<T>, E> {
        Self::value(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Auto<T>, E> {
        Self::value(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Auto<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(seq)).map(Auto::Value)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Auto<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Auto::Value)
    }
}

/// A number or a name, as text formats write it.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or a name")]
pub(crate) enum NumberOrName<N> {
    Number(N),
    Name(String),
}
