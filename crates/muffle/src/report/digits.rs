//! Formatting of figures. Upper bounds are rounded up.

/// Rounds a figure *up* to `digits` decimal places, so that a printed bound stays a bound.
pub fn up(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return if x > 0.0 { "∞".into() } else { "not a number".into() };
    }
    let scale = 10_f64.powi(digits as i32);
    // A small tolerance, so that 1.83 does not become 1.84 by its binary representation.
    let rounded = (x * scale - 1e-6).ceil() / scale + 0.0;
    format!("{:.digits$}", if rounded.is_finite() { rounded } else { x })
}

/// Rounds a small figure *up* to three significant digits, such as 2.34e-6.
pub fn up_e(x: f64) -> String {
    if !(x > 0.0 && x.is_finite()) {
        return up(x, 0);
    }
    let power = x.log10().floor() as i32;
    let digits = (x / 10f64.powi(power) * 100.0 - 1e-6).ceil() / 100.0;
    if digits >= 10.0 {
        format!("{:.2}e{}", digits / 10.0, power + 1)
    } else {
        format!("{digits:.2}e{power}")
    }
}

/// Formats a positive figure with about four significant digits, with an exponent if needed.
pub fn short(x: f64) -> String {
    match x {
        x if !x.is_finite() => up(x, 0),
        0.0 => "0".into(),
        x if (0.001..100_000.0).contains(&x) => {
            let digits = (3 - x.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{x:.digits$}")
        }
        x => format!("{x:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_bounds_are_never_smaller() {
        assert_eq!(up(1.828241, 3), "1.829");
        assert_eq!(up(1.83, 2), "1.83");
        assert_eq!(up(f64::INFINITY, 2), "∞");
        assert_eq!(up(0.0, 3), "0.000");
        assert_eq!(
            [up_e(2.0e-6), up_e(2.4026e-6), up_e(9.999e-4), up_e(0.5)],
            ["2.00e-6", "2.41e-6", "1.00e-3", "5.00e-1"]
        );
    }

    #[test]
    fn about_four_digits() {
        assert_eq!(
            (short(0.71894), short(12345.6), short(1e-7), short(0.0)),
            ("0.7189".into(), "12346".into(), "1.000e-7".into(), "0".into())
        );
    }
}
