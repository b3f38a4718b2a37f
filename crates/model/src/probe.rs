//! What must hold of an engine before anybody's record is given to it: looked at with made-up examples.

use crate::engine::{Engine, Observed, Weights};
use crate::{Error, Example, Input, Target};
use protocol::{Blocks, Geometry, Params};
use tensor::normal::{Key, Rng};

/// Refuses an engine in which one example's content reaches another's loss, norm or gradient, or in which a trainable tensor gets no gradient at all.
///
/// A batch norm, a mean or maximum over the batch, a table broadcast over examples: with any of these one person moves what others contribute, and clipping bounds nothing. A tensor without
/// a gradient would be filled with noise and learn nothing.
///
/// # Errors
/// If it finds either, with the name of the tensor.
pub fn probe(engine: &mut impl Engine, at: &Params) -> Result<(), Error> {
    let examples = engine.stand_ins();
    let [ours, others] = [examples.first(), examples.get(1)];
    let (Some(ours), Some(other)) = (ours, others) else { return Err(Error::Model("an engine must name at least two stand-ins".into())) };
    let changed = altered(other);
    let alone = of_the_first(engine, at, &[ours, other])?;
    let beside = of_the_first(engine, at, &[ours, &changed])?;
    if alone != beside {
        return Err(Error::Model(
            "one example's content changes another's loss or gradient: such a model cannot be trained privately (batch norm? a mean over the batch?)".into(),
        ));
    }
    let mut sum = at.zeros_like();
    let all: Vec<&Example> = examples.iter().collect();
    engine.weighted_sum(at, &all, &Geometry::Identity, &Blocks::flat(at.len()), &mut everybody, &mut sum)?;
    let idle = sum.iter().zip(engine.trainable()).find(|(sum, _)| sum.data().iter().all(|&x| x == 0.0));
    idle.map_or(Ok(()), |(_, tensor)| Err(Error::Model(format!("{}: to be trained, but no example gives it a gradient", tensor.name))))
}

/// The first example's loss and norm in a micro-batch, and its gradient, bit for bit.
fn of_the_first(engine: &mut impl Engine, at: &Params, examples: &[&Example]) -> Result<(Vec<u64>, Vec<Vec<u32>>), Error> {
    let mut seen = Vec::new();
    let mut first = |observed: &Observed<'_>, weights: &mut Weights| {
        seen = vec![observed.loss(0).to_bits(), observed.norm(0, 0).to_bits()];
        weights.set(0, 0, 1.0);
    };
    let mut sum = at.zeros_like();
    engine.weighted_sum(at, examples, &Geometry::Identity, &Blocks::flat(at.len()), &mut first, &mut sum)?;
    // Adding another's zeros can turn −0 into 0.
    let bits = |x: &f32| (x + 0.0).to_bits();
    Ok((seen, sum.iter().map(|tensor| tensor.data().iter().map(bits).collect()).collect()))
}

fn everybody(observed: &Observed<'_>, weights: &mut Weights) {
    (0..observed.examples()).for_each(|example| weights.set(example, 0, 1.0));
}

/// Another example of the same size. Targets that were not asked for stay so.
fn altered(example: &Example) -> Example {
    let input = match &example.input {
        Input::Tokens(tokens) => Input::Tokens(tokens.iter().rev().copied().collect()),
        Input::Numbers(numbers) => Input::Numbers(numbers.iter().map(|x| 1.0 - 3.0 * x).collect()),
    };
    Example { input, target: example.target.clone() }
}

/// Made-up texts: as long as the model takes, up to 64 tokens, each token with a target (or a class).
pub(crate) fn texts(vocab: usize, longest: usize, classes: Option<usize>) -> Vec<Example> {
    let text = |which: u64| {
        let mut words = Key::for_purpose("stand-ins", which).words();
        let length = longest.min(64).saturating_sub(which as usize).max(1);
        let tokens = (0..length).map(|_| words.next_u32() % vocab.max(1) as u32).collect();
        match classes {
            Some(classes) => Example::labelled(tokens, (which % classes.max(1) as u64) as u32),
            None => Example::continuation(tokens, 1),
        }
    };
    (0..3).map(text).collect()
}

/// Made-up numbers.
pub(crate) fn numbers(count: usize, classes: usize) -> Vec<Example> {
    let one = |which: u64| {
        let mut numbers = vec![0.0; count];
        Key::for_purpose("stand-ins", which).normals(0, &mut numbers);
        Example { input: Input::Numbers(numbers), target: Target::Class((which % classes.max(1) as u64) as u32) }
    };
    (0..3).map(one).collect()
}
