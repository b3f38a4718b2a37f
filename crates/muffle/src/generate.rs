//! Texts that a language model generates for prompts and sources.

use crate::{Error, LoadedModel};
use text::SpecialTokens;
use text::generate::{GenerateOptions, Search};

/// How texts are generated.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Maximum number of generated tokens.
    pub max_new_tokens: usize,
    /// Minimum number of generated tokens.
    pub min_new_tokens: usize,
    /// Whether no token with a newline is generated.
    pub one_line: bool,
    /// The search.
    pub search: Search,
}

/// A generated text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewText {
    /// The generated text alone.
    pub text: String,
    /// The prompt with its continuation; for a source, which is not part of its text, `text`.
    pub with_prompt: String,
    /// Number of generated tokens.
    pub tokens: usize,
}

/// Continues prompts, and generates texts for sources, as in training on pairs.
///
/// # Errors
/// If the model has no tokenizer, a prompt has no token, or a text cannot be generated.
pub fn generate(
    model: &LoadedModel,
    prompts: &[String],
    sources: &[String],
    options: &TextOptions,
) -> Result<Vec<NewText>, Error> {
    let Some(tokenizer) = &model.tokenizer else {
        return Err(Error::config(
            "model.source",
            "expected a model of texts, got one without a tokenizer",
        ));
    };
    let preparation = model.prompt_preparation(options.max_new_tokens);
    let mut encoded = Vec::new();
    for prompt in prompts {
        let tokens = tokenizer.encode(prompt, SpecialTokens::Add)?;
        if tokens.is_empty() {
            return Err(Error::config("prompt", "expected at least 1 token, got 0"));
        }
        encoded.push(tokens);
    }
    for source in sources {
        encoded.push(preparation.prompt(source)?);
    }
    let search = GenerateOptions {
        max_new_tokens: options.max_new_tokens,
        min_new_tokens: options.min_new_tokens,
        stop: model.stop_tokens(),
        banned: if options.one_line { tokenizer.tokens_with_newline() } else { Vec::new() },
        search: options.search,
        ..GenerateOptions::default()
    };
    let mut network = model.network.new_instance();
    let mut decoder = network.decoder(&model.params)?;
    let all: Vec<&[u32]> = encoded.iter().map(Vec::as_slice).collect();
    let generated = text::generate::generate(&mut *decoder, &all, &search)?;
    let new_text = |(index, (prompt, new)): (usize, (&Vec<u32>, &Vec<u32>))| {
        let text = tokenizer.decode(new)?;
        let tokens = new.len();
        if index < prompts.len() {
            // A prompt is decoded with its continuation, so that the space between them is right.
            let with_prompt = tokenizer.decode(&[prompt.as_slice(), new].concat())?;
            return Ok(NewText { text, with_prompt, tokens });
        }
        let text = model.generated_target(&text).to_string();
        Ok(NewText { with_prompt: text.clone(), text, tokens })
    };
    encoded.iter().zip(&generated).enumerate().map(new_text).collect()
}
