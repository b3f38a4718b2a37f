//! Preparation of examples from records: tokens and targets.
//!
//! A text with a source is formatted by the template of the model ([`Template`](crate::Template));
//! only what follows the prompt is predicted. With the paper's template, GPT-2's tokenizer and texts
//! *shorter* than 100 and 120 tokens, 42,043 of the 42,061 rows of E2E and 60,591 of the 62,659 of
//! DART can be used, as in Table 3 of Kim and Fan (2026). A text without a source is its own tokens,
//! all but the first of which are predicted. A labelled text is either classified, or, by a causal
//! language model, followed by its label as the target. Texts that are too long are prepared by a
//! rule ([`LongTexts`]), which looks at their own row only.

use crate::causal::PairTokens;
use crate::long::{chunks, shorten};
use crate::{CausalInput, Content, LongTexts, Record, Scattering, Task, TooLong, Views, task};
use engine::{Combination, Example, Input};
use text::{SpecialTokens, Tokenizer};

/// How records become examples.
///
/// ```
/// use data::{Content, Label, LongTexts, ModelInput, Preparation, Prepared, Record};
///
/// let pixels = vec![0.0, 0.5, 1.0, 0.5];
/// let label = Label::Name("dog".into());
/// let content = Content::Image { pixels, height: 2, width: 2, channels: 1, label };
/// let labels = ["cat".to_string(), "dog".to_string()];
/// let input = ModelInput::Images { elements: 4, features: None };
/// let (task, long_texts) = (data::Task::Classification, LongTexts::default());
/// let preparation = Preparation { input, task, labels: &labels, limit: 1, long_texts };
/// let prepared = preparation.example(&Record { content, group: None, line: 1 })?;
/// assert!(matches!(prepared, Prepared::Example(example) if example.len() == 4));
/// # Ok::<(), text::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preparation<'a> {
    /// The input of the model.
    pub input: ModelInput<'a>,
    /// What the label of a record is.
    pub task: Task,
    /// The public names of the classes; empty if records have no labels.
    pub labels: &'a [String],
    /// Texts must be shorter than this many tokens.
    pub limit: usize,
    /// How longer texts are prepared.
    pub long_texts: LongTexts,
}

/// The kind of input that a model takes.
#[derive(Clone, Copy, Debug)]
pub enum ModelInput<'a> {
    /// Texts, for a causal language model.
    Causal(CausalInput<'a>),
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
    /// An example of a part of the record, which has at least as many tokens as the limit.
    Shortened(Example),
    /// The record has at least as many tokens as the limit; its place stays vacant.
    TooLong,
    /// The record has nothing to predict; its place stays vacant.
    Empty,
    /// The label is not among the public ones, or not a number; this is what is expected.
    InvalidLabel(&'static str),
    /// The model or the rule for long texts takes another kind of record; this is the expected one.
    WrongKind(&'static str),
}

/// The kind of record that `data.too_long = "chunk"` takes.
const CHUNKED: &str = "a text without a source, because data.too_long is \"chunk\"; set it to \
     \"truncate\" or \"drop\"";

impl Preparation<'_> {
    /// The tokens before a target, as a prompt for generation.
    ///
    /// If there are as many as the limit, the end of the source is cut, unless such texts are
    /// dropped.
    ///
    /// # Errors
    /// If the model is not a causal language model, or the tokenizer cannot encode the text.
    pub fn prompt(&self, source: &str) -> text::Result<Vec<u32>> {
        let input = self.causal()?;
        if self.long_texts.rule == Some(TooLong::Drop) {
            return input.prompt_tokens(source);
        }
        let encode = |source: &str| input.prompt_tokens(source).map(PairTokens::from);
        Ok(shorten(input.tokenizer, source, self.limit, encode)?.0.tokens)
    }

    fn causal(&self) -> text::Result<CausalInput<'_>> {
        match self.input {
            ModelInput::Causal(input) => Ok(input),
            _ => Err(text::Error::NotCausal),
        }
    }

    /// The example of a record.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn example(&self, record: &Record) -> text::Result<Prepared> {
        match (&record.content, self.input) {
            (Content::Text { source: Some(source), target, .. }, ModelInput::Causal(_)) => {
                self.answer(source, target)
            }
            (Content::Text { source: None, target, .. }, ModelInput::Causal(input)) => {
                Ok(self.plain_text(input.encode(target)?))
            }
            (Content::Labelled { text, label }, ModelInput::Causal(_)) => {
                match self.task.target(label, self.labels) {
                    Ok(_) => self.answer(text, label),
                    Err(expected) => Ok(Prepared::InvalidLabel(expected)),
                }
            }
            (Content::Labelled { text, label }, ModelInput::Classifier { tokenizer }) => {
                let target = match self.task.target(label, self.labels) {
                    Ok(target) => target,
                    Err(expected) => return Ok(Prepared::InvalidLabel(expected)),
                };
                let encode =
                    |text: &str| tokenizer.encode(text, SpecialTokens::Add).map(PairTokens::from);
                self.cut_to_limit(tokenizer, text, &encode, &|PairTokens { tokens, .. }| {
                    match tokens.len() {
                        0 => Prepared::Empty,
                        length if length >= self.limit => Prepared::TooLong,
                        _ => Prepared::Example(Example::new(Input::Tokens(tokens), target.clone())),
                    }
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
                if !fits {
                    return Ok(Prepared::WrongKind(
                        "an image of the size that the model reads (see data.image_size)",
                    ));
                }
                let target = match self.task.image_target(label, self.labels) {
                    Ok(target) => target,
                    Err(expected) => return Ok(Prepared::InvalidLabel(expected)),
                };
                let values = match features {
                    Some(features) => features.features(pixels),
                    None => pixels.clone(),
                };
                Ok(Prepared::Example(Example::new(Input::Features(values), target)))
            }
            (Content::Missing, _) => Ok(Prepared::Empty),
            (_, ModelInput::Causal(_)) => {
                Ok(Prepared::WrongKind("a text, which is what the model reads"))
            }
            (_, ModelInput::Classifier { .. }) => {
                Ok(Prepared::WrongKind("a text with a label, which is what the model reads"))
            }
            (_, ModelInput::Images { .. }) => {
                Ok(Prepared::WrongKind("an image, which is what the model reads"))
            }
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
                Prepared::Example(example) | Prepared::Shortened(example) => all.push(example),
                _ => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// The index of a label among the public ones.
    pub fn class(&self, label: &str) -> Option<u32> {
        task::class(label, self.labels)
    }

    /// The example of a source and a target.
    ///
    /// A text that is too long loses the end of its source. A target that does not fit without its
    /// source either loses its own end, and the token that ends it.
    fn answer(&self, source: &str, target: &str) -> text::Result<Prepared> {
        let input = self.causal()?;
        let encode = |source: &str| input.pair_tokens(source, target);
        self.cut_to_limit(input.tokenizer, source, &encode, &|pair| {
            let PairTokens { mut tokens, first } = pair;
            tokens.truncate(self.limit.saturating_sub(1));
            predicted(tokens, first)
        })
    }

    /// Prepares a text whose end can be cut: as it is, cut or not at all.
    fn cut_to_limit(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        encode: &dyn Fn(&str) -> text::Result<PairTokens>,
        finish: &dyn Fn(PairTokens) -> Prepared,
    ) -> text::Result<Prepared> {
        // Whether a record is refused does not depend on its length.
        if self.long_texts.rule == Some(TooLong::Chunk) {
            return Ok(Prepared::WrongKind(CHUNKED));
        }
        if self.long_texts.rule == Some(TooLong::Drop) {
            let whole = encode(text)?;
            let fits = whole.tokens.len() < self.limit;
            return Ok(if fits { finish(whole) } else { Prepared::TooLong });
        }
        let (pair, cut) = shorten(tokenizer, text, self.limit, encode)?;
        Ok(match finish(pair) {
            Prepared::Example(example) if cut => Prepared::Shortened(example),
            // Nothing is left of it.
            _ if cut => Prepared::TooLong,
            whole => whole,
        })
    }

    /// The example of a text without a source: whole, in chunks, or cut.
    fn plain_text(&self, mut tokens: Vec<u32>) -> Prepared {
        if tokens.len() < self.limit {
            return predicted(tokens, 1);
        }
        match self.long_texts.rule.unwrap_or(TooLong::Chunk) {
            TooLong::Drop => Prepared::TooLong,
            TooLong::Truncate => {
                tokens.truncate(self.limit.saturating_sub(1));
                match predicted(tokens, 1) {
                    Prepared::Example(example) => Prepared::Shortened(example),
                    _ => Prepared::TooLong,
                }
            }
            TooLong::Chunk => {
                let LongTexts { max_chunks, combination, .. } = self.long_texts;
                let parts = chunks(&tokens, self.limit, max_chunks);
                // Chunks overlap by one token.
                let used = parts.iter().map(|part| part.len() - 1).sum::<usize>() + 1;
                match Example::combined(parts, combination) {
                    Some(example) if used == tokens.len() => Prepared::Example(example),
                    Some(example) => Prepared::Shortened(example),
                    None => Prepared::TooLong,
                }
            }
        }
    }
}

/// The example of a text of which the tokens from index `first` on are predicted.
fn predicted(tokens: Vec<u32>, first: usize) -> Prepared {
    if tokens.len() <= first {
        Prepared::Empty
    } else {
        Prepared::Example(Example::continuation(tokens, first))
    }
}
