//! Synthetic examples for the probe of an engine.

use engine::{Example, Input, Target};
use model::{Graph, InputShape, Loss, Space};
use noise::{PublicRandom, Rng};

/// Purpose of the public randomness. Another one would change the examples.
const PURPOSE: &str = "stand-ins";

/// Returns examples of different lengths, at most 64 tokens, that fit a model.
pub(crate) fn of(graph: &Graph) -> Vec<Example> {
    (0..3).map(|index| example(graph, index)).collect()
}

fn example(graph: &Graph, index: u64) -> Example {
    let input = match graph.input() {
        InputShape::Tokens { vocab, max_length } => {
            let mut words = PublicRandom::new(PURPOSE, index).words();
            let length = (max_length.min(64) >> index).max(1);
            let tokens = (0..length).map(|_| words.next_u32() % vocab.max(1) as u32).collect();
            if graph.shape(graph.logits()).space == Space::Targets {
                return Example::continuation(tokens, 1);
            }
            Input::Tokens(tokens)
        }
        InputShape::Features(count) => {
            let mut features = vec![0.0; count];
            PublicRandom::new(PURPOSE, index).normals(0, &mut features);
            Input::Features(features)
        }
    };
    Example::new(input, target(graph, index))
}

/// Returns a target that differs from example to example.
fn target(graph: &Graph, index: u64) -> Target {
    let class = (index % graph.classes().max(1) as u64) as u32;
    match graph.loss() {
        Loss::CrossEntropy => Target::Class(class),
        // No label, the first one, the first two.
        Loss::BinaryCrossEntropy => {
            Target::Labels((0..graph.classes().min(index as usize) as u32).collect())
        }
        Loss::SquaredError => Target::Value(0.75 - 1.5 * index as f32),
    }
}
