//! Data sets, tokenizing, generation and the metrics of texts.

#![forbid(unsafe_code)]

pub mod bleu;
pub mod rouge;
pub mod stem;
