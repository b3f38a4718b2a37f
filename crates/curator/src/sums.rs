//! The sum over a lot: records in, private sums out.

use crate::reduce::{Alone, Reduce};
use crate::{Private, Records};
use model::{Engine, Example};
use protocol::{GradientQuery, Params, Refused, Role, Trainable};
use rayon::prelude::*;
use std::borrow::Cow;
use tensor::Array;

/// Σ c g by tensor, and Σ c by block.
pub(crate) struct Sums {
    pub(crate) tensors: Vec<Vec<f64>>,
    pub(crate) taken: Vec<f64>,
}

impl Sums {
    fn is_finite(&self) -> bool {
        self.tensors.par_iter().all(|tensor| tensor.par_chunks(1 << 16).all(|numbers| numbers.iter().all(|x| x.is_finite())))
    }
}

/// The records and what computes on them.
pub(crate) struct Holder<E> {
    engine: E,
    tensors: Vec<Trainable>,
    records: Records,
    micro_batch: usize,
    reduce: Box<dyn Reduce>,
    /// The sum of one micro-batch.
    micro: Params,
}

/// How many examples are computed on at a time, unless somebody says otherwise; and the most, so that rounding within one micro-batch stays small.
const MICRO_BATCH: usize = 16;
const LARGEST_MICRO_BATCH: usize = 32;

impl<E: Engine> Holder<E> {
    /// Takes the records, if the engine takes them.
    pub(crate) fn new(mut engine: E, records: Records) -> Result<Self, Refused> {
        // Asked of everybody, before anything is computed: later no refusal depends on who is in a lot.
        for place in 0..records.places() {
            let Some(example) = records.at(place)? else { continue };
            engine.admits(&[&example]).map_err(|error| match error {
                model::Error::Example { what, .. } => Refused::Query(format!("record {}: {what}", place + 1)),
                other => Refused::Query(other.to_string()),
            })?;
        }
        let tensors = engine.trainable();
        let zeros = tensors.iter().map(|tensor| Array::zeros(tensor.shape.clone())).collect();
        Ok(Self { engine, tensors, records, micro_batch: MICRO_BATCH, reduce: Box::new(Alone), micro: Params::new(zeros) })
    }

    pub(crate) fn trainable(&self) -> &[Trainable] {
        &self.tensors
    }

    pub(crate) fn set_micro_batch(&mut self, examples: usize) {
        self.micro_batch = examples.clamp(1, LARGEST_MICRO_BATCH);
    }

    pub(crate) fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Goes through a lot, and where there is not enough memory again from the start with half as many records at a time, now and from then on. What is summed does not depend on it (claim 2).
    fn with_room<T>(&mut self, go: impl Fn(&mut Self, usize) -> Result<T, Short>) -> Result<T, Refused> {
        loop {
            match go(self, self.micro_batch) {
                Ok(done) => return Ok(done),
                Err(Short::Memory(_)) if self.micro_batch > 1 => self.micro_batch /= 2,
                Err(Short::Memory(what)) => return Err(Refused::Failed(what)),
                Err(Short::Refused(refused)) => return Err(refused),
            }
        }
    }

    /// How many places of a lot are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self, lot: &Private<Vec<usize>>) -> Result<usize, Refused> {
        Ok(taken_places(&self.records, lot.within())?.len())
    }

    /// Whether a query fits the model: asked before a lot is looked at, so that the answer does not depend on who is in it.
    pub(crate) fn check(&self, query: &GradientQuery<'_>) -> Result<(), Refused> {
        self.check_params(query.at)?;
        let pair = |(k, tensor): (usize, &Trainable)| if let Role::Left(right) = tensor.role { Some((k, right)) } else { None };
        let pairs: Vec<(usize, usize)> = self.tensors.iter().enumerate().filter_map(pair).collect();
        query.geometry.check(query.blocks, query.at, &pairs)?;
        query.geometry.check_frames(query.at)
    }

    /// Whether parameters are this model's.
    pub(crate) fn check_params(&self, at: &Params) -> Result<(), Refused> {
        let fits = at.len() == self.micro.len() && at.iter().zip(self.micro.iter()).all(|(a, b)| a.shape() == b.shape());
        if fits { Ok(()) } else { Err(Refused::Query("parameters of another model".into())) }
    }

    /// Σ c g over a lot, in the query's geometry, where c = `factor(norm, block)`. In f64 across micro-batches, of `at_once` records at most.
    ///
    /// # Claim
    /// (PROOFS.md, 2.) It is the sum over the taken places of the lot of something that depends on that place's record alone.
    /// # Why
    /// The engine's claim, for one micro-batch; addition, across micro-batches and processes. If a sum is not finite, it is made again, one record at a time, without the records that
    /// are not finite by themselves.
    /// # Checked by
    /// `micro_batches_do_not_matter`, `a_record_that_overflows_is_left_out`, and the engine's tests of isolation.
    pub(crate) fn gradients(
        &mut self,
        lot: &Private<Vec<usize>>,
        query: &GradientQuery<'_>,
        at_once: usize,
        factor: impl Fn(f64, usize) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let mut sums = self.with_room(|holder, micro_batch| holder.sum(lot, query, &factor, micro_batch.min(at_once).max(1)))?;
        if !sums.is_finite() {
            sums = self.sum(lot, query, &factor, 1).map_err(|short| match short {
                Short::Memory(what) => Refused::Failed(what),
                Short::Refused(refused) => refused,
            })?;
        }
        sums.tensors.iter_mut().chain([&mut sums.taken]).try_for_each(|numbers| self.reduce.sum(numbers))?;
        query.geometry.encode_sum(query.blocks, &sums.taken, &mut sums.tensors);
        Ok(Private::new(sums))
    }

    fn sum(
        &mut self,
        lot: &Private<Vec<usize>>,
        query: &GradientQuery<'_>,
        factor: &impl Fn(f64, usize) -> f64,
        micro_batch: usize,
    ) -> Result<Sums, Short> {
        let mut sums =
            Sums { tensors: self.micro.iter().map(|tensor| vec![0.0; tensor.len()]).collect(), taken: vec![0.0; query.blocks.count()] };
        let mut taken = sums.taken.clone();
        for places in micro_batches(lot, self.reduce.share(), micro_batch) {
            let taken_places = taken_places(&self.records, &places)?;
            let examples: Vec<&Example> = taken_places.iter().map(|example| &**example).collect();
            self.micro.fill(0.0);
            let weigh = &mut |seen: &model::Observed<'_>, weights: &mut model::Weights| {
                for (block, taken) in taken.iter_mut().enumerate() {
                    (0..seen.examples()).for_each(|example| weights.set(example, block, factor(seen.norm(example, block), block)));
                    // Of the weights as they count: what is not sound counts nothing.
                    *taken = weights.total(block);
                }
            };
            self.engine.weighted_sum(query.at, &examples, query.geometry, query.blocks, weigh, &mut self.micro)?;
            if micro_batch == 1 && !self.micro.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite())) {
                continue;
            }
            sums.taken.iter_mut().zip(&taken).for_each(|(sum, taken)| *sum += taken);
            for (sum, micro) in sums.tensors.iter_mut().zip(self.micro.iter()) {
                sum.par_chunks_mut(1 << 16).zip(micro.data().par_chunks(1 << 16)).for_each(|(sum, micro)| {
                    sum.iter_mut().zip(micro).for_each(|(sum, &micro)| *sum += f64::from(micro));
                });
            }
        }
        Ok(sums)
    }

    /// Σ clip(loss) over a lot.
    pub(crate) fn losses(&mut self, lot: &Private<Vec<usize>>, at: &Params, clip: impl Fn(f64) -> f64) -> Result<Private<Sums>, Refused> {
        let mut sum = self.with_room(|holder, micro_batch| {
            let mut sum = vec![0.0];
            for places in micro_batches(lot, holder.reduce.share(), micro_batch) {
                let taken_places = taken_places(&holder.records, &places)?;
                let examples: Vec<&Example> = taken_places.iter().map(|example| &**example).collect();
                let losses = holder.engine.losses(at, &examples)?;
                sum[0] += losses.into_iter().map(&clip).sum::<f64>();
            }
            Ok(sum)
        })?;
        self.reduce.sum(&mut sum)?;
        Ok(Private::new(Sums { tensors: vec![sum], taken: Vec::new() }))
    }
}

/// The places of this process's share of a lot, in groups. Vacant ones are among them.
fn micro_batches(lot: &Private<Vec<usize>>, (share, shares): (usize, usize), micro_batch: usize) -> Vec<Vec<usize>> {
    let own: Vec<usize> = lot.within().iter().copied().filter(|place| place % shares == share).collect();
    own.chunks(micro_batch).map(<[_]>::to_vec).collect()
}

/// The records in some places.
fn taken_places<'a>(records: &'a Records, places: &[usize]) -> Result<Vec<Cow<'a, Example>>, Refused> {
    places.iter().filter_map(|&place| records.at(place).transpose()).collect()
}

/// Why a lot was not gone through.
enum Short {
    Memory(String),
    Refused(Refused),
}

impl From<Refused> for Short {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// What the engine said, without what it may say of a record.
impl From<model::Error> for Short {
    fn from(error: model::Error) -> Self {
        match error {
            model::Error::Memory { .. } => Self::Memory("there is not enough memory for one record at a time".into()),
            model::Error::Example { .. } => Self::Refused(Refused::Failed("a record no longer fits the model".into())),
            other => Self::Refused(Refused::Failed(other.to_string())),
        }
    }
}
