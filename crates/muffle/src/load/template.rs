//! The template of texts with a source, with which a model is trained.
//!
//! It is configured for training (`data.template`) and stored in the `config.json` of the model, so
//! that evaluation and generation use the same prompts.

use crate::Error;
use data::{Prompt, Template};
use model::hf;
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use text::ChatTemplate;

/// The key in the `config.json` of a model.
const KEY: &str = "prompt_template";

/// Returns the template that is stored with a model, if there is one.
///
/// # Errors
/// If it is invalid.
pub(super) fn stored(model: &hf::Config) -> Result<Option<Template>, Error> {
    let Some(value) = model.other_keys.get(KEY) else { return Ok(None) };
    Template::deserialize(value).map(Some).map_err(|error| {
        Error::config("model.source", format!("config.json: invalid {KEY:?}: {error}"))
    })
}

/// Stores a template with a model.
pub(super) fn store(model: &mut hf::Config, template: &Template) {
    model.other_keys.insert(KEY.into(), json!(template));
}

/// Prepares a template for use; a chat template is read from the tokenizer's folder.
///
/// # Errors
/// If the model has no usable chat template.
pub(super) fn prompt(template: &Template, tokenizer: Option<&Path>) -> Result<Prompt, Error> {
    match (template, tokenizer) {
        (Template::Text(text), _) => Ok(Prompt::Text(text.clone())),
        (Template::Paper, _) => Ok(Prompt::Paper),
        (Template::Chat, Some(folder)) => ChatTemplate::open(folder)
            .map(|chat| Prompt::Chat(Box::new(chat)))
            .map_err(|error| Error::config("data.template", error.to_string())),
        (Template::Chat, None) => Err(Error::config(
            "data.template",
            "\"chat\" needs the folder of a tokenizer with a chat template; got a tokenizer \
             without a folder",
        )),
    }
}

/// The error for a template that is configured with a model that does not generate text.
pub(super) fn not_causal() -> Error {
    Error::config("data.template", "expected \"auto\", because the model does not generate text")
}
