//! Tokens of prompts and targets for a causal language model.

use crate::template::{FormattedText, Prompt};
use text::{SpecialTokens, Tokenizer};

/// What a causal language model takes: its tokenizer, its template and its special tokens.
#[derive(Clone, Copy, Debug)]
pub struct CausalInput<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The template of texts with a source.
    pub prompt: &'a Prompt,
    /// The token that begins a text; in the paper's template, the token before the target.
    pub begin: u32,
    /// The token that ends a target.
    pub end: u32,
}

/// The tokens of a text, of which those from index `first` on are to be predicted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PairTokens {
    pub(crate) tokens: Vec<u32>,
    pub(crate) first: usize,
}

/// Tokens of which none is to be predicted.
impl From<Vec<u32>> for PairTokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self { first: tokens.len(), tokens }
    }
}

impl CausalInput<'_> {
    /// Returns the tokens before a target, as a prompt for generation.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text, or the template fails.
    pub fn prompt_tokens(&self, source: &str) -> text::Result<Vec<u32>> {
        match self.prompt.prompt(source)? {
            Some(prompt) => self.encode_prompt(&prompt),
            None => {
                let mut tokens = self.encode(&format!(" {source} "))?;
                tokens.push(self.begin);
                Ok(tokens)
            }
        }
    }

    /// Returns the tokens of a source and a target.
    ///
    /// They begin with those of [`prompt_tokens`](Self::prompt_tokens).
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text, or the template fails.
    pub(crate) fn pair_tokens(&self, source: &str, target: &str) -> text::Result<PairTokens> {
        let Some(FormattedText { prompt, learned }) = self.prompt.format(source, target)? else {
            let mut tokens = self.prompt_tokens(source)?;
            let first = tokens.len();
            tokens.extend(self.encode(&format!(" {target} "))?);
            tokens.push(self.end);
            return Ok(PairTokens { tokens, first });
        };
        let mut tokens = self.encode_prompt(&prompt)?;
        let first = tokens.len();
        // Tokens of the whole text, as the model saw in pretraining. Where the tokenizer joins the
        // end of the prompt with the target, the target is encoded alone, because generation starts
        // from the tokens of the prompt.
        let whole = self.encode_prompt(&[prompt, learned.clone()].concat())?;
        match whole.strip_prefix(tokens.as_slice()) {
            Some(rest) => tokens.extend(rest),
            None => tokens.extend(self.encode(&learned)?),
        }
        // A chat template has its own end; what follows the end of a text is never generated.
        let own_end = tokens[first..].iter().position(|&token| token == self.end);
        match own_end.filter(|_| matches!(self.prompt, Prompt::Chat(_))) {
            Some(index) => tokens.truncate(first + index + 1),
            None => tokens.push(self.end),
        }
        Ok(PairTokens { tokens, first })
    }

    /// The tokens of a prompt. Chat templates write the token that begins a text themselves.
    fn encode_prompt(&self, text: &str) -> text::Result<Vec<u32>> {
        let mut tokens = match self.prompt {
            Prompt::Chat(_) => Vec::new(),
            Prompt::Text(_) | Prompt::Paper => vec![self.begin],
        };
        tokens.extend(self.encode(text)?);
        Ok(tokens)
    }

    pub(crate) fn encode(&self, text: &str) -> text::Result<Vec<u32>> {
        self.tokenizer.encode(text, SpecialTokens::Omit)
    }
}
