//! SPDX licence expressions.
//!
//! For example `(MIT OR Apache-2.0) AND Unicode-3.0`, `Apache-2.0 WITH LLVM-exception`, and the old
//! `MIT/Apache-2.0`.

/// Whether an expression can be satisfied by allowed licences.
///
/// # Errors
/// If it is not a valid expression.
pub(crate) fn allowed(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    match (either(&mut rest, is_allowed), rest) {
        (Some(answer), []) => Ok(answer),
        _ => Err(format!("{expression:?} is not a valid licence expression")),
    }
}

/// Parses `a OR b OR …`.
fn either(rest: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut answer = both(rest, is_allowed)?;
    while take(rest, "OR") {
        // Both operands are parsed, even if the first is allowed.
        answer |= both(rest, is_allowed)?;
    }
    Some(answer)
}

/// Parses `a AND b AND …`, with higher precedence.
fn both(rest: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut answer = one(rest, is_allowed)?;
    while take(rest, "AND") {
        answer &= one(rest, is_allowed)?;
    }
    Some(answer)
}

/// Parses a licence, a licence with an exception, or an expression in parentheses.
fn one(rest: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    if take(rest, "(") {
        let answer = either(rest, is_allowed)?;
        return take(rest, ")").then_some(answer);
    }
    let name = word(rest)?;
    match take(rest, "WITH") {
        // A licence with an exception must be allowed separately.
        true => Some(is_allowed(&format!("{name} WITH {}", word(rest)?))),
        false => Some(is_allowed(name)),
    }
}

/// Takes the next word, if it can be the name of a licence.
fn word<'a>(rest: &mut &[&'a str]) -> Option<&'a str> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    let plain = first.chars().all(|c| c.is_ascii_alphanumeric() || "-.+:".contains(c));
    (plain && !["OR", "AND", "WITH"].contains(first)).then_some(first)
}

/// Takes the next word, if it is this one.
fn take(rest: &mut &[&str], word: &str) -> bool {
    match rest.split_first() {
        Some((first, others)) if *first == word => {
            *rest = others;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn expressions_are_evaluated() {
        let known = |list: &'static [&'static str]| move |name: &str| list.contains(&name);
        let mit = known(&["MIT"]);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 / MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("GPL-3.0-only AND MIT OR MIT", true),
            ("MIT OR GPL-3.0-only AND ISC", true),
            ("(MIT OR ISC) AND GPL-3.0-only", false),
            ("(MIT OR GPL-3.0-only) AND (ISC OR MIT)", true),
            ("MIT WITH some-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("mit", false),
        ] {
            assert_eq!(super::allowed(expression, &mit), Ok(expected), "{expression}");
        }
        let exception = known(&["Apache-2.0 WITH LLVM-exception"]);
        assert_eq!(super::allowed("Apache-2.0 WITH LLVM-exception", &exception), Ok(true));
        assert_eq!(super::allowed("Apache-2.0", &exception), Ok(false));
        for nonsense in [
            "",
            "MIT OR",
            "(MIT",
            "MIT)",
            "MIT MIT",
            "OR",
            "MIT WITH",
            "AND MIT",
            "see LICENSE",
            "MIT, ISC",
        ] {
            assert!(super::allowed(nonsense, &mit).is_err(), "{nonsense}");
        }
    }
}
