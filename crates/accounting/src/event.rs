//! Events as data: how a lot was drawn, and what was released from it.
//!
//! Accountants interpret them. All multipliers are relative to the clip bound C of their block.
//! Whether one example can change a sum by C or by 2C is part of the [`Adjacency`], never of the
//! event.

use crate::error::{Error, Result};
use crate::number::{Epsilon, FailureProbability, Rho, SamplingRate, Sigma};
use crate::sampling::Sampling;
use serde::{Deserialize, Serialize};

/// Which data sets are neighbours. Part of every guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adjacency {
    /// One example is added or removed. A clipped sum changes by at most C.
    #[default]
    AddRemove,
    /// One example is replaced by another. A clipped sum changes by at most 2C.
    ReplaceOne,
}

impl Adjacency {
    /// Both relations.
    pub const ALL: [Self; 2] = [Self::AddRemove, Self::ReplaceOne];

    /// The name in configurations, on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddRemove => "add-remove",
            Self::ReplaceOne => "replace-one",
        }
    }

    /// The sensitivity of a sum of examples clipped at 1.
    pub fn sensitivity(self) -> f64 {
        match self {
            Self::AddRemove => 1.0,
            Self::ReplaceOne => 2.0,
        }
    }
}

impl std::fmt::Display for Adjacency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is released from one lot: one or more blocks with Gaussian noise, all from the *same* lot.
///
/// # Claim
/// All of it, adaptive releases included, is one Gaussian release with 1/σ² = Σ 1/σ_k².
///
/// # Why
/// Given the rest of the lot, each release is a channel applied to the pair N(1/σ_k, 1), N(0, 1);
/// an adaptive composition of such channels is a channel applied to N(μ, 1), N(0, 1) with μ² = Σ
/// 1/σ_k² (Dong, Roth, Su 2019, Cor. 3.3). Sampling mixes the pair, a channel commutes with mixing,
/// and joint convexity covers the rest of the lot. (Where more than two laws are mixed, as under
/// replace-one, the same follows from the worst-case argument in `pair.rs`, applied to the stacked
/// shifts: the Gram matrix of a joint release is the sum of those of its blocks, and adaptivity
/// goes from the last release back to the first.) Counting every block as if it had drawn a lot of
/// its own is *not* valid: amplification by sampling happens once, however many blocks share the
/// lot.
///
/// # Checked by
/// `joint_blocks_are_one_release`, and the golden values of the DP-Muon paper's Table 3.
///
/// ```
/// use accounting::{Release, Sigma};
///
/// // 49 blocks with σ = 7 each are one Gaussian release with σ = 1.
/// let blocks = Release::joint([(Sigma::new(7.0)?, 49)])?;
/// assert_eq!(blocks.effective_sigma(), 1.0);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(Sigma, u64)>", into = "Vec<(Sigma, u64)>")]
pub struct Release {
    blocks: Vec<(Sigma, u64)>,
}

impl Release {
    /// One block.
    pub fn gaussian(sigma: Sigma) -> Self {
        Self { blocks: vec![(sigma, 1)] }
    }

    /// Several blocks on one lot, run-length coded as (multiplier, how many blocks have it).
    pub fn joint(blocks: impl IntoIterator<Item = (Sigma, u64)>) -> Result<Self> {
        let mut coded: Vec<(Sigma, u64)> = Vec::new();
        for (sigma, count) in blocks {
            if count == 0 {
                continue;
            }
            match coded.last_mut() {
                Some((last, n)) if *last == sigma => {
                    *n = n.checked_add(count).ok_or(Error::TooMany)?
                }
                _ => coded.push((sigma, count)),
            }
        }
        if coded.is_empty() {
            return Err(Error::OutOfRange {
                name: "the number of blocks",
                expected: "at least 1",
                got: "0".into(),
            });
        }
        Ok(Self { blocks: coded })
    }

    /// The blocks, run-length coded.
    pub fn blocks(&self) -> &[(Sigma, u64)] {
        &self.blocks
    }

    /// The multiplier of the one Gaussian that is equivalent to all blocks together.
    ///
    /// Zero if it underflows.
    pub fn effective_sigma(&self) -> f64 {
        match self.blocks[..] {
            [(sigma, 1)] => sigma.get(),
            _ => {
                // Scaled by the smallest multiplier, so that no square over- or underflows before
                // the result does.
                let smallest = self.blocks.iter().map(|b| b.0.get()).fold(f64::INFINITY, f64::min);
                let sum: f64 =
                    self.blocks.iter().map(|&(s, n)| n as f64 * (smallest / s.get()).powi(2)).sum();
                smallest / sum.sqrt()
            }
        }
    }
}

impl TryFrom<Vec<(Sigma, u64)>> for Release {
    type Error = Error;
    fn try_from(blocks: Vec<(Sigma, u64)>) -> Result<Self> {
        Self::joint(blocks)
    }
}

impl From<Release> for Vec<(Sigma, u64)> {
    fn from(release: Release) -> Self {
        release.blocks
    }
}

/// One access to the data.
///
/// ```
/// use accounting::{Event, SamplingRate, Sigma};
///
/// let step = Event::poisson(SamplingRate::new(0.01)?, Sigma::new(1.0)?);
/// assert!(matches!(step, Event::Gaussian { .. }));
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "RawEvent")]
pub enum Event {
    /// An access without a guarantee: ε = ∞.
    NonPrivate,
    /// Gaussian releases from a lot, or from all lots of a shuffled epoch.
    Gaussian {
        /// How lots are drawn.
        lots: Sampling,
        /// What is released from each lot.
        release: Release,
    },
    /// One number with Laplace noise from a lot, or from each lot of a shuffled epoch.
    Laplace {
        /// How lots are drawn.
        lots: Sampling,
        /// The scale of the noise, divided by the clip bound C of an example's contribution.
        multiplier: Sigma,
    },
    /// A release that is known to be (ε, δ)-private.
    EpsilonDelta {
        /// ε.
        epsilon: Epsilon,
        /// δ.
        delta: FailureProbability,
        /// The neighbours for which that is known.
        adjacency: Adjacency,
    },
    /// A release that is known to be ρ-zero-concentrated differentially private.
    Zcdp {
        /// ρ: all Rényi divergences of order α are at most αρ.
        rho: Rho,
        /// The neighbours for which that is known.
        adjacency: Adjacency,
    },
}

impl Event {
    /// One Gaussian release from a lot.
    pub fn gaussian(lots: Sampling, sigma: Sigma) -> Self {
        Self::Gaussian { lots, release: Release::gaussian(sigma) }
    }

    /// One Gaussian release from a Poisson-sampled lot.
    pub fn poisson(rate: SamplingRate, sigma: Sigma) -> Self {
        Self::gaussian(Sampling::Poisson { rate }, sigma)
    }
}

/// An event as read from a file, before its sampling is checked.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum RawEvent {
    NonPrivate,
    Gaussian { lots: Sampling, release: Release },
    Laplace { lots: Sampling, multiplier: Sigma },
    EpsilonDelta { epsilon: Epsilon, delta: FailureProbability, adjacency: Adjacency },
    Zcdp { rho: Rho, adjacency: Adjacency },
}

impl TryFrom<RawEvent> for Event {
    type Error = Error;
    fn try_from(raw: RawEvent) -> Result<Self> {
        Ok(match raw {
            RawEvent::NonPrivate => Self::NonPrivate,
            RawEvent::Gaussian { lots, release } => {
                lots.check()?;
                Self::Gaussian { lots, release }
            }
            RawEvent::Laplace { lots, multiplier } => {
                lots.check()?;
                Self::Laplace { lots, multiplier }
            }
            RawEvent::EpsilonDelta { epsilon, delta, adjacency } => {
                Self::EpsilonDelta { epsilon, delta, adjacency }
            }
            RawEvent::Zcdp { rho, adjacency } => Self::Zcdp { rho, adjacency },
        })
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lots, release) = match self {
            Self::NonPrivate => return f.write_str("a non-private event"),
            Self::Gaussian { lots, release } => (lots, release),
            Self::Laplace { lots, multiplier } => {
                return write!(f, "{lots} Laplace (scale {multiplier})");
            }
            Self::EpsilonDelta { epsilon, delta, adjacency } => {
                return write!(f, "a release with ε = {epsilon} and δ = {delta} under {adjacency}");
            }
            Self::Zcdp { rho, adjacency } => {
                return write!(f, "a release with {rho}-zCDP under {adjacency}");
            }
        };
        lots.fmt(f)?;
        match release.blocks() {
            [(sigma, 1)] => write!(f, " Gaussian (σ = {sigma})"),
            blocks => write!(
                f,
                " joint Gaussian ({} blocks, σ = {} together)",
                blocks.iter().map(|b| u128::from(b.1)).sum::<u128>(),
                release.effective_sigma()
            ),
        }
    }
}

/// An adaptive composition of events, run-length coded.
///
/// ```
/// use accounting::{Composition, Event, Sampling, Sigma};
///
/// let mut events = Composition::repeated(Event::gaussian(Sampling::Full, Sigma::new(2.0)?), 3);
/// events.push(Event::gaussian(Sampling::Full, Sigma::new(1.0)?), 1)?;
/// assert_eq!(events.len(), 4);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(Event, u64)>", into = "Vec<(Event, u64)>")]
pub struct Composition {
    runs: Vec<(Event, u64)>,
}

impl Composition {
    /// The empty composition.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same event `count` times.
    pub fn repeated(event: Event, count: u64) -> Self {
        Self { runs: if count == 0 { vec![] } else { vec![(event, count)] } }
    }

    /// Appends `count` times the same event.
    pub fn push(&mut self, event: Event, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.len().checked_add(count).ok_or(Error::TooMany)?;
        match self.runs.last_mut() {
            Some((last, n)) if *last == event => *n += count,
            _ => self.runs.push((event, count)),
        }
        Ok(())
    }

    /// Appends all events of another composition.
    pub fn extend(&mut self, other: &Self) -> Result<()> {
        other.runs.iter().try_for_each(|(event, count)| self.push(event.clone(), *count))
    }

    /// All events `times` times over.
    pub fn times(&self, times: u64) -> Result<Self> {
        self.len().checked_mul(times).ok_or(Error::TooMany)?;
        if times == 0 {
            return Ok(Self::new());
        }
        // The cost does not depend on the order, so it is enough to multiply the counts.
        Ok(Self {
            runs: self.runs.iter().map(|(event, count)| (event.clone(), count * times)).collect(),
        })
    }

    /// The events with their counts, run-length coded.
    pub fn runs(&self) -> &[(Event, u64)] {
        &self.runs
    }

    /// The total number of events.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|r| r.1).sum()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The events on the data set without all but one of a unit's rows.
    ///
    /// Under add/remove, lots of a fixed size are then drawn from fewer rows, which every pair of
    /// neighbours in the chain must allow for.
    pub(crate) fn without(&self, unit: crate::Unit) -> Result<Self> {
        let mut less = self.clone();
        for (event, _) in &mut less.runs {
            if let (
                Event::Gaussian { lots: lots @ Sampling::FixedSize { .. }, .. },
                Adjacency::AddRemove,
            ) = (event, unit.adjacency)
                && let Sampling::FixedSize { dataset, lot } = *lots
            {
                *lots = Sampling::fixed_size(dataset.saturating_sub(unit.rows - 1), lot)?;
            }
        }
        Ok(less)
    }

    /// Whether any event has no guarantee.
    pub fn has_non_private(&self) -> bool {
        self.runs.iter().any(|(event, _)| *event == Event::NonPrivate)
    }
}

impl TryFrom<Vec<(Event, u64)>> for Composition {
    type Error = Error;
    fn try_from(runs: Vec<(Event, u64)>) -> Result<Self> {
        let mut all = Self::new();
        runs.into_iter().try_for_each(|(event, count)| all.push(event, count))?;
        Ok(all)
    }
}

impl From<Composition> for Vec<(Event, u64)> {
    fn from(composition: Composition) -> Self {
        composition.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sigma(x: f64) -> Sigma {
        Sigma::new(x).unwrap()
    }

    #[test]
    fn joint_blocks_are_one_release() {
        let joint = Release::joint([(sigma(2.3395), 49)]).unwrap();
        assert!((joint.effective_sigma() - 2.3395 / 7.0).abs() < 1e-15);
        let mixed = Release::joint([(sigma(3.0), 1), (sigma(4.0), 1)]).unwrap();
        assert!((mixed.effective_sigma() - 2.4).abs() < 1e-15);
        let tiny = Release::joint([(sigma(1e-200), 4)]).unwrap();
        assert_eq!(tiny.effective_sigma(), 5e-201);
        assert!(Release::joint([]).is_err() && Release::joint([(sigma(1.0), 0)]).is_err());
        assert!(Release::joint([(sigma(1.0), u64::MAX), (sigma(1.0), 1)]).is_err());
    }

    #[test]
    fn runs_are_coded_and_counts_cannot_wrap() {
        let step = Event::poisson(SamplingRate::new(0.1).unwrap(), sigma(1.0));
        let mut all = Composition::new();
        for _ in 0..1000 {
            all.push(step.clone(), 1).unwrap();
        }
        all.push(Event::NonPrivate, 0).unwrap();
        assert_eq!((all.runs().len(), all.len(), all.has_non_private()), (1, 1000, false));
        assert_eq!(all.push(step.clone(), u64::MAX), Err(Error::TooMany));
        assert_eq!(all.times(u64::MAX), Err(Error::TooMany));
        assert_eq!(all.times(3).unwrap().len(), 3000);
        assert!(all.times(0).unwrap().is_empty());
        all.push(Event::NonPrivate, 1).unwrap();
        assert!(all.has_non_private());
    }

    #[test]
    fn files_are_checked() {
        let fixed =
            r#"{"gaussian":{"lots":{"fixed-size":{"dataset":10,"lot":11}},"release":[[1.0,1]]}}"#;
        assert!(serde_json::from_str::<Event>(fixed).unwrap_err().to_string().contains("lot size"));
        for good in [
            Event::NonPrivate,
            Event::gaussian(Sampling::Full, sigma(2.0)),
            Event::gaussian(Sampling::fixed_size(10, 10).unwrap(), sigma(2.0)),
            Event::Laplace { lots: Sampling::Full, multiplier: sigma(2.0) },
            Event::EpsilonDelta {
                epsilon: Epsilon::new(1.0).unwrap(),
                delta: FailureProbability::new(0.0).unwrap(),
                adjacency: Adjacency::ReplaceOne,
            },
            Event::Zcdp { rho: Rho::new(0.5).unwrap(), adjacency: Adjacency::AddRemove },
            Event::Gaussian {
                lots: Sampling::shuffled(10, 4).unwrap(),
                release: Release::joint([(sigma(1.0), 2)]).unwrap(),
            },
        ] {
            let text = serde_json::to_string(&good).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), good, "{text}");
        }
        for bad in [
            fixed
                .replace("gaussian", "laplace")
                .replace(r#""release":[[1.0,1]]"#, r#""multiplier":1.0"#),
            r#"{"epsilon-delta":{"epsilon":1.0,"delta":1.0,"adjacency":"add-remove"}}"#.into(),
            r#"{"zcdp":{"rho":-1.0,"adjacency":"add-remove"}}"#.into(),
            r#"{"zcdp":{"rho":1.0}}"#.into(),
        ] {
            assert!(serde_json::from_str::<Event>(&bad).is_err(), "{bad}");
        }
        assert!(
            serde_json::from_str::<Event>(r#"{"gaussian":{"lots":"full","release":[]}}"#).is_err()
        );
    }
}
