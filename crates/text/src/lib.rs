//! Tokenizers, text generation, and metrics of generated texts.
//!
//! | to find | look in |
//! |---|---|
//! | tokens of a text, and back | [`Tokenizer`] |
//! | chat templates of models | [`ChatTemplate`] |
//! | greedy search, sampling, beam search | [`generate`] |
//! | BLEU | [`bleu`] |
//! | ROUGE-L, and the stemmer it uses | [`rouge`], [`stem`] |

#![forbid(unsafe_code)]

pub mod bleu;
pub mod generate;
pub mod rouge;
pub mod stem;

mod chat;
mod error;
mod guarded;
mod tokenizer;

pub use chat::ChatTemplate;
pub use error::{Error, Result};
pub use guarded::guarded;
pub use tokenizer::{SpecialTokens, Tokenizer};
