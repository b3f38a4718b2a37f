//! Bad input for everything that reads bytes from outside: damaged files, many of them, none of
//! which may panic, hang, take much memory or show a record.
//!
//! | to find | look in |
//! |---|---|
//! | what is fuzzed | [`target`], `targets/` |
//! | how inputs are damaged | [`mutate()`](mutate::mutate), [`structure`] |
//! | what is watched | [`watch`] |
//! | the loop | [`hunt()`](hunt::hunt) |

#![forbid(unsafe_code)]

pub mod chance;
pub mod crew;
pub mod hunt;
pub mod mutate;
pub mod scratch;
pub mod shape;
pub mod structure;
pub mod target;
pub mod watch;

mod png;
mod safetensors;
mod targets;

pub use targets::runs::{build, tensors};
