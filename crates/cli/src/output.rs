//! Printing: text for readers, JSON for machines.

use super::error::Error;
use serde::Serialize;
use std::io::Write;

pub(crate) use muffle::report::Number;
pub(crate) use muffle::report::digits::{short, up, up_e};

/// Prints a line on standard error; a reader that has closed the pipe does not end the program.
macro_rules! note {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}
pub(crate) use note;

/// Prints a warning on standard error.
pub(crate) fn warn(message: &str) {
    note!("muffle: warning: {message}");
}

/// Prints a line or block on standard output.
///
/// If the reader has closed the pipe, nothing is printed; the exit code stays that of the command.
pub(crate) fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The unit of a guarantee; with `combined` rows, a record has all rows of a person.
pub(crate) fn unit_words(unit: accounting::Unit, combined: bool) -> String {
    match combined {
        true => format!("{}, all rows of one person", unit.adjacency),
        false => unit.to_string(),
    }
}

/// Prints one JSON object on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print(&serde_json::to_string(value).map_err(muffle::Error::Encoding)?);
    Ok(())
}

/// Formats names and values, one pair per line.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        format!("{name}{}  {value}", " ".repeat(width - name.chars().count()))
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a table with columns aligned to the right, the first one to the left.
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
    fn tables_are_aligned() {
        let text =
            table(&["a", "ε"], &[vec!["x".into(), "10".into()], vec!["long".into(), "1".into()]]);
        assert_eq!(text, "a      ε\n────────\nx     10\nlong   1");
    }
}
