//! `muffle eval`: evaluates a model on a data set.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, warn};
use clap::Args;
use muffle::LoadedModel;
use muffle::config::{Auto, Config};
use muffle::data::Format;
use muffle::evaluate::{self, GenerationSettings};
use muffle::load::data::{self, Split};
use muffle::run::result::Metrics;
use serde::Serialize;
use std::path::PathBuf;

/// Evaluate a model: NLL, perplexity and accuracy; BLEU and ROUGE-L of generated texts
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle eval models/stories15M --data sentences.txt --format \
        lines\n  muffle eval muffle-run --data e2e_test.txt --beam 5 --json\n\n\
    NLL is the mean over target tokens. With the format lines, each line is an example, every \
    token but the first is a target, and no special tokens are added.\n\
    A model that generates text is scored with BLEU and ROUGE-L if the data has prompts; \
    --no-texts skips this.")]
pub(crate) struct Eval {
    /// The folder of a run, a directory in the Hugging Face layout, or a name on the hub
    #[arg(value_name = "DIR|MODEL")]
    model: String,
    /// The data
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// e2e, dart, lines, instructions, tsv, csv, jsonl, idx or png-strip [default: detected]
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// The column of the text
    #[arg(long, value_name = "NAME")]
    text_column: Option<String>,
    /// The column of the label
    #[arg(long, value_name = "NAME")]
    label_column: Option<String>,
    /// The names of the classes, if the model's files do not have them: --labels 0,1
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    labels: Vec<String>,
    /// Number of beams for generated texts; 1 is greedy search
    #[arg(long, value_name = "K", value_parser = count, default_value = "5")]
    beam: u64,
    /// Exponent of the length in the score of a beam
    #[arg(
        long,
        value_name = "X",
        value_parser = real,
        default_value = "1",
        allow_negative_numbers = true
    )]
    length_penalty: f64,
    /// Maximum number of generated tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "100")]
    max_new_tokens: u64,
    /// Minimum number of generated tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "5")]
    min_new_tokens: u64,
    /// Maximum number of texts to generate [default: one for each prompt]
    #[arg(long, value_name = "N", value_parser = count)]
    texts: Option<u64>,
    /// Generate no texts
    #[arg(long, conflicts_with = "texts")]
    no_texts: bool,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    metrics: Metrics,
    left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<u64>,
}

impl Eval {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut model =
            LoadedModel::open_for_inference(&self.model, &mut |line| eprintln!("{line}"))?;
        let mut config = Config::default().data;
        config.train = self.data.to_string_lossy().into_owned();
        (config.format, config.text_column, config.label_column) =
            (self.format.into(), self.text_column, self.label_column);
        let format = data::format(&config, &self.data)?;
        config.format = Auto::Value(format.name().into());
        // Only these formats have prompts. Data of other formats is read once, so that it may be a
        // pipe.
        let generates =
            !self.no_texts && matches!(format, Format::E2e | Format::Dart | Format::Instructions);
        let rows =
            || data::rows(&config, Split::Train)?.ok_or(muffle::Error::Internal("no data file"));
        let labels = if self.labels.is_empty() { model.labels() } else { self.labels };
        let params = model.params.clone();
        let preparation = model.preparation(&labels, model.max_tokens() + 1);
        let mut network = model.network.new_instance();
        let scores = evaluate::rows(&mut network, &params, &preparation, rows()?, usize::MAX)?;
        if scores.skipped > 0 {
            warn(&format!(
                "{} rows are empty or have more than {} tokens, which is the model's limit",
                scores.skipped,
                model.max_tokens()
            ));
        }
        let settings = GenerationSettings {
            beams: self.beam as usize,
            length_penalty: self.length_penalty,
            max_new_tokens: self.max_new_tokens as usize,
            min_new_tokens: self.min_new_tokens as usize,
        };
        let count = self.texts.map_or(usize::MAX, |count| count as usize);
        let texts = if generates {
            evaluate::generate(&mut model, &params, rows()?, settings, count, &mut |_| ())?
        } else {
            None
        };
        if self.json {
            return print_json(&Output {
                metrics: Metrics::new(Some(scores), texts),
                left_out: scores.skipped,
                texts: texts.map(|texts| texts.items),
            });
        }
        let mut lines = vec![
            ("NLL", format!("{:.4}", scores.nll)),
            ("perplexity", format!("{:.3}", scores.perplexity())),
            ("accuracy", format!("{:.2} %", 100.0 * scores.accuracy)),
            ("targets", format!("{} in {} examples", scores.tokens, scores.examples)),
        ];
        if let Some(texts) = texts {
            lines.push(("BLEU", format!("{:.2}", texts.bleu)));
            lines.push(("ROUGE-L", format!("{:.2}, {} texts", texts.rouge_l, texts.items)));
            if texts.skipped > 0 {
                lines.push(("skipped", format!("{} prompts that are too long", texts.skipped)));
            }
        }
        print(&fields(&lines));
        Ok(())
    }
}
