//! Preparation of examples from records: tokens and targets.
//!
//! A text with a source becomes ` source <bos> target <eos>`, with a space around each part as in
//! Li et al. (2022) and Kim and Fan (2026, App. D); only the target and the end are predicted. With
//! GPT-2's tokenizer and texts *shorter* than 100 and 120 tokens, 42,043 of the 42,061 rows of E2E
//! and 60,591 of the 62,659 of DART can be used, as in the latter's Table 3. A text without a
//! source is its own tokens, all but the first of which are predicted. A labelled text is either
//! classified, or, by a causal language model, followed by its label as the target.

use crate::{Content, Record, Scattering, Views};
use engine::{Combination, Example};
use text::{SpecialTokens, Tokenizer};

/// How records become examples.
///
/// ```
/// use data::{Content, ModelInput, Preparation, Prepared, Record};
///
/// let pixels = vec![0.0, 0.5, 1.0, 0.5];
/// let content = Content::Image { pixels, height: 2, width: 2, channels: 1, label: 1 };
/// let labels = ["cat".to_string(), "dog".to_string()];
/// let input = ModelInput::Images { elements: 4, features: None };
/// let preparation = Preparation { input, labels: &labels, limit: 1 };
/// let prepared = preparation.example(&Record { content, group: None, line: 1 })?;
/// assert!(matches!(prepared, Prepared::Example(example) if example.len() == 4));
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// The input of the model.
    pub input: ModelInput<'a>,
    /// The public names of the classes; empty if records have no labels.
    pub labels: &'a [String],
    /// Texts must be shorter than this many tokens.
    pub limit: usize,
}

/// The kind of input that a model takes.
#[derive(Clone, Copy, Debug)]
pub enum ModelInput<'a> {
    /// Texts, for a causal language model.
    Causal {
        /// The tokenizer.
        tokenizer: &'a Tokenizer,
        /// The token between source and target.
        begin: u32,
        /// The token that ends a target.
        end: u32,
    },
    /// Texts, for a classifier.
    Classifier {
        /// The tokenizer.
        tokenizer: &'a Tokenizer,
    },
    /// Images of a fixed size, for a classifier.
    Images {
        /// Number of elements that the model takes: height × width × channels.
        elements: usize,
        /// The features that the model takes instead of pixels.
        features: Option<&'a Scattering>,
    },
}

/// The result of preparing one record.
#[derive(Debug)]
pub enum Prepared {
    /// An example.
    Example(Example),
    /// The record has at least as many tokens as the limit; its place stays vacant.
    TooLong,
    /// The record has nothing to predict; its place stays vacant.
    Empty,
    /// The label is not among the public ones.
    UnknownLabel,
    /// The model takes another kind of record; this is the expected one.
    WrongKind(&'static str),
}

impl Preparation<'_> {
    /// The tokens before a target, as a prompt for generation.
    ///
    /// # Errors
    /// If the model is not a causal language model, or the tokenizer cannot encode the text.
    pub fn prompt(&self, source: &str) -> text::Result<Vec<u32>> {
        let ModelInput::Causal { tokenizer, begin, .. } = self.input else {
            return Err(text::Error::NotCausal);
        };
        let mut tokens = tokenizer.encode(&format!(" {source} "), SpecialTokens::Omit)?;
        tokens.push(begin);
        Ok(tokens)
    }

    /// The example of a record.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn example(&self, record: &Record) -> text::Result<Prepared> {
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
            (
                Content::Image { pixels, height, width, channels, label },
                ModelInput::Images { elements, features },
            ) => {
                let fits = match features {
                    Some(features) => features.image_shape() == [*height, *width, *channels],
                    None => pixels.len() == elements,
                };
                Ok(if !fits {
                    Prepared::WrongKind("an image of the model's input size")
                } else if *label as usize >= self.labels.len() {
                    Prepared::UnknownLabel
                } else {
                    let values = match features {
                        Some(features) => features.features(pixels),
                        None => pixels.clone(),
                    };
                    Prepared::Example(Example::features(values, *label))
                })
            }
            (_, ModelInput::Causal { .. }) => Ok(Prepared::WrongKind("a text")),
            (_, ModelInput::Classifier { .. }) => Ok(Prepared::WrongKind("a text with a label")),
            (_, ModelInput::Images { .. }) => Ok(Prepared::WrongKind("an image")),
        }
    }

    /// The example of a record with all its views, which are parts of one example.
    ///
    /// # Errors
    /// As [`example`](Self::example).
    pub fn example_of_views(&self, record: &Record, views: Views) -> text::Result<Prepared> {
        if views == Views::None {
            return self.example(record);
        }
        let Some(views) = views.of(record) else { return Ok(Prepared::WrongKind("an image")) };
        let mut examples = Vec::with_capacity(views.len());
        for view in &views {
            match self.example(view)? {
                Prepared::Example(example) => examples.push(example),
                unusable => return Ok(unusable),
            }
        }
        let combined = Example::combined(examples, Combination::Mean);
        Ok(combined.map_or(Prepared::Empty, Prepared::Example))
    }

    /// One example per class, with the class label as the target.
    ///
    /// A causal language model classifies a text by their losses. `None` if one of them is too long
    /// or empty.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn choices(&self, text: &str) -> text::Result<Option<Vec<Example>>> {
        let mut all = Vec::with_capacity(self.labels.len());
        for label in self.labels {
            match self.answer(text, label)? {
                Prepared::Example(example) => all.push(example),
                _ => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// The index of a label among the public ones.
    pub fn class(&self, label: &str) -> Option<u32> {
        self.labels
            .iter()
            .position(|known| known == label)
            .and_then(|class| u32::try_from(class).ok())
    }

    fn answer(&self, source: &str, target: &str) -> text::Result<Prepared> {
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
