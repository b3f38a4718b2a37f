//! A composition seen from one side: the dominating pairs of its events, from the data set with the
//! row to the one without, or back.

use crate::cost::Unit;
use crate::error::{Error, Result};
use crate::event::{Adjacency, Composition, Event};
use crate::pair::{Moments, Pair, Shape};
use crate::sampling::Sampling;

/// The most rows a person may have for the direct analysis; beyond, the general group bound is
/// used.
const MOST_ROWS: u64 = 256;

/// Pairs with their counts. Equal pairs are merged, and all unsampled Gaussians are one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Direction {
    pairs: Vec<(Pair, u64)>,
}

impl Direction {
    /// The pairs and how often each occurs.
    pub(crate) fn pairs(&self) -> &[(Pair, u64)] {
        &self.pairs
    }

    /// How many releases the numerical methods see.
    pub(crate) fn len(&self) -> f64 {
        self.pairs.iter().map(|p| p.1 as f64).sum()
    }

    /// The sensitivity over noise, if all of it is one unsampled Gaussian (0 for nothing at all).
    pub(crate) fn as_gaussian(&self) -> Option<f64> {
        match &self.pairs[..] {
            [] => Some(0.0),
            [(pair, 1)] => pair.as_gaussian(),
            _ => None,
        }
    }

    /// Whether any pair is beyond the reach of a grid.
    pub(crate) fn is_sharp(&self) -> bool {
        self.pairs.iter().any(|(pair, _)| pair.is_sharp())
    }

    /// Every pair without its largest losses, and the P-mass that was left out in all: at most
    /// e^`ln_mass`.
    pub(crate) fn truncated(&self, ln_mass: f64) -> (Self, f64) {
        let mut left_out = 0.0;
        let share = ln_mass - (self.pairs.len() as f64).ln();
        let cut = |(pair, count): &(Pair, u64)| {
            let (pair, mass) = pair.truncated(share - (*count as f64).ln());
            left_out += *count as f64 * mass;
            (pair, *count)
        };
        let pairs = self.pairs.iter().map(cut).collect();
        (Self { pairs }, left_out)
    }

    /// How fast the likelihood ratio can change, over all pairs.
    pub(crate) fn steepness(&self) -> f64 {
        self.pairs.iter().map(|(pair, _)| pair.steepness()).fold(0.0, f64::max)
    }

    /// The largest privacy loss that can occur, ∞ unless truncated or bounded.
    pub(crate) fn largest_loss(&self) -> f64 {
        self.pairs.iter().map(|(pair, count)| pair.largest_loss() * *count as f64).sum()
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

/// Both sides of a composition; one, where they are alike. The composition must not contain
/// [`Event::NonPrivate`].
pub(crate) fn directions(events: &Composition, unit: Unit) -> Result<Vec<Direction>> {
    let mut pairs: Vec<(Pair, u64)> = Vec::new();
    let mut gaussian: f64 = 0.0;
    for (event, count) in events.runs() {
        let pair = pair(event, unit)?;
        if let Some(mu) = pair.as_gaussian() {
            // Not as a sum of squares, which would lose a small μ altogether.
            gaussian = gaussian.hypot((*count as f64).sqrt() * mu);
        } else if let Some((_, n)) = pairs.iter_mut().find(|(known, _)| *known == pair) {
            *n += count;
        } else {
            pairs.push((pair, *count));
        }
    }
    if gaussian > 0.0 {
        pairs.push((Pair::gaussian(gaussian), 1));
    }
    let swapped: Vec<_> = pairs.iter().map(|(pair, count)| (pair.swapped(), *count)).collect();
    let alike = swapped == pairs;
    let mut both = vec![Direction { pairs }];
    if !alike {
        both.push(Direction { pairs: swapped });
    }
    Ok(both)
}

/// The pair of one event in the direction of removing. The claims are proved in [`crate::pair`].
fn pair(event: &Event, Unit { adjacency, rows }: Unit) -> Result<Pair> {
    let refused = || Error::Unsupported {
        accountant: "direct",
        event: format!("{event} under {adjacency} for a person with {rows} rows"),
    };
    let Event::Gaussian { lots, release } = event else { return Err(refused()) };
    lots.check()?;
    let (shift, rate) = (1.0 / release.effective_sigma(), lots.rate());
    Ok(match (lots, adjacency) {
        (Sampling::Full | Sampling::Shuffled { .. }, _) => {
            Pair::gaussian(adjacency.sensitivity() * rows as f64 * shift)
        }
        (Sampling::Poisson { .. }, _) if rate == 1.0 => {
            Pair::gaussian(adjacency.sensitivity() * rows as f64 * shift)
        }
        (Sampling::Poisson { .. }, Adjacency::AddRemove) if rows <= MOST_ROWS => {
            Pair::new(Shape::Remove, shift, rate, rows)
        }
        (Sampling::Poisson { .. }, Adjacency::ReplaceOne) if rows == 1 => {
            Pair::new(Shape::Swap, shift, rate, 1)
        }
        (Sampling::FixedSize { .. }, _) if rows == 1 && rate == 1.0 => Pair::gaussian(2.0 * shift),
        (Sampling::FixedSize { .. }, _) if rows == 1 => {
            Pair::new(Shape::Kinked, 2.0 * shift, rate, 1)
        }
        _ => return Err(refused()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{SamplingRate, Sigma};

    /// Removing a row and adding one are different questions for Poisson lots, and both are asked;
    /// replacing one is the same both ways.
    #[test]
    fn both_sides_are_looked_at() {
        let events =
            |lots| Composition::repeated(Event::gaussian(lots, Sigma::new(0.7).unwrap()), 3);
        let poisson = events(Sampling::Poisson { rate: SamplingRate::new(0.1).unwrap() });
        let sides = directions(&poisson, Adjacency::AddRemove.into()).unwrap();
        assert_eq!(sides.len(), 2);
        // The second side is the first one swapped: E_P e^{θL} of (P, Q) is that of (Q, P) at −1 −
        // θ.
        for theta in [0.3, 2.0, 7.0] {
            let (there, back) =
                (sides[0].moments(theta).ln_mgf, sides[1].moments(-1.0 - theta).ln_mgf);
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
            assert_eq!(directions(events, adjacency.into()).unwrap().len(), 1);
        }
        let full = directions(&events(Sampling::Full), Adjacency::AddRemove.into()).unwrap();
        assert!(
            full.len() == 1
                && (full[0].as_gaussian().unwrap() - 3.0_f64.sqrt() / 0.7).abs() < 1e-12
        );
    }
}
