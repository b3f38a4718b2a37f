//! Beam search, as in `transformers`.
//!
//! Each step considers enough candidates that finished ones do not leave a beam without a
//! successor; only candidates among the best `width` may finish. In the last step all of them do.

use super::{GenerateOptions, Stopping, log_probabilities, max_new_tokens};
use crate::error::Result;
use model::Decoder;

/// An unfinished text.
#[derive(Clone)]
struct Beam {
    /// The decoder's sequence.
    sequence: usize,
    tokens: Vec<u32>,
    /// Σ ln p
    score: f64,
}

/// The state of the search for one prompt.
struct BeamSearch {
    beams: Vec<Beam>,
    /// The best finished texts with their scores, the best first; at most one per beam.
    finished: Vec<(f64, Vec<u32>)>,
    /// Whether the search has ended.
    over: bool,
}

/// The best text of each prompt.
pub(super) fn run(
    decoder: &mut dyn Decoder,
    prompts: &[&[u32]],
    options: &GenerateOptions,
    width: usize,
    length_penalty: f64,
    stopping: Stopping,
) -> Result<Vec<Vec<u32>>> {
    let vocab = decoder.vocab();
    let mut logits = decoder.start(prompts)?;
    let begin = |sequence: usize| BeamSearch {
        beams: vec![Beam { sequence, tokens: Vec::new(), score: 0.0 }],
        finished: Vec::new(),
        over: false,
    };
    let mut searches: Vec<BeamSearch> = (0..prompts.len()).map(begin).collect();
    let scored = |score: f64, length: usize| score / (length.max(1) as f64).powf(length_penalty);
    for step in 0..options.max_new_tokens {
        let (mut parents, mut tokens) = (Vec::new(), Vec::new());
        for (search, prompt) in searches.iter_mut().zip(prompts).filter(|(search, _)| !search.over)
        {
            let last = step + 1 >= max_new_tokens(decoder, prompt.len(), options);
            if step >= max_new_tokens(decoder, prompt.len(), options) {
                search.over = true;
                continue;
            }
            let mut next: Vec<Beam> = Vec::new();
            let count = width * (options.stop.len() + 1).max(2);
            for (rank, (score, from, token)) in
                candidates(search, &logits, vocab, options, step, count).into_iter().enumerate()
            {
                let text = &search.beams[from].tokens;
                let ends = options.stop.contains(&token);
                if ends || last {
                    if rank < width {
                        let tokens = text.iter().copied().chain((!ends).then_some(token)).collect();
                        finish(&mut search.finished, width, scored(score, step + 1), tokens);
                    }
                } else if next.len() < width {
                    let tokens = text.iter().copied().chain([token]).collect();
                    next.push(Beam { sequence: search.beams[from].sequence, tokens, score });
                }
            }
            let best = next.first().map_or(f64::NEG_INFINITY, |beam| beam.score);
            let satisfied = search.finished.len() >= width
                && match stopping {
                    Stopping::Early => true,
                    Stopping::NoImprovement => search
                        .finished
                        .last()
                        .is_some_and(|(worst, _)| *worst >= scored(best, step + 1)),
                };
            search.over = satisfied || last || next.is_empty();
            search.beams = next;
            if search.over {
                continue;
            }
            for beam in &mut search.beams {
                parents.push(beam.sequence);
                tokens.push(beam.tokens[step]);
                beam.sequence = parents.len() - 1;
            }
        }
        if parents.is_empty() {
            break;
        }
        logits = decoder.advance(&parents, &tokens)?;
    }
    // A prompt that is already too long gets no new tokens.
    Ok(searches
        .into_iter()
        .map(|search| search.finished.into_iter().next().map(|(_, text)| text).unwrap_or_default())
        .collect())
}

/// The best successors of all beams as (Σ ln p, beam, token), the best first.
///
/// Equal ones are in the order of beams and tokens.
fn candidates(
    search: &BeamSearch,
    logits: &[f32],
    vocab: usize,
    options: &GenerateOptions,
    step: usize,
    count: usize,
) -> Vec<(f64, usize, u32)> {
    let mut all = Vec::new();
    for (from, beam) in search.beams.iter().enumerate() {
        let scores = log_probabilities(&logits[beam.sequence * vocab..][..vocab], options, step);
        let mut own: Vec<(f64, usize, u32)> = (scores.iter().enumerate())
            .filter(|(_, score)| **score > f64::NEG_INFINITY)
            .map(|(token, score)| (beam.score + score, from, token as u32))
            .collect();
        if own.len() > count {
            own.select_nth_unstable_by(count - 1, order);
            own.truncate(count);
        }
        all.extend(own);
    }
    all.sort_by(order);
    all.truncate(count);
    all
}

fn order(a: &(f64, usize, u32), b: &(f64, usize, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2)))
}

/// Inserts a finished text by its score.
fn finish(finished: &mut Vec<(f64, Vec<u32>)>, width: usize, score: f64, text: Vec<u32>) {
    let index = finished.partition_point(|(known, _)| *known >= score);
    finished.insert(index, (score, text));
    finished.truncate(width);
}
