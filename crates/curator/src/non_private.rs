//! The same answers without privacy, and a ledger that says so: what privacy costs can be seen by
//! comparing.

use crate::sampler::Sampler;
use crate::secret::failed;
use crate::sums::LotSummer;
use crate::{Private, Randomness, Records, Sampling};
use accounting::{Event, Ledger};
use engine::{Engine, Isolation, SumPrecision};
use protocol::{Announcement, GradientQuery, LossQuery, Noisy, Oracle, Params, Refused, Trainable};
use ranks::Ranks;
use tensor::Array;

/// An oracle that neither clips nor adds noise. Its ledger holds non-private events: ε = ∞.
pub struct NonPrivateOracle<E> {
    holder: LotSummer<E>,
    sampler: Sampler,
    randomness: Randomness,
    ledger: Ledger,
    lot: Option<Private<Vec<usize>>>,
    draws: u64,
}

impl<E> std::fmt::Debug for NonPrivateOracle<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NonPrivateOracle")
            .field("sampling", &self.sampler.sampling)
            .finish_non_exhaustive()
    }
}

impl<E: Engine> NonPrivateOracle<E> {
    /// Takes the records. **What it answers is not private.**
    ///
    /// # Errors
    /// If a record does not fit the model, or the lots do not fit the data.
    pub fn new(
        engine: E,
        records: Records,
        sampling: Sampling,
        randomness: Randomness,
    ) -> Result<Self, Refused> {
        Self::resumed(engine, records, sampling, randomness, Ledger::new())
    }

    /// Goes on with a ledger of non-private events.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn resumed(
        engine: E,
        records: Records,
        sampling: Sampling,
        randomness: Randomness,
        ledger: Ledger,
    ) -> Result<Self, Refused> {
        let sampler = Sampler::new(sampling, records.places())?;
        let draws = ledger.events().len();
        Ok(Self {
            holder: LotSummer::new(engine, records)?,
            sampler,
            randomness,
            ledger,
            lot: None,
            draws,
        })
    }

    /// Is one of several processes, as a [`Curator`](crate::Curator) can be.
    ///
    /// # Errors
    /// If a tensor has no owner.
    pub fn join(&mut self, ranks: Ranks, owners: Vec<usize>) -> Result<(), Refused> {
        self.holder.join(ranks, owners)
    }

    /// How many records are computed on at a time.
    pub fn set_micro_batch(&mut self, examples: usize) {
        self.holder.set_micro_batch(examples);
    }

    /// How many records are computed on at a time now.
    pub fn micro_batch(&self) -> usize {
        self.holder.micro_batch()
    }

    /// How far the engine keeps records apart.
    pub fn isolation(&self) -> Isolation {
        self.holder.isolation()
    }

    /// What is publicly known of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        self.holder.trainable()
    }

    /// Non-private events.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl<E: Engine> Oracle for NonPrivateOracle<E> {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        self.ledger
            .charge(Event::NonPrivate, 1)
            .map_err(|error| Refused::Failed(error.to_string()))?;
        let keys = self.randomness.draw(self.draws).map_err(failed)?;
        self.holder
            .team()
            .agree(|| format!("{} {announced:?} {:?}", self.draws, keys.tag.bytes()))?;
        self.draws += 1;
        self.lot = Some(self.sampler.draw(announced, &keys.lot));
        Ok(())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<Params>, Refused> {
        let checked = self.holder.check(query)?;
        self.holder.team().agree_on(query.geometry)?;
        let lot = self.lot.take().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let sums =
            self.holder.gradients(&lot, query.at, &checked, &SumPrecision::Float, |_, _| 1.0);
        self.lot = Some(lot);
        let size = self.sampler.lot_size();
        let tensors = sums?.out().tensors.into_iter().zip(self.holder.team().own_shapes());
        let mean = |(sum, shape): (Vec<f64>, Vec<usize>)| {
            Array::from_fn(shape, |i| (sum[i] / size) as f32)
        };
        Ok(Noisy {
            value: Params::new(tensors.map(mean).collect()),
            std: vec![0.0; query.blocks.count()],
        })
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        self.holder.check_params(query.at)?;
        let lot = self.lot.take().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let sums = self.holder.plain_losses(&lot, query.at);
        self.lot = Some(lot);
        Ok(Noisy { value: sums?.out().tensors[0][0] / self.sampler.lot_size(), std: vec![0.0] })
    }

    fn gather(&mut self, parts: &mut Params) -> Result<(), Refused> {
        self.holder.team().gather(parts)
    }
}
