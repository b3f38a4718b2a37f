//! `muffle generate`: a model goes on with a text.

use super::Failure;
use super::number::{count, real};
use super::output::{print, print_json};
use clap::Args;
use model::{Checkpoint, Decoder};
use serde_json::json;
use std::path::PathBuf;
use tasks::generate::{Options, Search, Stopping, generate};
use tasks::{Frame, Tokenizer};

/// Go on with texts
#[derive(Args)]
#[command(after_help = "Examples:\n  muffle generate models/stories15M --prompt \"Once upon a time\"\n  \
    muffle generate models/stories15M --prompt \"Once\" --prompt \"Lily\" --beam 5 --min-new-tokens 5 --json\n  \
    muffle generate models/stories15M --prompt \"Once\" --temperature 0.8 --top-k 40 --seed 1")]
pub(crate) struct Generate {
    /// A directory in the Hugging Face layout
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A text to go on with; may be given several times
    #[arg(long, short = 'p', value_name = "TEXT", required = true)]
    prompt: Vec<String>,
    /// Beams; 1 takes the likeliest token each time
    #[arg(long, value_name = "K", value_parser = count, default_value = "1")]
    beam: u64,
    /// Exponent of the length in a beam's score
    #[arg(long, value_name = "X", value_parser = real, default_value = "1", allow_negative_numbers = true)]
    length_penalty: f64,
    /// Draw tokens by chance, at this temperature
    #[arg(long, value_name = "X", value_parser = real, conflicts_with = "beam")]
    temperature: Option<f64>,
    /// Draw among so many of the likeliest tokens
    #[arg(long, value_name = "K", value_parser = count, requires = "temperature", default_value = "0")]
    top_k: u64,
    /// Draw among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", value_parser = real, requires = "temperature", default_value = "1")]
    top_p: f64,
    /// Where chance comes from
    #[arg(long, value_name = "N", value_parser = count, requires = "temperature", default_value = "0")]
    seed: u64,
    /// The most new tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "100")]
    max_new_tokens: u64,
    /// The fewest new tokens
    #[arg(long, value_name = "N", value_parser = count, default_value = "0")]
    min_new_tokens: u64,
    /// Never a token with a newline in it
    #[arg(long)]
    one_line: bool,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let input = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
        let tokenizer = Tokenizer::open(&self.model).map_err(|error| input(&error))?;
        let (config, mut network, at) = Checkpoint::open(&self.model, None, 0)?.network(|_| true)?;
        let encode = |text: &String| {
            let tokens = tokenizer.encode(text, Frame::Model).map_err(|error| input(&error))?;
            if tokens.is_empty() {
                Err(Failure::Input("a prompt is empty, and the model puts nothing before it".into()))
            } else {
                Ok(tokens)
            }
        };
        let prompts = self.prompt.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        let options = Options {
            max_new_tokens: self.max_new_tokens as usize,
            min_new_tokens: self.min_new_tokens as usize,
            stop: ends(&config),
            banned: if self.one_line { tokenizer.with_newline() } else { Vec::new() },
            search: self.search(),
            ..Options::default()
        };
        let mut decoder = Decoder::new(&mut network, &at)?;
        let texts = generate(&mut decoder, &prompts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &options)?;
        let decode = |tokens: &[u32]| tokenizer.decode(tokens).map_err(|error| input(&error));
        if self.json {
            let outputs = texts.iter().map(|tokens| decode(tokens)).collect::<Result<Vec<_>, _>>()?;
            print_json(&json!({ "outputs": outputs, "tokens": texts.iter().map(Vec::len).collect::<Vec<_>>() }));
        } else {
            for (prompt, new) in prompts.iter().zip(&texts) {
                // Together, so that the space between them is right.
                print(&format!("{}\n", decode(&[prompt.as_slice(), new].concat())?));
            }
        }
        Ok(())
    }

    fn search(&self) -> Search {
        match (self.temperature, self.beam) {
            (Some(temperature), _) => Search::Draw { temperature, top_k: self.top_k as usize, top_p: self.top_p, seed: self.seed },
            (None, 1) => Search::Greedy,
            (None, beams) => Search::Beam { beams: beams as usize, length_penalty: self.length_penalty, stopping: Stopping::Early },
        }
    }
}

/// The tokens that end a text, as the configuration says: one, several or none.
fn ends(config: &model::hf::Config) -> Vec<u32> {
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.others.get("eos_token_id") {
        Some(serde_json::Value::Array(several)) => several.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}
