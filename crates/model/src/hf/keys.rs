//! Typed access to the keys of a `config.json`. Errors name the key.

use std::path::Path;

use serde_json::{Map, Value};
use tensor::activation::Activation;

use super::activation;
use crate::Error;
use crate::error::excerpt;

/// Largest dimension of a tensor.
pub(super) const MAX_DIMENSION: usize = 1 << 24;
/// Largest number of layers.
pub(super) const MAX_LAYERS: usize = 10_000;
/// Largest number of parameters of a model.
const MAX_PARAMETERS: u128 = 1 << 40;

/// The keys of a JSON object of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) path: &'a Path,
    pub(super) map: &'a Map<String, Value>,
    /// Prefix of the keys in errors, such as `rope_scaling.`; empty for the outermost object.
    pub(super) prefix: &'a str,
}

impl<'a> Keys<'a> {
    /// Returns the value of a key, or `None` if it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns the value of a key that must be present.
    pub(super) fn required(&self, key: &str) -> Result<&'a Value, Error> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// Returns the error for a missing key.
    pub(super) fn missing(&self, key: &str) -> Error {
        Error::MissingKey { path: self.path.into(), key: format!("{}{key}", self.prefix) }
    }

    /// Returns the error for an invalid value of a key.
    pub(super) fn invalid(&self, key: &str, expected: impl Into<String>) -> Error {
        let got =
            self.map.get(key).map_or("nothing".into(), |value| excerpt(&value.to_string(), 80));
        // An unexpected key is untrusted text.
        let key = excerpt(&format!("{}{key}", self.prefix), 200);
        Error::Key { path: self.path.into(), key, expected: expected.into(), got }
    }

    /// Returns a non-negative integer that must be present.
    pub(super) fn integer(&self, key: &str) -> Result<usize, Error> {
        self.required(key)?;
        self.integer_or(key, 0)
    }

    /// Returns a non-negative integer, or `default` if the key is absent.
    pub(super) fn integer_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| self.invalid(key, "a non-negative integer"))
    }

    /// Returns a finite number that must be present.
    pub(super) fn number(&self, key: &str) -> Result<f64, Error> {
        let number = self.required(key)?.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.invalid(key, "a finite number"))
    }

    /// Returns a boolean, if the key is present.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(key, "true or false"))
    }

    /// Refuses the value true.
    pub(super) fn require_false(&self, key: &str) -> Result<(), Error> {
        if self.boolean(key)? == Some(true) { Err(self.invalid(key, "false")) } else { Ok(()) }
    }

    /// Refuses any value except null, an empty object and an empty list.
    pub(super) fn require_empty(&self, key: &str) -> Result<(), Error> {
        match self.get(key) {
            None => Ok(()),
            Some(Value::Object(map)) if map.is_empty() => Ok(()),
            Some(Value::Array(list)) if list.is_empty() => Ok(()),
            Some(_) => Err(self.invalid(key, "null")),
        }
    }

    /// Returns a string, if the key is present.
    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(key, "a string"))
    }

    /// Returns an activation function that must be present.
    pub(super) fn activation(&self, key: &str) -> Result<Activation, Error> {
        self.required(key)?;
        self.string(key)?
            .and_then(activation::from_name)
            .ok_or_else(|| self.invalid(key, activation::NAMES))
    }

    /// Returns a nested object, if the key is present.
    pub(super) fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.invalid(key, "an object"))
    }
}

/// Checks of the values of a configuration, read from a file or not.
#[derive(Clone, Copy)]
pub(super) struct Check<'a> {
    pub(super) path: &'a Path,
}

impl Check<'_> {
    /// Returns an error for `key` unless `good`.
    pub(super) fn require(
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

    /// Checks dimensions of tensors.
    pub(super) fn dimensions(&self, dimensions: &[(&str, usize)]) -> Result<(), Error> {
        for &(key, dimension) in dimensions {
            self.in_range(key, dimension, MAX_DIMENSION)?;
        }
        Ok(())
    }

    /// Checks that a value is between 1 and `max`.
    pub(super) fn in_range(&self, key: &str, got: usize, max: usize) -> Result<(), Error> {
        self.require((1..=max).contains(&got), key, format!("between 1 and {max}"), got)
    }

    /// Checks that a value divides another, which is named `dividend_name`.
    pub(super) fn divides(
        &self,
        key: &str,
        divisor: usize,
        dividend: usize,
        dividend_name: &str,
    ) -> Result<(), Error> {
        let expected = format!("a divisor of {dividend_name} ({dividend})");
        self.require(dividend.is_multiple_of(divisor), key, expected, divisor)
    }

    /// Checks the epsilon of a normalization.
    pub(super) fn epsilon(&self, key: &str, epsilon: f32) -> Result<(), Error> {
        self.require(
            epsilon > 0.0 && epsilon <= 1.0,
            key,
            "positive in float32, and at most 1",
            epsilon,
        )
    }

    /// Checks the number of parameters, a sum of terms (matrices, rows, columns).
    pub(super) fn parameter_count(&self, terms: &[[usize; 3]]) -> Result<(), Error> {
        // No product overflows: each factor was checked before.
        let product = |term: &[usize; 3]| term.iter().map(|&x| x as u128).product::<u128>();
        let count: u128 = terms.iter().map(product).sum();
        self.require(
            count <= MAX_PARAMETERS,
            "number of parameters",
            format!("at most {MAX_PARAMETERS}"),
            count,
        )
    }
}

/// Returns a JSON number with the shortest decimal of an f32: 0.00001, not 0.000009999999747378752.
pub(super) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
