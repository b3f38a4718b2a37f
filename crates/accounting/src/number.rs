//! Numbers that are validated when they are constructed.
//!
//! Every check tests the good case (`x > 0.0`), which is false for NaN.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

macro_rules! checked {
    ($(#[$doc:meta])* $name:ident, $label:literal, $expected:literal, |$x:ident| $good:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Validates the value.
            pub fn new($x: f64) -> Result<Self> {
                if $good { Ok(Self($x)) } else {
                    let got = $x.to_string();
                    Err(Error::OutOfRange { name: $label, expected: $expected, got })
                }
            }
            /// The value.
            pub fn get(self) -> f64 { self.0 }
        }
        impl TryFrom<f64> for $name {
            type Error = Error;
            fn try_from(x: f64) -> Result<Self> { Self::new(x) }
        }
        impl From<$name> for f64 {
            fn from(x: $name) -> f64 { x.0 }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.0.fmt(f) }
        }
    };
}

checked!(
    /// A noise multiplier: the noise's standard deviation divided by the clip bound C.
    Sigma, "the noise multiplier", "finite and greater than 0", |x| x > 0.0 && x < f64::INFINITY
);
checked!(
    /// The probability that a given example is in a lot.
    SamplingRate, "the sampling rate", "greater than 0 and at most 1", |x| x > 0.0 && x <= 1.0
);
checked!(
    /// The δ of (ε, δ). Zero is excluded: Gaussian noise gives no pure guarantee.
    Delta, "delta", "greater than 0 and less than 1", |x| x > 0.0 && x < 1.0
);
checked!(
    /// The ε of (ε, δ), as a target; a computed ε may be infinite and is an `f64`.
    Epsilon, "epsilon", "finite and at least 0", |x| (0.0..f64::INFINITY).contains(&x)
);

checked!(
    /// The δ of a release that is known to be (ε, δ)-private.
    FailureProbability, "delta", "at least 0 and less than 1", |x| (0.0..1.0).contains(&x)
);
checked!(
    /// The ρ of zero-concentrated differential privacy.
    Rho, "rho", "finite and at least 0", |x| (0.0..f64::INFINITY).contains(&x)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_numbers_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0001] {
            assert!(Sigma::new(bad).is_err());
            assert!(SamplingRate::new(bad).is_err());
            assert!(Delta::new(bad).is_err());
            assert!(Epsilon::new(bad).is_err());
        }
        for zero in [0.0, -0.0] {
            assert!(
                Sigma::new(zero).is_err()
                    && SamplingRate::new(zero).is_err()
                    && Delta::new(zero).is_err()
            );
            assert!(Epsilon::new(zero).is_ok());
        }
        assert!(
            SamplingRate::new(1.0).is_ok()
                && SamplingRate::new(1.0 + 1e-15).is_err()
                && Delta::new(1.0).is_err()
        );
    }

    #[test]
    fn deserialization_validates() {
        assert!(serde_json::from_str::<SamplingRate>("1.5").is_err());
        assert_eq!(
            serde_json::from_str::<SamplingRate>("0.5").unwrap(),
            SamplingRate::new(0.5).unwrap()
        );
    }
}
