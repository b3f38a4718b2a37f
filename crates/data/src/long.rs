//! Texts with more tokens than a model or its configuration takes.

use crate::causal::PairTokens;
use engine::{Combination, Example};
use serde::{Deserialize, Serialize};
use text::Tokenizer;

/// What happens to a text that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// Its end is cut. Of a source and a target, the end of the source is cut first.
    Truncate,
    /// It is divided into chunks, which are parts of one record. For texts without a source.
    Chunk,
    /// It is not used, and its place stays vacant.
    Drop,
}

/// How texts that are too long are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongTexts {
    /// The rule; `None` divides texts without a source into chunks and cuts all others.
    pub rule: Option<TooLong>,
    /// Largest number of chunks of a text; the rest of the text is not used.
    pub max_chunks: usize,
    /// How the losses of the chunks of a text are combined.
    pub combination: Combination,
}

impl LongTexts {
    /// Default of `max_chunks`.
    pub const MAX_CHUNKS: usize = 8;

    /// The rule that drops every text that is too long.
    pub const DROP: Self = Self {
        rule: Some(TooLong::Drop),
        max_chunks: Self::MAX_CHUNKS,
        combination: Combination::Mean,
    };
}

/// Chunks for texts without a source, at most eight; other texts are cut.
impl Default for LongTexts {
    fn default() -> Self {
        Self { rule: None, ..Self::DROP }
    }
}

/// Cuts the end of a text until `encode` returns fewer than `limit` tokens, or nothing is left.
///
/// Returns the tokens, and whether the text was cut.
///
/// # Errors
/// If the tokenizer cannot encode the text.
pub(crate) fn shorten(
    tokenizer: &Tokenizer,
    text: &str,
    limit: usize,
    encode: impl Fn(&str) -> text::Result<PairTokens>,
) -> text::Result<(PairTokens, bool)> {
    let mut encoded = encode(text)?;
    if encoded.tokens.len() < limit {
        return Ok((encoded, false));
    }
    let ends = tokenizer.token_ends(text)?;
    let mut kept = ends.len();
    while encoded.tokens.len() >= limit && kept > 0 {
        // A shorter text can have other tokens at its end, so that one cut may not be enough.
        kept = kept.saturating_sub(encoded.tokens.len() + 1 - limit);
        let end = kept.checked_sub(1).map_or(0, |last| ends[last]);
        encoded = encode(&text[..end])?;
    }
    Ok((encoded, true))
}

/// Divides a text into examples of fewer than `limit` tokens each, at most `max` of them.
///
/// Each begins with the last token of the one before, so that every token but the first of the text
/// is predicted once.
pub(crate) fn chunks(tokens: &[u32], limit: usize, max: usize) -> Vec<Example> {
    // A chunk has at least a first and a predicted token.
    let size = limit.saturating_sub(1).max(2);
    (0..tokens.len().saturating_sub(1))
        .step_by(size - 1)
        .take(max)
        .map(|start| tokens[start..tokens.len().min(start + size)].to_vec())
        .map(|chunk| Example::continuation(chunk, 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Input, Target};

    /// Every token but the first is the target of exactly one chunk, and no chunk is too long.
    #[test]
    fn chunks_predict_every_token_once() {
        for length in 0..40u32 {
            for limit in 3..12 {
                let tokens: Vec<u32> = (0..length).collect();
                let all = chunks(&tokens, limit, usize::MAX);
                let mut targets = Vec::new();
                for chunk in &all {
                    let part = &chunk.parts()[0];
                    let (Input::Tokens(own), Target::Next(next)) = (&part.input, &part.target)
                    else {
                        panic!("a text")
                    };
                    assert!((2..limit).contains(&own.len()), "{length} {limit}");
                    assert_eq!(next[..own.len() - 1], own[1..]);
                    targets.extend(next.iter().copied().filter(|&token| token != Target::NONE));
                }
                assert_eq!(targets, tokens.get(1..).unwrap_or_default(), "{length} {limit}");
                assert!(chunks(&tokens, limit, 2) == all[..all.len().min(2)]);
            }
        }
    }
}
