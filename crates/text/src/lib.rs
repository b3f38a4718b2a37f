//! Tokenizers, text generation, and metrics of generated texts.
//!
//! | to find | look in |
//! |---|---|
//! | tokens of a text, and back | [`Tokenizer`] |
//! | greedy search, sampling, beam search | [`generate`] |
//! | BLEU | [`bleu`] |
//! | ROUGE-L, and the stemmer it uses | [`rouge`], [`stem`] |

#![forbid(unsafe_code)]

pub mod bleu;
pub mod generate;
pub mod rouge;
pub mod stem;

mod error;
mod guarded;
mod tokenizer;

pub use error::{Error, Result};
pub use tokenizer::{SpecialTokens, Tokenizer};
