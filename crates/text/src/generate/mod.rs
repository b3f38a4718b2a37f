//! Text generation: greedy search, sampling and beam search, in batches with cached keys and
//! values.

mod beam;
mod token_by_token;

use crate::error::{Error, Result};
use model::Decoder;

/// Limits and search strategy of generation.
///
/// ```
/// use cpu::{Decoder, Network};
/// use model::{Checkpoint, Preset, hf};
/// use text::generate::{GenerateOptions, generate};
///
/// let new = Checkpoint::new(hf::Config::new(Preset::Tiny.architecture()), None, 0)?;
/// let (mut network, params) = Network::new(new.graph, new.values, |_| true)?;
/// let mut decoder = Decoder::new(&mut network, &params)?;
/// let options = GenerateOptions { max_new_tokens: 5, ..GenerateOptions::default() };
/// let texts = generate(&mut decoder, &[&[1, 2, 3]], &options)?;
/// assert_eq!(texts[0].len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Largest number of new tokens.
    pub max_new_tokens: usize,
    /// Smallest number of new tokens.
    pub min_new_tokens: usize,
    /// Tokens that end a text and are not part of it.
    pub stop: Vec<u32>,
    /// Tokens that are never generated.
    pub banned: Vec<u32>,
    /// The search strategy.
    pub search: Search,
    /// Number of sequences decoded in parallel, beams included.
    pub batch_size: usize,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 100,
            min_new_tokens: 0,
            stop: Vec::new(),
            banned: Vec::new(),
            search: Search::Greedy,
            batch_size: 64,
        }
    }
}

/// The search strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// The likeliest token.
    Greedy,
    /// A random token.
    Sample {
        /// Divisor of the logits; below 1, likely tokens become likelier.
        temperature: f64,
        /// Number of likeliest tokens to sample from; 0 for all.
        top_k: usize,
        /// Joint probability of the likeliest tokens to sample from.
        top_p: f64,
        /// The seed.
        seed: u64,
    },
    /// Beam search for the likeliest text.
    Beam {
        /// The number of beams.
        beams: usize,
        /// The score of a finished text is Σ ln p / length^penalty, the end token included.
        length_penalty: f64,
        /// When the search ends.
        stopping: Stopping,
    },
}

/// When a beam search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// When there are as many finished texts as beams (`early_stopping=True`).
    Early,
    /// When no beam, at its present length, can improve on them (`early_stopping=False`).
    NoImprovement,
}

/// Generates the new tokens of each prompt.
///
/// # Errors
/// If a prompt is empty or too long for the model, or an option is out of range.
pub fn generate(
    decoder: &mut dyn Decoder,
    prompts: &[&[u32]],
    options: &GenerateOptions,
) -> Result<Vec<Vec<u32>>> {
    let refuse =
        |name, expected, got: f64| Err(Error::Generation { name, expected, got: got.to_string() });
    let width = match options.search {
        Search::Greedy => 1,
        Search::Sample { temperature, top_p, .. } => {
            if !(temperature > 0.0 && temperature.is_finite()) {
                return refuse("the temperature", "finite and greater than 0", temperature);
            }
            if !(top_p > 0.0) {
                return refuse("top_p", "greater than 0", top_p);
            }
            1
        }
        Search::Beam { beams, length_penalty, .. } => {
            if beams == 0 {
                return refuse("the number of beams", "at least 1", 0.0);
            }
            if !length_penalty.is_finite() {
                return refuse("the length penalty", "finite", length_penalty);
            }
            beams
        }
    };
    let mut all = Vec::with_capacity(prompts.len());
    for (index, prompts) in prompts.chunks((options.batch_size / width).max(1)).enumerate() {
        all.extend(match options.search {
            Search::Greedy => {
                token_by_token::run(decoder, prompts, options, |_, _, scores| best(scores))?
            }
            Search::Sample { temperature, top_k, top_p, seed } => {
                let first = index * (options.batch_size / width).max(1);
                let sampler = token_by_token::Sampler { temperature, top_k, top_p, seed };
                token_by_token::run(decoder, prompts, options, |text, step, scores| {
                    sampler.sample(first + text, step, scores)
                })?
            }
            Search::Beam { beams, length_penalty, stopping } => {
                beam::run(decoder, prompts, options, beams, length_penalty, stopping)?
            }
        });
    }
    Ok(all)
}

/// ln p of each token; −∞ for tokens that are not allowed.
fn log_probabilities(logits: &[f32], options: &GenerateOptions, new_tokens: usize) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum = logits.iter().map(|&x| f64::from(x - top).exp()).sum::<f64>().ln() + f64::from(top);
    let mut scores: Vec<f64> = logits.iter().map(|&x| f64::from(x) - sum).collect();
    let early: &[u32] = if new_tokens < options.min_new_tokens { &options.stop } else { &[] };
    for &token in options.banned.iter().chain(early) {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = f64::NEG_INFINITY;
        }
    }
    scores
}

/// The token with the largest score; of equal ones, the first.
fn best(scores: &[f64]) -> u32 {
    let mut best = 0;
    for (token, &score) in scores.iter().enumerate() {
        if score > scores[best] {
            best = token;
        }
    }
    best as u32
}

/// The largest number of new tokens for a prompt of this length.
fn max_new_tokens(decoder: &dyn Decoder, length: usize, options: &GenerateOptions) -> usize {
    options.max_new_tokens.min(decoder.max_length().saturating_sub(length))
}
