//! Evaluation of a model: NLL, perplexity, accuracy; BLEU and ROUGE-L of generated texts.

use crate::Error;
use crate::LoadedModel;
use crate::config::Evaluation;
use crate::load::data::Rows;
use data::{Content, ModelInput, Preparation, Prepared, merge_by_source};
use engine::{Example, Part, Target};
use model::Network;
use protocol::Params;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use text::generate::{GenerateOptions, Search, Stopping};
use text::{bleu, rouge};

/// Figures on a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Number of examples.
    pub examples: u64,
    /// Number of targets: predicted tokens, or classes.
    pub tokens: u64,
    /// Mean negative log-likelihood of a target, in nats.
    pub nll: f64,
    /// The share of targets that are predicted correctly; of labels, if rows have labels.
    pub accuracy: f64,
    /// Number of rows that were too long or empty.
    pub skipped: u64,
}

impl Scores {
    /// e^NLL.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }
}

/// The maximum number of logits of a batch.
const MAX_LOGITS: usize = 8 << 20;
/// The maximum number of examples of a batch.
const MAX_BATCH: usize = 16;

/// Sums over the targets of one example.
struct ExampleSums {
    nll: f64,
    targets: u64,
    correct: u64,
}

/// Computes the sums of each example, in batches.
fn example_sums(
    network: &mut dyn Network,
    at: &Params,
    examples: &[&Example],
) -> Result<Vec<ExampleSums>, Error> {
    let classes = network.graph().classes();
    let mut all = Vec::with_capacity(examples.len());
    let mut start = 0;
    while start < examples.len() {
        let (mut end, mut batch_targets) = (start, 0);
        while end < examples.len()
            && end - start < MAX_BATCH
            && (end == start
                || (batch_targets + targets(examples[end]).len()) * classes <= MAX_LOGITS)
        {
            batch_targets += targets(examples[end]).len();
            end += 1;
        }
        let logits = network.logits(at, &examples[start..end])?;
        let batch: Vec<Vec<u32>> = examples[start..end].iter().map(|e| targets(e)).collect();
        let targets: Vec<u32> = batch.iter().flatten().copied().collect();
        if logits.len() != targets.len() * classes {
            return Err(Error::Internal("the model returned an unexpected number of logits"));
        }
        let figures: Vec<(f64, bool)> = logits
            .par_chunks_exact(classes)
            .zip(&targets)
            .map(|(row, &target)| {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let normalizer: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
                let logit = f64::from(row[target as usize]);
                // Of equal logits the first is the prediction.
                let predicted = row.iter().position(|&x| x >= max);
                let correct = predicted == Some(target as usize);
                (f64::from(max) + normalizer.ln() - logit, correct)
            })
            .collect();
        let mut figures = figures.into_iter();
        for example in batch {
            let mut sums = ExampleSums { nll: 0.0, targets: 0, correct: 0 };
            for (nll, correct) in figures.by_ref().take(example.len()) {
                sums.nll += nll;
                sums.targets += 1;
                sums.correct += u64::from(correct);
            }
            all.push(sums);
        }
        start = end;
    }
    Ok(all)
}

/// The targets of an example, over its parts: predicted tokens, or classes.
fn targets(example: &Example) -> Vec<u32> {
    let targets = |part: &Part| match &part.target {
        Target::Next(targets) => {
            targets.iter().copied().filter(|&target| target != Target::NONE).collect()
        }
        Target::Class(class) => vec![*class],
    };
    example.parts().iter().flat_map(targets).collect()
}

/// Evaluates a model on examples.
///
/// # Errors
/// If an example does not fit the model.
pub fn examples(
    network: &mut dyn Network,
    at: &Params,
    examples: &[Example],
) -> Result<Scores, Error> {
    let all: Vec<&Example> = examples.iter().collect();
    let mut totals = Totals::default();
    example_sums(network, at, &all)?.iter().for_each(|sums| totals.add(sums));
    Ok(totals.scores())
}

/// Evaluates a model on the first `limit` usable rows, without holding them in memory.
///
/// For rows with labels, a model that generates text predicts the most likely label.
///
/// # Errors
/// If a row is invalid or not of the kind that the model reads.
pub fn rows(
    network: &mut dyn Network,
    at: &Params,
    preparation: &Preparation<'_>,
    rows: Rows,
    limit: usize,
) -> Result<Scores, Error> {
    let mut totals = Totals::default();
    let mut batch: Vec<RowExamples> = Vec::new();
    for row in rows {
        if totals.examples as usize + batch.len() >= limit {
            break;
        }
        let row = row?;
        let refuse = |message: &str| {
            Err(Error::Rows { place: format!("line {}", row.line), message: message.into() })
        };
        let example = match preparation.example(&row)? {
            Prepared::Example(example) => example,
            Prepared::TooLong | Prepared::Empty => {
                totals.skipped += 1;
                continue;
            }
            Prepared::UnknownLabel => return refuse("expected a label of the model, got another"),
            Prepared::WrongKind(expected) => {
                return refuse(&format!("expected {expected}, which is what the model reads"));
            }
        };
        let label_examples = match (&row.content, preparation.input) {
            (Content::Labelled { text, label }, ModelInput::Causal { .. }) => {
                preparation.choices(text)?.zip(preparation.class(label))
            }
            _ => None,
        };
        batch.push(RowExamples { example, label_examples });
        if batch.len() == MAX_BATCH {
            totals.add_batch(network, at, &mut batch)?;
        }
    }
    totals.add_batch(network, at, &mut batch)?;
    if totals.examples == 0 {
        return Err(Error::Rows {
            place: "evaluation data".into(),
            message: format!("every row is empty or has {} tokens or more", preparation.limit),
        });
    }
    Ok(totals.scores())
}

/// The examples of one row.
struct RowExamples {
    example: Example,
    /// An example for each label, and the class of the correct label.
    label_examples: Option<(Vec<Example>, u32)>,
}

/// Sums over all examples.
#[derive(Default)]
struct Totals {
    examples: u64,
    targets: u64,
    correct: u64,
    nll: f64,
    /// Rows whose label was predicted from an example for each label.
    labels: u64,
    correct_labels: u64,
    skipped: u64,
}

impl Totals {
    fn add(&mut self, sums: &ExampleSums) {
        self.examples += 1;
        self.nll += sums.nll;
        self.targets += sums.targets;
        self.correct += sums.correct;
    }

    /// Evaluates and clears a batch of rows.
    fn add_batch(
        &mut self,
        network: &mut dyn Network,
        at: &Params,
        batch: &mut Vec<RowExamples>,
    ) -> Result<(), Error> {
        let examples: Vec<&Example> = batch.iter().map(|row| &row.example).collect();
        example_sums(network, at, &examples)?.iter().for_each(|sums| self.add(sums));
        for (examples, correct) in batch.iter().filter_map(|row| row.label_examples.as_ref()) {
            let sums = example_sums(network, at, &examples.iter().collect::<Vec<_>>())?;
            let predicted = sums
                .iter()
                .enumerate()
                .min_by(|a, b| a.1.nll.total_cmp(&b.1.nll))
                .map(|(class, _)| class as u32);
            self.labels += 1;
            self.correct_labels += u64::from(predicted == Some(*correct));
        }
        batch.clear();
        Ok(())
    }

    fn scores(&self) -> Scores {
        let (correct, count) = if self.labels > 0 {
            (self.correct_labels, self.labels)
        } else {
            (self.correct, self.targets)
        };
        Scores {
            examples: self.examples,
            tokens: self.targets,
            nll: self.nll / self.targets as f64,
            accuracy: correct as f64 / count as f64,
            skipped: self.skipped,
        }
    }
}

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
    let preparation = model.preparation(&[], usize::MAX);
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
            let text = decoded.trim().to_string();
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
        items: statistics.items(),
        skipped,
    }))
}
