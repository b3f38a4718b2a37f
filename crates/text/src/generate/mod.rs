//! Going on with texts: greedily, by drawing, or by beams. Several texts at once, and nothing is
//! computed twice.

mod beam;
mod draw;

use model::Decoder;

/// How far, and which tokens never.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens that are added.
    pub max_new_tokens: usize,
    /// No text ends before it has this many new tokens.
    pub min_new_tokens: usize,
    /// Tokens that end a text. They are not part of it.
    pub stop: Vec<u32>,
    /// Tokens that never come.
    pub banned: Vec<u32>,
    /// How tokens are chosen.
    pub search: Search,
    /// Texts that are worked on at a time, beams counted.
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

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// Always the likeliest.
    Greedy,
    /// By chance.
    Sample {
        /// Below 1 likelier tokens become likelier still.
        temperature: f64,
        /// Only among so many of the likeliest; 0 for all.
        top_k: usize,
        /// Only among the likeliest that together have this probability.
        top_p: f64,
        /// Where chance comes from.
        seed: u64,
    },
    /// The text whose probability as a whole is largest, as far as so many beams see.
    Beam {
        /// How many.
        beams: usize,
        /// A finished text's score is Σ ln p / length^penalty, the end counted.
        length_penalty: f64,
        /// When to be content.
        stopping: Stopping,
    },
}

/// When a beam search ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// When there are as many finished texts as beams.
    Early,
    /// When no beam can still win, at its present length.
    NoImprovement,
}

/// The new tokens of each text.
///
/// # Errors
/// If a text is empty or does not fit the model, or an option makes no sense.
pub fn generate(
    decoder: &mut Decoder<'_>,
    prompts: &[&[u32]],
    options: &GenerateOptions,
) -> Result<Vec<Vec<u32>>, model::Error> {
    let refuse = |what: &str| Err(model::Error::Model(what.into()));
    let width = match options.search {
        Search::Greedy => 1,
        Search::Sample { temperature, top_p, .. } => {
            if !(temperature > 0.0 && temperature.is_finite() && top_p > 0.0) {
                return refuse("temperature and top_p must be greater than 0");
            }
            1
        }
        Search::Beam { beams, length_penalty, .. } => {
            if beams == 0 || !length_penalty.is_finite() {
                return refuse("a beam search needs at least one beam and a finite length penalty");
            }
            beams
        }
    };
    let mut all = Vec::with_capacity(prompts.len());
    for (index, prompts) in prompts.chunks((options.batch_size / width).max(1)).enumerate() {
        all.extend(match options.search {
            Search::Greedy => draw::run(decoder, prompts, options, |_, _, scores| best(scores))?,
            Search::Sample { temperature, top_k, top_p, seed } => {
                let first = index * (options.batch_size / width).max(1);
                let chance = draw::Chance { temperature, top_k, top_p, seed };
                draw::run(decoder, prompts, options, |text, step, scores| {
                    chance.draw(first + text, step, scores)
                })?
            }
            Search::Beam { beams, length_penalty, stopping } => {
                beam::run(decoder, prompts, options, beams, length_penalty, stopping)?
            }
        });
    }
    Ok(all)
}

/// ln p of each token; what may not come has −∞.
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

/// The likeliest token; the first of several.
fn best(scores: &[f64]) -> u32 {
    let mut best = 0;
    for (token, &score) in scores.iter().enumerate() {
        if score > scores[best] {
            best = token;
        }
    }
    best as u32
}

/// How many tokens a text of this length may still get.
fn room(decoder: &Decoder<'_>, length: usize, options: &GenerateOptions) -> usize {
    options.max_new_tokens.min(decoder.longest().saturating_sub(length))
}
