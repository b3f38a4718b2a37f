//! The readers, as functions of an input.

pub(crate) mod data;
pub(crate) mod models;
pub(crate) mod runs;
pub(crate) mod texts;

use crate::target::ReadOutcome;

/// Unwraps a result of the fuzzer itself.
#[track_caller]
pub(crate) fn done<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("error of the fuzzer: {error}"),
    }
}

/// An input as text; invalid UTF-8 is refused before the reader.
pub(crate) fn text(input: &[u8]) -> Result<&str, ReadOutcome> {
    str::from_utf8(input).map_err(|_| ReadOutcome { accepted: false, message: "not UTF-8".into() })
}
