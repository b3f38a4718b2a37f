//! The privacy cost of a composition: the one interface that computes ε and δ.

use crate::curve::TradeOff;
use crate::direction::{Direction, Directions, directions};
use crate::error::{Error, Result};
use crate::event::{Adjacency, Composition};
use crate::number::{Delta, Epsilon};
use crate::{gdp, pld, rdp};
use serde::{Deserialize, Serialize};

/// The unit of privacy: which data sets are neighbours, and how many rows they differ in.
///
/// ```
/// use accounting::{Adjacency, Unit};
///
/// let row = Unit::from(Adjacency::AddRemove);
/// let person = Unit { rows: 10, ..row };
/// assert_eq!((row.rows, person.rows), (1, 10));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// How neighbouring data sets differ in a record.
    pub adjacency: Adjacency,
    /// In how many records they differ: k protects a person with up to k records.
    pub rows: u64,
}

impl From<Adjacency> for Unit {
    /// One row.
    fn from(adjacency: Adjacency) -> Self {
        Self { adjacency, rows: 1 }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rows {
            1 => write!(f, "{}, one record", self.adjacency),
            k => write!(f, "{}, a person with {k} records", self.adjacency),
        }
    }
}

/// The method by which ε and δ are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accountant {
    /// The smaller of PLD and RDP. Both are upper bounds, so the smaller is one, too.
    #[default]
    Best,
    /// Privacy loss distributions: tight to within a hundredth of a percent in ordinary runs. Where
    /// the grid would be too long, the Rényi bound.
    Pld,
    /// Rényi divergences: a few percent above PLD, available for every event.
    Rdp,
    /// The central limit. An **estimate** that can be below the exact ε; never a guarantee.
    Gdp,
}

impl Accountant {
    /// All accountants.
    pub const ALL: [Self; 4] = [Self::Best, Self::Pld, Self::Rdp, Self::Gdp];

    /// The name in configurations, on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Pld => "pld",
            Self::Rdp => "rdp",
            Self::Gdp => "gdp",
        }
    }
}

impl std::fmt::Display for Accountant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// (ε, δ) with its unit of privacy and the accountant that computed it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Guarantee {
    /// ε; infinite if there is no guarantee.
    pub epsilon: f64,
    /// δ.
    pub delta: f64,
    /// The unit of privacy.
    pub unit: Unit,
    /// The accountant that computed it; never [`Accountant::Best`].
    pub accountant: Accountant,
    /// The Rényi order that gave the bound, if it comes from RDP.
    pub order: Option<f64>,
    /// Whether this is an estimate instead of an upper bound.
    pub estimate: bool,
}

/// A composition analysed for one unit of privacy; computes ε and δ.
///
/// ```
/// use accounting::{Accountant, Adjacency, Composition, Cost, Delta, Event, SamplingRate, Sigma};
///
/// let step = Event::poisson(SamplingRate::new(0.01)?, Sigma::new(1.0)?);
/// let cost = Cost::new(&Composition::repeated(step, 1000), Adjacency::AddRemove)?;
/// let guarantee = cost.epsilon(Accountant::Best, Delta::new(1e-5)?)?;
/// assert!(guarantee.epsilon < 1.829 && !guarantee.estimate);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cost {
    unit: Unit,
    analysis: Analysis,
    events: Composition,
    precision: pld::Precision,
}

/// How the composition is analysed.
#[derive(Debug, Clone)]
enum Analysis {
    /// An event has no guarantee.
    NoGuarantee,
    /// By dominating pairs for the unit itself.
    Direct(Directions),
    /// By the cost for one row and group privacy: k rows are a chain of k neighbours.
    Group(Box<Cost>),
}

/// What is computed for each direction; the larger value counts.
#[derive(Clone, Copy)]
enum Question {
    Epsilon(Delta),
    Delta(Epsilon),
}

impl Cost {
    /// Analyses these events.
    ///
    /// # Errors
    /// If the unit has no rows, or an event is invalid or unsupported for this unit.
    pub fn new(events: &Composition, unit: impl Into<Unit>) -> Result<Self> {
        let unit = unit.into();
        if unit.rows == 0 {
            return Err(Error::OutOfRange {
                name: "the number of rows per unit",
                expected: "at least 1",
                got: "0".into(),
            });
        }
        let analysis = if events.has_non_private() {
            Analysis::NoGuarantee
        } else {
            match directions(events, unit) {
                Ok(directions) => Analysis::Direct(directions),
                Err(_) if unit.rows > 1 => {
                    Analysis::Group(Box::new(Self::new(&events.without(unit)?, unit.adjacency)?))
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Self { unit, analysis, events: events.clone(), precision: pld::Precision::Fine })
    }

    /// The same with a coarser PLD grid: faster and somewhat higher bounds, for searches.
    pub(crate) fn with_rough_precision(self) -> Self {
        Self { precision: pld::Precision::Rough, ..self }
    }

    /// The unit of privacy.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The smallest ε that the accountant guarantees at this δ.
    pub fn epsilon(&self, accountant: Accountant, delta: Delta) -> Result<Guarantee> {
        match &self.analysis {
            Analysis::NoGuarantee => {
                Ok(self.guarantee(accountant, f64::INFINITY, delta.get(), None))
            }
            Analysis::Group(row) => self.group_epsilon(row, accountant, delta),
            Analysis::Direct(Directions { directions, failure }) => {
                // δ(ε) = f + (1 − f) δ'(ε), with δ' of the finite losses.
                let rest = (delta.get() - failure) / (1.0 - failure);
                let guarantee = match Delta::new(rest) {
                    Ok(rest) => self.compute(directions, accountant, Question::Epsilon(rest))?,
                    Err(_) => {
                        // Nothing is left for finite losses: all of them must be below ε.
                        let largest = largest_loss(directions);
                        let epsilon = if rest == 0.0 { largest } else { f64::INFINITY };
                        self.supported(directions, accountant)?;
                        self.guarantee(accountant, epsilon, delta.get(), None)
                    }
                };
                Ok(Guarantee { delta: delta.get(), ..guarantee })
            }
        }
    }

    /// The smallest δ that the accountant guarantees at this ε.
    pub fn delta(&self, accountant: Accountant, epsilon: Epsilon) -> Result<Guarantee> {
        match &self.analysis {
            Analysis::NoGuarantee => Ok(self.guarantee(accountant, epsilon.get(), 1.0, None)),
            Analysis::Group(row) => {
                // (ε/k, δ) for one row is (ε, δ·(e^ε − 1)/(e^{ε/k} − 1)) for k rows.
                let part = Epsilon::new(epsilon.get() / self.unit.rows as f64)?;
                let row = row.delta(accountant, part)?;
                let delta = row.delta * group_factor(part.get(), self.unit.rows);
                Ok(Guarantee {
                    epsilon: epsilon.get(),
                    delta: at_most_one(delta),
                    unit: self.unit,
                    ..row
                })
            }
            Analysis::Direct(Directions { directions, failure }) => {
                let rest = self.compute(directions, accountant, Question::Delta(epsilon))?;
                let delta = at_most_one(failure + (1.0 - failure) * rest.delta);
                Ok(Guarantee { delta, ..rest })
            }
        }
    }

    /// The ε with δ = 0; infinite for Gaussian noise.
    pub fn pure_epsilon(&self) -> f64 {
        match &self.analysis {
            Analysis::NoGuarantee => f64::INFINITY,
            Analysis::Group(row) => self.unit.rows as f64 * row.pure_epsilon(),
            Analysis::Direct(Directions { failure, .. }) if *failure > 0.0 => f64::INFINITY,
            Analysis::Direct(Directions { directions, .. }) => largest_loss(directions),
        }
    }

    /// Upper bound on the Rényi divergence of this order (above 1), in the worse direction.
    pub fn renyi(&self, order: f64) -> Result<f64> {
        let theta = order - 1.0;
        if !(theta > 0.0 && theta < f64::INFINITY) {
            return Err(Error::OutOfRange {
                name: "the Rényi order",
                expected: "greater than 1",
                got: order.to_string(),
            });
        }
        match &self.analysis {
            Analysis::NoGuarantee => Ok(f64::INFINITY),
            Analysis::Direct(_) => self.ln_mgf(theta).map_or(Ok(f64::INFINITY), |k| Ok(k / theta)),
            Analysis::Group(_) => Err(Error::Unsupported {
                accountant: "rdp",
                event: format!("these lots for {}", self.unit),
            }),
        }
    }

    /// ln E e^{θL} of the privacy loss L in the worse direction; `None` without a direct analysis.
    ///
    /// It is θ times the Rényi divergence of order 1 + θ.
    pub(crate) fn ln_mgf(&self, theta: f64) -> Option<f64> {
        let Analysis::Direct(Directions { directions, failure }) = &self.analysis else {
            return None;
        };
        if *failure > 0.0 {
            return Some(f64::INFINITY);
        }
        // NaN counts as infinite: `f64::max` would ignore it.
        let careful = |k: f64| if k.is_nan() { f64::INFINITY } else { k };
        let of = |direction| careful(rdp::ln_mgf(direction, theta));
        Some(directions.iter().map(of).fold(0.0, f64::max))
    }

    /// Upper bound on the true-positive rate of an attack at each false-positive rate.
    ///
    /// Rates below about `delta` are not resolved.
    pub fn trade_off(&self, delta: Delta) -> Result<TradeOff> {
        match &self.analysis {
            Analysis::NoGuarantee => Ok(TradeOff::no_protection()),
            Analysis::Direct(Directions { directions, failure }) => {
                if *failure > 0.0 || directions.iter().any(Direction::is_renyi_only) {
                    return Err(Error::Unsupported {
                        accountant: "trade-off",
                        event: "a release of which only (ε, δ) or ρ is known".into(),
                    });
                }
                Ok(pld::trade_off(directions, delta.get()))
            }
            Analysis::Group(_) => Err(Error::Unsupported {
                accountant: "trade-off",
                event: format!("these lots for {}", self.unit),
            }),
        }
    }

    fn compute(
        &self,
        directions: &[Direction],
        accountant: Accountant,
        question: Question,
    ) -> Result<Guarantee> {
        self.supported(directions, accountant)?;
        match accountant {
            Accountant::Rdp => Ok(self.rdp(directions, question)),
            Accountant::Pld => self.pld(directions, question).ok_or(Error::NoiseTooSmall),
            Accountant::Gdp => {
                let mu = gdp::mu(&self.events, self.unit)?;
                let (epsilon, delta) = match question {
                    Question::Epsilon(delta) => {
                        (crate::gaussian::epsilon(mu, delta.get()), delta.get())
                    }
                    Question::Delta(epsilon) => {
                        (epsilon.get(), crate::gaussian::delta(mu, epsilon.get()))
                    }
                };
                Ok(Guarantee {
                    estimate: true,
                    ..self.guarantee(Accountant::Gdp, epsilon, delta, None)
                })
            }
            Accountant::Best => {
                let rdp = self.rdp(directions, question);
                let better = |pld: &Guarantee| pld.epsilon <= rdp.epsilon && pld.delta <= rdp.delta;
                Ok(self.pld(directions, question).filter(better).unwrap_or(rdp))
            }
        }
    }

    /// Checks that the accountant has a bound for all events.
    fn supported(&self, directions: &[Direction], accountant: Accountant) -> Result<()> {
        match accountant {
            Accountant::Pld if directions.iter().any(Direction::is_renyi_only) => {
                Err(Error::Unsupported {
                    accountant: "pld",
                    event: "a release of which only ρ is known; use rdp".into(),
                })
            }
            Accountant::Gdp => gdp::mu(&self.events, self.unit).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn rdp(&self, directions: &[Direction], question: Question) -> Guarantee {
        let mut worst = self.guarantee(Accountant::Rdp, 0.0, 0.0, None);
        for direction in directions {
            match question {
                Question::Epsilon(delta) => {
                    let bound = rdp::epsilon(direction, delta.get());
                    worst.delta = delta.get();
                    // No loss exceeds the largest one, which is the bound of infinite order.
                    let largest = direction.largest_loss();
                    if largest < bound.value {
                        if largest > worst.epsilon {
                            (worst.epsilon, worst.order) = (largest, Some(f64::INFINITY));
                        }
                    } else if !(bound.value < worst.epsilon) {
                        (worst.epsilon, worst.order) = (bound.value, Some(1.0 + bound.theta));
                    }
                }
                Question::Delta(epsilon) => {
                    let bound = rdp::ln_delta(direction, epsilon.get());
                    worst.epsilon = epsilon.get();
                    if direction.largest_loss() <= epsilon.get() {
                        continue;
                    }
                    let delta = at_most_one(bound.value.exp());
                    if !(delta < worst.delta) {
                        (worst.delta, worst.order) = (delta, Some(1.0 + bound.theta));
                    }
                }
            }
        }
        worst
    }

    /// `None` where the noise is too small for a grid.
    fn pld(&self, directions: &[Direction], question: Question) -> Option<Guarantee> {
        let (mut epsilon, mut delta): (f64, f64) = (0.0, 0.0);
        for direction in directions {
            match question {
                Question::Epsilon(target) => {
                    delta = target.get();
                    let bound = rdp::epsilon(direction, delta);
                    // A direction whose Rényi bound is below the ε of the other one cannot change
                    // the maximum.
                    if !(bound.value <= epsilon) {
                        let found = pld::epsilon(direction, delta, bound, self.precision)?;
                        epsilon = epsilon.max(found.min(direction.largest_loss()));
                    }
                }
                Question::Delta(target) => {
                    epsilon = target.get();
                    let bound = rdp::ln_delta(direction, epsilon);
                    let exceeds = !(direction.largest_loss() <= epsilon);
                    if exceeds && !(bound.value.exp() <= delta) {
                        delta = delta.max(pld::delta(direction, epsilon, bound)?);
                    }
                }
            }
        }
        Some(self.guarantee(Accountant::Pld, epsilon, delta, None))
    }

    /// ε for k rows by group privacy, where only one row has a direct analysis.
    ///
    /// (ε, δ′) for one row is (kε, δ′·(e^{kε} − 1)/(e^ε − 1)) for k (Vadhan 2017, Lemma 2.2); the
    /// largest δ′ that leaves δ is searched.
    fn group_epsilon(&self, row: &Self, accountant: Accountant, delta: Delta) -> Result<Guarantee> {
        let k = self.unit.rows as f64;
        let at = |ln_delta: f64| -> Result<(Guarantee, bool)> {
            let one = row.epsilon(accountant, Delta::new(ln_delta.exp())?)?;
            let kept = ln_delta.exp() * group_factor(one.epsilon, self.unit.rows) <= delta.get();
            Ok((
                Guarantee { epsilon: k * one.epsilon, delta: delta.get(), unit: self.unit, ..one },
                kept,
            ))
        };
        // Down from δ in growing steps until the bound holds, then bisection.
        let (mut high, mut step) = (delta.get().ln() - k.ln(), 1.0);
        let mut low = high;
        let mut found = loop {
            let (guarantee, kept) = at(low)?;
            if kept {
                break guarantee;
            }
            (high, low, step) = (low, low - step, step * 1.5);
            if low < -690.0 {
                return Ok(self.guarantee(guarantee.accountant, f64::INFINITY, delta.get(), None));
            }
        };
        for _ in 0..12 {
            let middle = 0.5 * (low + high);
            match at(middle)? {
                (guarantee, true) => (low, found) = (middle, guarantee),
                (_, false) => high = middle,
            }
        }
        Ok(found)
    }

    fn guarantee(
        &self,
        accountant: Accountant,
        epsilon: f64,
        delta: f64,
        order: Option<f64>,
    ) -> Guarantee {
        let accountant = if accountant == Accountant::Best { Accountant::Pld } else { accountant };
        Guarantee {
            epsilon,
            delta,
            unit: self.unit,
            accountant,
            order,
            estimate: accountant == Accountant::Gdp,
        }
    }
}

/// The largest privacy loss in either direction.
fn largest_loss(directions: &[Direction]) -> f64 {
    directions.iter().map(Direction::largest_loss).fold(0.0, f64::max)
}

/// (e^{kε} − 1)/(e^ε − 1).
pub(crate) fn group_factor(epsilon: f64, rows: u64) -> f64 {
    let k = rows as f64;
    if epsilon == 0.0 { k } else { (k * epsilon).exp_m1() / epsilon.exp_m1() }
}

/// Clamps δ to a probability; NaN becomes 1.
fn at_most_one(delta: f64) -> f64 {
    if delta < 1.0 { delta } else { 1.0 }
}
