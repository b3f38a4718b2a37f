//! Tokenizers in the Hugging Face format, on the `tokenizers` crate.

use crate::error::{Error, Result};
use crate::guarded::guarded;
use std::path::Path;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

/// Converts texts into tokens and back.
///
/// ```
/// use text::{SpecialTokens, Tokenizer};
///
/// let tokenizer = Tokenizer::train(["a public text", "a text"].into_iter(), 300, &["<eos>"])?;
/// let tokens = tokenizer.encode("a text", SpecialTokens::Omit)?;
/// assert_eq!(tokenizer.decode(&tokens)?, "a text");
/// assert_eq!(tokenizer.token_id("<eos>"), Some(0));
/// # Ok::<(), text::Error>(())
/// ```
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

/// Whether special tokens are added around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Only the tokens of the text.
    Omit,
    /// With the special tokens of the tokenizer's post-processor.
    Add,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, given as a file or as its directory.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
        let bytes =
            std::fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        Self::from_bytes(&bytes, &path)
    }

    /// Loads a `tokenizer.json` in memory; `path` is used in errors.
    ///
    /// # Errors
    /// If it is not a tokenizer.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        // The message of the library can quote the file, control characters included.
        let invalid = |reason: String| Error::InvalidTokenizer {
            path: path.into(),
            reason: reason.replace(char::is_control, "\u{fffd}"),
        };
        // The library panics on some damaged files.
        let read = guarded(|| tokenizers::Tokenizer::from_bytes(bytes))
            .ok_or_else(|| invalid("the file is damaged".into()))?;
        let mut inner = read.map_err(|error| invalid(error.to_string()))?;
        // Lengths are checked by the caller: the tokenizer must neither truncate nor pad.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { inner })
    }

    /// Trains a byte-level BPE of at most `size` tokens on public texts.
    ///
    /// The special tokens get the first ids.
    ///
    /// # Errors
    /// If `size` is too small for all bytes and special tokens.
    pub fn train<'a>(
        texts: impl Iterator<Item = &'a str> + Send,
        size: usize,
        special: &[&str],
    ) -> Result<Self> {
        let failed = |error: tokenizers::Error| Error::TrainTokenizer(error.to_string());
        let least = 256 + special.len();
        if size < least {
            return Err(Error::VocabTooSmall { least, got: size });
        }
        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(size)
            .min_frequency(2)
            .special_tokens(special.iter().map(|token| AddedToken::from(*token, true)).collect())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut inner = TokenizerBuilder::<
            BPE,
            tokenizers::NormalizerWrapper,
            ByteLevel,
            ByteLevel,
            ByteLevel,
        >::default()
        .with_model(BPE::default())
        .with_normalizer(None)
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_post_processor(Some(ByteLevel::new(false, false, true)))
        .with_decoder(Some(ByteLevel::new(false, true, true)))
        .build()
        .map_err(failed)?;
        inner.train(&mut trainer, texts).map_err(failed)?;
        let text = inner.to_string(false).map_err(failed)?;
        let inner = tokenizers::Tokenizer::from_bytes(text.as_bytes()).map_err(failed)?;
        Ok(Self { inner })
    }

    /// Writes a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.inner
            .save(path, true)
            .map_err(|error| Error::SaveTokenizer { path: path.into(), reason: error.to_string() })
    }

    /// The text of a token.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text. The message does not show the text.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        let encoded = guarded(|| self.inner.encode_fast(text, special == SpecialTokens::Add));
        let encoding = encoded.and_then(|encoded| encoded.ok()).ok_or(Error::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The byte at which each token of a text ends, without special tokens.
    ///
    /// Every one is the end of a character, so that the text can be cut there.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text. The message does not show the text.
    pub fn token_ends(&self, text: &str) -> Result<Vec<usize>> {
        let encoded = guarded(|| self.inner.encode(text, false));
        let encoding = encoded.and_then(|encoded| encoded.ok()).ok_or(Error::Encode)?;
        // A token can be a part of a character: it ends before that character.
        let boundary =
            |end: usize| (0..=end.min(text.len())).rev().find(|&i| text.is_char_boundary(i));
        Ok(encoding.get_offsets().iter().map(|&(_, end)| boundary(end).unwrap_or(0)).collect())
    }

    /// The text of tokens, without special tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let decoded = guarded(|| self.inner.decode(tokens, true));
        decoded.and_then(|decoded| decoded.ok()).ok_or(Error::Decode)
    }

    /// The size of the vocabulary, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token, if the vocabulary has it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids of all tokens whose text contains a newline.
    pub fn tokens_with_newline(&self) -> Vec<u32> {
        let has = |&token: &u32| {
            let decoded = guarded(|| self.inner.decode(&[token], false));
            decoded.and_then(|decoded| decoded.ok()).is_some_and(|text| text.contains('\n'))
        };
        (0..self.vocab_size() as u32).filter(has).collect()
    }
}
