//! Numbers in JSON documents, infinite ones included.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number in JSON, or the string "inf", "-inf" or "nan" if it is not finite.
///
/// A reader cannot mistake these strings for a small number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number(pub f64);

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        Self(x)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.serialize_str(&self.0.to_string().to_lowercase())
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Finite(f64),
            Name(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Finite(x) => Ok(Self(x)),
            Either::Name(name) => match name.as_str() {
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                "nan" => Ok(Self(f64::NAN)),
                _ => Err(serde::de::Error::custom("expected a number, \"inf\" or \"nan\"")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_numbers_are_strings() {
        let text = |x: f64| serde_json::to_string(&Number(x)).unwrap();
        assert_eq!(
            [text(1.5), text(f64::INFINITY), text(-f64::INFINITY), text(f64::NAN)],
            ["1.5", "\"inf\"", "\"-inf\"", "\"nan\""]
        );
        let read = |text: &str| serde_json::from_str::<Number>(text).map(|number| number.0);
        assert_eq!(read("1.5").unwrap(), 1.5);
        assert_eq!(read("2").unwrap(), 2.0);
        assert_eq!(read("\"inf\"").unwrap(), f64::INFINITY);
        assert!(read("\"nan\"").unwrap().is_nan());
        assert!(read("\"1\"").is_err() && read("null").is_err());
    }
}
