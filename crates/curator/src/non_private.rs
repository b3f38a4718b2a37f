//! Exact answers without privacy, for comparison. The ledger records them as non-private.

use crate::answers::failed;
use crate::sampler::Sampler;
use crate::sums::LotSummer;
use crate::{Private, Randomness, Records, Sampling};
use accounting::{Event, Ledger};
use engine::{Engine, Isolation, Reducer, SumPrecision};
use protocol::{
    Announcement, GradientQuery, LossQuery, Noisy, Oracle, Refused, TensorMap, Trainable,
};
use tensor::Array;

/// An oracle that neither clips nor adds noise. Its ledger holds non-private events: ε = ∞.
pub struct NonPrivateOracle<E> {
    summer: LotSummer<E>,
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
    /// Creates an oracle of an engine and records. **Its answers are not private.**
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

    /// Resumes with a ledger of non-private events.
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
            summer: LotSummer::new(engine, records)?,
            sampler,
            randomness,
            ledger,
            lot: None,
            draws,
        })
    }

    /// Sets the reducer, as [`Curator::set_reducer`](crate::Curator::set_reducer) does.
    ///
    /// # Errors
    /// If the reducer is made for other tensors.
    pub fn set_reducer(&mut self, reducer: Box<dyn Reducer>) -> Result<(), Refused> {
        self.lot = None;
        self.summer.set_reducer(reducer)
    }

    /// Sets the micro-batch size.
    pub fn set_micro_batch(&mut self, examples: usize) {
        self.summer.set_micro_batch(examples);
    }

    /// Returns the micro-batch size, which is smaller than requested after running out of memory.
    pub fn micro_batch(&self) -> usize {
        self.summer.micro_batch()
    }

    /// Returns how far the engine isolates records.
    pub fn isolation(&self) -> Isolation {
        self.summer.isolation()
    }

    /// Returns the public description of the trained tensors.
    pub fn trainable(&self) -> &[Trainable] {
        self.summer.trainable()
    }

    /// Returns what has been charged: non-private events.
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
        let draws = self.draws;
        self.summer.agree(&|| format!("{draws} {announced:?} {:?}", keys.tag.bytes()))?;
        self.draws += 1;
        self.lot = Some(self.sampler.draw(announced, &keys.lot));
        Ok(())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        let checked = self.summer.check(query)?;
        self.summer.agree_on_geometry(query.geometry)?;
        let lot = self.lot.take().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let sums =
            self.summer.gradients(&lot, query.at, &checked, &SumPrecision::Float, |_, _| 1.0);
        self.lot = Some(lot);
        let size = self.sampler.lot_size();
        let mean = |(k, sum): (usize, Vec<f64>)| {
            (k, Array::from_fn(query.at[k].shape(), |i| (sum[i] / size) as f32))
        };
        Ok(Noisy {
            value: sums?.into_inner().tensors.into_iter().map(mean).collect(),
            std: vec![0.0; query.blocks.count()],
        })
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        self.summer.check_params(query.at)?;
        let lot = self.lot.take().ok_or_else(|| Refused::Query("no lot has been drawn".into()))?;
        let sums = self.summer.plain_losses(&lot, query.at);
        self.lot = Some(lot);
        Ok(Noisy {
            value: sums?.into_inner().tensors[0][0] / self.sampler.lot_size(),
            std: vec![0.0],
        })
    }
}
