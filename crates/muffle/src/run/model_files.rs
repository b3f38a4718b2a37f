//! Files beside the weights of a released model: settings of its tokenizer and of generation, its
//! model card, and its low-rank adapters for PEFT.
//!
//! `transformers` loads a folder without the first two with settings of its own, which do not fit a
//! tokenizer that was trained for the run.

use crate::Error;
use crate::load::embedded_model;
use crate::load::model::{LoadedModel, is_pretrained};
use crate::report::model_card;
use crate::run::{Run, folder};
use crate::{Config, Statement};
use model::hf::{self, ADAPTER_WEIGHTS, Adapter};
use protocol::Params;
use serde_json::{Value, json};
use std::path::Path;

/// The folder of the adapter for PEFT, in that of the model.
const ADAPTER: &str = "adapter";

/// The name of the adapter's weights in a privacy statement.
pub(crate) const ADAPTER_FILE: &str = "adapter/adapter_model.safetensors";

/// Whether the adapters of a run can be added to the original model.
///
/// A preset has no original, the embedded model is not a file, and a model with an additional token
/// differs from its original.
pub(crate) fn saves_adapter(config: &Config) -> bool {
    let source = &config.model.source;
    let has_files = is_pretrained(source) && source != embedded_model::NAME;
    config.model.lora_rank > 0 && !config.model.add_pad && has_files
}

/// Writes settings of tokenizer and generation that the folder of the model lacks, and the adapter.
pub(crate) fn write(run: &Run<'_>, model: &Path) -> Result<(), Error> {
    let loaded = &run.model;
    for (name, document) in [
        ("tokenizer_config.json", tokenizer_config(loaded)),
        ("generation_config.json", generation_config(loaded)),
    ] {
        if let Some(document) = document.filter(|_| !model.join(name).exists()) {
            folder::write(&model.join(name), format!("{document:#}\n").as_bytes())?;
        }
    }
    match &run.initial_adapters {
        Some(initial) => write_adapter(run, initial, &model.join(ADAPTER)),
        None => Ok(()),
    }
}

fn write_adapter(run: &Run<'_>, initial: &Params, to: &Path) -> Result<(), Error> {
    let adapter = Adapter {
        network: &run.model.network,
        trained: run.released().1,
        initial,
        base: &run.config.model.source,
    };
    debug_assert!(to.join(ADAPTER_WEIGHTS).ends_with(ADAPTER_FILE));
    Ok(hf::save_adapter(to, &run.model.config, &adapter)?)
}

/// Writes the model card: `README.md`, with the privacy statement in it.
pub(crate) fn write_card(run: &Run<'_>, statement: &Statement, model: &Path) -> Result<(), Error> {
    let card = model_card::render(statement, run.config, &run.model);
    folder::write(&model.join(model_card::FILE), card.as_bytes())
}

/// Settings for a tokenizer that is a `tokenizer.json` alone.
fn tokenizer_config(model: &LoadedModel) -> Option<Value> {
    let tokenizer = model.tokenizer.as_ref()?;
    let mut document = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_tokens(),
        "clean_up_tokenization_spaces": false,
    });
    let ids = &model.config.other_keys;
    for name in ["bos", "eos", "pad"] {
        let id = ids.get(&format!("{name}_token_id")).and_then(Value::as_u64);
        let token = id.and_then(|id| tokenizer.token(u32::try_from(id).ok()?));
        if let Some(token) = token {
            document[format!("{name}_token")] = token.into();
        }
    }
    Some(document)
}

/// Settings of generation for a model that generates text: its special tokens.
fn generation_config(model: &LoadedModel) -> Option<Value> {
    if !model.generates_text() {
        return None;
    }
    let ids = &model.config.other_keys;
    let stop = model.stop_tokens();
    let eos = if let [id] = stop[..] { json!(id) } else { json!(stop) };
    let pad = ids.get("pad_token_id").filter(|id| id.is_u64()).cloned();
    let mut document = json!({
        "eos_token_id": eos,
        // A text is complete after its end, so its end can fill the rest of a batch.
        "pad_token_id": pad.or(stop.first().map(|id| json!(id))),
        "do_sample": false,
    });
    if let Some(begin) = ids.get("bos_token_id").filter(|id| id.is_u64()) {
        document["bos_token_id"] = begin.clone();
    }
    Some(document)
}
