//! Validated positive numbers.

use crate::Refused;

/// A finite number greater than 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Positive(f64);

impl Positive {
    /// Validates a value; `what` names it in the error.
    ///
    /// # Errors
    /// If it is not a finite number greater than 0.
    pub fn new(what: &'static str, value: f64) -> Result<Self, Refused> {
        // Tests for the valid case, so that NaN is refused.
        if value > 0.0 && value < f64::INFINITY {
            Ok(Self(value))
        } else {
            Err(Refused::Query(format!(
                "{what}: expected a finite number greater than 0, got {value}"
            )))
        }
    }

    /// Returns the value.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl std::fmt::Display for Positive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_numbers_are_refused() {
        for bad in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Positive::new("x", bad).is_err());
        }
        assert_eq!(Positive::new("x", 1e-300).map(Positive::get), Ok(1e-300));
    }
}
