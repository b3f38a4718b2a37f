//! Parsers for numbers on the command line: `0.01`, `1e-5`, `1024/42043`.

/// A text that is not a number of the expected kind.
#[derive(Debug)]
pub(crate) struct NumberError {
    expected: &'static str,
    text: String,
}

impl NumberError {
    fn new(expected: &'static str, text: &str) -> Self {
        Self { expected, text: text.into() }
    }
}

impl std::fmt::Display for NumberError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected a {}, got {:?}", self.expected, self.text)
    }
}

impl std::error::Error for NumberError {}

/// Parses a real number, or a quotient of two. The range is checked by the types that use it.
pub(crate) fn real(text: &str) -> Result<f64, NumberError> {
    let parse = |part: &str| {
        let number = part.trim().replace('_', "").parse::<f64>();
        number.map_err(|_| NumberError::new("number", text))
    };
    match text.split_once('/') {
        Some((numerator, denominator)) => Ok(parse(numerator)? / parse(denominator)?),
        None => parse(text),
    }
}

/// Parses a whole number; `1e6` and `1_000_000` are accepted.
pub(crate) fn count(text: &str) -> Result<u64, NumberError> {
    if let Ok(whole) = text.trim().replace('_', "").parse::<u64>() {
        return Ok(whole);
    }
    let value = real(text).map_err(|_| NumberError::new("whole number", text))?;
    // Beyond 2⁵³ not every whole number is a float, so such a count must be written in digits.
    if (0.0..=9e15).contains(&value) && value.fract() == 0.0 {
        Ok(value as u64)
    } else {
        Err(NumberError::new("whole number", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_and_exponents() {
        assert_eq!(real("1024/42043").unwrap(), 1024.0 / 42043.0);
        assert_eq!(real(" 1e-5 ").unwrap(), 1e-5);
        assert_eq!(count("1e6").unwrap(), 1_000_000);
        assert_eq!(count("18446744073709551615").unwrap(), u64::MAX);
        for bad in ["", "/", "1/", "x", "1/2/3", "--1"] {
            assert!(real(bad).is_err(), "{bad}");
        }
        for bad in ["1.5", "-1", "nan", "inf", "1e30", "1/3"] {
            assert!(count(bad).is_err(), "{bad}");
        }
        assert!(real("0/0").unwrap().is_nan());
    }
}
