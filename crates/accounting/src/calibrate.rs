//! Calibration: the noise multiplier, the number of steps or the lot size that keep a target (ε,
//! δ).
//!
//! Every result has been checked by the accountant of the target: its ε is at most the target's.

use crate::cost::{Accountant, Cost, Guarantee, Unit};
use crate::error::{Error, Result};
use crate::event::{Composition, Event};
use crate::number::{Delta, Epsilon, Sigma};

/// Range in which noise multipliers are searched.
const SIGMA: (f64, f64) = (1e-3, 1e8);

/// Largest number of steps that is considered.
const MAX_STEPS: u64 = 1 << 40;

/// Relative precision of a multiplier; the upper end of the final bracket is returned.
const PRECISION: f64 = 1e-6;

/// Precision of the searches that provide a starting point.
const ROUGH: f64 = 1e-3;

/// Initial guess for −d ln ε / d ln σ.
const USUAL_SLOPE: f64 = 1.7;

/// A target guarantee: (ε, δ), the unit of privacy, and the accountant.
///
/// ```
/// use accounting::calibrate::{self, Target};
/// use accounting::{Accountant, Adjacency, Composition, Delta, Epsilon, Event, SamplingRate};
///
/// let target = Target {
///     epsilon: Epsilon::new(2.0)?,
///     delta: Delta::new(1e-5)?,
///     unit: Adjacency::AddRemove.into(),
///     accountant: Accountant::Best,
/// };
/// let rate = SamplingRate::new(0.01)?;
/// let (sigma, guarantee) = calibrate::sigma(target, |sigma| {
///     Ok(Composition::repeated(Event::poisson(rate, sigma), 1000))
/// })?;
/// assert!(sigma.get() < 1.0 && guarantee.epsilon <= 2.0);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The largest ε allowed.
    pub epsilon: Epsilon,
    /// δ.
    pub delta: Delta,
    /// The unit of privacy.
    pub unit: Unit,
    /// The accountant that computes ε.
    pub accountant: Accountant,
}

impl Target {
    /// The guarantee of these events for this δ, unit and accountant.
    pub fn price(&self, events: &Composition) -> Result<Guarantee> {
        Cost::new(events, self.unit)?.epsilon(self.accountant, self.delta)
    }

    /// ln of the ratio of the events' ε to the target's: positive if the target is exceeded.
    ///
    /// An offset on both sides makes a target of ε = 0 comparable.
    fn overrun(&self, cost: &Cost) -> Result<(f64, Guarantee)> {
        let price = match cost.epsilon(self.accountant, self.delta) {
            // Noise too small for a grid exceeds the target; the search continues.
            Err(Error::NoiseTooSmall) => {
                Guarantee { epsilon: f64::INFINITY, ..cost.epsilon(Accountant::Rdp, self.delta)? }
            }
            price => price?,
        };
        let offset = 1e-6;
        let over = ((price.epsilon + offset) / (self.epsilon.get() + offset)).ln();
        // The sign decides which end of a bracket is kept, so it comes from the comparison itself;
        // NaN exceeds the target.
        let over = if price.epsilon <= self.epsilon.get() {
            over.min(0.0)
        } else {
            over.max(f64::MIN_POSITIVE)
        };
        Ok((over, price))
    }

    /// The same target with an accountant that is fast enough for a first search.
    fn with_fast_accountant(&self) -> Self {
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

/// The smallest σ for which the events keep the target, and their guarantee.
///
/// `events` makes the composition from a multiplier. It may contain events that do not depend on σ:
/// the noise of loss probes is calibrated to the budget that the gradients leave. Its errors may be
/// of another type.
///
/// # Errors
/// If no noise keeps the target, or `events` fails.
pub fn sigma<E: From<Error>>(
    target: Target,
    events: impl Fn(Sigma) -> std::result::Result<Composition, E>,
) -> std::result::Result<(Sigma, Guarantee), E> {
    let cost = |x: f64| -> std::result::Result<Cost, E> {
        Ok(Cost::new(&events(Sigma::new(x.exp())?)?, target.unit)?)
    };
    let (lowest, highest) = (SIGMA.0.ln(), SIGMA.1.ln());
    // RDP is fast and close; then PLD on a coarse grid; then the target's accountant, which starts
    // close to the solution.
    let mut found = SearchPoint { x: 0.0, slope: USUAL_SLOPE };
    found = descend(found, (lowest, highest), ROUGH, |x| {
        Ok::<_, E>(target.with_fast_accountant().overrun(&cost(x)?)?)
    })?
    .map_or(SearchPoint { x: highest, ..found }, |f| f.0);
    if matches!(target.accountant, Accountant::Best | Accountant::Pld) {
        found = descend(found, (lowest, highest), 0.1 * ROUGH, |x| {
            Ok::<_, E>(target.overrun(&cost(x)?.with_rough_precision())?)
        })?
        .map_or(found, |f| f.0);
    }
    let exact = |x: f64| Ok::<_, E>(target.overrun(&cost(x)?)?);
    match descend(found, (lowest, highest), PRECISION, exact)? {
        Some((found, price)) => Ok((Sigma::new(found.x.exp())?, price)),
        None => {
            let least = target.overrun(&cost(highest)?)?.1.epsilon;
            let reason = format!("even σ = {:e} gives ε = {least:.6}", SIGMA.1);
            Err(target.unreachable("noise multiplier", reason).into())
        }
    }
}

/// The result of a search: the point, and the function's negative slope there.
#[derive(Clone, Copy)]
struct SearchPoint {
    x: f64,
    slope: f64,
}

/// The smallest x between the limits with f(x) ≤ 0 for a decreasing f; `None` if there is none.
///
/// The result is within `precision` of it, on the side where f(x) ≤ 0.
fn descend<E>(
    start: SearchPoint,
    (lowest, highest): (f64, f64),
    precision: f64,
    f: impl Fn(f64) -> std::result::Result<(f64, Guarantee), E>,
) -> std::result::Result<Option<(SearchPoint, Guarantee)>, E> {
    let mut slope = start.slope;
    let x = start.x.clamp(lowest, highest);
    let (over, price) = f(x)?;
    let (mut low, mut high) = (None, None);
    if over > 0.0 {
        low = Some((x, over))
    } else {
        high = Some((x, over, price))
    }
    // The slope gives a first guess of the other end; then the bracket is widened.
    let mut stride =
        if over.is_finite() { (1.1 * over.abs() / slope + 0.3 * precision).min(2.0) } else { 2.0 };
    while low.is_none() || high.is_none() {
        let x = match (low, high) {
            (Some((x, _)), _) if x >= highest => return Ok(None),
            (Some((x, _)), _) => (x + stride).min(highest),
            (_, Some((x, _, price))) if x <= lowest => {
                return Ok(Some((SearchPoint { x, slope }, price)));
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
    // Regula falsi (Illinois). Each guess is moved a little towards the safe side, so that the
    // bracket shrinks from both ends.
    let (mut side, mut under) = (0, fb);
    loop {
        let fall = (fa - fb) / (b - a);
        if side == 0 && fall.is_finite() && fall > 0.1 {
            slope = fall;
        }
        // At ε = 0 the function is flat: its value does not tell the distance.
        let flat = price.epsilon == 0.0;
        if b - a <= precision || (under >= -0.3 * precision * slope && !flat) {
            return Ok(Some((SearchPoint { x: b, slope }, price)));
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

/// The largest number of steps, each `event`, that keeps the target after `spent`.
///
/// Returned with the guarantee of all events together.
pub fn steps(target: Target, spent: &Composition, event: &Event) -> Result<(u64, Guarantee)> {
    largest_count(target, |count| {
        let mut events = spent.clone();
        events.push(event.clone(), count)?;
        Ok(events)
    })
}

/// The largest number of steps that keeps the target; `events` makes the composition.
///
/// # Errors
/// If no number keeps the target, or `events` fails.
pub fn largest_count<E: From<Error>>(
    target: Target,
    events: impl Fn(u64) -> std::result::Result<Composition, E>,
) -> std::result::Result<(u64, Guarantee), E> {
    largest(target, "number of steps", 0, MAX_STEPS, events)
}

/// The largest lot of up to `dataset` examples that keeps the target.
///
/// `events` makes the composition from a lot size.
///
/// # Errors
/// If no lot size keeps the target, or `events` fails.
pub fn lot_size<E: From<Error>>(
    target: Target,
    dataset: u64,
    events: impl Fn(u64) -> std::result::Result<Composition, E>,
) -> std::result::Result<(u64, Guarantee), E> {
    largest(target, "lot size", 1, dataset, events)
}

/// The largest integer in [least, most] whose events keep the target, for an ε increasing in it.
fn largest<E: From<Error>>(
    target: Target,
    name: &'static str,
    least: u64,
    most: u64,
    events: impl Fn(u64) -> std::result::Result<Composition, E>,
) -> std::result::Result<(u64, Guarantee), E> {
    if most < least {
        let got = most.to_string();
        return Err(Error::OutOfRange { name, expected: "at least 1", got }.into());
    }
    let at =
        |target: Target, n: u64| Ok::<_, E>(target.overrun(&Cost::new(&events(n)?, target.unit)?)?);
    let (mut under, mut kept) = at(target, least)?;
    if under > 0.0 {
        let reason = format!("{least} already gives ε = {:.6}", kept.epsilon);
        return Err(target.unreachable(name, reason).into());
    }
    let mut low = least;
    // Doubling with the fast accountant, which exceeds the target first, then with the target's.
    let (mut high, mut over) = (least.max(1), 0.0);
    while high < most && at(target.with_fast_accountant(), high)?.0 <= 0.0 {
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
    // Secant in ln n against ln ε, with bisection as a safeguard; exact, as both ends are integers.
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
