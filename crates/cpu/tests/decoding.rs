//! Decoding with a cache gives the logits of a pass over the whole text.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Decoder;
use engine::{Example, Target};
use model::Decoder as _;
use support::zoo::{self, Kind};

/// Returns the logits of the next token, from a pass over the whole text.
fn logits_of_text(kind: Kind, text: &[u32]) -> Vec<f32> {
    let (mut network, params) = zoo::network(kind, 5);
    let mut example = Example::continuation(text.to_vec(), 0);
    if let Target::Next(targets) = &mut example.parts_mut()[0].target {
        targets.fill(Target::NONE);
        *targets.last_mut().unwrap() = 0;
    }
    network.logits(&params, &[&example]).unwrap()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
}

const CAUSAL: [Kind; 6] = [
    Kind::Gpt2Tied,
    Kind::Gpt2Untied,
    Kind::Gpt2Lora,
    Kind::Llama,
    Kind::LlamaTied,
    Kind::LlamaLora,
];

#[test]
fn decoding_equals_a_pass_over_the_text() {
    for kind in CAUSAL {
        let (mut network, params) = zoo::network(kind, 5);
        let mut decoder = Decoder::new(&mut network, &params).unwrap();
        let vocab = decoder.vocab();
        let mut texts: Vec<Vec<u32>> = vec![vec![1, 2, 3, 4], vec![7], vec![5, 5, 9]];
        let mut logits =
            decoder.start(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        for step in 0..6u32 {
            assert_eq!(decoder.lengths(), texts.iter().map(Vec::len).collect::<Vec<_>>());
            for (text, logits) in texts.iter().zip(logits.chunks_exact(vocab)) {
                assert!(close(logits, &logits_of_text(kind, text)), "{kind:?} {text:?}");
            }
            // Texts are copied, dropped and reordered, as in beam search.
            let parents: Vec<usize> =
                if step % 2 == 0 { vec![2, 0, 0, 1] } else { (0..texts.len()).collect() };
            let tokens: Vec<u32> = (0..parents.len() as u32).map(|i| (3 * i + step) % 11).collect();
            texts = parents
                .iter()
                .zip(&tokens)
                .map(|(&parent, &token)| [texts[parent].as_slice(), &[token]].concat())
                .collect();
            logits = decoder.advance(&parents, &tokens).unwrap();
        }
        // After a new start, earlier texts have no effect.
        let again = decoder.start(&[&[4, 4]]).unwrap();
        assert!(close(&again, &logits_of_text(kind, &[4, 4])), "{kind:?}");
    }
}

#[test]
fn invalid_texts_and_models_are_refused() {
    for kind in [Kind::Bert, Kind::BertMean, Kind::Cnn, Kind::Mlp] {
        let (mut network, params) = zoo::network(kind, 5);
        assert!(Decoder::new(&mut network, &params).is_err(), "{kind:?}");
    }
    let (mut network, params) = zoo::network(Kind::Gpt2Tied, 5);
    let mut decoder = Decoder::new(&mut network, &params).unwrap();
    assert!(decoder.start(&[&[]]).is_err());
    assert!(decoder.start(&[&[1, 1000]]).is_err());
    assert!(decoder.start(&[&[1; 100]]).is_err());
    assert!(decoder.start(&[]).unwrap().is_empty());
    decoder.start(&[&[1; 23]]).unwrap();
    assert!(decoder.advance(&[1], &[1]).is_err() && decoder.advance(&[0], &[1, 2]).is_err());
    assert!(decoder.advance(&[0], &[1]).is_ok());
    assert!(decoder.advance(&[0], &[1]).is_err(), "25 tokens, at most 24 are allowed");
    let (_, other) = zoo::network(Kind::Llama, 5);
    assert!(Decoder::new(&mut network, &other).is_err());
}
