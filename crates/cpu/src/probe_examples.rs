//! Synthetic examples for the probe of an engine.

use engine::Example;
use noise::{PublicRandom, Rng};

/// Purpose of the public randomness. Another one would change the examples.
const PURPOSE: &str = "stand-ins";

/// Returns token sequences of random tokens and different lengths, at most 64 tokens.
///
/// Each example has a class if the model has `classes`, else a target for each token.
pub(crate) fn texts(vocab: usize, max_length: usize, classes: Option<usize>) -> Vec<Example> {
    let text = |index: u64| {
        let mut words = PublicRandom::new(PURPOSE, index).words();
        let length = (max_length.min(64) >> index).max(1);
        let tokens = (0..length).map(|_| words.next_u32() % vocab.max(1) as u32).collect();
        match classes {
            Some(classes) => Example::labelled(tokens, (index % classes.max(1) as u64) as u32),
            None => Example::continuation(tokens, 1),
        }
    };
    (0..3).map(text).collect()
}

/// Returns examples with normal features.
pub(crate) fn features(count: usize, classes: usize) -> Vec<Example> {
    let example = |index: u64| {
        let mut features = vec![0.0; count];
        PublicRandom::new(PURPOSE, index).normals(0, &mut features);
        Example::features(features, (index % classes.max(1) as u64) as u32)
    };
    (0..3).map(example).collect()
}
