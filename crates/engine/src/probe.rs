//! Checks that an engine must pass, with synthetic examples, before it sees a record.

use crate::query::low_rank_pairs;
use crate::{
    Accumulator, CheckedQuery, Combination, Engine, Error, Example, Input, Isolation, StepScale,
    Sum, SumPrecision, Target, Weights,
};
use protocol::{Blocks, Frame, Geometry, GeometryKind, Params};
use tensor::Array;

/// Refuses an engine that mixes examples, reports wrong norms or leaves a tensor without gradient.
///
/// - *Mixing.* With batch norm, a mean or maximum over the batch, padding that counts, or a
///   division by the batch size, one record changes the contributions of others, and clipping
///   bounds nothing. So it is with a product that is rounded differently if there are more rows.
/// - *Norms.* If a norm is too small, a contribution exceeds the clip bound.
/// - *Gradients.* A tensor without a gradient would learn nothing from its noisy sums.
///
/// An engine that declares [`Isolation::Exact`] must compute the same bits for an example alone and
/// together with longer, shorter and many other examples, in every position.
///
/// # Errors
/// Describes the first check that fails, with the name of the tensor if there is one.
pub fn probe(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    probe_isolation(engine, params)?;
    probe_norms(engine, params)?;
    probe_idle_tensors(engine, params)
}

/// Refuses an engine in which a trainable tensor gets no gradient from any example.
///
/// Tensors of zeros are replaced by small numbers. At zero, the gradient of another tensor can be
/// zero that will not be later: that of the other factor of a low-rank pair, for example.
fn probe_idle_tensors(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    let params = &without_zero_tensors(params);
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

/// Returns the parameters, with small numbers in place of tensors of zeros.
fn without_zero_tensors(params: &Params) -> Params {
    let tensor = |(k, tensor): (usize, &Array)| match tensor.data().iter().all(|&x| x == 0.0) {
        true => Array::from_fn(tensor.shape(), |i| 0.02 * ((i + 7 * k + 1) as f32 * 0.618).sin()),
        false => tensor.clone(),
    };
    Params::new(params.iter().enumerate().map(tensor).collect())
}

/// Refuses an engine that reports other norms than those of the gradients that it sums.
///
/// All geometries that it supports are tested.
///
/// # Errors
/// Names the geometry and the block whose norm differs.
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
        // Factors without full rank have no tangent space. Queries in it are refused, too.
        if let Ok(frames) = pairs.iter().map(frame).collect::<Result<_, _>>() {
            cases.push((Geometry::Tangent { frames }, &flat));
        }
    }
    for (geometry, blocks) in &cases {
        let query = CheckedQuery::new(params, geometry, blocks, &tensors)?;
        for example in engine.probe_examples().iter().chain(&combined_examples(engine)) {
            let outcome = Outcome::new(engine, params, &[example], 0, &query, None)?;
            outcome.check_norms(&query)?;
        }
    }
    Ok(())
}

/// Returns an affine geometry whose center and scale differ from element to element.
fn affine(params: &Params) -> Geometry {
    let fill = |f: &dyn Fn(f32) -> f32| {
        let tensor = |(k, tensor): (usize, &Array)| {
            Array::from_fn(tensor.shape(), |i| f(((i + 7 * k) as f32 * 0.618).sin()))
        };
        Params::new(params.iter().enumerate().map(tensor).collect())
    };
    Geometry::Affine { center: fill(&|x| 1e-3 * x), scale: fill(&|x| 1.0 + 0.5 * x) }
}

/// Refuses an engine in which one example changes the loss, norm or gradient of another.
///
/// # Errors
/// If an example changes another, or there are fewer than three probe examples.
pub fn probe_isolation(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    let examples = engine.probe_examples();
    let [long, middle, short, ..] = &examples[..] else {
        return Err(Error::Probe("an engine must offer at least three probe examples".into()));
    };
    let blocks = Blocks::flat(params.len());
    let query = CheckedQuery::new(params, &Geometry::Identity, &blocks, &engine.trainable())?;
    let other = altered(middle, long);
    let many: Vec<Example> =
        (0..MANY).map(|i| if i % 2 == 0 { altered(short, long) } else { short.clone() }).collect();
    let combined = combined_examples(engine);
    probe_combination(engine, params)?;
    let single = std::iter::once(short.clone()).chain(extremes(short));
    for target in single.chain(combined.iter().cloned()) {
        let target = &target;
        let alone = Outcome::new(engine, params, &[target], 0, &query, None)?;
        let scales = Some(&alone.scales[..]);
        // The content of another example must not change a bit, whatever isolation the engine
        // declares, because all shapes are the same.
        let with_middle = Outcome::new(engine, params, &[target, middle], 0, &query, scales)?;
        let with_other = Outcome::new(engine, params, &[target, &other], 0, &query, scales)?;
        if !with_middle.is_same(&with_other) {
            return Err(Error::Probe(format!("{MIXED}: {MIXING_ADVICE}")));
        }
        // One outcome at a time, because each holds a gradient as large as the model.
        for (batch, index) in [
            (vec![target, middle], 0),
            (vec![middle, target], 1),
            (vec![target, long], 0),
            (vec![long, target, middle], 1),
        ] {
            compare(engine, params, &query, &alone, &batch, index)?;
        }
        // Examples of several parts change where the rows of later ones begin.
        if let Some(combined) = combined.first() {
            compare(engine, params, &query, &alone, &[combined, target, middle], 1)?;
        }
        for index in [0, MANY / 2, MANY] {
            let mut batch: Vec<&Example> = many.iter().collect();
            batch.insert(index, target);
            compare(engine, params, &query, &alone, &batch, index)?;
        }
    }
    Ok(())
}

/// Returns examples of several parts; none if the engine does not support them.
fn combined_examples(engine: &mut (impl Engine + ?Sized)) -> Vec<Example> {
    let examples = engine.probe_examples();
    let [long, middle, short, ..] = &examples[..] else { return Vec::new() };
    // The same part twice, and parts of which one differs in content only.
    let parts = [short, middle, &altered(short, long), short].map(Clone::clone);
    [Combination::Mean, Combination::Sum]
        .into_iter()
        .filter_map(|combination| Example::combined(parts.clone(), combination))
        .filter(|example| engine.validate(example).is_ok())
        .collect()
}

/// Refuses an engine in which the loss of several parts is not the mean or sum of their losses.
fn probe_combination(engine: &mut (impl Engine + ?Sized), params: &Params) -> Result<(), Error> {
    for example in combined_examples(engine) {
        engine.load(params)?;
        let mut loss_of = |example: &Example| -> Result<f64, Error> {
            Ok(engine.losses(&[example])?.first().copied().unwrap_or(f64::NAN))
        };
        let mut expected = 0.0;
        for part in example.parts() {
            expected += f64::from(example.part_weight()) * loss_of(&part.clone().into())?;
        }
        let loss = loss_of(&example)?;
        engine.unload();
        // Written for the valid case, so that NaN is refused.
        if !((loss - expected).abs() <= 1e-4 * expected.abs().max(1e-3)) {
            return Err(Error::Probe(format!(
                "an example of {} parts has the loss {loss:.6e}, expected {expected:.6e} ({:?} of \
                 its parts)",
                example.parts().len(),
                example.combination()
            )));
        }
    }
    Ok(())
}

const MIXED: &str = "one example changes another's loss or gradient";
const MIXING_ADVICE: &str =
    "such a model cannot be trained privately (batch norm? a mean over the batch? padding?)";

/// Number of other examples in a large batch: so many that libraries choose another kernel.
const MANY: usize = 16;

/// Returns variants of an example for which rounding matters most.
///
/// Zeros and huge features put many units at a kink. Texts are one token repeated, and a text as
/// short as possible.
fn extremes(example: &Example) -> Vec<Example> {
    let part = &example.parts()[0];
    let with = |input: Input| Example::new(input, part.target.clone());
    match (&part.input, &part.target) {
        (Input::Features(features), _) => {
            vec![
                with(Input::Features(vec![0.0; features.len()])),
                with(Input::Features(features.iter().map(|x| 1000.0 * x).collect())),
            ]
        }
        (Input::Tokens(tokens), Target::Next(_)) => vec![
            Example::continuation(tokens.iter().map(|_| tokens[0]).collect(), 1),
            Example::continuation(tokens.iter().take(2).copied().collect(), 1),
        ],
        (Input::Tokens(tokens), _) => vec![
            with(Input::Tokens(tokens.iter().map(|_| tokens[0]).collect())),
            with(Input::Tokens(tokens.iter().take(1).copied().collect())),
        ],
    }
}

/// Refuses if the example at `index` of a batch has another outcome than alone.
fn compare(
    engine: &mut (impl Engine + ?Sized),
    params: &Params,
    query: &CheckedQuery<'_>,
    alone: &Outcome,
    batch: &[&Example],
    index: usize,
) -> Result<(), Error> {
    let among = Outcome::new(engine, params, batch, index, query, Some(&alone.scales))?;
    let isolation = engine.isolation();
    if among.is_same(alone) || isolation == Isolation::UpToRounding && among.is_near(alone) {
        return Ok(());
    }
    let advice = if among.is_near(alone) {
        "by rounding, which can decide a whole gradient: an engine that cannot do better must say \
         so"
    } else {
        MIXING_ADVICE
    };
    Err(Error::Probe(format!("{MIXED}: {advice}")))
}

/// Losses, norms and gradient of one example of a micro-batch.
struct Outcome {
    /// From [`Engine::observe`] and from [`Engine::losses`].
    losses: [f64; 2],
    /// By block.
    norms: Vec<f64>,
    /// Steps per unit of the grid to which the gradient is rounded, by block.
    scales: Vec<f32>,
    gradient: Sum,
}

impl Outcome {
    /// Computes the outcome of the example at `index`; the others have weight 0.
    ///
    /// The gradient is rounded to a grid with `scales`; if there are none, to one that suits its
    /// norms.
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
        let plain_loss = engine.losses(examples)?.get(index).copied().unwrap_or(f64::NAN);
        engine.unload();
        Ok(Self {
            losses: [observed.loss(index), plain_loss],
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
            // A norm may be larger, by the rounding that it covers. Tests for the valid case, so
            // that NaN is refused.
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

    /// Iterates over pairs of corresponding elements of two gradients.
    fn element_pairs<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f64, f64)> + 'a {
        let pairs = self.gradient.iter().zip(other.gradient.iter());
        pairs.flat_map(|(a, b)| (0..a.len()).map(move |i| (a.value(i), b.value(i))))
    }

    /// Whether two outcomes are equal bit for bit.
    fn is_same(&self, other: &Self) -> bool {
        let bits = |norms: &[f64]| norms.iter().map(|norm| norm.to_bits()).collect::<Vec<_>>();
        self.losses.map(f64::to_bits) == other.losses.map(f64::to_bits)
            && bits(&self.norms) == bits(&other.norms)
            && self.element_pairs(other).all(|(a, b)| a == b)
    }

    /// Whether two outcomes are equal up to rounding. Values that are not finite must be equal.
    fn is_near(&self, other: &Self) -> bool {
        let near = |x: f64, y: f64| {
            x.to_bits() == y.to_bits() || (x - y).abs() <= 1e-4 * x.abs().max(1e-3)
        };
        let square = |x: f64| x * x;
        let squared_distance: f64 = self.element_pairs(other).map(|(a, b)| square(a - b)).sum();
        let squared_norm: f64 = self.element_pairs(self).map(|(x, _)| square(x)).sum();
        near(self.losses[0], other.losses[0])
            && near(self.losses[1], other.losses[1])
            && self.norms.iter().zip(&other.norms).all(|(&x, &y)| near(x, y))
            && squared_distance <= 1e-6 * squared_norm.max(1e-12)
    }
}

/// How far a reported norm may be below that of the summed gradient, relative to it.
///
/// The summed gradient is rounded to a grid, which can increase its norm.
const NORM_TOLERANCE: f64 = 1e-3;

/// How far a reported norm may be above that of the summed gradient, relative to it.
///
/// A reported norm covers rounding, so it is larger.
const NORM_EXCESS: f64 = 0.02;

/// Below this, norms are not compared.
const TINY: f64 = 1e-20;

/// Returns a power of two for which elements of a gradient of this norm have fewer than 2²⁵ steps.
fn suitable_scale(norm: f64) -> f32 {
    let norm = if norm > 0.0 && norm < 1e30 { norm } else { 1.0 };
    (24.0 - norm.log2()).floor().clamp(-100.0, 100.0).exp2() as f32
}

/// Iterates over the elements of a sum, by tensor.
fn elements(sum: &Sum) -> impl Iterator<Item = impl Iterator<Item = f64>> {
    sum.iter().map(|sum| (0..sum.len()).map(|i| sum.value(i)))
}

/// Computes the L2 norm of each block.
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

/// Returns an example of the same size with other content: the tokens and target of `from`.
///
/// Features are transformed instead, because there are always equally many of them.
fn altered(example: &Example, from: &Example) -> Example {
    let (part, from) = (&example.parts()[0], &from.parts()[0]);
    match (&part.input, &from.input) {
        (Input::Tokens(tokens), Input::Tokens(others)) => {
            let tokens: Vec<u32> = others.iter().copied().cycle().take(tokens.len()).collect();
            match &from.target {
                Target::Next(_) => Example::continuation(tokens, 1),
                target => Example::new(Input::Tokens(tokens), target.clone()),
            }
        }
        (Input::Features(features), _) => Example::new(
            Input::Features(features.iter().map(|x| 1.0 - 3.0 * x).collect()),
            from.target.clone(),
        ),
        (Input::Tokens(_), Input::Features(_)) => example.clone(),
    }
}
