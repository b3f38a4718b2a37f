//! The sum over a lot: records in, private sums out.

use crate::grid::WEIGHT_STEPS;
use crate::reduce::Team;
use crate::{Private, Records};
use model::{Accumulator, Engine, Example, Isolation, StepScale, Sum};
use protocol::{GradientQuery, Params, Refused, Role, Trainable};
use ranks::{Number, Ranks};
use rayon::prelude::*;
use std::borrow::Cow;

/// Σ c x, the sum of weighted encoded gradients, by tensor.
pub(crate) struct Sums {
    pub(crate) tensors: Vec<Vec<f64>>,
}

/// How a sum is made.
pub(crate) enum Summing {
    /// Exactly, on these grids.
    Steps(Vec<StepScale>),
    /// In floating point: without privacy.
    Float,
}

/// What has been added up of a lot.
struct Part {
    sum: Sum,
    /// Σ c by block, in steps of [`WEIGHT_STEPS`]: integers, so that they do not depend on the
    /// order either.
    taken: Vec<i64>,
}

/// The records and what computes on them.
pub(crate) struct Holder<E> {
    engine: E,
    tensors: Vec<Trainable>,
    records: Records,
    micro_batch: usize,
    team: Team,
}

/// How many examples are computed on at a time, unless something else is asked for; and the most.
const MICRO_BATCH: usize = 16;
const LARGEST_MICRO_BATCH: usize = 1024;

/// How many records' sums are sent last, when several processes sum: so few that 32 bits hold them
/// on a narrow grid.
const LAST_RECORDS: usize = 31;

/// Steps in which clipped losses are added up, in a clip bound: at most 2³⁸.
const LOSS_BITS: f64 = 38.0;

impl<E: Engine> Holder<E> {
    /// Takes the records, if the engine takes them.
    pub(crate) fn new(mut engine: E, records: Records) -> Result<Self, Refused> {
        // Asked of everybody, before anything is computed: later no refusal depends on who is in a
        // lot.
        for place in 0..records.places() {
            let Some(example) = records.at(place)? else { continue };
            engine.admits(&[&example]).map_err(|error| match error {
                model::Error::Example { what, .. } => {
                    Refused::Query(format!("record {}: {what}", place + 1))
                }
                other => Refused::Query(other.to_string()),
            })?;
        }
        let tensors = engine.trainable();
        let team = Team::alone(tensors.iter().map(|tensor| tensor.shape.clone()).collect());
        Ok(Self { engine, tensors, records, micro_batch: MICRO_BATCH, team })
    }

    pub(crate) fn trainable(&self) -> &[Trainable] {
        &self.tensors
    }

    /// In how many places of the model each tensor enters.
    pub(crate) fn uses(&self) -> Vec<usize> {
        self.engine.uses()
    }

    /// How far the engine keeps records apart.
    pub(crate) fn isolation(&self) -> Isolation {
        self.engine.isolation()
    }

    /// How many places the data set has.
    pub(crate) fn places(&self) -> usize {
        self.records.places()
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

    /// Goes through a lot, and where there is not enough memory again from the start with half as
    /// many records at a time, now and from then on. What is summed does not depend on it: not a
    /// bit, for sums in steps (claim 2).
    fn with_room<T>(
        &mut self,
        mut go: impl FnMut(&mut Self, usize) -> Result<T, Short>,
    ) -> Result<T, Refused> {
        loop {
            match go(self, self.micro_batch) {
                Ok(done) => return Ok(done),
                Err(Short::Memory(_)) if self.micro_batch > 1 => self.micro_batch /= 2,
                Err(Short::Memory(what)) => return Err(Refused::Failed(what)),
                Err(Short::Refused(refused)) => return Err(refused),
            }
        }
    }

    /// Whether a query fits the model: asked before a lot is looked at, so that the answer does not
    /// depend on who is in it.
    pub(crate) fn check(&self, query: &GradientQuery<'_>) -> Result<(), Refused> {
        self.check_params(query.at)?;
        let pair = |(k, tensor): (usize, &Trainable)| {
            if let Role::Left(right) = tensor.role { Some((k, right)) } else { None }
        };
        let pairs: Vec<(usize, usize)> = self.tensors.iter().enumerate().filter_map(pair).collect();
        query.geometry.check(query.blocks, query.at, &pairs)?;
        query.geometry.check_frames(query.at)
    }

    /// Whether parameters are this model's.
    pub(crate) fn check_params(&self, at: &Params) -> Result<(), Refused> {
        let fits = at.len() == self.tensors.len()
            && at.iter().zip(&self.tensors).all(|(a, b)| a.shape() == b.shape);
        if fits { Ok(()) } else { Err(Refused::Query("parameters of another model".into())) }
    }

    /// Σ c g over a lot, in the query's geometry, where c = `factor(norm, block)`.
    ///
    /// # Claim
    /// (PROOFS.md, 2.) Before it is encoded, it is the sum over the taken places of the lot of
    /// something that depends on that place's record alone; in steps exactly so.
    /// # Why
    /// The engine's claim, for one micro-batch; addition of integers, across micro-batches and
    /// processes.
    /// # Checked by
    /// `micro_batches_do_not_matter`, `presence_changes_no_other_record`, and the engine's tests of
    /// isolation.
    pub(crate) fn gradients(
        &mut self,
        lot: &Private<Vec<usize>>,
        query: &GradientQuery<'_>,
        summing: &Summing,
        factor: impl Fn(f64, usize) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let places = self.team.own_places(lot.within());
        let (mut tensors, mut taken) = match summing {
            _ if self.team.is_alone() => {
                let part = self.part(&places, query, summing, &factor)?;
                (part.sum.into_tensors().into_iter().map(values).collect(), part.taken)
            }
            Summing::Steps(scales) => {
                let most = self.team.most_places(lot.within().len());
                self.exactly_together(&places, most, query, summing, scales, &factor)?
            }
            Summing::Float => {
                let part = self.part(&places, query, summing, &factor)?;
                self.team.rest();
                let tensors =
                    self.team.begin_sum(part.sum.into_tensors().into_iter().map(values).collect());
                (tensors.wait().map_err(|lost| Refused::Failed(lost.to_string()))?, part.taken)
            }
        };
        self.team.sum_few(&mut taken)?;
        let taken: Vec<f64> = taken.into_iter().map(|steps| steps as f64 / WEIGHT_STEPS).collect();
        query.geometry.encode_sum(query.blocks, &taken, &mut tensors);
        Ok(Private::new(Sums { tensors }))
    }

    /// The sums over all processes of their places, of which one has `most`: the tensors of this
    /// process, and this process's Σ c.
    ///
    /// The last few records of each process are summed by themselves. While that is done, the sums
    /// of all before them travel; then those of the few follow, in 32 bits if that holds them.
    fn exactly_together(
        &mut self,
        places: &[usize],
        most: usize,
        query: &GradientQuery<'_>,
        summing: &Summing,
        scales: &[StepScale],
        factor: &impl Fn(f64, usize) -> f64,
    ) -> Result<(Vec<Vec<f64>>, Vec<i64>), Refused> {
        let lost = |lost: ranks::Lost| Refused::Failed(lost.to_string());
        let (before, last) = places.split_at(places.len().saturating_sub(LAST_RECORDS));
        let mut taken = vec![0; query.blocks.count()];
        let mut under_way = None;
        // Whether any process has more than a few, which all answer alike.
        if most > LAST_RECORDS {
            let part = self.part(before, query, summing, factor)?;
            taken = part.taken;
            under_way = Some(self.team.begin_sum(steps(part.sum)));
        }
        let few = self.part(last, query, summing, factor)?;
        // What is left is the others' doing.
        self.team.rest();
        taken.iter_mut().zip(few.taken).for_each(|(taken, few)| *taken += few);
        let onto: Vec<Vec<i64>> =
            under_way.map_or(Ok(Vec::new()), ranks::Pending::wait).map_err(lost)?;
        let few = steps(few.sum);
        let narrow = scales.iter().all(|scale| matches!(scale, StepScale::Narrow(_)));
        let totals = if narrow {
            // 31 records of fewer than 2²⁶ steps each.
            let few = few
                .iter()
                .map(|few| {
                    few.iter()
                        .map(|&steps| steps.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
                        .collect()
                })
                .collect();
            self.team.sum_onto::<i64, i32>(onto, few)?
        } else {
            self.team.sum_onto::<i64, i64>(onto, few)?
        };
        let value = |(totals, scale): (Vec<i64>, &StepScale)| {
            values(Accumulator::Steps { totals, scale: scale.clone() })
        };
        Ok((totals.into_iter().zip(scales).map(value).collect(), taken))
    }

    /// Σ c g of some places.
    fn part(
        &mut self,
        places: &[usize],
        query: &GradientQuery<'_>,
        summing: &Summing,
        factor: &impl Fn(f64, usize) -> f64,
    ) -> Result<Part, Refused> {
        let mut part = Part { sum: summing.zeros(query.at), taken: Vec::new() };
        self.with_room(|holder, micro_batch| {
            part.sum.clear();
            part.taken.clear();
            part.taken.resize(query.blocks.count(), 0);
            places
                .chunks(micro_batch)
                .try_for_each(|places| holder.add(places, query, factor, &mut part))
        })?;
        Ok(part)
    }

    /// Adds one micro-batch.
    fn add(
        &mut self,
        places: &[usize],
        query: &GradientQuery<'_>,
        factor: &impl Fn(f64, usize) -> f64,
        part: &mut Part,
    ) -> Result<(), Short> {
        let taken_places = taken_places(&self.records, places)?;
        let examples: Vec<&Example> = taken_places.iter().map(|example| &**example).collect();
        self.team.tick(examples.iter().map(|example| example.len()).sum());
        let Part { sum, taken } = part;
        let centered = matches!(query.geometry, protocol::Geometry::Affine { .. });
        let weigh = &mut |seen: &model::Observed<'_>, weights: &mut model::Weights| {
            for (block, taken) in taken.iter_mut().enumerate() {
                (0..seen.examples()).for_each(|example| {
                    weights.set(example, block, factor(seen.norm(example, block), block))
                });
                // Of the weights as they count: what is not sound counts nothing. Each is rounded
                // by itself. Only a center asks for it.
                if !centered {
                    continue;
                }
                *taken += weights
                    .block(block)
                    .iter()
                    .map(|&weight| (f64::from(weight) * WEIGHT_STEPS).round() as i64)
                    .sum::<i64>();
            }
        };
        Ok(self.engine.weighted_sum(
            query.at,
            &examples,
            query.geometry,
            query.blocks,
            weigh,
            sum,
        )?)
    }

    /// Σ clip(loss) over a lot, in whole steps, of which `bound` has at most 2³⁸: exact, as sums of
    /// gradients are.
    pub(crate) fn losses(
        &mut self,
        lot: &Private<Vec<usize>>,
        at: &Params,
        bound: f64,
        clip: impl Fn(f64) -> f64,
    ) -> Result<Private<Sums>, Refused> {
        let steps = (LOSS_BITS - bound.log2()).floor().exp2();
        let sum = self.sum_losses(lot, at, |loss| (clip(loss) * steps).round_ties_even() as i64)?;
        Ok(Private::new(Sums { tensors: vec![vec![sum as f64 / steps]] }))
    }

    /// Σ loss over a lot, in floating point: without privacy.
    pub(crate) fn plain_losses(
        &mut self,
        lot: &Private<Vec<usize>>,
        at: &Params,
    ) -> Result<Private<Sums>, Refused> {
        let sum = self.sum_losses(lot, at, |loss| loss)?;
        Ok(Private::new(Sums { tensors: vec![vec![sum]] }))
    }

    /// The sum over a lot, on all processes, of what is made of each record's loss.
    fn sum_losses<A: Number>(
        &mut self,
        lot: &Private<Vec<usize>>,
        at: &Params,
        term: impl Fn(f64) -> A,
    ) -> Result<A, Refused> {
        let own = self.team.own_places(lot.within());
        let mut sum = self.with_room(|holder, micro_batch| {
            let mut sum = A::zeroed();
            for places in own.chunks(micro_batch) {
                let taken_places = taken_places(&holder.records, places)?;
                let examples: Vec<&Example> =
                    taken_places.iter().map(|example| &**example).collect();
                holder.team.tick(examples.iter().map(|example| example.len()).sum());
                holder.engine.losses(at, &examples)?.into_iter().for_each(|loss| sum += term(loss));
            }
            Ok(sum)
        })?;
        self.team.rest();
        self.team.sum_few(std::slice::from_mut(&mut sum))?;
        Ok(sum)
    }
}

impl Summing {
    fn zeros(&self, like: &Params) -> Sum {
        match self {
            Self::Float => Sum::float(like),
            Self::Steps(scales) => Sum::new(
                like.iter()
                    .zip(scales)
                    .map(|(tensor, scale)| Accumulator::steps(tensor.len(), scale.clone()))
                    .collect(),
            ),
        }
    }
}

/// A sum as numbers.
fn values(sum: Accumulator) -> Vec<f64> {
    match sum {
        Accumulator::Float(totals) => totals,
        Accumulator::Steps { totals, scale } => {
            let mut values: Vec<f64> = bytemuck::allocation::cast_vec(totals);
            let each = |(at, values): (usize, &mut [f64])| {
                for (i, value) in values.iter_mut().enumerate() {
                    let steps = value.to_bits() as i64;
                    *value = steps as f64 / f64::from(scale.of(at * CHUNK + i));
                }
            };
            values.par_chunks_mut(CHUNK).enumerate().for_each(each);
            values
        }
    }
}

/// Numbers of a piece of work.
const CHUNK: usize = 1 << 16;

fn steps(sum: Sum) -> Vec<Vec<i64>> {
    let totals = |sum: Accumulator| {
        if let Accumulator::Steps { totals, .. } = sum { totals } else { Vec::new() }
    };
    sum.into_tensors().into_iter().map(totals).collect()
}

/// The records in some places.
fn taken_places<'a>(
    records: &'a Records,
    places: &[usize],
) -> Result<Vec<Cow<'a, Example>>, Refused> {
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
            model::Error::Memory { .. } => {
                Self::Memory("there is not enough memory for one record at a time".into())
            }
            model::Error::Example { .. } => {
                Self::Refused(Refused::Failed("a record no longer fits the model".into()))
            }
            other => Self::Refused(Refused::Failed(other.to_string())),
        }
    }
}
