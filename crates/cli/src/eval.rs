//! `muffle eval`: figures of a model on a data set.

use super::error::Error;
use super::number::{count, real};
use super::output::{fields, print, print_json, warn};
use clap::Args;
use muffle::LoadedModel;
use muffle::config::{Auto, Config};
use muffle::data::Format;
use muffle::evaluate::{self, Writing};
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
    A model that generates texts is scored with BLEU and ROUGE-L where the data has sources; \
    --no-texts leaves that out.")]
pub(crate) struct Eval {
    /// The folder of a run, a directory in the Hugging Face layout, or a name on the hub
    #[arg(value_name = "DIR|MODEL")]
    model: String,
    /// The data
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// e2e, dart, lines, instructions, tsv, csv, jsonl, idx or png-strip [default: told from the
    /// file]
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
    /// Beams of the texts; 1 takes the likeliest token each time
    #[arg(long, value_name = "K", value_parser = count, default_value = "5")]
    beam: u64,
    /// Exponent of the length in a beam's score
    #[arg(long, value_name = "X", value_parser = real, default_value = "1", allow_negative_numbers = true)]
    length_penalty: f64,
    /// The most new tokens of a text
    #[arg(long, value_name = "N", value_parser = count, default_value = "100")]
    max_new_tokens: u64,
    /// The fewest
    #[arg(long, value_name = "N", value_parser = count, default_value = "5")]
    min_new_tokens: u64,
    /// The most texts to generate [default: one for each source]
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
        let mut subject = LoadedModel::look_at(&self.model, &mut |line| eprintln!("{line}"))?;
        let mut config = Config::default().data;
        config.train = self.data.to_string_lossy().into_owned();
        (config.format, config.text_column, config.label_column) =
            (self.format.into(), self.text_column, self.label_column);
        let format = data::format(&config, &self.data)?;
        config.format = Auto::Value(format.name().into());
        // Only these have something to write from. A file that can be read once only, such as a
        // pipe, is then read once.
        let writes =
            !self.no_texts && matches!(format, Format::E2e | Format::Dart | Format::Instructions);
        let rows =
            || data::rows(&config, Split::Train)?.ok_or(muffle::Error::Internal("no data file"));
        let labels = if self.labels.is_empty() { subject.labels() } else { self.labels };
        let params = subject.params.clone();
        let preparation = subject.preparation(&labels, subject.longest() + 1);
        let mut network = subject.network.new_instance();
        let scores = evaluate::rows(&mut network, &params, &preparation, rows()?)?;
        if scores.left_out > 0 {
            warn(&format!(
                "{} rows are empty or longer than the model's {} tokens",
                scores.left_out,
                subject.longest()
            ));
        }
        let writing = Writing {
            beams: self.beam as usize,
            length_penalty: self.length_penalty,
            max_new_tokens: self.max_new_tokens as usize,
            min_new_tokens: self.min_new_tokens as usize,
        };
        let most = self.texts.map_or(usize::MAX, |most| most as usize);
        let texts = if writes {
            evaluate::write(&mut subject, &params, rows()?, writing, most, &mut |_| ())?
        } else {
            None
        };
        if self.json {
            return print_json(&Output {
                metrics: Metrics::new(Some(scores), texts),
                left_out: scores.left_out,
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
            if texts.left_out > 0 {
                lines.push(("left out", format!("{} sources that are too long", texts.left_out)));
            }
        }
        print(&fields(&lines));
        Ok(())
    }
}
