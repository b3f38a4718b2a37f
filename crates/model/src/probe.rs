//! What must hold of an engine before anybody's record is given to it: looked at with made-up examples.

use crate::engine::{Engine, Observed, Weights};
use crate::{Error, Example, Input, Target};
use protocol::{Blocks, Geometry, Params};
use tensor::normal::{Key, Rng};

/// Refuses an engine in which one example reaches another's loss, norm or gradient, or in which a trainable tensor gets no gradient at all.
///
/// A batch norm, a mean or maximum over the batch, padding that counts, a division by the size of the batch: with any of these one person moves what others contribute, and clipping bounds
/// nothing. A tensor without a gradient would be filled with noise and learn nothing.
///
/// # Errors
/// If it finds either, with the name of the tensor.
pub fn probe(engine: &mut impl Engine, at: &Params) -> Result<(), Error> {
    isolated(engine, at)?;
    let examples = engine.stand_ins();
    let mut sum = at.zeros_like();
    let all: Vec<&Example> = examples.iter().collect();
    engine.weighted_sum(at, &all, &Geometry::Identity, &Blocks::flat(at.len()), &mut everybody, &mut sum)?;
    let idle = sum.iter().zip(engine.trainable()).find(|(sum, _)| sum.data().iter().all(|&x| x == 0.0));
    idle.map_or(Ok(()), |(_, tensor)| Err(Error::Model(format!("{}: to be trained, but no example gives it a gradient", tensor.name))))
}

/// The first half of [`probe`].
///
/// # Errors
/// If one example reaches another.
pub fn isolated(engine: &mut impl Engine, at: &Params) -> Result<(), Error> {
    let examples = engine.stand_ins();
    let [long, middle, short, ..] = &examples[..] else { return Err(Error::Model("an engine must name at least three stand-ins".into())) };
    let other = altered(middle, long);
    // With the same sizes beside it, what it gives is the same bit for bit; with others, or none, the same to rounding.
    // Never more than two at a time: each is as large as the model.
    let one = Given::new(engine, at, &[short, middle])?;
    let same = one.is_same(&Given::new(engine, at, &[short, &other])?);
    let alone = Given::new(engine, at, &[short])?;
    let near = alone.is_near(&one);
    drop(one);
    if same && near && alone.is_near(&Given::new(engine, at, &[short, long, middle])?) {
        return Ok(());
    }
    Err(Error::Model(
        "one example changes another's loss or gradient: such a model cannot be trained privately (batch norm? a mean over the batch? padding?)".into(),
    ))
}

/// What the first example of a micro-batch gives.
struct Given {
    /// As the gradient's pass and the loss's pass have it.
    losses: [u64; 2],
    norm: u64,
    gradient: Params,
}

impl Given {
    fn new(engine: &mut impl Engine, at: &Params, examples: &[&Example]) -> Result<Self, Error> {
        let (mut loss, mut norm) = (f64::NAN, f64::NAN);
        let mut first = |observed: &Observed<'_>, weights: &mut Weights| {
            (loss, norm) = (observed.loss(0), observed.norm(0, 0));
            weights.set(0, 0, 1.0);
        };
        let mut sum = at.zeros_like();
        engine.weighted_sum(at, examples, &Geometry::Identity, &Blocks::flat(at.len()), &mut first, &mut sum)?;
        let again = engine.losses(at, examples)?.first().copied().unwrap_or(f64::NAN);
        Ok(Self { losses: [loss.to_bits(), again.to_bits()], norm: norm.to_bits(), gradient: sum })
    }

    /// Pairs of numbers of two gradients.
    fn beside<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f32, f32)> + 'a {
        let pairs = self.gradient.iter().zip(other.gradient.iter());
        pairs.flat_map(|(a, b)| a.data().iter().copied().zip(b.data().iter().copied()))
    }

    /// Bit for bit, but that adding another's zeros can turn −0 into 0.
    fn is_same(&self, other: &Self) -> bool {
        let bits = |x: f32| (x + 0.0).to_bits();
        self.losses == other.losses && self.norm == other.norm && self.beside(other).all(|(a, b)| bits(a) == bits(b))
    }

    /// Equal to rounding. What is not finite is near nothing but itself.
    fn is_near(&self, other: &Self) -> bool {
        let near = |a: u64, b: u64| {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            a == b || (x - y).abs() <= 1e-4 * x.abs().max(1e-3)
        };
        let square = |x: f64| x * x;
        let distance = |a: f32, b: f32| if a.to_bits() == b.to_bits() { 0.0 } else { square(f64::from(a) - f64::from(b)) };
        let apart: f64 = self.beside(other).map(|(a, b)| distance(a, b)).sum();
        let size: f64 = self.beside(self).map(|(x, _)| square(f64::from(x))).filter(|x| x.is_finite()).sum();
        near(self.losses[0], other.losses[0])
            && near(self.losses[1], other.losses[1])
            && near(self.norm, other.norm)
            && apart <= 1e-6 * size.max(1e-12)
    }
}

fn everybody(observed: &Observed<'_>, weights: &mut Weights) {
    (0..observed.examples()).for_each(|example| weights.set(example, 0, 1.0));
}

/// Another example of the same size, with what `from` says and another target.
fn altered(example: &Example, from: &Example) -> Example {
    match (&example.input, &from.input) {
        (Input::Tokens(tokens), Input::Tokens(others)) => {
            let tokens: Vec<u32> = others.iter().copied().cycle().take(tokens.len()).collect();
            match &from.target {
                Target::Class(class) => Example::labelled(tokens, *class),
                Target::Next(_) => Example::continuation(tokens, 1),
            }
        }
        (Input::Numbers(numbers), _) => {
            Example { input: Input::Numbers(numbers.iter().map(|x| 1.0 - 3.0 * x).collect()), target: from.target.clone() }
        }
        (Input::Tokens(_), Input::Numbers(_)) => example.clone(),
    }
}

/// Made-up texts: as long as the model takes, up to 64 tokens, each token with a target (or a class).
pub(crate) fn texts(vocab: usize, longest: usize, classes: Option<usize>) -> Vec<Example> {
    let text = |which: u64| {
        let mut words = Key::for_purpose("stand-ins", which).words();
        let length = (longest.min(64) >> which).max(1);
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
