//! The shape of a run: steps of one kind, given by sizes and rates as users know them.

use crate::calibrate::{self, Target};
use crate::error::{Error, Result};
use crate::event::{Composition, Event, Release};
use crate::number::{Delta, SamplingRate, Sigma};
use crate::sampling::{Sampling, SamplingMethod};
use crate::{Accountant, Guarantee, Unit};

/// A run of equal steps. What is not given is derived, or an error where it is needed.
///
/// ```
/// use accounting::shape::RunShape;
/// use accounting::{Adjacency, Sigma};
///
/// let run = RunShape {
///     dataset_size: Some(60_000),
///     lot_size: Some(256),
///     epochs: Some(60.0),
///     ..RunShape::new(Adjacency::AddRemove)
/// };
/// assert_eq!((run.steps()?, run.delta_or_default(None)?), (14_063, 0.1 / 60_000.0));
/// assert_eq!(run.events(Sigma::new(1.1)?, run.steps()?)?.len(), 14_063);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunShape {
    /// How lots are drawn.
    pub sampling: SamplingMethod,
    /// The probability that an example is in a lot; lot size / dataset size if it is not given.
    pub sampling_rate: Option<f64>,
    /// The number of examples, which is public.
    pub dataset_size: Option<u64>,
    /// The number of examples in a lot; the expected one for Poisson sampling.
    pub lot_size: Option<u64>,
    /// The number of steps.
    pub steps: Option<u64>,
    /// Passes over the data, if the number of steps is not given.
    pub epochs: Option<f64>,
    /// The number of blocks released from each lot, each with the noise multiplier.
    pub blocks: u64,
    /// The unit of privacy.
    pub unit: Unit,
}

impl RunShape {
    /// Creates a shape of Poisson sampling and one block, without sizes.
    pub fn new(unit: impl Into<Unit>) -> Self {
        Self {
            sampling: SamplingMethod::Poisson,
            sampling_rate: None,
            dataset_size: None,
            lot_size: None,
            steps: None,
            epochs: None,
            blocks: 1,
            unit: unit.into(),
        }
    }

    /// Returns δ, given or 1/(10 N).
    ///
    /// # Errors
    /// If neither δ nor the dataset size is given.
    pub fn delta_or_default(&self, delta: Option<f64>) -> Result<f64> {
        match (delta, self.dataset_size) {
            (Some(delta), _) => Ok(delta),
            (None, Some(n)) if n > 0 => Ok(0.1 / n as f64),
            _ => Err(Error::Missing("delta, or dataset_size for the default of 1/(10·N)")),
        }
    }

    /// Returns the sampling rate, given or derived.
    ///
    /// # Errors
    /// If it is out of range, or cannot be derived.
    pub fn rate(&self) -> Result<SamplingRate> {
        if self.sampling == SamplingMethod::Full {
            return SamplingRate::new(1.0);
        }
        match (self.sampling_rate, self.lot_size, self.dataset_size) {
            (Some(q), _, _) => SamplingRate::new(q),
            (None, Some(b), Some(n)) => SamplingRate::new(b as f64 / n as f64),
            _ => Err(Error::Missing("sampling_rate, or dataset_size with lot_size")),
        }
    }

    /// Returns the number of steps, given or derived from epochs and rounded up.
    ///
    /// # Errors
    /// If neither is given, or the number is out of range.
    pub fn steps(&self) -> Result<u64> {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Ok(steps),
            (None, Some(epochs)) => {
                let steps = (epochs / self.rate()?.get()).ceil();
                if (1.0..1e15).contains(&steps) {
                    Ok(steps as u64)
                } else {
                    let (name, expected) = ("the number of epochs", "greater than 0");
                    Err(Error::OutOfRange { name, expected, got: epochs.to_string() })
                }
            }
            _ => Err(Error::Missing("steps or epochs")),
        }
    }

    /// Returns the events of this many steps with this noise multiplier.
    ///
    /// # Errors
    /// If a size is missing or out of range.
    pub fn events(&self, sigma: Sigma, steps: u64) -> Result<Composition> {
        let release = Release::joint([(sigma, self.blocks)])?;
        let lots = match self.sampling {
            SamplingMethod::Full => Sampling::Full,
            SamplingMethod::Poisson => Sampling::Poisson { rate: self.rate()? },
            SamplingMethod::FixedSize => match (self.dataset_size, self.lot_size) {
                (Some(n), Some(b)) => Sampling::fixed_size(n, b)?,
                _ => {
                    return Err(Error::Missing(
                        "dataset_size and lot_size, for lots of fixed size",
                    ));
                }
            },
            SamplingMethod::Shuffled => {
                // Only the number of lots per epoch matters. Rounding it down counts enough epochs,
                // whether or not an implementation drops the last, short lot of an epoch.
                let lots_per_epoch = (1.0 / self.rate()?.get() + 1e-9).floor().max(1.0);
                Sampling::shuffled(lots_per_epoch as u64, 1)?
            }
        };
        let count = steps.div_ceil(lots.lots_per_event());
        Ok(Composition::repeated(Event::Gaussian { lots, release }, count))
    }

    /// Finds the run with the largest lot, of at most `most` examples, that keeps the target.
    ///
    /// # Errors
    /// If the dataset size is missing, lots have no size, or no lot keeps the target.
    pub fn with_largest_lot(
        &self,
        target: Target,
        sigma: Sigma,
        most: Option<u64>,
    ) -> Result<(Self, Guarantee)> {
        let dataset = self.dataset_size.ok_or(Error::Missing("dataset_size"))?;
        if self.sampling == SamplingMethod::Full {
            let (name, expected) = ("the sampling", "one with a lot size");
            return Err(Error::OutOfRange { name, expected, got: self.sampling.name().into() });
        }
        let with_lot = |lot| Self { lot_size: Some(lot), sampling_rate: None, ..*self };
        with_lot(1).steps()?;
        let events = |lot: u64| {
            let run = with_lot(lot);
            run.events(sigma, run.steps().unwrap_or(u64::MAX))
        };
        let most = most.unwrap_or(dataset).min(dataset);
        let (lot, price) = calibrate::lot_size(target, most, events)?;
        Ok((with_lot(lot), price))
    }

    /// Returns the joint noise multiplier of all blocks of a step, divided by the sensitivity of
    /// the unit.
    pub fn effective_sigma(&self, sigma: Sigma) -> f64 {
        let Unit { adjacency, rows } = self.unit;
        sigma.get() / (self.blocks as f64).sqrt() / adjacency.sensitivity() / rows as f64
    }

    /// Returns warnings about weak settings.
    pub fn warnings(&self, delta: Option<Delta>, accountant: Accountant) -> Vec<String> {
        let mut warnings = Vec::new();
        if let (Some(delta), Some(n)) = (delta, self.dataset_size)
            && n > 0
            && delta.get() >= 1.0 / n as f64
        {
            warnings.push(format!(
                "δ = {delta} is not below 1/N = {:.3e}: a mechanism that publishes one random row \
                 would satisfy it",
                1.0 / n as f64
            ));
        }
        if accountant == Accountant::Gdp {
            warnings.push(
                "gdp is a central-limit estimate and can be below the exact ε; it is not a \
                 guarantee"
                    .into(),
            );
        }
        if self.sampling == SamplingMethod::Shuffled {
            warnings.push(
                "shuffled lots get no amplification by sampling: every epoch is charged as one \
                 release on all the data"
                    .into(),
            );
        }
        if let (Some(q), Some(b), Some(n)) = (self.sampling_rate, self.lot_size, self.dataset_size)
            && (q * n as f64 - b as f64).abs() > 1e-6 * b as f64
            && self.sampling != SamplingMethod::FixedSize
        {
            warnings.push(format!(
                "the sampling rate {q} is used; lot size / dataset size would be {}",
                b as f64 / n as f64
            ));
        }
        warnings
    }
}
