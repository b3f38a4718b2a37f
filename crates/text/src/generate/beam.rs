//! Beam search, as `transformers` does it: in each step enough candidates that those which end do
//! not leave a beam without a successor, and only candidates that would have been beams may end. In
//! the last step all of them do.

use super::{GenerateOptions, Stopping, log_probabilities, room};
use model::Decoder;

/// A text that is still growing.
#[derive(Clone)]
struct Beam {
    /// Its place among the decoder's texts.
    place: usize,
    tokens: Vec<u32>,
    /// Σ ln p
    score: f64,
}

/// The search for one prompt.
struct Hunt {
    beams: Vec<Beam>,
    /// Finished texts with their scores, the best first; as many as there are beams at the most.
    done: Vec<(f64, Vec<u32>)>,
    /// Nothing more is to be done.
    over: bool,
}

/// The best text for each prompt.
pub(super) fn run(
    decoder: &mut Decoder<'_>,
    prompts: &[&[u32]],
    options: &GenerateOptions,
    width: usize,
    length_penalty: f64,
    stopping: Stopping,
) -> Result<Vec<Vec<u32>>, model::Error> {
    let vocab = decoder.vocab();
    let mut logits = decoder.start(prompts)?;
    let begin = |place: usize| Hunt {
        beams: vec![Beam { place, tokens: Vec::new(), score: 0.0 }],
        done: Vec::new(),
        over: false,
    };
    let mut hunts: Vec<Hunt> = (0..prompts.len()).map(begin).collect();
    let scored = |score: f64, length: usize| score / (length.max(1) as f64).powf(length_penalty);
    for step in 0..options.max_new_tokens {
        let (mut parents, mut tokens) = (Vec::new(), Vec::new());
        for (hunt, prompt) in hunts.iter_mut().zip(prompts).filter(|(hunt, _)| !hunt.over) {
            let last = step + 1 >= room(decoder, prompt.len(), options);
            if step >= room(decoder, prompt.len(), options) {
                hunt.over = true;
                continue;
            }
            let mut next: Vec<Beam> = Vec::new();
            let count = width * (options.stop.len() + 1).max(2);
            for (rank, (score, from, token)) in
                candidates(hunt, &logits, vocab, options, step, count).into_iter().enumerate()
            {
                let text = &hunt.beams[from].tokens;
                let ends = options.stop.contains(&token);
                if ends || last {
                    if rank < width {
                        let tokens = text.iter().copied().chain((!ends).then_some(token)).collect();
                        finish(&mut hunt.done, width, scored(score, step + 1), tokens);
                    }
                } else if next.len() < width {
                    let tokens = text.iter().copied().chain([token]).collect();
                    next.push(Beam { place: hunt.beams[from].place, tokens, score });
                }
            }
            let best = next.first().map_or(f64::NEG_INFINITY, |beam| beam.score);
            let content = hunt.done.len() >= width
                && match stopping {
                    Stopping::Early => true,
                    Stopping::NoImprovement => {
                        hunt.done.last().is_some_and(|(worst, _)| *worst >= scored(best, step + 1))
                    }
                };
            hunt.over = content || last || next.is_empty();
            hunt.beams = next;
            if hunt.over {
                continue;
            }
            for beam in &mut hunt.beams {
                parents.push(beam.place);
                tokens.push(beam.tokens[step]);
                beam.place = parents.len() - 1;
            }
        }
        if parents.is_empty() {
            break;
        }
        logits = decoder.advance(&parents, &tokens)?;
    }
    // A text that nothing could be added to has nothing new.
    Ok(hunts
        .into_iter()
        .map(|hunt| hunt.done.into_iter().next().map(|(_, text)| text).unwrap_or_default())
        .collect())
}

/// The best successors of all beams: (Σ ln p, beam, token), the best first, equal ones in the order
/// of beams and tokens.
fn candidates(
    hunt: &Hunt,
    logits: &[f32],
    vocab: usize,
    options: &GenerateOptions,
    step: usize,
    count: usize,
) -> Vec<(f64, usize, u32)> {
    let mut all = Vec::new();
    for (from, beam) in hunt.beams.iter().enumerate() {
        let scores = log_probabilities(&logits[beam.place * vocab..][..vocab], options, step);
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

/// Puts a finished text where it belongs.
fn finish(done: &mut Vec<(f64, Vec<u32>)>, width: usize, score: f64, text: Vec<u32>) {
    let place = done.partition_point(|(known, _)| *known >= score);
    done.insert(place, (score, text));
    done.truncate(width);
}
