//! From records to examples: which tokens a model sees, and what it is asked for.
//!
//! A text with a source becomes ` source <bos> target <eos>`, with a space around each part as Li
//! et al. (2022) and Kim and Fan (2026, App. D) have it; only the target and the end are predicted.
//! With GPT-2's tokenizer and texts *shorter* than 100 and 120 tokens 42,043 of the 42,061 rows of
//! E2E and 60,591 of the 62,659 of DART can be used, as in the latter's Table 3. A text without a
//! source is its own tokens, all but the first of which are predicted. A labelled text is either
//! classified, or, by a model that goes on with texts, answered with its label.

use crate::{Content, Record};
use model::Example;
use text::{Failed, SpecialTokens, Tokenizer};

/// How records become examples.
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// What kind of model they are for.
    pub input: ModelInput<'a>,
    /// The public names of the classes; none if records have no labels.
    pub labels: &'a [String],
    /// Texts must be shorter than this many tokens.
    pub limit: usize,
}

/// What kind of model reads the examples.
#[derive(Clone, Copy, Debug)]
pub enum ModelInput<'a> {
    /// One that goes on with texts.
    Causal {
        /// Makes tokens.
        tokenizer: &'a Tokenizer,
        /// Stands between source and target.
        begin: u32,
        /// Ends a target.
        end: u32,
    },
    /// One that classifies texts.
    Classifier {
        /// Makes tokens.
        tokenizer: &'a Tokenizer,
    },
    /// One that classifies images of this many elements.
    Images {
        /// Rows times columns times channels.
        elements: usize,
    },
}

/// What became of a record.
#[derive(Debug)]
pub enum Prepared {
    /// An example.
    Example(Example),
    /// It has the limit's tokens or more: there is no record in its place.
    TooLong,
    /// There is nothing in it to predict: there is no record in its place.
    Empty,
    /// Its label is not among the public ones.
    UnknownLabel,
    /// It is not what the model reads: this is what was expected.
    WrongKind(&'static str),
}

impl Preparation<'_> {
    /// The tokens that come before a target: what a model is given when it is to write one.
    ///
    /// # Errors
    /// If the model does not go on with texts, or the text has no tokens in this tokenizer.
    pub fn prompt(&self, source: &str) -> Result<Vec<u32>, Failed> {
        let ModelInput::Causal { tokenizer, begin, .. } = self.input else {
            return Err(Failed::new("the model", "it does not write texts"));
        };
        let mut tokens = tokenizer.encode(&format!(" {source} "), SpecialTokens::Omit)?;
        tokens.push(begin);
        Ok(tokens)
    }

    /// A record's example.
    ///
    /// # Errors
    /// If the text has no tokens in this tokenizer.
    pub fn example(&self, record: &Record) -> Result<Prepared, Failed> {
        match (&record.content, self.input) {
            (Content::Text { source: Some(source), target, .. }, ModelInput::Causal { .. }) => {
                self.answer(source, target)
            }
            (Content::Text { source: None, target, .. }, ModelInput::Causal { tokenizer, .. }) => {
                Ok(self.continuation(tokenizer.encode(target, SpecialTokens::Omit)?, 1))
            }
            (Content::Labelled { label, .. }, _) if self.class(label).is_none() => {
                Ok(Prepared::UnknownLabel)
            }
            (Content::Labelled { text, label }, ModelInput::Causal { .. }) => {
                self.answer(text, label)
            }
            (Content::Labelled { text, label }, ModelInput::Classifier { tokenizer }) => {
                let tokens = tokenizer.encode(text, SpecialTokens::Add)?;
                Ok(match (tokens.len(), self.class(label)) {
                    (0, _) => Prepared::Empty,
                    (length, _) if length >= self.limit => Prepared::TooLong,
                    (_, None) => Prepared::UnknownLabel,
                    (_, Some(class)) => Prepared::Example(Example::labelled(tokens, class)),
                })
            }
            (Content::Image { pixels, label, .. }, ModelInput::Images { elements }) => {
                Ok(if pixels.len() != elements {
                    Prepared::WrongKind("an image of the size that the model takes")
                } else if *label as usize >= self.labels.len() {
                    Prepared::UnknownLabel
                } else {
                    Prepared::Example(Example::numbers(pixels.clone(), *label))
                })
            }
            (_, ModelInput::Causal { .. }) => Ok(Prepared::WrongKind("a text")),
            (_, ModelInput::Classifier { .. }) => Ok(Prepared::WrongKind("a text with a label")),
            (_, ModelInput::Images { .. }) => Ok(Prepared::WrongKind("an image")),
        }
    }

    /// For each class, the example in which a text is answered with its label: what a model that
    /// goes on with texts is asked when it is to choose. `None` if the model is of another kind.
    ///
    /// # Errors
    /// If the text has no tokens in this tokenizer.
    pub fn choices(&self, text: &str) -> Result<Option<Vec<Example>>, Failed> {
        let mut all = Vec::with_capacity(self.labels.len());
        for label in self.labels {
            match self.answer(text, label)? {
                Prepared::Example(example) => all.push(example),
                _ => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// The place of a label among the public ones.
    pub fn class(&self, label: &str) -> Option<u32> {
        self.labels
            .iter()
            .position(|known| known == label)
            .and_then(|class| u32::try_from(class).ok())
    }

    fn answer(&self, source: &str, target: &str) -> Result<Prepared, Failed> {
        let mut tokens = self.prompt(source)?;
        let first = tokens.len();
        if let ModelInput::Causal { tokenizer, end, .. } = self.input {
            tokens.extend(tokenizer.encode(&format!(" {target} "), SpecialTokens::Omit)?);
            tokens.push(end);
        }
        Ok(self.continuation(tokens, first))
    }

    fn continuation(&self, tokens: Vec<u32>, first: usize) -> Prepared {
        if tokens.len() >= self.limit {
            Prepared::TooLong
        } else if tokens.len() <= first {
            Prepared::Empty
        } else {
            Prepared::Example(Example::continuation(tokens, first))
        }
    }
}
