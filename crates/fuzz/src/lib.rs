//! Fuzzing of all readers of untrusted input.
//!
//! No input may cause a panic, a hang, excessive memory, or a message that shows a record.
//!
//! | to find | look in |
//! |---|---|
//! | the targets | [`target`], `targets/` |
//! | mutations of inputs | [`mutate()`](mutate::mutate), [`structure`] |
//! | checks of each input | [`monitor`] |
//! | the fuzzing loop | [`fuzz_loop()`](fuzz_loop::fuzz_loop) |

#![forbid(unsafe_code)]

pub mod fuzz_loop;
pub mod monitor;
pub mod mutate;
pub mod random;
pub mod run_targets;
pub mod scratch;
pub mod shape;
pub mod structure;
pub mod target;

mod png;
mod safetensors;
mod targets;

pub use targets::runs::{build, tensors};
