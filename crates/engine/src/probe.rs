//! Checks that an engine must pass before it sees a record, with made-up examples.

use crate::query::low_rank_pairs;
use crate::{
    Accumulator, CheckedQuery, Engine, Error, Example, Input, Isolation, StepScale, Sum,
    SumPrecision, Target, Weights,
};
use protocol::{Blocks, Frame, Geometry, GeometryKind, Params};
use tensor::Array;

/// Refuses an engine that mixes examples, reports wrong norms or leaves a tensor without gradient.
///
/// Batch norm, a mean or maximum over the batch, padding that counts, a division by the size of the
/// batch: with any of these one record moves what other records contribute, and clipping bounds
/// nothing. So does a product that is rounded differently when there are more rows. A norm that is
/// too small makes the clip bound false. A tensor without a gradient would be filled with noise and
/// learn nothing.
///
/// An engine that claims [`Isolation::Exact`] must give the same bits for an example alone, with
/// others, with longer and shorter ones, with many, and in every position.
///
/// # Errors
/// The first check that fails, with the name of the tensor where there is one.
pub fn probe(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    probe_isolation(engine, params)?;
    probe_norms(engine, params)?;
    probe_idle_tensors(engine, params)
}

/// Refuses an engine in which a trainable tensor gets no gradient from any example.
fn probe_idle_tensors(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    let examples = engine.probe_examples();
    let all: Vec<&Example> = examples.iter().collect();
    let blocks = Blocks::flat(params.len());
    let query = CheckedQuery::new(params, &Geometry::Identity, &blocks, &engine.trainable())?;
    engine.load(params)?;
    engine.start_sum(&SumPrecision::Float)?;
    engine.observe(&all, &query)?;
    let mut weights = Weights::zeros(all.len(), 1);
    (0..all.len()).for_each(|example| weights.set(example, 0, 1.0));
    engine.accumulate(&weights)?;
    let sum = engine.take_sum()?;
    engine.unload();
    let is_zero = |sum: &Accumulator| (0..sum.len()).all(|i| sum.value(i) == 0.0);
    match sum.iter().zip(engine.trainable()).find(|(sum, _)| is_zero(sum)) {
        None => Ok(()),
        Some((_, tensor)) => Err(Error::Probe(format!(
            "{}: trainable, but no example gives it a gradient",
            tensor.name
        ))),
    }
}

/// Refuses an engine whose reported norms are not those of the gradients it sums, in any geometry
/// that it supports.
///
/// # Errors
/// The geometry and the block whose norm differs.
pub fn probe_norms(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    let tensors = engine.trainable();
    let each = Blocks::each(params.len());
    let flat = Blocks::flat(params.len());
    let mut cases = vec![(Geometry::Identity, &each), (Geometry::Identity, &flat)];
    if engine.supports(GeometryKind::Affine) {
        cases.push((affine(params), &each));
    }
    let pairs = low_rank_pairs(&tensors);
    if engine.supports(GeometryKind::Tangent) && !pairs.is_empty() {
        let frame = |&(left, right): &(usize, usize)| Frame::new(params, left, right);
        // Factors without full rank have no tangent space: then a query in it is refused as well.
        if let Ok(frames) = pairs.iter().map(frame).collect::<Result<_, _>>() {
            cases.push((Geometry::Tangent { frames }, &flat));
        }
    }
    for (geometry, blocks) in &cases {
        let query = CheckedQuery::new(params, geometry, blocks, &tensors)?;
        for example in &engine.probe_examples() {
            let outcome = Outcome::new(engine, params, &[example], 0, &query, None)?;
            outcome.check_norms(&query)?;
        }
    }
    Ok(())
}

/// An affine geometry with a center and a scale that differ from element to element.
fn affine(params: &Params) -> Geometry {
    let fill = |of: &dyn Fn(f32) -> f32| {
        let tensor = |(k, tensor): (usize, &Array)| {
            Array::from_fn(tensor.shape(), |i| of(((i + 7 * k) as f32 * 0.618).sin()))
        };
        Params::new(params.iter().enumerate().map(tensor).collect())
    };
    Geometry::Affine { center: fill(&|x| 1e-3 * x), scale: fill(&|x| 1.0 + 0.5 * x) }
}

/// Refuses an engine in which one example reaches another's loss, norm or gradient.
///
/// # Errors
/// If one example reaches another.
pub fn probe_isolation(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    let examples = engine.probe_examples();
    let [long, middle, short, ..] = &examples[..] else {
        return Err(Error::Probe("an engine must offer at least three probe examples".into()));
    };
    let blocks = Blocks::flat(params.len());
    let query = CheckedQuery::new(params, &Geometry::Identity, &blocks, &engine.trainable())?;
    let other = altered(middle, long);
    let many: Vec<Example> = (0..COMPANY)
        .map(|i| if i % 2 == 0 { altered(short, long) } else { short.clone() })
        .collect();
    for target in std::iter::once(short.clone()).chain(extremes(short)) {
        let target = &target;
        let alone = Outcome::new(engine, params, &[target], 0, &query, None)?;
        let scale = Some(&alone.scales[..]);
        // What another example contains changes no bit, whatever the engine claims: shapes are the
        // same.
        let beside = Outcome::new(engine, params, &[target, middle], 0, &query, scale)?;
        let altered = Outcome::new(engine, params, &[target, &other], 0, &query, scale)?;
        if !beside.is_same(&altered) {
            return Err(Error::Probe(format!("{MIXED}: {BATCH}")));
        }
        // Few at a time: each is as large as the model.
        for (company, index) in [
            (vec![target, middle], 0),
            (vec![middle, target], 1),
            (vec![target, long], 0),
            (vec![long, target, middle], 1),
        ] {
            compare(engine, params, &query, &alone, &company, index)?;
        }
        for index in [0, COMPANY / 2, COMPANY] {
            let mut company: Vec<&Example> = many.iter().collect();
            company.insert(index, target);
            compare(engine, params, &query, &alone, &company, index)?;
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
        (Input::Features(numbers), _) => {
            vec![
                with(Input::Features(vec![0.0; numbers.len()])),
                with(Input::Features(numbers.iter().map(|x| 1000.0 * x).collect())),
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

/// Refuses if an example among others does not give what it gives alone.
fn compare(
    engine: &mut (impl Engine + ?Sized),
    params: &Params,
    query: &CheckedQuery<'_>,
    alone: &Outcome,
    company: &[&Example],
    index: usize,
) -> Result<(), Error> {
    let among = Outcome::new(engine, params, company, index, query, Some(&alone.scales))?;
    let isolation = engine.isolation();
    if among.is_same(alone) || isolation == Isolation::UpToRounding && among.is_near(alone) {
        return Ok(());
    }
    let advice = if among.is_near(alone) {
        "by rounding, which can decide a whole gradient: an engine that cannot do better must say \
         so"
    } else {
        BATCH
    };
    Err(Error::Probe(format!("{MIXED}: {advice}")))
}

/// What one example of a micro-batch gives.
struct Outcome {
    /// From the gradient's pass and from the pass for losses.
    losses: [f64; 2],
    /// By block.
    norms: Vec<f64>,
    /// Steps of the grid that the gradient is rounded to, by block.
    scales: Vec<f32>,
    gradient: Sum,
}

impl Outcome {
    /// Computes the example at `index`; the others have weight 0. The gradient is rounded to steps
    /// that suit its norms, or to these.
    fn new(
        engine: &mut (impl Engine + ?Sized),
        params: &Params,
        examples: &[&Example],
        index: usize,
        query: &CheckedQuery<'_>,
        scales: Option<&[f32]>,
    ) -> Result<Self, Error> {
        let blocks = query.blocks();
        let mut weights = Weights::zeros(examples.len(), blocks.count());
        (0..blocks.count()).for_each(|block| weights.set(index, block, 1.0));
        engine.load(params)?;
        let scales = match scales {
            Some(scales) => scales.to_vec(),
            None => {
                engine.start_sum(&SumPrecision::Float)?;
                engine.observe(examples, query)?;
                engine.accumulate(&weights)?;
                norms(blocks, elements(&engine.take_sum()?)).map(suitable_scale).collect()
            }
        };
        let scale = |tensor: usize| StepScale::Narrow(scales[blocks.of(tensor)]);
        engine.start_sum(&SumPrecision::Steps((0..params.len()).map(scale).collect()))?;
        let observed = engine.observe(examples, query)?;
        engine.accumulate(&weights)?;
        let gradient = engine.take_sum()?;
        let again = engine.losses(examples)?.get(index).copied().unwrap_or(f64::NAN);
        engine.unload();
        Ok(Self {
            losses: [observed.loss(index), again],
            norms: (0..blocks.count()).map(|block| observed.norm(index, block)).collect(),
            scales,
            gradient,
        })
    }

    /// Refuses norms that are not those of the gradient, in the coordinates of the query.
    fn check_norms(&self, query: &CheckedQuery<'_>) -> Result<(), Error> {
        let (geometry, blocks) = (query.geometry(), query.blocks());
        let actual: Vec<f64> = if *geometry == Geometry::Identity {
            norms(blocks, elements(&self.gradient)).collect()
        } else {
            let gradient = elements(&self.gradient).map(Iterator::collect).collect();
            let encoded = geometry.encode(blocks, gradient);
            norms(blocks, encoded.into_iter().map(Vec::into_iter)).collect()
        };
        for (block, (actual, &norm)) in actual.into_iter().zip(&self.norms).enumerate() {
            // A norm may be larger, by the rounding that it covers. Asks for the good case: NaN is
            // refused.
            let covers = actual <= norm * (1.0 + NORM_TOLERANCE) + TINY;
            let close = norm <= actual * (1.0 + NORM_EXCESS) + TINY;
            if !(covers && close) {
                return Err(Error::Probe(format!(
                    "the norm reported for an example is {norm:.6e}, but its gradient has the norm \
                     {actual:.6e} (block {block}, {:?} geometry)",
                    geometry.kind()
                )));
            }
        }
        Ok(())
    }

    /// Pairs of elements of two gradients.
    fn paired<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f64, f64)> + 'a {
        let pairs = self.gradient.iter().zip(other.gradient.iter());
        pairs.flat_map(|(a, b)| (0..a.len()).map(move |i| (a.value(i), b.value(i))))
    }

    /// Whether two outcomes are equal bit for bit.
    fn is_same(&self, other: &Self) -> bool {
        let bits = |norms: &[f64]| norms.iter().map(|norm| norm.to_bits()).collect::<Vec<_>>();
        self.losses.map(f64::to_bits) == other.losses.map(f64::to_bits)
            && bits(&self.norms) == bits(&other.norms)
            && self.paired(other).all(|(a, b)| a == b)
    }

    /// Whether two outcomes are equal up to rounding. What is not finite is near nothing but
    /// itself.
    fn is_near(&self, other: &Self) -> bool {
        let near = |x: f64, y: f64| {
            x.to_bits() == y.to_bits() || (x - y).abs() <= 1e-4 * x.abs().max(1e-3)
        };
        let square = |x: f64| x * x;
        let apart: f64 = self.paired(other).map(|(a, b)| square(a - b)).sum();
        let size: f64 = self.paired(self).map(|(x, _)| square(x)).sum();
        near(self.losses[0], other.losses[0])
            && near(self.losses[1], other.losses[1])
            && self.norms.iter().zip(&other.norms).all(|(&x, &y)| near(x, y))
            && apart <= 1e-6 * size.max(1e-12)
    }
}

/// How far a reported norm may lie below the norm of the gradient: the gradient is rounded to the
/// grid of the sum before it is compared.
const NORM_TOLERANCE: f64 = 1e-3;

/// How far a reported norm may lie above it: a norm covers the rounding of the sum.
const NORM_EXCESS: f64 = 0.02;

/// Below this, norms are not compared.
const TINY: f64 = 1e-20;

/// A power of two by which no element of a gradient of this norm has 2²⁵ steps or more.
fn suitable_scale(norm: f64) -> f32 {
    let norm = if norm > 0.0 && norm < 1e30 { norm } else { 1.0 };
    (24.0 - norm.log2()).floor().clamp(-100.0, 100.0).exp2() as f32
}

/// The elements of a sum, by tensor.
fn elements(sum: &Sum) -> impl Iterator<Item = impl Iterator<Item = f64>> {
    sum.iter().map(|sum| (0..sum.len()).map(|i| sum.value(i)))
}

/// The L2 norm of each block.
fn norms(
    blocks: &Blocks,
    tensors: impl Iterator<Item = impl Iterator<Item = f64>>,
) -> impl Iterator<Item = f64> {
    let mut squares = vec![0.0; blocks.count()];
    for (tensor, elements) in tensors.enumerate() {
        squares[blocks.of(tensor)] += elements.map(|x| x * x).sum::<f64>();
    }
    squares.into_iter().map(f64::sqrt)
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
        (Input::Features(numbers), _) => Example {
            input: Input::Features(numbers.iter().map(|x| 1.0 - 3.0 * x).collect()),
            target: from.target.clone(),
        },
        (Input::Tokens(_), Input::Features(_)) => example.clone(),
    }
}
