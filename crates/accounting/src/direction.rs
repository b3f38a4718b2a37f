//! The dominating pairs of a composition in one direction: from a data set to its neighbour, or
//! back.

use crate::atoms::Atoms;
use crate::cost::{Unit, group_factor};
use crate::dominating::DominatingPair;
use crate::error::{Error, Result};
use crate::event::{Adjacency, Composition, Event, Release};
use crate::number::Sigma;
use crate::pair::{GaussianPair, Moments, PairKind};
use crate::sampling::Sampling;

/// Largest number of rows per unit with a direct analysis; beyond, the general group bound is used.
const MAX_ROWS: u64 = 256;

/// Dominating pairs with their counts.
///
/// Equal pairs are merged, and all unsampled Gaussians are one pair.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Direction {
    pairs: Vec<(DominatingPair, u64)>,
}

impl Direction {
    /// The pairs and how often each occurs.
    pub(crate) fn pairs(&self) -> &[(DominatingPair, u64)] {
        &self.pairs
    }

    /// The number of releases that the numerical methods compose.
    pub(crate) fn len(&self) -> f64 {
        self.pairs.iter().map(|p| p.1 as f64).sum()
    }

    /// Sensitivity over noise, if the composition is one unsampled Gaussian (0 if it is empty).
    pub(crate) fn as_gaussian(&self) -> Option<f64> {
        match &self.pairs[..] {
            [] => Some(0.0),
            [(pair, 1)] => pair.as_gaussian(),
            _ => None,
        }
    }

    /// Whether there are only bounds of the Rényi divergences of an event.
    pub(crate) fn is_renyi_only(&self) -> bool {
        self.pairs.iter().any(|(pair, _)| matches!(pair, DominatingPair::Zcdp(_)))
    }

    /// Whether there is no grid for any pair.
    pub(crate) fn is_sharp(&self) -> bool {
        self.pairs.iter().any(|(pair, _)| pair.is_sharp())
    }

    /// Every pair without its largest losses, and the truncated P-mass: at most e^`ln_mass`.
    pub(crate) fn truncated(&self, ln_mass: f64) -> (Self, f64) {
        let mut truncated_mass = 0.0;
        let share = ln_mass - (self.pairs.len() as f64).ln();
        let cut = |(pair, count): &(DominatingPair, u64)| {
            let (pair, mass) = pair.truncated(share - (*count as f64).ln());
            truncated_mass += *count as f64 * mass;
            (pair, *count)
        };
        let pairs = self.pairs.iter().map(cut).collect();
        (Self { pairs }, truncated_mass)
    }

    /// How fast the likelihood ratio can change, over all pairs.
    pub(crate) fn steepness(&self) -> f64 {
        self.pairs.iter().map(|(pair, _)| pair.steepness()).fold(0.0, f64::max)
    }

    /// The largest privacy loss that can occur, ∞ unless truncated or bounded.
    pub(crate) fn largest_loss(&self) -> f64 {
        let sum: f64 =
            self.pairs.iter().map(|(pair, count)| pair.largest_loss() * *count as f64).sum();
        // Rounding must not lower it, and NaN counts as infinite.
        let sum = sum + 1e-14 * sum.abs();
        if sum.is_nan() { f64::INFINITY } else { sum }
    }

    /// The sum of the pairs' moments at θ.
    pub(crate) fn moments(&self, theta: f64) -> Moments {
        let mut sum = Moments { ln_mgf: 0.0, mean: 0.0, variance: 0.0 };
        for (pair, count) in &self.pairs {
            let (one, n) = (pair.moments(theta), *count as f64);
            sum.ln_mgf += n * one.ln_mgf;
            sum.mean += n * one.mean;
            sum.variance += n * one.variance;
        }
        sum
    }
}

/// The dominating pairs of a composition.
#[derive(Debug, Clone)]
pub(crate) struct Directions {
    /// Both directions; one, where they are equal.
    pub(crate) directions: Vec<Direction>,
    /// The probability that any release has an infinite loss, in either direction.
    ///
    /// With probability 1 − f no release fails, and δ(ε) = f + (1 − f) δ'(ε) for the finite losses.
    pub(crate) failure: f64,
}

/// Finds the dominating pairs of a composition.
///
/// It must not contain [`Event::NonPrivate`].
pub(crate) fn directions(events: &Composition, unit: Unit) -> Result<Directions> {
    let mut pairs: Vec<(DominatingPair, u64)> = Vec::new();
    let mut gaussian: f64 = 0.0;
    // Σ δ, and ln Π(1 − δ).
    let (mut sum, mut ln_success) = (0.0, 0.0);
    for (event, count) in events.runs() {
        let Priced { pair, failure } = price(event, unit)?;
        sum += *count as f64 * failure;
        ln_success += *count as f64 * (-failure).ln_1p();
        let Some(pair) = pair else { continue };
        if let Some(mu) = pair.as_gaussian() {
            // Not a sum of squares, in which a small μ would underflow.
            gaussian = gaussian.hypot((*count as f64).sqrt() * mu);
        } else if let Some((_, n)) = pairs.iter_mut().find(|(known, _)| *known == pair) {
            *n += count;
        } else {
            pairs.push((pair, *count));
        }
    }
    if gaussian > 0.0 {
        pairs.push((DominatingPair::gaussian(gaussian), 1));
    }
    let swapped: Vec<_> = pairs.iter().map(|(pair, count)| (pair.swapped(), *count)).collect();
    let equal = swapped == pairs;
    let mut both = vec![Direction { pairs }];
    if !equal {
        both.push(Direction { pairs: swapped });
    }
    // The sum is an upper bound, too, and exact for one release.
    Ok(Directions { directions: both, failure: sum.min(-ln_success.exp_m1()).min(1.0) })
}

/// What one event costs.
struct Priced {
    /// The pair of its finite losses in the direction of removing; none if all are 0.
    pair: Option<DominatingPair>,
    /// The probability of an infinite loss.
    failure: f64,
}

/// The error of an event without a dominating pair for this unit.
fn unsupported(event: &Event, Unit { adjacency, rows }: Unit) -> Error {
    Error::Unsupported {
        accountant: "direct",
        event: format!("{event} under {adjacency} for a unit of {rows} rows"),
    }
}

/// Finds the pair of one event. The claims are proved in [`crate::pair`] and [`crate::atoms`].
fn price(event: &Event, unit: Unit) -> Result<Priced> {
    let only = |pair| Priced { pair: Some(pair), failure: 0.0 };
    match event {
        Event::NonPrivate => Err(unsupported(event, unit)),
        Event::Gaussian { lots, release } => {
            lots.check()?;
            let pair = gaussian(lots, release, unit);
            pair.map(only).ok_or_else(|| unsupported(event, unit))
        }
        Event::Laplace { lots, multiplier } => {
            lots.check()?;
            let pair = laplace(lots, *multiplier, unit);
            pair.map(only).ok_or_else(|| unsupported(event, unit))
        }
        Event::EpsilonDelta { epsilon, delta, adjacency } => {
            // A chain of m neighbours has mε, and δ(e^{mε} − 1)/(e^ε − 1) (Vadhan 2017, Lemma 2.2).
            let links = chain(*adjacency, unit).ok_or_else(|| unsupported(event, unit))?;
            let failure = match delta.get() {
                0.0 => 0.0,
                delta => delta * group_factor(epsilon.get(), links),
            };
            let epsilon = epsilon.get() * links as f64;
            let pair = (epsilon > 0.0).then(|| DominatingPair::Atoms(Atoms::of_epsilon(epsilon)));
            // Also if it is not a number.
            if !(failure < 1.0) {
                return Ok(Priced { pair, failure: 1.0 });
            }
            Ok(Priced { pair, failure })
        }
        Event::Zcdp { rho, adjacency } => {
            // A chain of m neighbours has m²ρ (Bun, Steinke 2016, Prop. 1.9).
            let links = chain(*adjacency, unit).ok_or_else(|| unsupported(event, unit))? as f64;
            let rho = links * links * rho.get();
            let pair = (rho > 0.0).then_some(DominatingPair::Zcdp(rho));
            Ok(Priced { pair, failure: 0.0 })
        }
    }
}

/// The number of neighbours `known` between two data sets that differ in a unit, if there is one.
fn chain(known: Adjacency, unit: Unit) -> Option<u64> {
    match (known, unit.adjacency) {
        (Adjacency::ReplaceOne, Adjacency::AddRemove) => None,
        // A replacement is a removal and an addition.
        (Adjacency::AddRemove, Adjacency::ReplaceOne) => unit.rows.checked_mul(2),
        _ => Some(unit.rows),
    }
}

/// The pair of Laplace noise.
fn laplace(lots: &Sampling, multiplier: Sigma, unit: Unit) -> Option<DominatingPair> {
    let (shift, rate) = (1.0 / multiplier.get(), lots.rate());
    // A row of a shuffled epoch is in one lot, and in the worst case all of a unit in the same one.
    let all = |shift: f64| shift * unit.adjacency.sensitivity() * unit.rows as f64;
    let atoms = match (lots, unit.adjacency) {
        (Sampling::Full | Sampling::Shuffled { .. }, _) => Atoms::laplace(all(shift)),
        (Sampling::Poisson { .. }, _) if rate == 1.0 => Atoms::laplace(all(shift)),
        (Sampling::Poisson { .. }, Adjacency::AddRemove) if unit.rows == 1 => {
            Atoms::laplace(shift).sampled(rate)
        }
        _ => return None,
    };
    Some(DominatingPair::Atoms(atoms))
}

/// The pair of Gaussian noise.
fn gaussian(
    lots: &Sampling,
    release: &Release,
    Unit { adjacency, rows }: Unit,
) -> Option<DominatingPair> {
    let (shift, rate) = (1.0 / release.effective_sigma(), lots.rate());
    let sampled = |pair| DominatingPair::Gaussian(pair);
    Some(match (lots, adjacency) {
        (Sampling::Full | Sampling::Shuffled { .. }, _) => {
            DominatingPair::gaussian(adjacency.sensitivity() * rows as f64 * shift)
        }
        (Sampling::Poisson { .. }, _) if rate == 1.0 => {
            DominatingPair::gaussian(adjacency.sensitivity() * rows as f64 * shift)
        }
        (Sampling::Poisson { .. }, Adjacency::AddRemove) if rows <= MAX_ROWS => {
            sampled(GaussianPair::new(PairKind::Remove, shift, rate, rows))
        }
        (Sampling::Poisson { .. }, Adjacency::ReplaceOne) if rows == 1 => {
            sampled(GaussianPair::new(PairKind::Replace, shift, rate, 1))
        }
        (Sampling::FixedSize { .. }, _) if rows == 1 && rate == 1.0 => {
            DominatingPair::gaussian(2.0 * shift)
        }
        (Sampling::FixedSize { .. }, _) if rows == 1 => {
            sampled(GaussianPair::new(PairKind::Kinked, 2.0 * shift, rate, 1))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{SamplingRate, Sigma};

    /// Removing and adding a row differ for Poisson lots, and both are analysed; replacing is
    /// symmetric.
    #[test]
    fn both_directions_are_analysed() {
        let events =
            |lots| Composition::repeated(Event::gaussian(lots, Sigma::new(0.7).unwrap()), 3);
        let poisson = events(Sampling::Poisson { rate: SamplingRate::new(0.1).unwrap() });
        let both = directions(&poisson, Adjacency::AddRemove.into()).unwrap().directions;
        assert_eq!(both.len(), 2);
        // The second direction is the first one swapped: E_P e^{θL} of (P, Q) is that of (Q, P) at
        // −1 − θ.
        for theta in [0.3, 2.0, 7.0] {
            let (there, back) =
                (both[0].moments(theta).ln_mgf, both[1].moments(-1.0 - theta).ln_mgf);
            assert!(
                (there - back).abs() < 1e-10 * (1.0 + there.abs()),
                "θ = {theta}: {there} != {back}"
            );
        }
        let fixed = events(Sampling::fixed_size(100, 10).unwrap());
        for (events, adjacency) in [
            (&poisson, Adjacency::ReplaceOne),
            (&fixed, Adjacency::ReplaceOne),
            (&fixed, Adjacency::AddRemove),
        ] {
            assert_eq!(directions(events, adjacency.into()).unwrap().directions.len(), 1);
        }
        let full = directions(&events(Sampling::Full), Adjacency::AddRemove.into()).unwrap();
        let full = full.directions;
        assert!(
            full.len() == 1
                && (full[0].as_gaussian().unwrap() - 3.0_f64.sqrt() / 0.7).abs() < 1e-12
        );
    }
}
