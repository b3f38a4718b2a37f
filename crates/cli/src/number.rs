//! Numbers as users write them: `0.01`, `1e-5`, `1024/42043`.

/// A real number, or a quotient of two. Whether it makes sense is for the checked types to say.
pub(crate) fn real(text: &str) -> Result<f64, String> {
    let parse = |part: &str| {
        part.trim().replace('_', "").parse::<f64>().map_err(|_| format!("'{text}' is not a number"))
    };
    match text.split_once('/') {
        Some((over, under)) => Ok(parse(over)? / parse(under)?),
        None => parse(text),
    }
}

/// A count: a whole number, `1e6` and `1_000_000` included.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    if let Ok(whole) = text.trim().replace('_', "").parse::<u64>() {
        return Ok(whole);
    }
    let value = real(text)?;
    // Beyond 2⁵³ not every whole number is a float, so such a count must be written out.
    if (0.0..=9e15).contains(&value) && value.fract() == 0.0 {
        Ok(value as u64)
    } else {
        Err(format!("'{text}' is not a whole number"))
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
