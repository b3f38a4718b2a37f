//! From records to examples: which tokens a model sees, and which it is asked for.
//!
//! A text with a source becomes ` source <bos> target <eos>`, with a space around each part as Li et al. (2022) and Kim and Fan (2026, App. D) have it; only the target and the
//! end are predicted. With GPT-2's tokenizer and texts *shorter* than 100 and 120 tokens that leaves 42,043 records of E2E and 60,591 of DART, as in the latter's Table 3.
//! A text without a source is its own tokens, all but the first of which are predicted.

use crate::tokenizer::{Failed, Frame, Tokenizer};
use crate::{Content, Record};
use model::Example;

/// How records become examples.
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// Makes tokens.
    pub tokenizer: &'a Tokenizer,
    /// Stands between source and target.
    pub begin: u32,
    /// Ends a target.
    pub end: u32,
    /// Examples must be shorter than this many tokens.
    pub limit: usize,
}

/// What became of a record.
#[derive(Debug)]
pub enum Prepared {
    /// An example.
    Example(Example),
    /// It has the limit's tokens or more. It does not take part, and is not counted.
    TooLong,
    /// There is nothing in it to predict.
    Empty,
    /// It is not a text.
    NotText,
}

impl Preparation<'_> {
    /// The tokens that come before a target: what a model is given when it is to write one.
    ///
    /// # Errors
    /// If the text has no tokens in this tokenizer.
    pub fn prompt(&self, source: &str) -> Result<Vec<u32>, Failed> {
        let mut tokens = self.tokenizer.encode(&format!(" {source} "), Frame::Bare)?;
        tokens.push(self.begin);
        Ok(tokens)
    }

    /// A record's example.
    ///
    /// # Errors
    /// If the text has no tokens in this tokenizer.
    pub fn example(&self, record: &Record) -> Result<Prepared, Failed> {
        let Content::Text { source, target, .. } = &record.content else { return Ok(Prepared::NotText) };
        let (tokens, first) = match source {
            Some(source) => {
                let mut tokens = self.prompt(source)?;
                let first = tokens.len();
                tokens.extend(self.tokenizer.encode(&format!(" {target} "), Frame::Bare)?);
                tokens.push(self.end);
                (tokens, first)
            }
            None => (self.tokenizer.encode(target, Frame::Bare)?, 1),
        };
        Ok(if tokens.len() >= self.limit {
            Prepared::TooLong
        } else if tokens.len() <= first {
            Prepared::Empty
        } else {
            Prepared::Example(Example::continuation(tokens, first))
        })
    }
}
