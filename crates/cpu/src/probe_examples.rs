//! Made-up examples for the probe of an engine.

use engine::{Example, Input, Target};
use noise::{PublicRandom, Rng};

/// Made-up texts: as long as the model takes, up to 64 tokens, each token with a target (or a
/// class).
pub(crate) fn texts(vocab: usize, longest: usize, classes: Option<usize>) -> Vec<Example> {
    let text = |which: u64| {
        let mut words = PublicRandom::new("stand-ins", which).words();
        let length = (longest.min(64) >> which).max(1);
        let tokens = (0..length).map(|_| words.next_u32() % vocab.max(1) as u32).collect();
        match classes {
            Some(classes) => Example::labelled(tokens, (which % classes.max(1) as u64) as u32),
            None => Example::continuation(tokens, 1),
        }
    };
    (0..3).map(text).collect()
}

/// Made-up features.
pub(crate) fn features(count: usize, classes: usize) -> Vec<Example> {
    let one = |which: u64| {
        let mut numbers = vec![0.0; count];
        PublicRandom::new("stand-ins", which).normals(0, &mut numbers);
        Example {
            input: Input::Features(numbers),
            target: Target::Class((which % classes.max(1) as u64) as u32),
        }
    };
    (0..3).map(one).collect()
}
