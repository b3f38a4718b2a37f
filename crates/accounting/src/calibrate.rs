//! The other way round: from a promise to the noise, the steps or the lot size that keep it.
//!
//! Whatever comes back has been priced by the same accountant that will price the run, and the price is at most the promise.

use crate::cost::{Accountant, Cost, Guarantee, Unit};
use crate::error::{Error, Result};
use crate::event::{Composition, Event};
use crate::number::{Delta, Epsilon, Sigma};

/// The noise multipliers that are considered.
const SIGMA: (f64, f64) = (1e-3, 1e8);

/// The most steps that are considered.
const MOST_STEPS: u64 = 1 << 40;

/// A multiplier is found to this relative precision, and then it is the upper end.
const PRECISION: f64 = 1e-7;

/// A promise: (ε, δ) to whom, by which accountant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The promised ε.
    pub epsilon: Epsilon,
    /// The promised δ.
    pub delta: Delta,
    /// Who is protected.
    pub unit: Unit,
    /// Who does the sums.
    pub accountant: Accountant,
}

impl Target {
    /// The price of these events as this promise counts it.
    pub fn price(&self, events: &Composition) -> Result<Guarantee> {
        Cost::new(events, self.unit)?.epsilon(self.accountant, self.delta)
    }

    /// How far above the promise the events are, as ln of a ratio: positive is too much. The pinch on both sides lets a promise of ε = 0
    /// be compared.
    fn overrun(&self, events: &Composition) -> Result<(f64, Guarantee)> {
        let price = match self.price(events) {
            // Noise too small for a grid is a price too high to be written down, not the end of a search.
            Err(Error::Unsupported { accountant: "pld", .. }) => Guarantee { epsilon: f64::INFINITY, ..self.quick().price(events)? },
            price => price?,
        };
        let pinch = 1e-6;
        let over = ((price.epsilon + pinch) / (self.epsilon.get() + pinch)).ln();
        // The sign decides what is kept, so it comes from the comparison itself; what is not comparable is too much.
        let over = if price.epsilon <= self.epsilon.get() { over.min(0.0) } else { over.max(f64::MIN_POSITIVE) };
        Ok((over, price))
    }

    fn quick(&self) -> Self {
        let accountant = if self.accountant == Accountant::Gdp { Accountant::Gdp } else { Accountant::Rdp };
        Self { accountant, ..*self }
    }

    fn unreachable(&self, parameter: &'static str, reason: String) -> Error {
        Error::Unreachable { parameter, epsilon: self.epsilon.get(), delta: self.delta.get(), reason }
    }
}

/// The smallest σ for which the events keep the promise, with the price they then have.
///
/// `events` makes the composition from a multiplier. It may contain more than depends on σ: so the noise of loss probes is found
/// from what the noise of the gradients leaves.
pub fn sigma(target: Target, events: impl Fn(Sigma) -> Result<Composition>) -> Result<(Sigma, Guarantee)> {
    let at = |target: Target, x: f64| target.overrun(&events(Sigma::new(x.exp())?)?);
    let (lowest, highest) = (SIGMA.0.ln(), SIGMA.1.ln());
    // RDP is quick and close, and (GDP aside) never below PLD: its answer is where the search for the accountant asked begins.
    let quick = target.quick();
    let start = match descend(0.0, lowest, highest, 1e-3, |x| at(quick, x))? {
        Some((x, _)) => x,
        None => highest,
    };
    match descend(start, lowest, highest, PRECISION, |x| at(target, x))? {
        Some((x, price)) => Ok((Sigma::new(x.exp())?, price)),
        None => {
            let least = at(target, highest)?.1.epsilon;
            Err(target.unreachable("noise multiplier", format!("with σ = {:e} it is still {least:.6}", SIGMA.1)))
        }
    }
}

/// The smallest x in [lowest, highest] with f(x) ≤ 0 for a falling f, to within `precision` and on the safe side; `None` if there is none.
fn descend(
    start: f64,
    lowest: f64,
    highest: f64,
    precision: f64,
    f: impl Fn(f64) -> Result<(f64, Guarantee)>,
) -> Result<Option<(f64, Guarantee)>> {
    let x = start.clamp(lowest, highest);
    let (over, price) = f(x)?;
    let (mut low, mut high) = (None, None);
    if over > 0.0 {
        low = Some((x, over))
    } else {
        high = Some((x, over, price))
    }
    // ln ε falls about as −2 ln σ where the search usually is: a first guess of the other end, then wider.
    let mut stride = (0.6 * over.abs()).clamp(4.0 * precision, 2.0);
    while low.is_none() || high.is_none() {
        let x = match (low, high) {
            (Some((x, _)), _) if x >= highest => return Ok(None),
            (Some((x, _)), _) => (x + stride).min(highest),
            (_, Some((x, _, price))) if x <= lowest => return Ok(Some((x, price))),
            (_, Some((x, ..))) => (x - stride).max(lowest),
            _ => x,
        };
        let (over, price) = f(x)?;
        if over > 0.0 {
            low = Some((x, over))
        } else {
            high = Some((x, over, price))
        }
        stride *= 3.0;
    }
    let (Some((mut a, mut fa)), Some((mut b, mut fb, mut price))) = (low, high) else { return Ok(None) };
    // Regula falsi (Illinois), each guess moved a little towards the safe side so that the bracket closes from both.
    let mut side = 0;
    while b - a > precision && fb < -0.1 * precision {
        let slope = fa - fb;
        let guess = if slope.is_finite() && slope > 0.0 { a + (b - a) * fa / slope } else { 0.5 * (a + b) };
        let margin = 0.3 * precision;
        let x = (guess + margin).clamp(a + margin, b - margin);
        let (over, at) = f(x)?;
        if over > 0.0 {
            (a, fa) = (x, over);
            if side == -1 {
                fb *= 0.5;
            }
            side = -1;
        } else {
            (b, fb, price) = (x, over, at);
            if side == 1 {
                fa *= 0.5;
            }
            side = 1;
        }
    }
    Ok(Some((b, price)))
}

/// The largest number of steps, each `event`, that keeps the promise after what was `spent` before; with the price of all of it.
pub fn steps(target: Target, spent: &Composition, event: &Event) -> Result<(u64, Guarantee)> {
    largest_count(target, |count| {
        let mut events = spent.clone();
        events.push(event.clone(), count)?;
        Ok(events)
    })
}

/// The largest number of steps that keeps the promise, where `events` makes the composition from it.
pub fn largest_count(target: Target, events: impl Fn(u64) -> Result<Composition>) -> Result<(u64, Guarantee)> {
    largest(target, "number of steps", 0, MOST_STEPS, events)
}

/// The largest lot of up to `dataset` examples that keeps the promise; `events` makes the composition from a lot size.
pub fn lot_size(target: Target, dataset: u64, events: impl Fn(u64) -> Result<Composition>) -> Result<(u64, Guarantee)> {
    largest(target, "lot size", 1, dataset, events)
}

/// The largest whole number in [least, most] whose events keep the promise, for a price that rises with it.
fn largest(
    target: Target,
    name: &'static str,
    least: u64,
    most: u64,
    events: impl Fn(u64) -> Result<Composition>,
) -> Result<(u64, Guarantee)> {
    let at = |target: Target, n: u64| target.overrun(&events(n)?);
    let (over, price) = at(target, least)?;
    if over > 0.0 {
        return Err(target.unreachable(name, format!("with {least} it is already {:.6}", price.epsilon)));
    }
    let (mut low, mut kept) = (least, price);
    // Doubling with the quick accountant, which overruns first, then with the one asked.
    let mut high = least.max(1);
    for accountant in [target.quick(), target] {
        loop {
            let (over, price) = at(accountant, high)?;
            if over > 0.0 {
                break;
            }
            if accountant == target {
                (low, kept) = (high, price);
            }
            if high >= most {
                if accountant == target {
                    return Ok((high, kept));
                }
                break;
            }
            high = high.saturating_mul(2).min(most);
        }
    }
    // Secant in ln n against ln ε, with halving as a safeguard; exact at the end, as both ends are whole numbers.
    let mut round = 0;
    while high - low > 1 {
        round += 1;
        let half = low + (high - low) / 2;
        let guess = if round % 3 == 0 || low == 0 {
            half
        } else {
            let (under, over) = (at(target, low)?.0, at(target, high)?.0);
            let part = under / (under - over);
            let x = (low as f64).ln() + part * ((high as f64).ln() - (low as f64).ln());
            if part.is_finite() { x.exp() as u64 } else { half }
        };
        let guess = guess.clamp(low + 1, high - 1);
        let (over, price) = at(target, guess)?;
        if over > 0.0 { high = guess } else { (low, kept) = (guess, price) }
    }
    Ok((low, kept))
}
