//! Greedy search and sampling: one token after another.

use super::{GenerateOptions, log_probabilities, max_new_tokens};
use crate::error::Result;
use model::Decoder;
use noise::{PublicRandom, Rng};

/// Continues every prompt until it ends; `choose(text, step, ln p)` picks a token.
pub(super) fn run(
    decoder: &mut dyn Decoder,
    prompts: &[&[u32]],
    options: &GenerateOptions,
    choose: impl Fn(usize, usize, &[f64]) -> u32,
) -> Result<Vec<Vec<u32>>> {
    let vocab = decoder.vocab();
    let mut out = vec![Vec::new(); prompts.len()];
    let mut logits = decoder.start(prompts)?;
    // The unfinished texts, in the decoder's order.
    let mut unfinished: Vec<usize> = (0..prompts.len()).collect();
    for step in 0..options.max_new_tokens {
        let (mut parents, mut tokens, mut next) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, (&text, logits)) in
            unfinished.iter().zip(logits.chunks_exact(vocab)).enumerate()
        {
            if step >= max_new_tokens(decoder, prompts[text].len(), options) {
                continue;
            }
            let token = choose(text, step, &log_probabilities(logits, options, step));
            if options.stop.contains(&token) {
                continue;
            }
            out[text].push(token);
            // The last token needs no successor.
            if step + 1 < max_new_tokens(decoder, prompts[text].len(), options) {
                parents.push(sequence);
                tokens.push(token);
                next.push(text);
            }
        }
        if next.is_empty() {
            break;
        }
        logits = decoder.advance(&parents, &tokens)?;
        unfinished = next;
    }
    Ok(out)
}

/// Temperature, top-k and top-p sampling.
pub(super) struct Sampler {
    pub(super) temperature: f64,
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) seed: u64,
}

impl Sampler {
    /// Samples a token. It depends on the seed, the text and the step, not on the batch.
    pub(super) fn sample(&self, text: usize, step: usize, scores: &[f64]) -> u32 {
        let mut order: Vec<usize> =
            (0..scores.len()).filter(|&token| scores[token] > f64::NEG_INFINITY).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let Some(&first) = order.first() else { return super::best(scores) };
        let mut weights: Vec<f64> = order
            .iter()
            .map(|&token| ((scores[token] - scores[first]) / self.temperature).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        // The likeliest tokens up to and including the one that reaches the probability top_p.
        let (mut kept, mut sum) = (0, 0.0);
        while kept < weights.len() && sum < self.top_p * total {
            sum += weights[kept];
            kept += 1;
        }
        weights.truncate(kept.max(1));
        let word = PublicRandom::new("generated text", self.seed)
            .derive(text as u64)
            .derive(step as u64)
            .words()
            .next_u64();
        let mut left = (word >> 11) as f64 / (1u64 << 53) as f64 * weights.iter().sum::<f64>();
        for (weight, &token) in weights.iter().zip(&order) {
            if left < *weight {
                return token as u32;
            }
            left -= weight;
        }
        order[weights.len() - 1] as u32
    }
}
