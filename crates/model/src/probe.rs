//! What must hold of an engine before anybody's record is given to it: looked at with made-up
//! examples.

use crate::engine::{Engine, Isolation, Observed, Weights};
use crate::sum::{Accumulator, StepScale, Sum};
use crate::{Error, Example, Input, Target};
use noise::{PublicRandom, Rng};
use protocol::{Blocks, Geometry, Params};

/// Refuses an engine in which one example reaches another's loss, norm or gradient, or in which a
/// trainable tensor gets no gradient at all.
///
/// A batch norm, a mean or maximum over the batch, padding that counts, a division by the size of
/// the batch: with any of these one person moves what others contribute, and clipping bounds
/// nothing. So does a product that is rounded differently when there are more rows. A tensor
/// without a gradient would be filled with noise and learn nothing.
///
/// An engine that claims [`Isolation::Exact`] must give the same bits for an example alone, with
/// others, with longer and shorter ones, with many, and in every position.
///
/// # Errors
/// If it finds either, with the name of the tensor.
pub fn probe(engine: &mut impl Engine, at: &Params) -> Result<(), Error> {
    isolated(engine, at)?;
    let examples = engine.stand_ins();
    let mut sum = Sum::float(at);
    let all: Vec<&Example> = examples.iter().collect();
    engine.weighted_sum(
        at,
        &all,
        &Geometry::Identity,
        &Blocks::flat(at.len()),
        &mut everybody,
        &mut sum,
    )?;
    let zero = |sum: &Accumulator| (0..sum.len()).all(|i| sum.value(i) == 0.0);
    let idle = sum.iter().zip(engine.trainable()).find(|(sum, _)| zero(sum));
    idle.map_or(Ok(()), |(_, tensor)| {
        Err(Error::Model(format!(
            "{}: to be trained, but no example gives it a gradient",
            tensor.name
        )))
    })
}

/// The first half of [`probe`].
///
/// # Errors
/// If one example reaches another.
pub fn isolated(engine: &mut impl Engine, at: &Params) -> Result<(), Error> {
    let examples = engine.stand_ins();
    let [long, middle, short, ..] = &examples[..] else {
        return Err(Error::Model("an engine must name at least three stand-ins".into()));
    };
    let other = altered(middle, long);
    let many: Vec<Example> = (0..COMPANY)
        .map(|i| if i % 2 == 0 { altered(short, long) } else { short.clone() })
        .collect();
    for target in std::iter::once(short.clone()).chain(extremes(short)) {
        let target = &target;
        let alone = Given::new(engine, at, &[target], 0, None)?;
        // What another example contains changes no bit, whatever the engine claims: sizes are the
        // same.
        let beside = Given::new(engine, at, &[target, middle], 0, Some(alone.scale))?;
        if !beside.is_same(&Given::new(engine, at, &[target, &other], 0, Some(alone.scale))?) {
            return Err(Error::Model(format!("{MIXED}: {BATCH}")));
        }
        // Few at a time: each is as large as the model.
        for (company, place) in [
            (vec![target, middle], 0),
            (vec![middle, target], 1),
            (vec![target, long], 0),
            (vec![long, target, middle], 1),
        ] {
            compare(engine, at, &alone, &company, place)?;
        }
        for place in [0, COMPANY / 2, COMPANY] {
            let mut company: Vec<&Example> = many.iter().collect();
            company.insert(place, target);
            compare(engine, at, &alone, &company, place)?;
        }
    }
    Ok(())
}

const MIXED: &str = "one example changes another's loss or gradient";
const BATCH: &str =
    "such a model cannot be trained privately (batch norm? a mean over the batch? padding?)";

/// How many short examples are put around another: enough for libraries to choose another product.
const COMPANY: usize = 16;

/// Examples like this one at which rounding decides most: zeros and huge numbers, where many units
/// stand at a kink; one token, and the same token again and again.
fn extremes(example: &Example) -> Vec<Example> {
    let with = |input: Input| Example { input, target: example.target.clone() };
    match (&example.input, &example.target) {
        (Input::Numbers(numbers), _) => {
            vec![
                with(Input::Numbers(vec![0.0; numbers.len()])),
                with(Input::Numbers(numbers.iter().map(|x| 1000.0 * x).collect())),
            ]
        }
        (Input::Tokens(tokens), Target::Next(_)) => vec![
            Example::continuation(tokens.iter().map(|_| tokens[0]).collect(), 1),
            Example::continuation(tokens.iter().take(2).copied().collect(), 1),
        ],
        (Input::Tokens(tokens), Target::Class(class)) => vec![
            Example::labelled(tokens.iter().map(|_| tokens[0]).collect(), *class),
            Example::labelled(tokens.iter().take(1).copied().collect(), *class),
        ],
    }
}

/// Refuses if an example in company does not give what it gives alone.
fn compare(
    engine: &mut impl Engine,
    at: &Params,
    alone: &Given,
    company: &[&Example],
    place: usize,
) -> Result<(), Error> {
    let given = Given::new(engine, at, company, place, Some(alone.scale))?;
    let isolation = engine.isolation();
    if given.is_same(alone) || isolation == Isolation::UpToRounding && given.is_near(alone) {
        return Ok(());
    }
    let advice = if given.is_near(alone) {
        "by rounding, which can decide a whole gradient: an engine that cannot do better must say \
         so"
    } else {
        BATCH
    };
    Err(Error::Model(format!("{MIXED}: {advice}")))
}

/// What one example of a micro-batch gives.
struct Given {
    /// As the gradient's pass and the loss's pass have it.
    losses: [f64; 2],
    norm: f64,
    /// Steps of the grid that the gradient is rounded to, in a unit.
    scale: f32,
    gradient: Sum,
}

impl Given {
    /// The example at `place` of a micro-batch, with a gradient in steps that suit its norm, or in
    /// these.
    fn new(
        engine: &mut impl Engine,
        at: &Params,
        examples: &[&Example],
        place: usize,
        scale: Option<f32>,
    ) -> Result<Self, Error> {
        let scale = match scale {
            Some(scale) => scale,
            None => suitable_scale(observe(engine, at, examples, place, 1.0)?.1),
        };
        let (loss, norm, gradient) = observe(engine, at, examples, place, scale)?;
        let again = engine.losses(at, examples)?.get(place).copied().unwrap_or(f64::NAN);
        Ok(Self { losses: [loss, again], norm, scale, gradient })
    }

    /// Pairs of elements of two gradients.
    fn beside<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f64, f64)> + 'a {
        let pairs = self.gradient.iter().zip(other.gradient.iter());
        pairs.flat_map(|(a, b)| (0..a.len()).map(move |i| (a.value(i), b.value(i))))
    }

    /// Bit for bit.
    fn is_same(&self, other: &Self) -> bool {
        self.losses.map(f64::to_bits) == other.losses.map(f64::to_bits)
            && self.norm.to_bits() == other.norm.to_bits()
            && self.beside(other).all(|(a, b)| a == b)
    }

    /// Equal to rounding. What is not finite is near nothing but itself.
    fn is_near(&self, other: &Self) -> bool {
        let near = |x: f64, y: f64| {
            x.to_bits() == y.to_bits() || (x - y).abs() <= 1e-4 * x.abs().max(1e-3)
        };
        let square = |x: f64| x * x;
        let apart: f64 = self.beside(other).map(|(a, b)| square(a - b)).sum();
        let size: f64 = self.beside(self).map(|(x, _)| square(x)).sum();
        near(self.losses[0], other.losses[0])
            && near(self.losses[1], other.losses[1])
            && near(self.norm, other.norm)
            && apart <= 1e-6 * size.max(1e-12)
    }
}

/// A power of two by which no element of a gradient of this norm has 2²⁵ steps or more.
fn suitable_scale(norm: f64) -> f32 {
    if norm > 0.0 && norm < 1e30 {
        (24.0 - norm.log2()).floor().clamp(-100.0, 100.0).exp2() as f32
    } else {
        1.0
    }
}

/// Loss, norm and gradient of the example at `place`; the others weigh nothing.
fn observe(
    engine: &mut impl Engine,
    at: &Params,
    examples: &[&Example],
    place: usize,
    scale: f32,
) -> Result<(f64, f64, Sum), Error> {
    let (mut loss, mut norm) = (f64::NAN, f64::NAN);
    let mut weigh = |observed: &Observed<'_>, weights: &mut Weights| {
        (loss, norm) = (observed.loss(place), observed.norm(place, 0));
        weights.set(place, 0, 1.0);
    };
    let mut sum = Sum::new(
        at.iter()
            .map(|tensor| Accumulator::steps(tensor.len(), StepScale::Narrow(scale)))
            .collect(),
    );
    engine.weighted_sum(
        at,
        examples,
        &Geometry::Identity,
        &Blocks::flat(at.len()),
        &mut weigh,
        &mut sum,
    )?;
    Ok((loss, norm, sum))
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
        (Input::Numbers(numbers), _) => Example {
            input: Input::Numbers(numbers.iter().map(|x| 1.0 - 3.0 * x).collect()),
            target: from.target.clone(),
        },
        (Input::Tokens(_), Input::Numbers(_)) => example.clone(),
    }
}

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

/// Made-up numbers.
pub(crate) fn numbers(count: usize, classes: usize) -> Vec<Example> {
    let one = |which: u64| {
        let mut numbers = vec![0.0; count];
        PublicRandom::new("stand-ins", which).normals(0, &mut numbers);
        Example {
            input: Input::Numbers(numbers),
            target: Target::Class((which % classes.max(1) as u64) as u32),
        }
    };
    (0..3).map(one).collect()
}
