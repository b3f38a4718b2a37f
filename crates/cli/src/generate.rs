//! `muffle generate`: generates texts.

use super::error::Error;
use super::number::{count, real};
use super::output::{note, print, print_json};
use clap::Args;
use muffle::LoadedModel;
use muffle::data::Template;
use muffle::generate::{TextOptions, generate};
use muffle::text::generate::{Search, Stopping};
use serde::Serialize;

/// Generate texts
#[derive(Args)]
#[command(
    after_help = "Examples:\n  muffle generate models/stories15M --prompt \"Once upon a time\"\n  \
    muffle generate models/stories15M --prompt \"Once\" --prompt \"Lily\" --beam 5 \
    --min-new-tokens 5 --json\n  \
    muffle generate muffle-run --source \"name : Ines | day : Friday\"\n  \
    muffle generate models/stories15M --prompt \"Once\" --temperature 0.8 --top-k 40 --seed 1"
)]
pub(crate) struct Generate {
    /// The folder of a run, a directory in the Hugging Face layout, or a name on the hub
    #[arg(value_name = "DIR|MODEL")]
    model: String,
    /// A text to continue; may be given several times
    #[arg(long, short = 'p', value_name = "TEXT", required_unless_present = "source")]
    prompt: Vec<String>,
    /// A source to generate a text for, as in training on pairs; may be given several times
    #[arg(long, short = 's', value_name = "TEXT")]
    source: Vec<String>,
    /// The template of sources [default: the one that the model was trained with]
    #[arg(long, value_name = "TEXT", requires = "source")]
    template: Option<Template>,
    /// Number of beams; 1 is greedy search
    #[arg(long, value_name = "K", value_parser = count, default_value = "1")]
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
    /// Sample tokens at this temperature
    #[arg(long, value_name = "X", value_parser = real, conflicts_with = "beam")]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(
        long,
        value_name = "K",
        value_parser = count,
        requires = "temperature",
        default_value = "0"
    )]
    top_k: u64,
    /// Sample from the most likely tokens with this joint probability
    #[arg(
        long,
        value_name = "P",
        value_parser = real,
        requires = "temperature",
        default_value = "1"
    )]
    top_p: f64,
    /// Seed of the sampling
    #[arg(
        long,
        value_name = "N",
        value_parser = count,
        requires = "temperature",
        default_value = "0"
    )]
    seed: u64,
    /// Maximum number of generated tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "100")]
    max_new_tokens: u64,
    /// Minimum number of generated tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "0")]
    min_new_tokens: u64,
    /// Generate no token with a newline
    #[arg(long)]
    one_line: bool,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output {
    outputs: Vec<String>,
    tokens: Vec<usize>,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut model = LoadedModel::open_for_inference(&self.model, &mut |line| note!("{line}"))?;
        if let Some(template) = &self.template {
            model.set_template(template)?;
        }
        let options = TextOptions {
            max_new_tokens: self.max_new_tokens as usize,
            min_new_tokens: self.min_new_tokens as usize,
            one_line: self.one_line,
            search: self.search(),
        };
        let texts = generate(&model, &self.prompt, &self.source, &options)?;
        if self.json {
            let (outputs, tokens) = texts.into_iter().map(|text| (text.text, text.tokens)).unzip();
            return print_json(&Output { outputs, tokens });
        }
        texts.iter().for_each(|text| print(&format!("{}\n", text.with_prompt)));
        Ok(())
    }

    fn search(&self) -> Search {
        match (self.temperature, self.beam) {
            (Some(temperature), _) => Search::Sample {
                temperature,
                top_k: self.top_k as usize,
                top_p: self.top_p,
                seed: self.seed,
            },
            (None, 1) => Search::Greedy,
            (None, beams) => Search::Beam {
                beams: beams as usize,
                length_penalty: self.length_penalty,
                stopping: Stopping::Early,
            },
        }
    }
}
