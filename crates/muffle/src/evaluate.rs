//! How good a model is: NLL, perplexity, accuracy; BLEU and ROUGE-L of what it writes.

use crate::Error;
use crate::LoadedModel;
use crate::load::data::Rows;
use data::{Content, ModelInput, Preparation, Prepared, merge_by_source};
use engine::{Example, Target};
use model::Network;
use protocol::Params;
use serde::{Deserialize, Serialize};
use text::generate::{GenerateOptions, Search, Stopping, generate};
use text::{bleu, rouge};

/// Figures on a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Examples.
    pub examples: u64,
    /// Targets: tokens that were to be predicted, or classes.
    pub tokens: u64,
    /// Mean negative log-likelihood of a target, in nats.
    pub nll: f64,
    /// The share of targets, or of texts with a label, that come out first.
    pub accuracy: f64,
    /// Rows that were too long or empty.
    pub left_out: u64,
}

impl Scores {
    /// e^NLL
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }
}

/// Numbers of logits that are held at a time, and examples.
const LOGITS: usize = 8 << 20;
const AT_ONCE: usize = 16;

/// The losses and hits of some examples: (Σ NLL, targets, targets that come first) for each.
fn each(
    network: &mut dyn Network,
    at: &Params,
    examples: &[&Example],
) -> Result<Vec<(f64, u64, u64)>, Error> {
    let classes = network.graph().classes();
    let mut all = Vec::with_capacity(examples.len());
    let mut first = 0;
    while first < examples.len() {
        let (mut end, mut rows) = (first, 0);
        while end < examples.len()
            && end - first < AT_ONCE
            && (end == first || (rows + targets(examples[end]).len()) * classes <= LOGITS)
        {
            rows += targets(examples[end]).len();
            end += 1;
        }
        let logits = network.logits(at, &examples[first..end])?;
        let mut rows = logits.chunks_exact(classes);
        for example in &examples[first..end] {
            let mut sum = (0.0, 0, 0);
            for target in targets(example) {
                let Some(row) = rows.next() else {
                    return Err(Error::Internal("the model gave fewer logits than expected"));
                };
                let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let all: f64 = row.iter().map(|&x| f64::from(x - top).exp()).sum();
                let own = row[target as usize];
                sum.0 += f64::from(top) + all.ln() - f64::from(own);
                sum.1 += 1;
                sum.2 += u64::from(own >= top);
            }
            all.push(sum);
        }
        first = end;
    }
    Ok(all)
}

fn targets(example: &Example) -> Vec<u32> {
    match &example.target {
        Target::Next(targets) => {
            targets.iter().copied().filter(|&target| target != Target::NONE).collect()
        }
        Target::Class(class) => vec![*class],
    }
}

/// Figures on examples.
///
/// # Errors
/// If an example does not fit the model.
pub fn examples(
    network: &mut dyn Network,
    at: &Params,
    examples: &[Example],
) -> Result<Scores, Error> {
    let all: Vec<&Example> = examples.iter().collect();
    let mut meter = Meter::default();
    each(network, at, &all)?.into_iter().for_each(|sum| meter.add(sum));
    Ok(meter.scores())
}

/// Figures on rows, as many as there are; they are read and forgotten. A model that writes texts is
/// asked for the likeliest of the labels.
///
/// # Errors
/// If a row is no good.
pub fn rows(
    network: &mut dyn Network,
    at: &Params,
    preparation: &Preparation<'_>,
    rows: Rows,
) -> Result<Scores, Error> {
    let mut meter = Meter::default();
    let mut waiting: Vec<Item> = Vec::new();
    for row in rows {
        let row = row?;
        let refuse = |what: &str| {
            Err(Error::Rows { place: format!("line {}", row.line), message: what.into() })
        };
        let example = match preparation.example(&row)? {
            Prepared::Example(example) => example,
            Prepared::TooLong | Prepared::Empty => {
                meter.left_out += 1;
                continue;
            }
            Prepared::UnknownLabel => return refuse("a label that the model does not know"),
            Prepared::WrongKind(expected) => {
                return refuse(&format!("expected {expected}, which is what the model reads"));
            }
        };
        let choice = match (&row.content, preparation.input) {
            (Content::Labelled { text, label }, ModelInput::Causal { .. }) => {
                preparation.choices(text)?.zip(preparation.class(label))
            }
            _ => None,
        };
        waiting.push(Item { example, choice });
        if waiting.len() == AT_ONCE {
            meter.take(network, at, &mut waiting)?;
        }
    }
    meter.take(network, at, &mut waiting)?;
    if meter.examples == 0 {
        return Err(Error::Rows {
            place: "evaluation data".into(),
            message: format!("every row is empty or has {} tokens or more", preparation.limit),
        });
    }
    Ok(meter.scores())
}

struct Item {
    example: Example,
    /// An example for each label, and which is right.
    choice: Option<(Vec<Example>, u32)>,
}

#[derive(Default)]
struct Meter {
    examples: u64,
    tokens: u64,
    right: u64,
    nll: f64,
    choices: u64,
    chosen: u64,
    left_out: u64,
}

impl Meter {
    fn add(&mut self, (nll, tokens, right): (f64, u64, u64)) {
        self.examples += 1;
        self.nll += nll;
        self.tokens += tokens;
        self.right += right;
    }

    fn take(
        &mut self,
        network: &mut dyn Network,
        at: &Params,
        waiting: &mut Vec<Item>,
    ) -> Result<(), Error> {
        let own: Vec<&Example> = waiting.iter().map(|item| &item.example).collect();
        each(network, at, &own)?.into_iter().for_each(|sum| self.add(sum));
        for (examples, right) in waiting.iter().filter_map(|item| item.choice.as_ref()) {
            let sums = each(network, at, &examples.iter().collect::<Vec<_>>())?;
            let best = sums
                .iter()
                .enumerate()
                .min_by(|a, b| a.1.0.total_cmp(&b.1.0))
                .map(|(class, _)| class as u32);
            self.choices += 1;
            self.chosen += u64::from(best == Some(*right));
        }
        waiting.clear();
        Ok(())
    }

    fn scores(&self) -> Scores {
        let (right, of) =
            if self.choices > 0 { (self.chosen, self.choices) } else { (self.right, self.tokens) };
        Scores {
            examples: self.examples,
            tokens: self.tokens,
            nll: self.nll / self.tokens as f64,
            accuracy: right as f64 / of as f64,
            left_out: self.left_out,
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

/// Figures of written texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextScores {
    /// Corpus BLEU, as `sacrebleu` has it.
    pub bleu: f64,
    /// Mean ROUGE-L F1 of the best reference times 100, as `rouge_score` has it.
    pub rouge_l: f64,
    /// Texts.
    pub items: u64,
    /// Sources that leave no room for a text.
    pub left_out: u64,
}

/// How texts are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writing {
    /// Beams; 1 for the likeliest token each time.
    pub beams: usize,
    /// The exponent of the length in a beam's score.
    pub length_penalty: f64,
    /// The most tokens.
    pub max_new_tokens: usize,
    /// The fewest.
    pub min_new_tokens: usize,
}

/// Writes a text for each different source of some rows, in the order of the rows, and hands each
/// to `take`. `None` if there is nothing to write: no sources, or another kind of model.
///
/// # Errors
/// If a row is no good.
pub fn write(
    subject: &mut LoadedModel,
    at: &Params,
    rows: Rows,
    writing: Writing,
    most: usize,
    take: &mut dyn FnMut(GeneratedText),
) -> Result<Option<TextScores>, Error> {
    if !subject.writes() {
        return Ok(None);
    }
    let options = GenerateOptions {
        max_new_tokens: writing.max_new_tokens,
        min_new_tokens: writing.min_new_tokens,
        stop: subject.ends(),
        banned: subject
            .tokenizer
            .as_ref()
            .map(text::Tokenizer::tokens_with_newline)
            .unwrap_or_default(),
        search: match writing.beams {
            0 | 1 => Search::Greedy,
            beams => Search::Beam {
                beams,
                length_penalty: writing.length_penalty,
                stopping: Stopping::Early,
            },
        },
        ..GenerateOptions::default()
    };
    let (mut statistics, mut mean) = (bleu::Statistics::default(), rouge::Mean::default());
    let mut network = subject.network.new_instance();
    let preparation = subject.preparation(&[], usize::MAX);
    let mut sources = merge_by_source(rows).take(most);
    let mut left_out = 0;
    loop {
        let (mut batch, mut rows) = (Vec::new(), 0);
        for row in sources.by_ref().take((options.batch_size / writing.beams.max(1)).max(1)) {
            rows += 1;
            if let Content::Text { source: Some(source), references, .. } = row?.content {
                let prompt = preparation.prompt(&source)?;
                // Without room for an answer there is nothing to judge.
                if prompt.len() < subject.longest() {
                    batch.push((source, prompt, references));
                } else {
                    left_out += 1;
                }
            }
        }
        if rows == 0 {
            break;
        }
        let prompts: Vec<&[u32]> = batch.iter().map(|(_, prompt, _)| prompt.as_slice()).collect();
        let texts = generate(&mut *network.decoder(at)?, &prompts, &options)?;
        for ((source, _, references), tokens) in batch.into_iter().zip(texts) {
            let decoded = subject
                .tokenizer
                .as_ref()
                .map_or_else(|| Ok(String::new()), |tokenizer| tokenizer.decode(&tokens))?;
            let text = decoded.trim().to_string();
            let of: Vec<&str> = references.iter().map(String::as_str).collect();
            statistics.add(&text, &of)?;
            mean.add(&text, &of, rouge::Words::Stemmed)?;
            take(GeneratedText { source, text, references });
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
        left_out,
    }))
}
