//! The sum over a lot: records in, private sums out.

use crate::reduce::Team;
use crate::{Private, Records};
use model::{Engine, Example};
use protocol::{GradientQuery, Params, Refused, Role, Trainable};
use ranks::{Pending, Ranks};
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
    team: Team,
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
        let team = Team::alone(tensors.iter().map(|tensor| tensor.shape.clone()).collect());
        Ok(Self { engine, tensors, records, micro_batch: MICRO_BATCH, team, micro: Params::new(zeros) })
    }

    pub(crate) fn trainable(&self) -> &[Trainable] {
        &self.tensors
    }

    pub(crate) fn team(&self) -> &Team {
        &self.team
    }

    /// One process of several.
    pub(crate) fn join(&mut self, ranks: Ranks, owners: Vec<usize>) -> Result<(), Refused> {
        self.team = self.team.with(ranks, owners)?;
        Ok(())
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
        let places = self.team.own_places(lot.within());
        let mut sums = if self.team.is_alone() {
            self.part(&places, query, at_once, &factor)?
        } else {
            self.together(&places, self.team.most_places(lot.within().len()), query, at_once, &factor)?
        };
        query.geometry.encode_sum(query.blocks, &sums.taken, &mut sums.tensors);
        Ok(Private::new(sums))
    }

    /// The sums over all processes of their places, of which one has `most`: the tensors of this process, and Σ c.
    ///
    /// The last few records of each process are summed by themselves. While that is done, the sums of all before them travel; then those of the few follow, in f32, in which they were made. (What that
    /// rounds is within what is allowed for one micro-batch: PROOFS.md, 3.)
    fn together(
        &mut self,
        places: &[usize],
        most: usize,
        query: &GradientQuery<'_>,
        at_once: usize,
        factor: &impl Fn(f64, usize) -> f64,
    ) -> Result<Sums, Refused> {
        let few = LARGEST_MICRO_BATCH.min(at_once).max(1);
        let (before, last) = places.split_at(places.len().saturating_sub(few));
        let mut taken = vec![0.0; query.blocks.count()];
        let mut under_way = None;
        // Whether anybody has more than a few, which all processes answer alike.
        if most > few {
            let sums = self.part(before, query, at_once, factor)?;
            taken.copy_from_slice(&sums.taken);
            under_way = Some(self.team.begin_sum(sums.tensors));
        }
        let few = self.few(last, query, factor)?;
        // What is left is the others' doing.
        self.team.rest();
        taken.iter_mut().zip(few).for_each(|(taken, few)| *taken += few);
        let onto = under_way.map_or(Ok(Vec::new()), Pending::wait).map_err(|lost| Refused::Failed(lost.to_string()))?;
        let tensors = self.team.sum_onto(onto, &mut self.micro)?;
        self.team.sum_few(&mut taken)?;
        Ok(Sums { tensors, taken })
    }

    /// Σ c g of so few places that one micro-batch could hold them, left in `micro`; gives Σ c.
    fn few(&mut self, places: &[usize], query: &GradientQuery<'_>, factor: &impl Fn(f64, usize) -> f64) -> Result<Vec<f64>, Refused> {
        let taken = self.with_room(|holder, micro_batch| {
            let mut taken = vec![0.0; query.blocks.count()];
            holder.micro.fill(0.0);
            for places in places.chunks(micro_batch) {
                holder.add(places, query, factor, &mut taken)?;
            }
            Ok(taken)
        })?;
        if is_finite(&self.micro) {
            return Ok(taken);
        }
        let sums = self.one_by_one(places, query, factor)?;
        for (few, sum) in self.micro.iter_mut().zip(&sums.tensors) {
            few.data_mut().iter_mut().zip(sum).for_each(|(few, &sum)| *few = sum as f32);
        }
        Ok(sums.taken)
    }

    /// Σ c g of some places, in f64 across micro-batches.
    fn part(
        &mut self,
        places: &[usize],
        query: &GradientQuery<'_>,
        at_once: usize,
        factor: &impl Fn(f64, usize) -> f64,
    ) -> Result<Sums, Refused> {
        let sums = self.with_room(|holder, micro_batch| holder.sum(places, query, factor, micro_batch.min(at_once).max(1)))?;
        if sums.is_finite() { Ok(sums) } else { self.one_by_one(places, query, factor) }
    }

    /// The same, one record at a time, without those that are not finite by themselves.
    fn one_by_one(&mut self, places: &[usize], query: &GradientQuery<'_>, factor: &impl Fn(f64, usize) -> f64) -> Result<Sums, Refused> {
        self.sum(places, query, factor, 1).map_err(|short| match short {
            Short::Memory(what) => Refused::Failed(what),
            Short::Refused(refused) => refused,
        })
    }

    /// Adds Σ c g of one micro-batch to `micro`, and Σ c to `taken`.
    fn add(
        &mut self,
        places: &[usize],
        query: &GradientQuery<'_>,
        factor: &impl Fn(f64, usize) -> f64,
        taken: &mut [f64],
    ) -> Result<(), Short> {
        let taken_places = taken_places(&self.records, places)?;
        let examples: Vec<&Example> = taken_places.iter().map(|example| &**example).collect();
        self.team.tick(examples.iter().map(|example| example.len()).sum());
        let weigh = &mut |seen: &model::Observed<'_>, weights: &mut model::Weights| {
            for (block, taken) in taken.iter_mut().enumerate() {
                (0..seen.examples()).for_each(|example| weights.set(example, block, factor(seen.norm(example, block), block)));
                // Of the weights as they count: what is not sound counts nothing.
                *taken += weights.total(block);
            }
        };
        Ok(self.engine.weighted_sum(query.at, &examples, query.geometry, query.blocks, weigh, &mut self.micro)?)
    }

    fn sum(
        &mut self,
        places: &[usize],
        query: &GradientQuery<'_>,
        factor: &impl Fn(f64, usize) -> f64,
        micro_batch: usize,
    ) -> Result<Sums, Short> {
        let mut sums =
            Sums { tensors: self.micro.iter().map(|tensor| vec![0.0; tensor.len()]).collect(), taken: vec![0.0; query.blocks.count()] };
        for places in places.chunks(micro_batch) {
            let mut taken = vec![0.0; query.blocks.count()];
            self.micro.fill(0.0);
            self.add(places, query, factor, &mut taken)?;
            if micro_batch == 1 && !is_finite(&self.micro) {
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
        let own = self.team.own_places(lot.within());
        let mut sum = self.with_room(|holder, micro_batch| {
            let mut sum = vec![0.0];
            for places in own.chunks(micro_batch) {
                let taken_places = taken_places(&holder.records, places)?;
                let examples: Vec<&Example> = taken_places.iter().map(|example| &**example).collect();
                holder.team.tick(examples.iter().map(|example| example.len()).sum());
                let losses = holder.engine.losses(at, &examples)?;
                sum[0] += losses.into_iter().map(&clip).sum::<f64>();
            }
            Ok(sum)
        })?;
        self.team.rest();
        self.team.sum_few(&mut sum)?;
        Ok(Private::new(Sums { tensors: vec![sum], taken: Vec::new() }))
    }
}

fn is_finite(params: &Params) -> bool {
    params.iter().all(|tensor| tensor.data().par_chunks(1 << 16).all(|numbers| numbers.iter().all(|x| x.is_finite())))
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
