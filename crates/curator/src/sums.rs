//! Clipped sums over a lot: records in, private sums out.

use crate::grid::WEIGHT_STEPS;
use crate::{Private, Records};
use engine::{
    Accumulator, CheckedQuery, Engine, Example, Isolation, OneProcess, Reducer, Sum, SumPrecision,
    Weights,
};
use protocol::{Geometry, GradientQuery, Params, Refused, TensorMap, Trainable};
use rayon::prelude::*;
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Σ c x: the weighted sums of encoded gradients, for the tensors that this process owns.
pub(crate) struct Sums {
    pub(crate) tensors: TensorMap<Vec<f64>>,
}

impl Sums {
    /// Wraps a single value, such as a sum of losses.
    fn single(value: f64) -> Self {
        Self { tensors: [(0, vec![value])].into_iter().collect() }
    }
}

/// The sum over the places of one stage.
struct StageSum {
    gradients: Sum,
    /// Σ c by block, in steps of 1/[`WEIGHT_STEPS`]. Integers, so the order does not matter.
    weights: Vec<i64>,
}

/// Computes the sums of a lot, from the records, with the engine.
pub(crate) struct LotSummer<E> {
    engine: E,
    tensors: Vec<Trainable>,
    records: Records,
    micro_batch: usize,
    reducer: Box<dyn Reducer>,
}

/// Default micro-batch size.
const DEFAULT_MICRO_BATCH: usize = 16;

/// Largest micro-batch size.
const MAX_MICRO_BATCH: usize = 1024;

/// Clipped losses are summed in steps of which their clip bound has at most 2^`LOSS_BITS`.
const LOSS_BITS: f64 = 38.0;

impl<E: Engine> LotSummer<E> {
    /// Takes the records after the engine has validated all of them.
    pub(crate) fn new(mut engine: E, records: Records) -> Result<Self, Refused> {
        // All records are validated before anything is computed, so that no later refusal depends
        // on which records are in a lot.
        for place in 0..records.places() {
            let Some(example) = records.at(place)? else { continue };
            engine.validate(&example).map_err(|error| match error {
                engine::Error::Example { reason, .. } => {
                    Refused::Query(format!("record {}: {reason}", place + 1))
                }
                engine::Error::OutOfMemory { .. } => Refused::Query(format!(
                    "record {} does not fit into memory; limit the rows of a person \
                     (data.rows_per_person) or the chunks of a text (data.max_chunks)",
                    place + 1
                )),
                other => Refused::Query(other.to_string()),
            })?;
        }
        let tensors = engine.trainable();
        let reducer = Box::new(OneProcess::default());
        Ok(Self { engine, tensors, records, micro_batch: DEFAULT_MICRO_BATCH, reducer })
    }

    pub(crate) fn trainable(&self) -> &[Trainable] {
        &self.tensors
    }

    /// Returns how often the engine rounds a record's contribution to each tensor to the grid.
    pub(crate) fn roundings(&self) -> Vec<usize> {
        self.engine.roundings()
    }

    /// Returns how far the engine isolates records from each other.
    pub(crate) fn isolation(&self) -> Isolation {
        self.engine.isolation()
    }

    /// Returns the number of places of the data set.
    pub(crate) fn places(&self) -> usize {
        self.records.places()
    }

    pub(crate) fn set_reducer(&mut self, reducer: Box<dyn Reducer>) -> Result<(), Refused> {
        reducer.validate(&self.tensors)?;
        self.reducer = reducer;
        Ok(())
    }

    /// Returns the places of a lot that this process sums, in stages, as the reducer divides it.
    ///
    /// Checks that no place occurs twice, and none outside of the lot. [`check_places`] checks that
    /// all processes together have all places.
    fn stages(&mut self, lot: &[usize]) -> Result<Vec<Vec<usize>>, Refused> {
        let stages = self.reducer.stages(lot);
        let mut own: Vec<usize> = stages.concat();
        own.sort_unstable();
        let repeated = own.windows(2).any(|pair| pair[0] == pair[1]);
        if repeated || !own.iter().all(|place| lot.binary_search(place).is_ok()) {
            return Err(wrong_division());
        }
        Ok(stages)
    }

    /// Waits for all processes and refuses if the state of one differs.
    pub(crate) fn agree(&self, state: &dyn Fn() -> String) -> Result<(), Refused> {
        self.reducer.agree(state)
    }

    /// Refuses if another process has other coordinates.
    ///
    /// One process clips a gradient and another adds the noise, so their coordinates must be the
    /// same. Only tangent spaces are compared: each process computes them for itself, by
    /// factorisations that may differ between processors.
    pub(crate) fn agree_on_geometry(&self, geometry: &Geometry) -> Result<(), Refused> {
        let Geometry::Tangent { frames } = geometry else { return Ok(()) };
        self.agree(&|| {
            let mut hasher = DefaultHasher::new();
            let arrays = frames.iter().flat_map(|frame| {
                [&frame.left_basis, &frame.right_basis, &frame.left_inverse, &frame.right_inverse]
            });
            arrays.flat_map(|array| array.data()).for_each(|x| x.to_bits().hash(&mut hasher));
            hasher.finish().to_string()
        })
    }

    pub(crate) fn set_micro_batch(&mut self, examples: usize) {
        self.micro_batch = examples.clamp(1, MAX_MICRO_BATCH);
    }

    pub(crate) fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Calls `process` with the micro-batch size; on out-of-memory, halves it and starts over.
    ///
    /// Exact sums do not depend on the micro-batch size (PROOFS.md, 2).
    fn retry_on_out_of_memory<T>(
        &mut self,
        mut process: impl FnMut(&mut Self, usize) -> Result<T, Failure>,
    ) -> Result<T, Refused> {
        let outcome = loop {
            match process(self, self.micro_batch) {
                Ok(done) => break Ok(done),
                Err(Failure::OutOfMemory) if self.micro_batch > 1 => self.micro_batch /= 2,
                Err(Failure::OutOfMemory) => {
                    let what = "out of memory: one record at a time does not fit";
                    break Err(Refused::Failed(what.into()));
                }
                Err(Failure::Refused(refused)) => break Err(refused),
            }
        };
        self.engine.unload();
        outcome
    }

    /// Validates a query against the model.
    ///
    /// It does not read the lot, so a refusal does not depend on which records are in it.
    pub(crate) fn check<'a>(&self, query: &GradientQuery<'a>) -> Result<CheckedQuery<'a>, Refused> {
        let kind = query.geometry.kind();
        if !self.engine.supports(kind) {
            return Err(Refused::Query(format!("the engine does not support {kind:?} geometry")));
        }
        CheckedQuery::new(query.at, query.geometry, query.blocks, &self.tensors)
    }

    /// Refuses parameters of other shapes than the trainable tensors.
    pub(crate) fn check_params(&self, params: &Params) -> Result<(), Refused> {
        let same_shape =
            |(array, tensor): (&tensor::Array, &Trainable)| array.shape() == tensor.shape;
        let fits =
            params.len() == self.tensors.len() && params.iter().zip(&self.tensors).all(same_shape);
        if fits { Ok(()) } else { Err(Refused::Query("parameters of another model".into())) }
    }

    /// Returns Σ c g over a lot, encoded in the query's geometry, with c = `factor(norm, block)`.
    ///
    /// # Claim
    /// (PROOFS.md, 2.) Before it is encoded, it is a sum over the records of the lot, and each term
    /// depends on its own record alone: exactly if the precision is in steps.
    /// # Why
    /// Within a micro-batch this is the claim of [`Engine`]. Micro-batches and processes add
    /// integers.
    /// # Checked by
    /// `releases_do_not_depend_on_micro_batches`, `presence_changes_no_other_record`, and the
    /// engine's tests of isolation.
    pub(crate) fn gradients(
        &mut self,
        lot: &Private<Vec<usize>>,
        params: &Params,
        query: &CheckedQuery<'_>,
        precision: &SumPrecision,
        factor: impl Fn(f64, usize) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let mut weights = vec![0; query.blocks().count()];
        let mut places = 0;
        for stage in self.stages(lot.inner())? {
            let stage_sum = self.sum_stage(&stage, params, query, precision, &factor)?;
            places += stage.len() as i64;
            weights.iter_mut().zip(stage_sum.weights).for_each(|(sum, weight)| *sum += weight);
            self.reducer.add(stage_sum.gradients)?;
        }
        let totals = self.reducer.finish()?;
        self.check_elements(&totals)?;
        // The number of places is summed over all processes together with the weights.
        weights.push(places);
        self.reducer.sum_integers(&mut weights)?;
        check_places(weights.pop(), lot.inner())?;
        let weights: Vec<f64> =
            weights.into_iter().map(|steps| steps as f64 / WEIGHT_STEPS).collect();
        let mut tensors = totals.into_iter().map(|(k, total)| (k, elements(total))).collect();
        query.geometry().encode_sum(query.blocks(), &weights, &mut tensors);
        Ok(Private::new(Sums { tensors }))
    }

    /// Refuses sums that do not have the elements of the trainable tensors.
    fn check_elements(&self, totals: &TensorMap<Accumulator>) -> Result<(), Refused> {
        let fits = |(k, total): (usize, &Accumulator)| {
            let shape = self.tensors.get(k).map(|tensor| &tensor.shape);
            shape.is_some_and(|shape| shape.iter().product::<usize>() == total.len())
        };
        if totals.iter().all(fits) {
            return Ok(());
        }
        Err(Refused::Failed("the reducer returned sums of other shapes".into()))
    }

    /// Returns Σ c g over the places of one stage, not encoded.
    fn sum_stage(
        &mut self,
        places: &[usize],
        params: &Params,
        query: &CheckedQuery<'_>,
        precision: &SumPrecision,
        factor: &impl Fn(f64, usize) -> f64,
    ) -> Result<StageSum, Refused> {
        self.retry_on_out_of_memory(|summer, micro_batch| {
            summer.engine.load(params)?;
            summer.engine.start_sum(precision)?;
            let mut weights = vec![0; query.blocks().count()];
            for places in places.chunks(micro_batch) {
                summer.add_micro_batch(places, query, factor, &mut weights)?;
            }
            let gradients = summer.engine.take_sum()?;
            // A sum in floating point would not be exact, and one on another grid not bounded.
            if !precision.fits(&gradients) {
                return Err(Refused::Failed("the engine summed in another precision".into()).into());
            }
            Ok(StageSum { gradients, weights })
        })
    }

    /// Adds one micro-batch: observes the examples, weighs them and accumulates their gradients.
    ///
    /// `totals` has Σ c by block, in steps of 1/[`WEIGHT_STEPS`], if the geometry is affine.
    fn add_micro_batch(
        &mut self,
        places: &[usize],
        query: &CheckedQuery<'_>,
        factor: &impl Fn(f64, usize) -> f64,
        totals: &mut [i64],
    ) -> Result<(), Failure> {
        let records = records_at(&self.records, places)?;
        let examples: Vec<&Example> = records.iter().map(|example| &**example).collect();
        self.reducer.start_micro_batch(examples.iter().map(|example| example.len()).sum());
        let observed = self.engine.observe(&examples, query)?;
        let blocks = query.blocks().count();
        if observed.examples() != examples.len() || observed.blocks() != blocks {
            return Err(Refused::Failed("the engine observed other examples".into()).into());
        }
        let mut weights = Weights::zeros(examples.len(), blocks);
        // An example with a loss or norm that is not finite has weight 0 in all blocks.
        for example in (0..examples.len()).filter(|&example| observed.is_sound(example)) {
            for block in 0..blocks {
                weights.set(example, block, factor(observed.norm(example, block), block));
            }
        }
        // Only an affine encoding uses the sum of weights. They are whole numbers of steps.
        if matches!(query.geometry(), Geometry::Affine { .. }) {
            for (block, total) in totals.iter_mut().enumerate() {
                let steps = |&weight: &f32| (f64::from(weight) * WEIGHT_STEPS).round() as i64;
                *total += weights.block(block).iter().map(steps).sum::<i64>();
            }
        }
        Ok(self.engine.accumulate(&weights)?)
    }

    /// Returns Σ clip(loss) over a lot, summed exactly in steps of a grid.
    ///
    /// `bound` is the largest absolute value that `clip` returns; it determines the steps.
    pub(crate) fn losses(
        &mut self,
        lot: &Private<Vec<usize>>,
        params: &Params,
        bound: f64,
        clip: impl Fn(f64) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let steps = (LOSS_BITS - bound.log2()).floor().exp2();
        let own = self.stages(lot.inner())?.concat();
        let sum =
            self.sum_losses(&own, params, |loss| (clip(loss) * steps).round_ties_even() as i64)?;
        let mut sums = [sum, own.len() as i64];
        self.reducer.sum_integers(&mut sums)?;
        check_places(Some(sums[1]), lot.inner())?;
        Ok(Private::new(Sums::single(sums[0] as f64 / steps)))
    }

    /// Returns Σ loss over a lot, in floating point: for training without privacy.
    pub(crate) fn plain_losses(
        &mut self,
        lot: &Private<Vec<usize>>,
        params: &Params,
    ) -> Result<Private<Sums>, Refused> {
        let own = self.stages(lot.inner())?.concat();
        let mut sum = self.sum_losses(&own, params, |loss| loss)?;
        self.reducer.sum_floats(std::slice::from_mut(&mut sum))?;
        Ok(Private::new(Sums::single(sum)))
    }

    /// Returns the sum of `term(loss)` over the places `own`, which this process sums.
    fn sum_losses<A: Copy + Default + std::ops::AddAssign>(
        &mut self,
        own: &[usize],
        params: &Params,
        term: impl Fn(f64) -> A,
    ) -> Result<A, Refused> {
        self.retry_on_out_of_memory(|summer, micro_batch| {
            summer.engine.load(params)?;
            let mut sum = A::default();
            for places in own.chunks(micro_batch) {
                let records = records_at(&summer.records, places)?;
                let examples: Vec<&Example> = records.iter().map(|example| &**example).collect();
                let tokens = examples.iter().map(|example| example.len()).sum();
                summer.reducer.start_micro_batch(tokens);
                let losses = summer.engine.losses(&examples)?;
                if losses.len() != examples.len() {
                    return Err(Refused::Failed("the engine has other losses".into()).into());
                }
                losses.into_iter().for_each(|loss| sum += term(loss));
            }
            Ok(sum)
        })
    }
}

/// Refuses if all processes together have not summed as many places as the lot has.
fn check_places(summed: Option<i64>, lot: &[usize]) -> Result<(), Refused> {
    if summed == Some(lot.len() as i64) { Ok(()) } else { Err(wrong_division()) }
}

fn wrong_division() -> Refused {
    Refused::Failed("the reducer does not divide a lot into its places".into())
}

/// Returns the elements of a sum as floating-point numbers.
fn elements(sum: Accumulator) -> Vec<f64> {
    match sum {
        Accumulator::Float(totals) => totals,
        Accumulator::Steps { totals, scale } => {
            // Converted in place: an element holds the bits of its integer until it is divided.
            let mut values: Vec<f64> = bytemuck::allocation::cast_vec(totals);
            let convert = |(chunk, values): (usize, &mut [f64])| {
                for (i, value) in values.iter_mut().enumerate() {
                    let steps = value.to_bits() as i64;
                    *value = steps as f64 / f64::from(scale.of(chunk * CHUNK + i));
                }
            };
            values.par_chunks_mut(CHUNK).enumerate().for_each(convert);
            values
        }
    }
}

/// Elements that one thread converts at a time.
const CHUNK: usize = 1 << 16;

/// Returns the records at some places, without vacant places.
fn records_at<'a>(
    records: &'a Records,
    places: &[usize],
) -> Result<Vec<Cow<'a, Example>>, Refused> {
    places.iter().filter_map(|&place| records.at(place).transpose()).collect()
}

/// Why a lot could not be processed.
enum Failure {
    OutOfMemory,
    Refused(Refused),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Converts an error of the engine, without its message about an example, which may reveal it.
impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::OutOfMemory { .. } => Self::OutOfMemory,
            engine::Error::Example { .. } => {
                Self::Refused(Refused::Failed("a record no longer fits the model".into()))
            }
            other => Self::Refused(Refused::Failed(other.to_string())),
        }
    }
}
