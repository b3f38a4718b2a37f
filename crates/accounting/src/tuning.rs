//! The privacy cost of hyperparameter tuning (Papernot and Steinke, "Hyperparameter Tuning with
//! Rényi Differential Privacy", 2022).
//!
//! If all k runs are released, they compose. If only the best is released *and the number of runs
//! is drawn at random* from a public distribution, the cost is far smaller: the selection itself is
//! a private mechanism. The number must be drawn once and kept secret; a number chosen by hand
//! costs as much as the composition.

use crate::cost::{Accountant, Cost, Guarantee, Unit};
use crate::error::{Error, Result};
use crate::event::Composition;
use crate::number::{Delta, Epsilon};
use serde::{Deserialize, Serialize};

/// How the number of runs is chosen.
///
/// ```
/// use accounting::tuning::{self, Repetition};
/// use accounting::{Adjacency, Composition, Delta, Event, Sampling, Sigma};
///
/// let run = Composition::repeated(Event::gaussian(Sampling::Full, Sigma::new(4.0)?), 1);
/// let delta = Delta::new(1e-5)?;
/// let once = tuning::epsilon(&run, Adjacency::AddRemove, Repetition::Fixed(1), delta)?;
/// let ten = tuning::epsilon(&run, Adjacency::AddRemove, Repetition::Geometric(10.0), delta)?;
/// assert!(ten.epsilon > once.epsilon);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repetition {
    /// Exactly this many; all of them compose.
    Fixed(u64),
    /// Geometric with this mean: Theorem 2 of the paper with η = 1.
    Geometric(f64),
    /// Logarithmic with this mean: Theorem 2 with η = 0. Cheaper, with a heavier tail.
    Logarithmic(f64),
    /// Poisson with this mean: Theorem 6. The number of runs can be 0.
    Poisson(f64),
}

impl Repetition {
    /// The name, as printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Geometric(_) => "geometric",
            Self::Logarithmic(_) => "logarithmic",
            Self::Poisson(_) => "poisson",
        }
    }
}

/// ε at `delta` of repeating `run` and releasing the best.
pub fn epsilon(
    run: &Composition,
    unit: impl Into<Unit>,
    repetition: Repetition,
    delta: Delta,
) -> Result<Guarantee> {
    let unit = unit.into();
    let mean = match repetition {
        Repetition::Fixed(count) => {
            return Cost::new(&run.times(count)?, unit)?.epsilon(Accountant::Best, delta);
        }
        Repetition::Geometric(mean) | Repetition::Logarithmic(mean) | Repetition::Poisson(mean) => {
            mean
        }
    };
    if !(1.0..1e12).contains(&mean) {
        return Err(Error::OutOfRange {
            name: "the mean number of runs",
            expected: "at least 1",
            got: mean.to_string(),
        });
    }
    let cost = Cost::new(run, unit)?;
    let once = cost.epsilon(Accountant::Best, delta)?;
    if once.epsilon == f64::INFINITY || mean == 1.0 && !matches!(repetition, Repetition::Poisson(_))
    {
        return Ok(once);
    }
    let unsupported =
        || Error::Unsupported { accountant: "tuning", event: format!("these lots for {unit}") };
    let ln_mgf = |theta: f64| cost.ln_mgf(theta).ok_or_else(unsupported);
    // Orders 1 + θ on a fine geometric grid; each gives a valid bound.
    let orders: Vec<f64> = (0..160).map(|i| 1e-2 * 1.07_f64.powi(i)).collect();
    let mut curve = Vec::with_capacity(orders.len());
    for theta in orders {
        let k = ln_mgf(theta)?;
        curve.push((theta, k));
        if k > 1e4 {
            break;
        }
    }
    let mut best = f64::INFINITY;
    let mut order = 0.0;
    for &(theta, k) in &curve {
        // (1+θ, ε) is the Rényi guarantee of the selection; ln E e^{θL} = θε.
        let extra = match repetition {
            Repetition::Poisson(_) => {
                // Needs an (ε̂, δ̂) guarantee of one run with e^ε̂ ≤ 1 + 1/θ.
                let hat = cost.delta(Accountant::Rdp, Epsilon::new((1.0 / theta).ln_1p())?)?.delta;
                mean * hat + mean.ln() / theta
            }
            _ => {
                let (eta, gamma) = negative_binomial(repetition, mean);
                let free =
                    |&(t, k): &(f64, f64)| (1.0 + eta) * (k / (1.0 + t) - gamma.ln() / (1.0 + t));
                curve.iter().map(free).fold(f64::INFINITY, f64::min) + mean.ln() / theta
            }
        };
        let total = k / theta + extra;
        let epsilon =
            total - (1.0 / theta).ln_1p() - ((1.0 + theta).ln() + delta.get().ln()) / theta;
        if epsilon < best {
            (best, order) = (epsilon.max(0.0), 1.0 + theta);
        }
    }
    Ok(Guarantee { epsilon: best, accountant: Accountant::Rdp, order: Some(order), ..once })
}

/// η and γ of the truncated negative binomial distribution with this mean.
///
/// The mean is 1/γ for η = 1 and (1/γ − 1)/ln(1/γ) for η = 0.
fn negative_binomial(repetition: Repetition, mean: f64) -> (f64, f64) {
    if let Repetition::Geometric(_) = repetition {
        return (1.0, 1.0 / mean);
    }
    // The mean decreases in γ. The lower end is safe: its mean is at least the one asked for, and
    // its ln(1/γ) is larger.
    let (mut low, mut high) = (f64::MIN_POSITIVE.ln(), 0.0);
    for _ in 0..200 {
        let middle: f64 = 0.5 * (low + high);
        if (-middle).exp_m1() / -middle >= mean { low = middle } else { high = middle }
    }
    (0.0, low.exp())
}
