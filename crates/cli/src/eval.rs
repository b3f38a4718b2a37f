//! `muffle eval`: evaluates a model on a data set.

use super::data_options::DataOptions;
use super::error::Error;
use super::number::{count, real};
use super::output::{fields, note, print, print_json, table, warn};
use clap::Args;
use muffle::LoadedModel;
use muffle::config::{Auto, Config};
use muffle::data::{Format, Template};
use muffle::evaluate::{self, ConfusionMatrix, GenerationSettings, Scores};
use muffle::load::data::{self, Split};
use muffle::run::result::Metrics;
use serde::Serialize;
use std::path::PathBuf;

/// Evaluate a model: NLL, accuracy, perplexity, F1, AUROC; BLEU and ROUGE-L of texts
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle eval models/stories15M --data sentences.txt --format \
        lines\n  muffle eval muffle-run --data e2e_test.txt --beam 5 --json\n  \
    muffle eval runs/sst2 --data dev.tsv\n\n\
    NLL is the mean over target tokens. With the format lines, each line is an example, every \
    token but the first is a target, and no special tokens are added.\n\
    For data with classes there are also macro-F1, the AUROC and the confusion matrix. \
    Perplexity is that of language models only. Several labels have micro- and macro-F1; \
    regression has RMSE, MAE and R² in the units of the labels.\n\
    A model that generates text is scored with BLEU and ROUGE-L if the data has prompts; \
    --no-texts skips this.")]
pub(crate) struct Eval {
    /// The folder of a run, a directory in the Hugging Face layout, or a name on the hub
    #[arg(value_name = "DIR|MODEL")]
    model: String,
    /// The data: a file, or a folder with a subfolder of images for each class
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    reading: DataOptions,
    /// The names of the classes, if the model's files do not have them: --labels 0,1
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    labels: Vec<String>,
    /// The template of texts with a source [default: the one that the model was trained with]
    #[arg(long, value_name = "TEXT")]
    template: Option<Template>,
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
        let mut model = LoadedModel::open_for_inference(&self.model, &mut |line| note!("{line}"))?;
        if let Some(template) = &self.template {
            model.set_template(template)?;
        }
        let mut config = Config::default().data;
        config.train = self.data.to_string_lossy().into_owned();
        self.reading.apply(&mut config);
        config.set_task(model.task());
        config.image_size = model.image_size();
        let format = data::format(&config, &self.data)?;
        config.format = Auto::Value(format.name().into());
        // Data of other formats is read once, so that it may be a pipe.
        let generates = !self.no_texts && can_have_prompts(format);
        let rows =
            || data::rows(&config, Split::Train)?.ok_or(muffle::Error::Internal("no data file"));
        if let Some(outputs) = model.config.architecture.head_outputs()
            && !self.labels.is_empty()
            && self.labels.len() != outputs
        {
            return Err(Error::usage(format!(
                "--labels: expected {outputs} names, as the model has classes; got {}",
                self.labels.len()
            )));
        }
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
        if scores.shortened > 0 {
            warn(&format!(
                "the ends of {} sources or texts were cut, because the model takes {} tokens",
                scores.shortened,
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
                metrics: Metrics::new(Some(&scores), texts),
                left_out: scores.skipped,
                texts: texts.map(|texts| texts.items),
            });
        }
        let mut lines = score_fields(&scores);
        lines.push(("targets", format!("{} in {} examples", scores.tokens, scores.examples)));
        if let Some(texts) = texts {
            lines.push(("BLEU", format!("{:.2}", texts.bleu)));
            lines.push(("ROUGE-L", format!("{:.2}, {} texts", texts.rouge_l, texts.items)));
            if texts.skipped > 0 {
                lines.push(("skipped", format!("{} prompts that are too long", texts.skipped)));
            }
        }
        print(&fields(&lines));
        if let Some(matrix) = &scores.confusion_matrix {
            print(&confusion_table(matrix));
        }
        Ok(())
    }
}

/// The figures that were measured, with their names.
pub(crate) fn score_fields(scores: &Scores) -> Vec<(&'static str, String)> {
    let figure = |name, value: Option<f64>, digits: usize| {
        value.map(|value| (name, format!("{value:.digits$}")))
    };
    let percent =
        |name, value: Option<f64>| value.map(|share| (name, format!("{:.2} %", 100.0 * share)));
    [
        figure("NLL", scores.nll, 4),
        figure("perplexity", scores.perplexity, 3),
        percent("accuracy", scores.accuracy),
        figure("macro-F1", scores.macro_f1, 4),
        figure("micro-F1", scores.micro_f1, 4),
        figure("AUROC", scores.auroc, 4),
        figure("RMSE", scores.rmse, 4),
        figure("MAE", scores.mae, 4),
        figure("R²", scores.r2, 4),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The largest number of classes whose confusion matrix is printed.
const PRINTED_CLASSES: usize = 20;

/// A confusion matrix as a table: a row for each class, a column for each predicted class.
fn confusion_table(matrix: &ConfusionMatrix) -> String {
    if matrix.labels.len() > PRINTED_CLASSES {
        return format!("confusion matrix of {} classes: see --json", matrix.labels.len());
    }
    let header: Vec<&str> = std::iter::once("class \\ predicted")
        .chain(matrix.labels.iter().map(String::as_str))
        .collect();
    let row = |(label, counts): (&String, &Vec<u64>)| {
        std::iter::once(label.clone()).chain(counts.iter().map(u64::to_string)).collect()
    };
    let rows: Vec<Vec<String>> = matrix.labels.iter().zip(&matrix.counts).map(row).collect();
    format!("\n{}", table(&header, &rows))
}

/// Whether rows of a format can have prompts, for which texts are generated.
fn can_have_prompts(format: Format) -> bool {
    use Format::{Arrow, Dart, E2e, Instructions, Parquet};
    matches!(format, E2e | Dart | Instructions | Parquet | Arrow)
}
