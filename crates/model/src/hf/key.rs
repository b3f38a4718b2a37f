//! The keys of a configuration, read one by one: what is missing or has no meaning is one error
//! that names the key.

use std::path::Path;

use serde_json::{Map, Value};
use tensor::activation::Activation;

use super::activation;
use crate::Error;
use crate::error::short;

/// The largest side of a tensor.
pub(super) const LARGEST_SIDE: usize = 1 << 24;
/// The most layers.
pub(super) const MOST_LAYERS: usize = 10_000;
/// The most numbers in a model.
const MOST_NUMBERS: u128 = 1 << 40;

/// An object of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) path: &'a Path,
    pub(super) map: &'a Map<String, Value>,
    /// What stands before the names of its keys in errors.
    pub(super) within: &'a str,
}

impl<'a> Keys<'a> {
    /// The value of a key, if there is one that is not null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn required(&self, key: &str) -> Result<&'a Value, Error> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// The refusal of a file without this key.
    pub(super) fn missing(&self, key: &str) -> Error {
        Error::MissingKey { path: self.path.into(), key: format!("{}{key}", self.within) }
    }

    /// The refusal of what a key says.
    pub(super) fn wrong(&self, key: &str, expected: impl Into<String>) -> Error {
        let got = self.map.get(key).map_or("nothing".into(), |value| short(&value.to_string(), 80));
        // A key that should not be there is the file's word.
        let key = short(&format!("{}{key}", self.within), 200);
        Error::Key { path: self.path.into(), key, expected: expected.into(), got }
    }

    /// A count that must be there.
    pub(super) fn count(&self, key: &str) -> Result<usize, Error> {
        self.required(key)?;
        self.count_or(key, 0)
    }

    /// A count, or what it is by default.
    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| self.wrong(key, "a whole number, not negative"))
    }

    /// A number that must be there.
    pub(super) fn number(&self, key: &str) -> Result<f64, Error> {
        let number = self.required(key)?.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.wrong(key, "a finite number"))
    }

    /// A switch, if there is one.
    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// Refuses a switch that is on.
    pub(super) fn off(&self, key: &str) -> Result<(), Error> {
        if self.switch(key)? == Some(true) { Err(self.wrong(key, "false")) } else { Ok(()) }
    }

    /// Refuses anything but null, an empty object and an empty list.
    pub(super) fn absent(&self, key: &str) -> Result<(), Error> {
        match self.get(key) {
            None => Ok(()),
            Some(Value::Object(map)) if map.is_empty() => Ok(()),
            Some(Value::Array(list)) if list.is_empty() => Ok(()),
            Some(_) => Err(self.wrong(key, "null")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a text"))
    }

    pub(super) fn activation(&self, key: &str) -> Result<Activation, Error> {
        self.required(key)?;
        self.text(key)?
            .and_then(activation::named)
            .ok_or_else(|| self.wrong(key, activation::NAMES))
    }

    /// An object within this one.
    pub(super) fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(key, "an object"))
    }
}

/// Checks of what was read, or made by hand.
#[derive(Clone, Copy)]
pub(super) struct Check<'a> {
    pub(super) path: &'a Path,
}

impl Check<'_> {
    pub(super) fn holds(
        &self,
        good: bool,
        key: &str,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Result<(), Error> {
        if good {
            return Ok(());
        }
        Err(Error::Key {
            path: self.path.into(),
            key: key.into(),
            expected: expected.into(),
            got: got.to_string(),
        })
    }

    /// Each is the side of a tensor.
    pub(super) fn sides(&self, sides: &[(&str, usize)]) -> Result<(), Error> {
        for &(key, side) in sides {
            self.between(key, side, LARGEST_SIDE)?;
        }
        Ok(())
    }

    pub(super) fn between(&self, key: &str, got: usize, most: usize) -> Result<(), Error> {
        self.holds((1..=most).contains(&got), key, format!("between 1 and {most}"), got)
    }

    pub(super) fn divides(
        &self,
        key: &str,
        part: usize,
        whole: usize,
        of: &str,
    ) -> Result<(), Error> {
        self.holds(whole.is_multiple_of(part), key, format!("a divisor of {of} ({whole})"), part)
    }

    pub(super) fn epsilon(&self, key: &str, epsilon: f32) -> Result<(), Error> {
        self.holds(
            epsilon > 0.0 && epsilon <= 1.0,
            key,
            "positive in float32, and at most 1",
            epsilon,
        )
    }

    /// All parameters together, of which each term is one kind: layers and the two sides of a
    /// matrix.
    pub(super) fn numbers(&self, terms: &[[usize; 3]]) -> Result<(), Error> {
        // Each product is below 2^62, as the sides were checked before.
        let count: u128 =
            terms.iter().map(|term| term.iter().map(|&side| side as u128).product::<u128>()).sum();
        self.holds(
            count <= MOST_NUMBERS,
            "the sides together",
            format!("at most {MOST_NUMBERS} numbers"),
            count,
        )
    }
}

/// A f32 as the shortest decimal that stands for it: 0.00001 and not 0.000009999999747378752.
pub(super) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
