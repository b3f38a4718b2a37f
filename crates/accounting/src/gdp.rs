//! The central limit of many sampled Gaussians (Bu, Dong, Long, Su 2020).
//!
//! An estimate: for finitely many steps the exact ε can be larger.

use crate::cost::Unit;
use crate::error::{Error, Result};
use crate::event::{Adjacency, Composition, Event};
use crate::sampling::Sampling;

/// The μ of the Gaussian mechanism to which the composition converges.
///
/// μ² is the sum of the χ²-divergences of the
/// dominating pairs to their middle, q²(e^{1/σ²} − 1) for Poisson lots under add/remove.
pub(crate) fn mu(events: &Composition, unit: Unit) -> Result<f64> {
    let mut sum = 0.0;
    for (event, count) in events.runs() {
        let unsupported =
            || Error::Unsupported { accountant: "gdp", event: format!("{event} for {unit}") };
        let (lots, release) = match event {
            Event::NonPrivate => return Ok(f64::INFINITY),
            Event::Gaussian { lots, release } => (lots, release),
            Event::Laplace { .. } | Event::EpsilonDelta { .. } | Event::Zcdp { .. } => {
                return Err(unsupported());
            }
        };
        let s2 = release.effective_sigma().powi(-2);
        let sensitivity = unit.adjacency.sensitivity() * unit.rows as f64;
        let one = match lots {
            Sampling::Full | Sampling::Shuffled { .. } => sensitivity * sensitivity * s2,
            Sampling::Poisson { rate } if rate.get() == 1.0 => sensitivity * sensitivity * s2,
            Sampling::Poisson { rate } if unit.rows == 1 => {
                let q2 = rate.get() * rate.get();
                match unit.adjacency {
                    Adjacency::AddRemove => q2 * s2.exp_m1(),
                    // ∫ q²(φ(z−s) − φ(z+s))²/φ(z) = 2q²(e^{s²} − e^{−s²}).
                    Adjacency::ReplaceOne => 4.0 * q2 * s2.sinh(),
                }
            }
            _ => return Err(unsupported()),
        };
        sum += *count as f64 * one;
    }
    Ok(sum.sqrt())
}
