//! Messages of parsers in plain words: "a whole number" instead of a type of the program.

use super::keys;
use toml::Value;

/// Rewrites the message of a parser about one value.
///
/// `accepts_auto` says whether the key also accepts "auto".
pub(super) fn plain(message: &str, accepts_auto: bool) -> String {
    let message = one_line(message);
    let alternative = if accepts_auto { " or \"auto\"" } else { "" };
    let rewritten = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        .or_else(|| message.strip_prefix("unknown variant "))
        .and_then(|rest| rest.split_once(", expected "))
        .map(|(got, expected)| {
            let expected = expected_words(expected);
            // A number that is negative, or too large for the key.
            let bound = if expected == "a whole number" && got.starts_with("integer `-") {
                " of at least 0"
            } else {
                ""
            };
            format!("expected {expected}{bound}{alternative}, got {}", got_words(got))
        });
    if let Some(rest) = message.strip_prefix("invalid length ")
        && let Some((got, expected)) = rest.split_once(", expected ")
    {
        return format!("expected {}, got {got}", expected_words(expected));
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("expected the key {}, which is missing", rest.replace('`', "\""));
    }
    if let Some((got, expected)) =
        message.strip_prefix("unknown field ").and_then(|rest| rest.split_once(", expected "))
    {
        let (got, expected) = (got.replace('`', "\""), expected.replace('`', "\""));
        return format!("unknown key {got}; expected {expected}");
    }
    rewritten.unwrap_or(message)
}

/// A type of the program in plain words.
fn expected_words(expected: &str) -> String {
    let expected = expected.trim();
    match expected {
        "u64" | "u32" | "usize" | "i64" => "a whole number".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" | "path string" | "string" => "a text".into(),
        "a sequence" => "a list".into(),
        "a tuple of size 2" => "a list of 2 numbers".into(),
        // The parser's name for a value that is one of several names.
        "string or table" => "a text".into(),
        other if other.starts_with("struct ") || other == "a map" => "a section".into(),
        // The names of an enum are quoted with backticks.
        other => other.replace('`', "\"").replace('\t', "\\t"),
    }
}

/// A value in plain words.
fn got_words(got: &str) -> String {
    for number in ["integer ", "floating point ", "boolean "] {
        if let Some(value) = got.strip_prefix(number) {
            return value.replace('`', "");
        }
    }
    match got {
        "sequence" => "a list".into(),
        "map" => "a section".into(),
        other => match other.strip_prefix("string ") {
            Some(text) => format!("the text {text}"),
            None => other.replace('`', "\""),
        },
    }
}

/// What a key accepts, in plain words.
pub(super) fn expected_value(path: &str, optimizer: &'static str) -> String {
    // A text that no key accepts, unless it accepts any text.
    let impossible = Value::String("\u{1}".into());
    if path == "optimizer.name" {
        return "the name of an optimizer".into();
    }
    let path: Vec<&str> = path.split('.').collect();
    let parsed = keys::parse_alone(&path, impossible, optimizer);
    let accepts_auto = keys::accepts_auto(&path, optimizer);
    let Err(message) = parsed else {
        return if accepts_auto { "a text or \"auto\"".into() } else { "a text".into() };
    };
    let message = plain(&message, accepts_auto);
    let expected = message.strip_prefix("expected ").unwrap_or(&message);
    let mut parts = expected.split(", got ").flat_map(|part| part.split("; got "));
    parts.next().unwrap_or(expected).to_string()
}

/// The message of the parser about a text that is not TOML, on one line.
pub(super) fn syntax(message: &str) -> String {
    let line = one_line(message);
    match line.split_once(": invalid type: integer ") {
        Some((place, _)) if line.ends_with("expected any valid TOML value") => {
            format!("{place}: the number is too large")
        }
        _ => line,
    }
}

/// Joins the lines of an error, without the excerpt of the file.
pub(super) fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('|') && !line.contains(" |"))
        .collect();
    lines.join(": ").trim_end_matches(':').to_string()
}
