//! The sum over a lot: records in, private sums out.

use crate::{Alone, Private, Records, Reduce};
use model::{Engine, Example};
use protocol::{GradientQuery, Params, Refused};
use rayon::prelude::*;
use tensor::Array;

/// Σ c g by tensor, and Σ c by block.
pub(crate) struct Sums {
    pub(crate) tensors: Vec<Vec<f64>>,
    pub(crate) taken: Vec<f64>,
}

/// The records and what computes on them.
pub(crate) struct Holder<E> {
    engine: E,
    records: Records,
    micro_batch: usize,
    reduce: Box<dyn Reduce>,
    /// The sum of one micro-batch.
    micro: Params,
}

/// How many examples are computed on at a time, unless somebody says otherwise.
const MICRO_BATCH: usize = 16;

impl<E: Engine> Holder<E> {
    /// Takes the records, if the engine takes them.
    pub(crate) fn new(mut engine: E, records: Records) -> Result<Self, Refused> {
        // Asked of everybody, before anything is computed: later no refusal depends on who is in a lot.
        records.iter().enumerate().try_for_each(|(index, example)| {
            engine.admits(&[example]).map_err(|error| match error {
                model::Error::Example { what, .. } => Refused::Query(format!("record {}: {what}", index + 1)),
                other => Refused::Query(other.to_string()),
            })
        })?;
        let zeros = engine.trainable().into_iter().map(|tensor| Array::zeros(tensor.shape)).collect();
        Ok(Self { engine, records, micro_batch: MICRO_BATCH, reduce: Box::new(Alone), micro: Params::new(zeros) })
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    pub(crate) fn set_micro_batch(&mut self, examples: usize) {
        self.micro_batch = examples.max(1);
    }

    pub(crate) fn set_reduce(&mut self, reduce: Box<dyn Reduce>) {
        self.reduce = reduce;
    }

    /// Whether a query fits the model: asked before anything is computed.
    pub(crate) fn check(&self, at: &Params) -> Result<(), Refused> {
        let fits = at.len() == self.micro.len() && at.iter().zip(self.micro.iter()).all(|(a, b)| a.shape() == b.shape());
        if fits { Ok(()) } else { Err(Refused::Query("parameters of another model".into())) }
    }

    /// Σ c g over a lot, in the query's geometry, where c = `factor(norm, block)`. In f64 across micro-batches.
    ///
    /// # Claim
    /// It is the sum over the taken places of the lot of something that depends on that place's record alone.
    /// # Why
    /// The engine's claim, for one micro-batch; addition, across micro-batches and processes.
    /// # Checked by
    /// `micro_batches_do_not_matter`, and the engine's tests of isolation.
    pub(crate) fn gradients(
        &mut self,
        lot: &Private<Vec<usize>>,
        query: &GradientQuery<'_>,
        factor: impl Fn(f64, usize) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let count = query.blocks.count();
        let mut sums = Sums { tensors: self.micro.iter().map(|tensor| vec![0.0; tensor.len()]).collect(), taken: vec![0.0; count] };
        for examples in micro_batches(&self.records, lot, self.reduce.share(), self.micro_batch) {
            self.micro.fill(0.0);
            let taken = &mut sums.taken;
            let weigh = &mut |seen: &model::Observed<'_>, weights: &mut model::Weights| {
                for example in (0..seen.examples()).filter(|&example| seen.is_sound(example)) {
                    for (block, taken) in taken.iter_mut().enumerate() {
                        let weight = factor(seen.norm(example, block), block) as f32;
                        weights.set(example, block, f64::from(weight));
                        // What a weight that is not finite counts as.
                        *taken += if weight.is_finite() { f64::from(weight) } else { 0.0 };
                    }
                }
            };
            self.engine.weighted_sum(query.at, &examples, query.geometry, query.blocks, weigh, &mut self.micro).map_err(refusal)?;
            for (sum, micro) in sums.tensors.iter_mut().zip(self.micro.iter()) {
                sum.par_chunks_mut(1 << 16).zip(micro.data().par_chunks(1 << 16)).for_each(|(sum, micro)| {
                    sum.iter_mut().zip(micro).for_each(|(sum, &micro)| *sum += f64::from(micro));
                });
            }
        }
        sums.tensors.iter_mut().chain([&mut sums.taken]).try_for_each(|numbers| self.reduce.sum(numbers))?;
        query.geometry.encode_sum(query.blocks, &sums.taken, &mut sums.tensors);
        Ok(Private::new(sums))
    }

    /// Σ clip(loss) over a lot.
    pub(crate) fn losses(&mut self, lot: &Private<Vec<usize>>, at: &Params, clip: impl Fn(f64) -> f64) -> Result<Private<Sums>, Refused> {
        let mut sum = vec![0.0];
        for examples in micro_batches(&self.records, lot, self.reduce.share(), self.micro_batch) {
            let losses = self.engine.losses(at, &examples).map_err(refusal)?;
            sum[0] += losses.into_iter().map(&clip).sum::<f64>();
        }
        self.reduce.sum(&mut sum)?;
        Ok(Private::new(Sums { tensors: vec![sum], taken: Vec::new() }))
    }
}

/// The taken places of this process's share of a lot, in groups.
fn micro_batches<'a>(
    records: &'a Records,
    lot: &Private<Vec<usize>>,
    (share, shares): (usize, usize),
    micro_batch: usize,
) -> impl Iterator<Item = Vec<&'a Example>> + use<'a> {
    let taken: Vec<&Example> = lot.within().iter().skip(share).step_by(shares).filter_map(|&place| records.at(place)).collect();
    let groups: Vec<Vec<&Example>> = taken.chunks(micro_batch).map(<[_]>::to_vec).collect();
    groups.into_iter()
}

/// What the engine said, without what it may say of a record.
fn refusal(error: model::Error) -> Refused {
    Refused::Failed(match error {
        model::Error::Example { .. } => "a record no longer fits the model".into(),
        other => other.to_string(),
    })
}
