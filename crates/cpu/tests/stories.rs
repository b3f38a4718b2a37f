//! A pretrained model, if it is available: stories15M (Llama, 15.2M parameters, tied head). The
//! expected values are those of `transformers` in double precision.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use engine::{Engine, Example, Target};
use model::Checkpoint;
use std::path::PathBuf;

/// "Once upon a time, there was a little girl named Lily. She loved to play outside in the
/// sunshine.", after the token for the beginning of a text.
const SENTENCE: [u32; 26] = [
    1, 9038, 2501, 263, 931, 29892, 727, 471, 263, 2217, 7826, 4257, 365, 2354, 29889, 2296, 18012,
    304, 1708, 5377, 297, 278, 6575, 845, 457, 29889,
];
/// The continuation: " One day, she saw a big, red ball in the sky. It was the sun! She"
const CONTINUATION: [u32; 20] = [
    3118, 2462, 29892, 1183, 4446, 263, 4802, 29892, 2654, 8287, 297, 278, 14744, 29889, 739, 471,
    278, 6575, 29991, 2296,
];

#[test]
fn loss_and_greedy_text_equal_those_of_transformers() {
    let shared = std::env::var_os("MUFFLE_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let dir = shared.join("models/stories15M");
    if !dir.is_dir() {
        eprintln!(
            "SKIPPED: {} does not exist; set MUFFLE_SHARED to a directory that contains \
             models/stories15M",
            dir.display()
        );
        return;
    }
    let (_, mut network, params) =
        Checkpoint::open(&dir, None, 0).unwrap().network(&cpu::Cpu, |_| true).unwrap();
    network.load(&params).unwrap();
    let loss = network.losses(&[&Example::continuation(SENTENCE.to_vec(), 1)]).unwrap()[0];
    assert!((loss - 0.236_489_4).abs() < 1e-5, "{loss}");
    // Greedy decoding from the first six tokens gives the sentence and its continuation.
    let mut tokens = SENTENCE[..6].to_vec();
    for expected in SENTENCE[6..].iter().chain(&CONTINUATION) {
        let mut query = Example::continuation(tokens.clone(), tokens.len());
        if let Target::Next(targets) = &mut query.parts_mut()[0].target {
            *targets.last_mut().unwrap() = 0;
        }
        let logits = network.logits(&params, &[&query]).unwrap();
        let best =
            (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        assert_eq!(best, *expected);
        tokens.push(best);
    }
}
