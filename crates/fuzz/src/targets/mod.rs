//! The readers, as functions of an input.

pub(crate) mod data;
pub(crate) mod models;
pub(crate) mod runs;
pub(crate) mod texts;

use crate::target::Seen;

/// What the fuzzing itself could not do is a failure, not an answer.
#[track_caller]
pub(crate) fn done<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("the fuzzing itself: {error}"),
    }
}

/// An input as text; what is not UTF-8 is refused before any of our readers sees it.
pub(crate) fn text(input: &[u8]) -> Result<&str, Seen> {
    str::from_utf8(input).map_err(|_| Seen { accepted: false, said: "not UTF-8".into() })
}
