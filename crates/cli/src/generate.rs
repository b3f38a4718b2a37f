//! `muffle generate`: generates texts.

use super::error::Error;
use super::number::{count, real};
use super::output::{note, print, print_json};
use clap::Args;
use muffle::LoadedModel;
use muffle::data::Template;
use muffle::text::generate::{GenerateOptions, Search, Stopping, generate};
use muffle::text::{Error as TextError, SpecialTokens};
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
        let Some(tokenizer) = &model.tokenizer else {
            return Err(Error::usage("expected a model of texts, got one without a tokenizer"));
        };
        let encode = |text: &String| {
            let tokens = tokenizer.encode(text, SpecialTokens::Add)?;
            if tokens.is_empty() {
                Err(Error::usage("--prompt: expected at least 1 token, got 0"))
            } else {
                Ok(tokens)
            }
        };
        let preparation = model.prompt_preparation(self.max_new_tokens as usize);
        let mut prompts = self.prompt.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        for source in &self.source {
            prompts.push(preparation.prompt(source)?);
        }
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens as usize,
            min_new_tokens: self.min_new_tokens as usize,
            stop: model.stop_tokens(),
            banned: if self.one_line { tokenizer.tokens_with_newline() } else { Vec::new() },
            search: self.search(),
            ..GenerateOptions::default()
        };
        let mut network = model.network.new_instance();
        let mut decoder = network.decoder(&model.params)?;
        let texts = generate(
            &mut *decoder,
            &prompts.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &options,
        )?;
        let decode = |tokens: &[u32]| tokenizer.decode(tokens);
        let target = |tokens: &[u32]| Ok(model.generated_target(&decode(tokens)?).to_string());
        if self.json {
            let outputs = texts
                .iter()
                .enumerate()
                .map(|(index, tokens)| match index < self.prompt.len() {
                    true => decode(tokens),
                    false => target(tokens),
                })
                .collect::<Result<Vec<_>, TextError>>()?;
            let tokens = texts.iter().map(Vec::len).collect();
            return print_json(&Output { outputs, tokens });
        } else {
            for (index, (prompt, new)) in prompts.iter().zip(&texts).enumerate() {
                // A prompt is decoded with its continuation, so that the space between them is
                // right; a source is not part of its text.
                let text = if index < self.prompt.len() {
                    decode(&[prompt.as_slice(), new].concat())?
                } else {
                    target(new)?
                };
                print(&format!("{text}\n"));
            }
        }
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
