//! Texts as tokens, on the `tokenizers` crate, whose files every Hugging Face model comes with.

use crate::guarded::guarded;
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

/// Turns texts into tokens and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

/// Why there is no tokenizer, or no tokens.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct Failed {
    path: PathBuf,
    what: String,
}

impl Failed {
    /// What is wrong with what.
    pub fn new(what: &str, why: &str) -> Self {
        Self { path: PathBuf::from(what), what: why.into() }
    }
}

/// Whether the tokens that a model wants around a text are put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// The text alone.
    Omit,
    /// As the model's own tokenizer does it.
    Add,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or that of a directory.
    ///
    /// # Errors
    /// If it cannot be read, or is not a tokenizer.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
        // What the library says can quote the file.
        let plain = |what: String| what.replace(char::is_control, "\u{fffd}");
        let failed = |what: String| Failed { path: path.clone(), what: plain(what) };
        let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        // Of some damaged files the library makes a panic.
        let read = guarded(|| tokenizers::Tokenizer::from_bytes(&bytes))
            .ok_or_else(|| failed("not a tokenizer".into()))?;
        let mut inner = read.map_err(|error| failed(format!("not a tokenizer: {error}")))?;
        // Lengths are our own business: nothing is cut off or filled up unseen.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| failed(error.to_string()))?;
        Ok(Self { inner })
    }

    /// A byte-level BPE of at most `size` tokens, trained on public texts. The special tokens come
    /// first.
    ///
    /// # Errors
    /// If there is not enough room for all bytes and special tokens.
    pub fn train<'a>(
        texts: impl Iterator<Item = &'a str> + Send,
        size: usize,
        special: &[&str],
    ) -> Result<Self, Failed> {
        let failed = |what: String| Failed { path: PathBuf::from("a new tokenizer"), what };
        if size < 256 + special.len() {
            return Err(failed(format!(
                "at least {} tokens expected, got {size}",
                256 + special.len()
            )));
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
        .map_err(|error| failed(error.to_string()))?;
        inner.train(&mut trainer, texts).map_err(|error| failed(error.to_string()))?;
        let text = inner.to_string(false).map_err(|error| failed(error.to_string()))?;
        let inner = tokenizers::Tokenizer::from_bytes(text.as_bytes())
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { inner })
    }

    /// Writes a `tokenizer.json`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Failed> {
        self.inner
            .save(path, true)
            .map_err(|error| Failed { path: path.to_path_buf(), what: error.to_string() })
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If it has none in this tokenizer. The message does not show the text.
    pub fn encode(&self, text: &str, frame: SpecialTokens) -> Result<Vec<u32>, Failed> {
        let encoded = guarded(|| self.inner.encode_fast(text, frame == SpecialTokens::Add))
            .and_then(Result::ok);
        encoded.map(|encoding| encoding.get_ids().to_vec()).ok_or_else(|| Failed {
            path: PathBuf::from("a text"),
            what: "it has no tokens in this tokenizer".into(),
        })
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// If a token is unknown.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Failed> {
        let failed = |what: String| Failed { path: PathBuf::from("tokens"), what };
        let decoded = guarded(|| self.inner.decode(tokens, true))
            .ok_or_else(|| failed("they have no text in this tokenizer".into()))?;
        decoded.map_err(|error| failed(error.to_string()))
    }

    /// How many tokens there are.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// A token by its name.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The tokens whose text has a newline in it.
    pub fn tokens_with_newline(&self) -> Vec<u32> {
        let text = |token: u32| guarded(|| self.inner.decode(&[token], false)).and_then(Result::ok);
        let has = |&token: &u32| text(token).is_some_and(|text| text.contains('\n'));
        (0..self.vocab_size() as u32).filter(has).collect()
    }
}
