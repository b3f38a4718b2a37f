//! The other way round: from a promise to the noise, the steps or the lot size that keep it.
//!
//! Whatever comes back has been priced by the same accountant that will price the run, and the
//! price is at most the promise.

use crate::cost::{Accountant, Cost, Guarantee, Unit};
use crate::error::{Error, Result};
use crate::event::{Composition, Event};
use crate::number::{Delta, Epsilon, Sigma};

/// The noise multipliers that are considered.
const SIGMA: (f64, f64) = (1e-3, 1e8);

/// The most steps that are considered.
const MOST_STEPS: u64 = 1 << 40;

/// A multiplier is found to this relative precision, and then it is the upper end.
const PRECISION: f64 = 1e-6;

/// The precision of the searches that only show where to begin.
const ROUGH: f64 = 1e-3;

/// How fast ln ε falls with ln σ where nothing better is known.
const USUAL_SLOPE: f64 = 1.7;

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

    /// How far above the promise the events are, as ln of a ratio: positive is too much. The pinch
    /// on both sides lets a promise of ε = 0 be compared.
    fn overrun(&self, cost: &Cost) -> Result<(f64, Guarantee)> {
        let price = match cost.epsilon(self.accountant, self.delta) {
            // Noise too small for a grid is a price too high to be written down, not the end of a
            // search.
            Err(Error::Unsupported { accountant: "pld", .. }) => {
                Guarantee { epsilon: f64::INFINITY, ..cost.epsilon(Accountant::Rdp, self.delta)? }
            }
            price => price?,
        };
        let pinch = 1e-6;
        let over = ((price.epsilon + pinch) / (self.epsilon.get() + pinch)).ln();
        // The sign decides what is kept, so it comes from the comparison itself; what is not
        // comparable is too much.
        let over = if price.epsilon <= self.epsilon.get() {
            over.min(0.0)
        } else {
            over.max(f64::MIN_POSITIVE)
        };
        Ok((over, price))
    }

    fn quick(&self) -> Self {
        let accountant =
            if self.accountant == Accountant::Gdp { Accountant::Gdp } else { Accountant::Rdp };
        Self { accountant, ..*self }
    }

    fn unreachable(&self, parameter: &'static str, reason: String) -> Error {
        Error::Unreachable {
            parameter,
            epsilon: self.epsilon.get(),
            delta: self.delta.get(),
            reason,
        }
    }
}

/// The smallest σ for which the events keep the promise, with the price they then have.
///
/// `events` makes the composition from a multiplier. It may contain more than depends on σ: so the
/// noise of loss probes is found from what the noise of the gradients leaves.
pub fn sigma(
    target: Target,
    events: impl Fn(Sigma) -> Result<Composition>,
) -> Result<(Sigma, Guarantee)> {
    let cost = |x: f64| Cost::new(&events(Sigma::new(x.exp())?)?, target.unit);
    let (lowest, highest) = (SIGMA.0.ln(), SIGMA.1.ln());
    // RDP is quick and close; then PLD on a coarse grid; then the accountant asked for, which has
    // little left to do.
    let mut found = Found { x: 0.0, slope: USUAL_SLOPE };
    found = descend(found, (lowest, highest), ROUGH, |x| target.quick().overrun(&cost(x)?))?
        .map_or(Found { x: highest, ..found }, |f| f.0);
    if matches!(target.accountant, Accountant::Best | Accountant::Pld) {
        found =
            descend(found, (lowest, highest), 0.1 * ROUGH, |x| target.overrun(&cost(x)?.rough()))?
                .map_or(found, |f| f.0);
    }
    match descend(found, (lowest, highest), PRECISION, |x| target.overrun(&cost(x)?))? {
        Some((found, price)) => Ok((Sigma::new(found.x.exp())?, price)),
        None => {
            let least = target.overrun(&cost(highest)?)?.1.epsilon;
            Err(target.unreachable(
                "noise multiplier",
                format!("with σ = {:e} it is still {least:.6}", SIGMA.1),
            ))
        }
    }
}

/// Where a search ended, and how fast the function fell there.
#[derive(Clone, Copy)]
struct Found {
    x: f64,
    slope: f64,
}

/// The smallest x between the limits with f(x) ≤ 0 for a falling f, to within `precision` and on
/// the safe side; `None` if there is none.
fn descend(
    start: Found,
    (lowest, highest): (f64, f64),
    precision: f64,
    f: impl Fn(f64) -> Result<(f64, Guarantee)>,
) -> Result<Option<(Found, Guarantee)>> {
    let mut slope = start.slope;
    let x = start.x.clamp(lowest, highest);
    let (over, price) = f(x)?;
    let (mut low, mut high) = (None, None);
    if over > 0.0 {
        low = Some((x, over))
    } else {
        high = Some((x, over, price))
    }
    // A first guess of the other end from the slope, a little beyond; then wider.
    let mut stride =
        if over.is_finite() { (1.1 * over.abs() / slope + 0.3 * precision).min(2.0) } else { 2.0 };
    while low.is_none() || high.is_none() {
        let x = match (low, high) {
            (Some((x, _)), _) if x >= highest => return Ok(None),
            (Some((x, _)), _) => (x + stride).min(highest),
            (_, Some((x, _, price))) if x <= lowest => {
                return Ok(Some((Found { x, slope }, price)));
            }
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
    let (Some((mut a, mut fa)), Some((mut b, mut fb, mut price))) = (low, high) else {
        return Ok(None);
    };
    // Regula falsi (Illinois), each guess moved a little towards the safe side so that the bracket
    // closes from both.
    let (mut side, mut under) = (0, fb);
    loop {
        let fall = (fa - fb) / (b - a);
        if side == 0 && fall.is_finite() && fall > 0.1 {
            slope = fall;
        }
        // At a price of 0 the function is flat and says nothing of the distance.
        let flat = price.epsilon == 0.0;
        if b - a <= precision || (under >= -0.3 * precision * slope && !flat) {
            return Ok(Some((Found { x: b, slope }, price)));
        }
        let guess =
            if fall.is_finite() && fall > 0.0 && !flat { a + fa / fall } else { 0.5 * (a + b) };
        let margin = 0.15 * precision;
        let x = (guess + margin).clamp(a + margin, b - margin);
        let (over, at) = f(x)?;
        if over > 0.0 {
            (a, fa) = (x, over);
            if side == -1 {
                fb *= 0.5;
            }
            side = -1;
        } else {
            (b, fb, under, price) = (x, over, over, at);
            if side == 1 {
                fa *= 0.5;
            }
            side = 1;
        }
    }
}

/// The largest number of steps, each `event`, that keeps the promise after what was `spent` before;
/// with the price of all of it.
pub fn steps(target: Target, spent: &Composition, event: &Event) -> Result<(u64, Guarantee)> {
    largest_count(target, |count| {
        let mut events = spent.clone();
        events.push(event.clone(), count)?;
        Ok(events)
    })
}

/// The largest number of steps that keeps the promise, where `events` makes the composition from
/// it.
pub fn largest_count(
    target: Target,
    events: impl Fn(u64) -> Result<Composition>,
) -> Result<(u64, Guarantee)> {
    largest(target, "number of steps", 0, MOST_STEPS, events)
}

/// The largest lot of up to `dataset` examples that keeps the promise; `events` makes the
/// composition from a lot size.
pub fn lot_size(
    target: Target,
    dataset: u64,
    events: impl Fn(u64) -> Result<Composition>,
) -> Result<(u64, Guarantee)> {
    largest(target, "lot size", 1, dataset, events)
}

/// The largest whole number in [least, most] whose events keep the promise, for a price that rises
/// with it.
fn largest(
    target: Target,
    name: &'static str,
    least: u64,
    most: u64,
    events: impl Fn(u64) -> Result<Composition>,
) -> Result<(u64, Guarantee)> {
    if most < least {
        return Err(Error::OutOfRange { name, expected: "at least 1", got: most.to_string() });
    }
    let at = |target: Target, n: u64| target.overrun(&Cost::new(&events(n)?, target.unit)?);
    let (mut under, mut kept) = at(target, least)?;
    if under > 0.0 {
        return Err(
            target.unreachable(name, format!("with {least} it is already {:.6}", kept.epsilon))
        );
    }
    let mut low = least;
    // Doubling with the quick accountant, which overruns first, then with the one asked.
    let (mut high, mut over) = (least.max(1), 0.0);
    while high < most && at(target.quick(), high)?.0 <= 0.0 {
        high = high.saturating_mul(2).min(most);
    }
    loop {
        let (here, price) = at(target, high)?;
        if here > 0.0 {
            over = f64::max(over, here);
            break;
        }
        (low, under, kept) = (high, here, price);
        if high >= most {
            return Ok((high, kept));
        }
        high = high.saturating_mul(2).min(most);
    }
    // Secant in ln n against ln ε, with halving as a safeguard; exact at the end, as both ends are
    // whole numbers.
    let mut round = 0;
    while high - low > 1 {
        round += 1;
        let part = under / (under - over);
        let secant = ((low as f64).ln() + part * ((high as f64).ln() - (low as f64).ln())).exp();
        let guess = if round % 3 == 0 || !secant.is_finite() {
            low + (high - low) / 2
        } else {
            secant as u64
        };
        let guess = guess.clamp(low + 1, high - 1);
        let (here, price) = at(target, guess)?;
        if here > 0.0 {
            (high, over) = (guess, here)
        } else {
            (low, under, kept) = (guess, here, price)
        }
    }
    Ok((low, kept))
}
