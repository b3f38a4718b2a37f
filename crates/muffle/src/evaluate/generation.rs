//! Generation of texts for the prompts of a data set, and their BLEU and ROUGE-L.

use crate::Error;
use crate::LoadedModel;
use crate::config::Evaluation;
use crate::load::corpus::slots::SlotCounts;
use crate::load::data::Rows;
use data::{Content, merge_by_source};
use protocol::Params;
use serde::{Deserialize, Serialize};
use text::generate::{GenerateOptions, Search, Stopping};
use text::{bleu, rouge};

/// A text that a model generated, with its references.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedText {
    /// The prompt.
    pub source: String,
    /// The text that the model generated.
    pub text: String,
    /// Reference texts.
    pub references: Vec<String>,
}

/// Scores of generated texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextScores {
    /// Corpus BLEU, as `sacrebleu` computes it.
    pub bleu: f64,
    /// Mean ROUGE-L F1 of the best reference times 100, as `rouge_score` computes it.
    pub rouge_l: f64,
    /// The slots of the prompts that texts state, if these are rows of the embedded corpus.
    pub slots: Option<SlotCounts>,
    /// Number of texts.
    pub items: u64,
    /// Number of prompts that are too long for a text to follow.
    pub skipped: u64,
}

/// Settings for the generation of texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationSettings {
    /// Number of beams; 1 is greedy search.
    pub beams: usize,
    /// The exponent of the length in the score of a beam.
    pub length_penalty: f64,
    /// The maximum number of generated tokens.
    pub max_new_tokens: usize,
    /// The minimum number of generated tokens.
    pub min_new_tokens: usize,
}

impl From<&Evaluation> for GenerationSettings {
    fn from(options: &Evaluation) -> Self {
        Self {
            beams: options.beams,
            length_penalty: options.length_penalty,
            max_new_tokens: options.max_new_tokens,
            min_new_tokens: options.min_new_tokens,
        }
    }
}

/// Generates a text for each of the first `count` distinct prompts, and calls `receive` with it.
///
/// Prompts are in the order of the rows. Returns `None` if the rows have no prompts, or the model
/// does not generate text.
///
/// # Errors
/// If a row is invalid.
pub fn generate(
    model: &mut LoadedModel,
    at: &Params,
    rows: Rows,
    settings: GenerationSettings,
    count: usize,
    receive: &mut dyn FnMut(GeneratedText),
) -> Result<Option<TextScores>, Error> {
    if !model.generates_text() {
        return Ok(None);
    }
    let options = GenerateOptions {
        max_new_tokens: settings.max_new_tokens,
        min_new_tokens: settings.min_new_tokens,
        stop: model.stop_tokens(),
        banned: model
            .tokenizer
            .as_ref()
            .map(text::Tokenizer::tokens_with_newline)
            .unwrap_or_default(),
        search: match settings.beams {
            0 | 1 => Search::Greedy,
            beams => Search::Beam {
                beams,
                length_penalty: settings.length_penalty,
                stopping: Stopping::Early,
            },
        },
        ..GenerateOptions::default()
    };
    let (mut statistics, mut mean) = (bleu::Statistics::default(), rouge::Mean::default());
    let mut network = model.network.new_instance();
    let preparation = model.prompt_preparation(settings.max_new_tokens);
    let mut sources = merge_by_source(rows).take(count);
    let mut skipped = 0;
    loop {
        let (mut batch, mut rows_read) = (Vec::new(), 0);
        for row in sources.by_ref().take((options.batch_size / settings.beams.max(1)).max(1)) {
            rows_read += 1;
            if let Content::Text { source: Some(source), references, .. } = row?.content {
                let prompt = preparation.prompt(&source)?;
                if prompt.len() < model.max_tokens() {
                    batch.push((source, prompt, references));
                } else {
                    skipped += 1;
                }
            }
        }
        if rows_read == 0 {
            break;
        }
        let prompts: Vec<&[u32]> = batch.iter().map(|(_, prompt, _)| prompt.as_slice()).collect();
        let texts = text::generate::generate(&mut *network.decoder(at)?, &prompts, &options)?;
        for ((source, _, references), tokens) in batch.into_iter().zip(texts) {
            let decoded = model
                .tokenizer
                .as_ref()
                .map_or_else(|| Ok(String::new()), |tokenizer| tokenizer.decode(&tokens))?;
            let text = model.generated_target(&decoded).to_string();
            let targets: Vec<&str> = references.iter().map(String::as_str).collect();
            statistics.add(&text, &targets)?;
            mean.add(&text, &targets, rouge::Words::Stemmed)?;
            receive(GeneratedText { source, text, references });
        }
    }
    if statistics.items() == 0 {
        return Ok(None);
    }
    let bleu = statistics
        .bleu(bleu::BleuOptions { order: bleu::Order::Effective, ..bleu::BleuOptions::default() })
        .score;
    Ok(Some(TextScores {
        bleu,
        rouge_l: mean.score().percent().f1,
        slots: None,
        items: statistics.items(),
        skipped,
    }))
}
