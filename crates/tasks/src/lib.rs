//! Data sets, tokenizing, generation and the metrics of texts.
//!
//! | to find | look in |
//! |---|---|
//! | what a row of a file says | [`Record`] |
//! | which formats there are, and how one is told from a file | [`Format`] |
//! | how they are read | `read/` |
//! | texts as tokens | [`Tokenizer`] |
//! | records as examples | [`Preparation`] |
//! | how a model goes on with a text | [`generate`] |
//! | how texts are scored | [`bleu`], [`rouge`] |

#![forbid(unsafe_code)]

pub mod bleu;
pub mod generate;
pub mod rouge;
pub mod stem;

mod error;
mod format;
mod guarded;
mod prepare;
mod read;
mod record;
mod tokenizer;

pub use error::{Error, Result};
pub use format::Format;
pub use prepare::{Preparation, Prepared, Reader};
pub use read::{Options, Records};
pub use record::{BySource, Content, Record, by_source};
pub use tokenizer::{Failed, Frame, Tokenizer};
