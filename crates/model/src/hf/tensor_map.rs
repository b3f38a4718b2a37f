//! A JSON object with tensor names as keys, in which duplicate names are refused.
//!
//! JSON does not define which of two equal keys counts, so two readers could see two models.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// Key of the metadata in a safetensors header. No tensor has this name.
pub(super) const METADATA: &str = "__metadata__";

/// Largest length of a tensor name, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// A map from tensor names to values.
#[derive(Debug)]
pub(super) struct TensorMap<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TensorMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TensorMapVisitor(PhantomData))
    }
}

struct TensorMapVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TensorMapVisitor<T> {
    type Value = TensorMap<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with tensor names as keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorMap<T>, A::Error> {
        let mut tensors = BTreeMap::new();
        let mut metadata: Option<BTreeMap<String, String>> = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if metadata.replace(map.next_value()?).is_some() {
                    return Err(A::Error::duplicate_field(METADATA));
                }
                continue;
            }
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                return Err(A::Error::custom(format!(
                    "tensor name: expected 1 to {MAX_NAME_BYTES} bytes, got {}",
                    name.len()
                )));
            }
            let value = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            if tensors.contains_key(&name) {
                return Err(A::Error::custom(format!("duplicate tensor {name:?}")));
            }
            tensors.insert(name, value);
        }
        Ok(TensorMap(tensors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_and_invalid_names_are_refused() {
        let map: TensorMap<u8> =
            serde_json::from_str(r#"{"a":1,"__metadata__":{"format":"pt"},"b":2}"#).unwrap();
        assert_eq!(
            map.0.into_iter().collect::<Vec<_>>(),
            [("a".to_string(), 1), ("b".to_string(), 2)]
        );
        for (text, part) in [
            (r#"{"a":1,"a":1}"#, "duplicate tensor \"a\""),
            (r#"{"":1}"#, "got 0"),
            (r#"{"__metadata__":{"a":1}}"#, "a string"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#, "duplicate"),
            (r#"{"a":"x"}"#, "tensor \"a\""),
            ("[]", "an object"),
        ] {
            let error = serde_json::from_str::<TensorMap<u8>>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
