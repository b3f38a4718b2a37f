//! Dates of sessions: year, month and day, such as 2026-01-31.

use chrono::NaiveDate;

const FORM: &str = "%Y-%m-%d";

/// The date of today (UTC), by the clock of the machine.
pub(super) fn today() -> String {
    chrono::Utc::now().date_naive().format(FORM).to_string()
}

/// Whether a text is a date.
pub(super) fn is_date(text: &str) -> bool {
    let is_same = |date: NaiveDate| date.format(FORM).to_string() == text;
    NaiveDate::parse_from_str(text, FORM).is_ok_and(is_same)
        && text.len() == 10
        && text.starts_with(|c: char| c.is_ascii_digit())
}
