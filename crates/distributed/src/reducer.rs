//! Sums of a lot over all ranks. They have no noise yet, so they go to the curator only.

use crate::{Ownership, Pending, Ranks, Summand};
use engine::{Accumulator, Reducer, StepScale, Sum};
use protocol::{Refused, TensorMap, Trainable};
use tensor::outer::NARROW;

/// Divides the places of a lot among the ranks and sends the sums of each tensor to its owner.
///
/// Of n ranks, each sums every n-th place, so their numbers of places differ by at most one. Vacant
/// places count, so the division does not depend on the records. The last few places of a rank are
/// a second stage: while their sum is computed, the sum of the first stage is sent. The sum of the
/// last stage is sent in 32 bits if it fits.
pub struct LotReducer {
    ranks: Ranks,
    ownership: Ownership,
    /// Stages of the current lot that are still to be added.
    stages_left: usize,
    /// The sum of the first of two stages, which is being sent.
    pending: Option<PendingSum>,
    /// The sum of the last stage, which is sent by `finish`.
    last: Option<Sum>,
}

/// A sum that is being sent and added up.
enum PendingSum {
    Steps(Pending<TensorMap<Vec<i64>>>),
    Float(Pending<TensorMap<Vec<f64>>>),
}

/// Most records of a rank in the last stage: 32 bits hold their sum on a narrow grid.
const LAST_RECORDS: usize = 31;

const _: () = assert!(LAST_RECORDS as u64 * NARROW as u64 <= i32::MAX as u64);

impl LotReducer {
    /// Creates the reducer of this rank.
    ///
    /// # Errors
    /// If a tensor has an owner that is not one of the ranks.
    pub fn new(ranks: Ranks, ownership: Ownership) -> Result<Self, Refused> {
        let missing = |&tensor: &usize| ownership.owner(tensor) >= ranks.count();
        if let Some(tensor) = (0..ownership.tensors()).find(missing) {
            return Err(Refused::Query(format!(
                "owner of tensor {tensor}: expected a rank below {}, got {}",
                ranks.count(),
                ownership.owner(tensor)
            )));
        }
        Ok(Self { ranks, ownership, stages_left: 0, pending: None, last: None })
    }

    /// Refuses a sum of other tensors than those that have an owner.
    fn check_elements(&self, sum: &Sum) -> Result<(), Refused> {
        let elements = (0..self.ownership.tensors()).map(|k| self.ownership.elements(k));
        if sum.iter().map(Accumulator::len).eq(elements) {
            return Ok(());
        }
        Err(Refused::Failed("the engine's sum does not have the elements of the tensors".into()))
    }

    /// Adds up a few values over all ranks, in the order of the ranks.
    fn sum_few<A: Summand>(&self, values: &mut [A]) -> Result<(), Refused> {
        self.ranks.end_work();
        let all = self.ranks.all_gather_bytes(bytemuck::cast_slice(values).to_vec())?;
        values.fill(A::zeroed());
        for (rank, theirs) in all.into_iter().enumerate() {
            if theirs.len() != size_of_val(values) {
                let (expected, got) = (size_of_val(values), theirs.len());
                return Err(crate::Error::Length { rank, expected, got }.into());
            }
            let theirs: Vec<A> = bytemuck::pod_collect_to_vec(&theirs);
            values.iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }
}

impl Reducer for LotReducer {
    fn validate(&self, tensors: &[Trainable]) -> Result<(), Refused> {
        let shapes = (0..self.ownership.tensors()).map(|k| self.ownership.shape(k));
        if tensors.iter().map(|tensor| &tensor.shape[..]).eq(shapes) {
            return Ok(());
        }
        Err(Refused::Query(format!(
            "ownership: expected the {} tensors of the model, got {} or other shapes",
            tensors.len(),
            self.ownership.tensors()
        )))
    }

    fn stages(&mut self, lot: &[usize]) -> Vec<Vec<usize>> {
        (self.pending, self.last) = (None, None);
        let (rank, count) = (self.ranks.rank(), self.ranks.count());
        let mut places: Vec<usize> = lot.iter().copied().skip(rank).step_by(count).collect();
        // The number of stages must be the same on all ranks, so it depends on the largest share.
        let stages = if lot.len().div_ceil(count) > LAST_RECORDS {
            let last = places.split_off(places.len().saturating_sub(LAST_RECORDS));
            vec![places, last]
        } else {
            vec![places]
        };
        self.stages_left = stages.len();
        stages
    }

    fn add(&mut self, sum: Sum) -> Result<(), Refused> {
        self.check_elements(&sum)?;
        self.stages_left = self.stages_left.checked_sub(1).ok_or_else(out_of_order)?;
        if self.stages_left == 0 {
            self.last = Some(sum);
            return Ok(());
        }
        self.pending = Some(match split(sum)? {
            (Totals::Steps(totals), _) => {
                PendingSum::Steps(self.ranks.reduce(&self.ownership, totals))
            }
            (Totals::Float(totals), _) => {
                PendingSum::Float(self.ranks.reduce(&self.ownership, totals))
            }
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<TensorMap<Accumulator>, Refused> {
        // From here on this rank waits for others, which is not a stall.
        self.ranks.end_work();
        let (totals, scales) = split(self.last.take().ok_or_else(out_of_order)?)?;
        match (totals, self.pending.take()) {
            (Totals::Steps(last), first @ (None | Some(PendingSum::Steps(_)))) => {
                let first = match first {
                    Some(PendingSum::Steps(first)) => first.wait()?,
                    _ => TensorMap::new(),
                };
                let narrow = scales.iter().all(|scale| matches!(scale, StepScale::Narrow(_)));
                let totals = if narrow {
                    // 31 records of fewer than 2²⁶ steps each.
                    let short = |steps: i64| steps.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
                    let last: Vec<Vec<i32>> =
                        last.into_iter().map(|x| x.into_iter().map(short).collect()).collect();
                    self.ranks.reduce_onto(&self.ownership, first, last).wait()?
                } else {
                    self.ranks.reduce_onto(&self.ownership, first, last).wait()?
                };
                let accumulator = |(k, totals): (usize, Vec<i64>)| {
                    (k, Accumulator::Steps { totals, scale: scales[k].clone() })
                };
                Ok(totals.into_iter().map(accumulator).collect())
            }
            (Totals::Float(last), first @ (None | Some(PendingSum::Float(_)))) => {
                let first = match first {
                    Some(PendingSum::Float(first)) => first.wait()?,
                    _ => TensorMap::new(),
                };
                let totals = self.ranks.reduce_onto(&self.ownership, first, last).wait()?;
                Ok(totals.into_iter().map(|(k, totals)| (k, Accumulator::Float(totals))).collect())
            }
            _ => Err(out_of_order()),
        }
    }

    fn sum_integers(&self, values: &mut [i64]) -> Result<(), Refused> {
        self.sum_few(values)
    }

    fn sum_floats(&self, values: &mut [f64]) -> Result<(), Refused> {
        self.sum_few(values)
    }

    fn agree(&self, state: &dyn Fn() -> String) -> Result<(), Refused> {
        // Two owners of a tensor would add the same noise to different sums.
        let state = format!("{:?} {}", self.ownership, state());
        match self.ranks.first_difference(state.into_bytes())? {
            None => Ok(()),
            Some(rank) => Err(Refused::Failed(format!(
                "rank {rank} and rank 0 are not doing the same: the draw, the charges, the lot, \
                 the secret, the coordinates or the owners of tensors differ; start all processes \
                 with the same command"
            ))),
        }
    }

    fn start_micro_batch(&self, tokens: usize) {
        self.ranks.start_work(tokens as u64);
    }
}

/// The totals of all tensors.
enum Totals {
    Steps(Vec<Vec<i64>>),
    Float(Vec<Vec<f64>>),
}

/// Splits a sum into totals and, if it is in steps, their scales.
fn split(sum: Sum) -> Result<(Totals, Vec<StepScale>), Refused> {
    let tensors = sum.into_tensors();
    let (mut steps, mut floats, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    let count = tensors.len();
    for tensor in tensors {
        match tensor {
            Accumulator::Steps { totals, scale } => {
                steps.push(totals);
                scales.push(scale);
            }
            Accumulator::Float(totals) => floats.push(totals),
        }
    }
    if floats.is_empty() && steps.len() == count {
        Ok((Totals::Steps(steps), scales))
    } else if steps.is_empty() {
        Ok((Totals::Float(floats), scales))
    } else {
        Err(Refused::Failed("a sum is partly in steps and partly in floating point".into()))
    }
}

fn out_of_order() -> Refused {
    Refused::Failed("the reducer was called out of order".into())
}
