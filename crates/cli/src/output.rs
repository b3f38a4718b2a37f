//! Printing: tables for people, JSON for machines.

use serde_json::{Value, json};
use std::io::Write;

pub(crate) use muffle::report::digits::{short, up, up_e};

/// A warning, on standard error.
pub(crate) fn warn(message: &str) {
    eprintln!("muffle: warning: {message}");
}

/// One line or block on standard output. Whoever reads it may have seen enough: then nobody is left
/// to print for.
pub(crate) fn print(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// One JSON object on standard output.
pub(crate) fn print_json(value: &Value) {
    print(&value.to_string());
}

/// A number in JSON; what JSON has no number for is the string "inf" or "nan", which no comparison
/// takes for a small number.
pub(crate) fn json_number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string().to_lowercase()) }
}

/// Names and values, one pair a line.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        format!("{name}{}  {value}", " ".repeat(width - name.chars().count()))
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Columns aligned to the right, the first to the left.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        rows.iter()
            .map(|r| r[i].chars().count())
            .chain([header[i].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cell = |(i, text): (usize, &&str)| {
            let pad = " ".repeat(widths[i] - text.chars().count());
            if i == 0 { format!("{text}{pad}") } else { format!("{pad}{text}") }
        };
        cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rule = widths.iter().map(|w| "─".repeat(*w)).collect::<Vec<_>>().join("──");
    let mut lines = vec![line(header.to_vec()), rule];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_none_in_json() {
        assert_eq!(json_number(f64::INFINITY), json!("inf"));
        assert_eq!(json_number(f64::NAN), json!("nan"));
    }

    #[test]
    fn tables_are_aligned() {
        let text =
            table(&["a", "ε"], &[vec!["x".into(), "10".into()], vec!["long".into(), "1".into()]]);
        assert_eq!(text, "a      ε\n────────\nx     10\nlong   1");
    }
}
