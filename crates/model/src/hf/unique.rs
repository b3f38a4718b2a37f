//! A JSON object in which no name comes twice. JSON leaves open what that would mean, so two
//! readers could see two models.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// What a safetensors header says about itself, under a name that no tensor has.
pub(super) const METADATA: &str = "__metadata__";

/// Longer names are no names of parameters.
const LONGEST_NAME: usize = 512;

/// Tensors by name, and something about each.
#[derive(Debug)]
pub(super) struct Unique<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Names(PhantomData))
    }
}

struct Names<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Names<T> {
    type Value = Unique<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the names of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
        let mut found = BTreeMap::new();
        let mut metadata: Option<BTreeMap<String, String>> = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if metadata.replace(map.next_value()?).is_some() {
                    return Err(A::Error::duplicate_field(METADATA));
                }
                continue;
            }
            if name.is_empty() || name.len() > LONGEST_NAME {
                return Err(A::Error::custom(format!(
                    "the name of a tensor must have 1 to {LONGEST_NAME} bytes, got {}",
                    name.len()
                )));
            }
            let value = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            if found.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor {name:?} is named twice")));
            }
            found.insert(name, value);
        }
        Ok(Unique(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_once() {
        let found: Unique<u8> =
            serde_json::from_str(r#"{"a":1,"__metadata__":{"format":"pt"},"b":2}"#).unwrap();
        assert_eq!(
            found.0.into_iter().collect::<Vec<_>>(),
            [("a".to_string(), 1), ("b".to_string(), 2)]
        );
        for (text, part) in [
            (r#"{"a":1,"a":1}"#, "\"a\" is named twice"),
            (r#"{"":1}"#, "got 0"),
            (r#"{"__metadata__":{"a":1}}"#, "a string"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#, "duplicate"),
            (r#"{"a":"x"}"#, "tensor \"a\""),
            ("[]", "an object"),
        ] {
            let error = serde_json::from_str::<Unique<u8>>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
