//! How lots are drawn: the method by name, and the method with its numbers.
//!
//! [`SamplingMethod`] is what a configuration or a command line names; [`Sampling`] adds the
//! numbers. Events, the curator and privacy statements all use [`Sampling`].

use crate::error::{Error, Result};
use crate::number::SamplingRate;
use serde::{Deserialize, Serialize};

/// How the lots of a run are drawn.
///
/// ```
/// let lots = accounting::Sampling::fixed_size(1000, 50)?;
/// assert_eq!(lots.lot_size(1000), 50.0);
/// assert!(accounting::Sampling::fixed_size(1000, 1001).is_err());
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sampling {
    /// Every example is in every lot.
    Full,
    /// Every example is in a lot independently with this probability. Some lots are empty.
    Poisson {
        /// The probability.
        rate: SamplingRate,
    },
    /// Exactly `lot` of `dataset` examples, uniformly without replacement, anew for each lot.
    FixedSize {
        /// Number of examples.
        dataset: u64,
        /// Number of examples in a lot.
        lot: u64,
    },
    /// Lots of `lot` of `dataset` examples in a random order, drawn anew for each epoch. The last
    /// lot of an epoch may be smaller.
    ///
    /// The event is a whole epoch, in which each example is in at most one lot. The position of an
    /// example is drawn without looking at any record and stays empty if the example is removed, so
    /// only one lot changes. No amplification is claimed: the epoch costs what one release on all
    /// the data costs.
    Shuffled {
        /// Number of examples.
        dataset: u64,
        /// Number of examples in a lot.
        lot: u64,
    },
}

impl Sampling {
    /// Lots of fixed size.
    ///
    /// # Errors
    /// Unless 1 ≤ lot ≤ dataset.
    pub fn fixed_size(dataset: u64, lot: u64) -> Result<Self> {
        Self::FixedSize { dataset, lot }.checked()
    }

    /// Lots of shuffled epochs.
    ///
    /// # Errors
    /// Unless 1 ≤ lot ≤ dataset.
    pub fn shuffled(dataset: u64, lot: u64) -> Result<Self> {
        Self::Shuffled { dataset, lot }.checked()
    }

    /// The method without its numbers.
    pub fn method(&self) -> SamplingMethod {
        match self {
            Self::Full => SamplingMethod::Full,
            Self::Poisson { .. } => SamplingMethod::Poisson,
            Self::FixedSize { .. } => SamplingMethod::FixedSize,
            Self::Shuffled { .. } => SamplingMethod::Shuffled,
        }
    }

    /// The probability that a given example is in an event: in its lot, or in a lot of its epoch.
    pub fn rate(&self) -> f64 {
        match *self {
            Self::Full | Self::Shuffled { .. } => 1.0,
            Self::Poisson { rate } => rate.get(),
            Self::FixedSize { dataset, lot } => lot as f64 / dataset as f64,
        }
    }

    /// The number of examples, where the method depends on it.
    pub fn dataset(&self) -> Option<u64> {
        match *self {
            Self::Full | Self::Poisson { .. } => None,
            Self::FixedSize { dataset, .. } | Self::Shuffled { dataset, .. } => Some(dataset),
        }
    }

    /// The public lot size by which sums are divided: the expected one, never the realised one.
    pub fn lot_size(&self, dataset: usize) -> f64 {
        match *self {
            Self::Poisson { rate } => rate.get() * dataset as f64,
            Self::FixedSize { lot, .. } | Self::Shuffled { lot, .. } => lot as f64,
            Self::Full => dataset as f64,
        }
    }

    /// The number of lots that one event covers: those of an epoch if shuffled, otherwise 1.
    pub fn lots_per_event(&self) -> u64 {
        match *self {
            Self::Shuffled { dataset, lot } => dataset.div_ceil(lot.max(1)),
            _ => 1,
        }
    }

    /// Checks that the numbers fit together. Accountants call it again for every event.
    ///
    /// # Errors
    /// Unless 1 ≤ lot ≤ dataset.
    pub fn check(&self) -> Result<()> {
        match *self {
            Self::FixedSize { dataset, lot } | Self::Shuffled { dataset, lot }
                if !(lot >= 1 && lot <= dataset) =>
            {
                Err(Error::OutOfRange {
                    name: "the lot size",
                    expected: "at least 1 and at most the dataset size",
                    got: format!("{lot} of {dataset}"),
                })
            }
            _ => Ok(()),
        }
    }

    fn checked(self) -> Result<Self> {
        self.check().map(|()| self)
    }
}

impl std::fmt::Display for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full => write!(f, "full-batch"),
            Self::Poisson { rate } => write!(f, "Poisson-sampled (q = {rate})"),
            Self::FixedSize { dataset, lot } => write!(f, "fixed-size ({lot} of {dataset})"),
            Self::Shuffled { dataset, lot } => write!(f, "shuffled-epoch ({lot} of {dataset})"),
        }
    }
}

/// A sampling method by name, without its numbers.
///
/// ```
/// use accounting::{Sampling, SamplingMethod};
///
/// let method: SamplingMethod = "shuffled".parse()?;
/// assert_eq!(method.with(1000, 50)?, Sampling::Shuffled { dataset: 1000, lot: 50 });
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplingMethod {
    /// Every example independently.
    #[default]
    Poisson,
    /// A fixed number of examples, drawn anew for each lot.
    #[serde(rename = "fixed")]
    FixedSize,
    /// Lots from a random order of the examples, epoch after epoch. No amplification is claimed.
    Shuffled,
    /// All examples in every lot.
    Full,
}

impl SamplingMethod {
    /// All methods.
    pub const ALL: [Self; 4] = [Self::Poisson, Self::FixedSize, Self::Shuffled, Self::Full];

    /// The name in configurations and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::FixedSize => "fixed",
            Self::Shuffled => "shuffled",
            Self::Full => "full",
        }
    }

    /// Adds the numbers: lots of `lot` (for Poisson, in expectation) of `dataset` examples.
    ///
    /// # Errors
    /// Unless 1 ≤ lot ≤ dataset.
    pub fn with(self, dataset: u64, lot: u64) -> Result<Sampling> {
        Ok(match self {
            Self::Poisson => {
                Sampling::Poisson { rate: SamplingRate::new(lot as f64 / dataset as f64)? }
            }
            Self::FixedSize => Sampling::fixed_size(dataset, lot)?,
            Self::Shuffled => Sampling::shuffled(dataset, lot)?,
            Self::Full => Sampling::Full,
        })
    }
}

impl std::fmt::Display for SamplingMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for SamplingMethod {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            Error::OutOfRange {
                name: "the sampling method",
                expected: "poisson, fixed, shuffled or full",
                got: name.into(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_one_name() {
        for method in SamplingMethod::ALL {
            assert_eq!(method.name().parse(), Ok(method));
            assert_eq!(serde_json::to_value(method).unwrap(), method.to_string());
            assert_eq!(method.with(10, 4).unwrap().method(), method);
        }
        let refused = "shuffle".parse::<SamplingMethod>().unwrap_err().to_string();
        assert!(refused.contains("shuffled"), "{refused}");
    }

    #[test]
    fn impossible_lots_are_refused() {
        for method in [SamplingMethod::FixedSize, SamplingMethod::Shuffled, SamplingMethod::Poisson]
        {
            assert!(method.with(10, 11).is_err() && method.with(10, 0).is_err());
            assert!(method.with(10, 10).is_ok());
        }
    }

    #[test]
    fn an_epoch_counts_its_last_short_lot() {
        assert_eq!(Sampling::shuffled(10, 4).unwrap().lots_per_event(), 3);
        assert_eq!(Sampling::shuffled(10, 5).unwrap().lots_per_event(), 2);
        assert_eq!(Sampling::fixed_size(10, 5).unwrap().lots_per_event(), 1);
    }
}
