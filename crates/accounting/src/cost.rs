//! The price of a composition: the one door through which ε and δ are asked for.

use crate::curve::TradeOff;
use crate::direction::{Direction, directions};
use crate::error::{Error, Result};
use crate::event::{Adjacency, Composition};
use crate::number::{Delta, Epsilon};
use crate::{gdp, pld, rdp};
use serde::{Deserialize, Serialize};

/// Who is protected: which data sets are neighbours, and how many rows one person may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// What may happen to a row.
    pub adjacency: Adjacency,
    /// To how many rows at once; 1 protects a row, k protects a person with up to k rows.
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
            1 => write!(f, "{}, one row", self.adjacency),
            k => write!(f, "{}, a person with {k} rows", self.adjacency),
        }
    }
}

/// How the price is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accountant {
    /// The smaller of PLD and RDP. Both are upper bounds, so the smaller is one.
    #[default]
    Best,
    /// Privacy loss distributions: tight to within a hundredth of a percent in ordinary runs. Where
    /// the grid would be too long, the Rényi bound.
    Pld,
    /// Rényi divergences: a few percent above PLD, and there for every event.
    Rdp,
    /// The central limit. An **estimate** that can lie below the truth; never part of a guarantee.
    Gdp,
}

impl Accountant {
    /// Its name as printed.
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

/// (ε, δ) with everything that must be known to understand it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Guarantee {
    /// ε; infinite if there is no guarantee.
    pub epsilon: f64,
    /// δ.
    pub delta: f64,
    /// Who is protected.
    pub unit: Unit,
    /// Which accountant's figure this is; never [`Accountant::Best`].
    pub accountant: Accountant,
    /// The Rényi order at which the figure was found, if it comes from RDP.
    pub order: Option<f64>,
    /// Whether this is an estimate instead of an upper bound.
    pub estimate: bool,
}

/// A composition as one unit of privacy sees it, ready to be priced.
#[derive(Debug, Clone)]
pub struct Cost {
    unit: Unit,
    sides: Sides,
    events: Composition,
    precision: pld::Precision,
}

#[derive(Debug, Clone)]
enum Sides {
    /// Something in it has no guarantee.
    Infinite,
    /// Dominating pairs for the unit itself.
    Direct(Vec<Direction>),
    /// The price for one row; a person with k rows is reached over k − 1 other data sets.
    Group(Box<Cost>),
}

/// What is asked of both sides: the larger answer counts.
#[derive(Clone, Copy)]
enum Question {
    Epsilon(Delta),
    Delta(Epsilon),
}

impl Cost {
    /// Prepares the price of these events.
    pub fn new(events: &Composition, unit: impl Into<Unit>) -> Result<Self> {
        let unit = unit.into();
        if unit.rows == 0 {
            return Err(Error::OutOfRange {
                name: "the rows of a person",
                expected: "at least 1",
                got: "0".into(),
            });
        }
        let sides = if events.has_non_private() {
            Sides::Infinite
        } else {
            match directions(events, unit) {
                Ok(sides) => Sides::Direct(sides),
                Err(_) if unit.rows > 1 => {
                    Sides::Group(Box::new(Self::new(&events.without(unit)?, unit.adjacency)?))
                }
                Err(refusal) => return Err(refusal),
            }
        };
        Ok(Self { unit, sides, events: events.clone(), precision: pld::Precision::Fine })
    }

    /// The same with PLD figures that are quicker and somewhat higher: for searches.
    pub(crate) fn rough(self) -> Self {
        Self { precision: pld::Precision::Rough, ..self }
    }

    /// Who is protected.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The smallest ε that the accountant can promise at this δ.
    pub fn epsilon(&self, accountant: Accountant, delta: Delta) -> Result<Guarantee> {
        match &self.sides {
            Sides::Infinite => Ok(self.guarantee(accountant, f64::INFINITY, delta.get(), None)),
            Sides::Group(row) => self.group_epsilon(row, accountant, delta),
            Sides::Direct(sides) => self.ask(sides, accountant, Question::Epsilon(delta)),
        }
    }

    /// The smallest δ that the accountant can promise at this ε.
    pub fn delta(&self, accountant: Accountant, epsilon: Epsilon) -> Result<Guarantee> {
        match &self.sides {
            Sides::Infinite => Ok(self.guarantee(accountant, epsilon.get(), 1.0, None)),
            Sides::Group(row) => {
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
            Sides::Direct(sides) => self.ask(sides, accountant, Question::Delta(epsilon)),
        }
    }

    /// The Rényi divergence of this order (any real number above 1), in the worse direction; an
    /// upper bound.
    pub fn renyi(&self, order: f64) -> Result<f64> {
        let theta = order - 1.0;
        if !(theta > 0.0 && theta < f64::INFINITY) {
            return Err(Error::OutOfRange {
                name: "the order",
                expected: "greater than 1",
                got: order.to_string(),
            });
        }
        match &self.sides {
            Sides::Infinite => Ok(f64::INFINITY),
            Sides::Direct(_) => self.ln_mgf(theta).map_or(Ok(f64::INFINITY), |k| Ok(k / theta)),
            Sides::Group(_) => Err(Error::Unsupported {
                accountant: "rdp",
                event: format!("these lots for {}", self.unit),
            }),
        }
    }

    /// ln E e^{θL} of the privacy loss, in the worse direction: θ times the Rényi divergence of
    /// order 1 + θ. `None` where there is no direct analysis.
    pub(crate) fn ln_mgf(&self, theta: f64) -> Option<f64> {
        let Sides::Direct(sides) = &self.sides else { return None };
        // What is not a number is infinite: `f64::max` would pass it over.
        let careful = |k: f64| if k.is_nan() { f64::INFINITY } else { k };
        Some(sides.iter().map(|side| careful(rdp::ln_mgf(side, theta))).fold(0.0, f64::max))
    }

    /// What an attacker can gain: the best true-positive rate at each false-positive rate, an upper
    /// bound. Figures are meaningful down to rates of about `delta`.
    pub fn trade_off(&self, delta: Delta) -> Result<TradeOff> {
        match &self.sides {
            Sides::Infinite => Ok(TradeOff::hopeless()),
            Sides::Direct(sides) => Ok(pld::trade_off(sides, delta.get())),
            Sides::Group(_) => Err(Error::Unsupported {
                accountant: "trade-off",
                event: format!("these lots for {}", self.unit),
            }),
        }
    }

    fn ask(
        &self,
        sides: &[Direction],
        accountant: Accountant,
        question: Question,
    ) -> Result<Guarantee> {
        match accountant {
            Accountant::Rdp => Ok(self.rdp(sides, question)),
            Accountant::Pld => self.pld(sides, question).ok_or_else(|| Error::Unsupported {
                accountant: "pld",
                event: "noise this small against the clip bound (σ below 1/60 of it); rdp does"
                    .into(),
            }),
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
                let rdp = self.rdp(sides, question);
                let better = |pld: &Guarantee| pld.epsilon <= rdp.epsilon && pld.delta <= rdp.delta;
                Ok(self.pld(sides, question).filter(better).unwrap_or(rdp))
            }
        }
    }

    fn rdp(&self, sides: &[Direction], question: Question) -> Guarantee {
        let mut worst = self.guarantee(Accountant::Rdp, 0.0, 0.0, None);
        for side in sides {
            match question {
                Question::Epsilon(delta) => {
                    let bound = rdp::epsilon(side, delta.get());
                    worst.delta = delta.get();
                    if !(bound.value < worst.epsilon) {
                        (worst.epsilon, worst.order) = (bound.value, Some(1.0 + bound.theta));
                    }
                }
                Question::Delta(epsilon) => {
                    let bound = rdp::ln_delta(side, epsilon.get());
                    worst.epsilon = epsilon.get();
                    let delta = at_most_one(bound.value.exp());
                    if !(delta < worst.delta) {
                        (worst.delta, worst.order) = (delta, Some(1.0 + bound.theta));
                    }
                }
            }
        }
        worst
    }

    fn pld(&self, sides: &[Direction], question: Question) -> Option<Guarantee> {
        let (mut epsilon, mut delta): (f64, f64) = (0.0, 0.0);
        for side in sides {
            match question {
                Question::Epsilon(target) => {
                    delta = target.get();
                    let bound = rdp::epsilon(side, delta);
                    // A side whose Rényi bound is below what is already found cannot change the
                    // larger of the two.
                    if !(bound.value <= epsilon) {
                        epsilon = epsilon.max(pld::epsilon(side, delta, bound, self.precision)?);
                    }
                }
                Question::Delta(target) => {
                    epsilon = target.get();
                    let bound = rdp::ln_delta(side, epsilon);
                    if !(bound.value.exp() <= delta) {
                        delta = delta.max(pld::delta(side, epsilon, bound)?);
                    }
                }
            }
        }
        Some(self.guarantee(Accountant::Pld, epsilon, delta, None))
    }

    /// ε for k rows where only one row has a direct analysis: (ε, δ′) for one row is (kε,
    /// δ′·(e^{kε} − 1)/(e^ε − 1)) for k (Vadhan 2017, Lemma 2.2); the largest δ′ that leaves δ is
    /// searched.
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
        // Down from δ in growing steps until the promise is kept, then back by halves.
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

/// (e^{kε} − 1)/(e^ε − 1).
fn group_factor(epsilon: f64, rows: u64) -> f64 {
    let k = rows as f64;
    if epsilon == 0.0 { k } else { (k * epsilon).exp_m1() / epsilon.exp_m1() }
}

/// δ is a probability; what cannot be computed is 1, never less.
fn at_most_one(delta: f64) -> f64 {
    if delta < 1.0 { delta } else { 1.0 }
}
