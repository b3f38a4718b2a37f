//! The ledger of a run: an append-only list of events, charged before they happen.

use crate::calibrate::{self, Target};
use crate::cost::{Cost, Guarantee};
use crate::error::{Error, Result};
use crate::event::{Composition, Event};
use serde::{Deserialize, Serialize};

/// Version of the file format. Other versions are refused.
const VERSION: u32 = 1;

/// The guarantee that the charges of a ledger must keep.
pub type Budget = Target;

/// Events in the order in which they were charged, run-length coded.
///
/// Events cannot be removed: a charge stands even if its step never finished.
///
/// # Examples
/// ```
/// use accounting::{Accountant, Adjacency, Budget, Delta, Epsilon, Event, Ledger};
/// use accounting::{SamplingRate, Sigma};
///
/// let budget = Budget {
///     epsilon: Epsilon::new(2.0)?,
///     delta: Delta::new(1e-5)?,
///     unit: Adjacency::AddRemove.into(),
///     accountant: Accountant::Best,
/// };
/// let step = Event::poisson(SamplingRate::new(0.01)?, Sigma::new(1.0)?);
/// let mut ledger = Ledger::new();
/// ledger.charge_within(&budget, step.clone(), 1000)?; // ε = 1.83
/// assert_eq!(ledger.steps_left(&budget, &step)?, 202);
/// assert!(ledger.charge_within(&budget, step.clone(), 203).is_err());
/// assert_eq!(ledger.events().len(), 1000);
/// # Ok::<(), accounting::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "LedgerFile", into = "LedgerFile")]
pub struct Ledger {
    events: Composition,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// What has been charged.
    pub fn events(&self) -> &Composition {
        &self.events
    }

    /// Charges `count` times the same event.
    pub fn charge(&mut self, event: Event, count: u64) -> Result<()> {
        self.events.push(event, count)
    }

    /// Charges `count` times the same event if the budget allows it.
    ///
    /// Otherwise nothing is charged, and the error tells the ε that would have been reached.
    pub fn charge_within(
        &mut self,
        budget: &Budget,
        event: Event,
        count: u64,
    ) -> Result<Guarantee> {
        let mut after = self.events.clone();
        after.push(event, count)?;
        let price = budget.price(&after)?;
        // Tests the good case, so that NaN is refused.
        if price.epsilon <= budget.epsilon.get() && !price.estimate {
            self.events = after;
            return Ok(price);
        }
        Err(Error::Unreachable {
            parameter: "further step",
            epsilon: budget.epsilon.get(),
            delta: budget.delta.get(),
            reason: if price.estimate {
                "the gdp accountant gives an estimate, not an upper bound".into()
            } else {
                format!("it would reach ε = {:.6}", price.epsilon)
            },
        })
    }

    /// Appends all events of another ledger: two runs on the same data.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.events.extend(&other.events)
    }

    /// The cost of all events so far, for any δ and accountant.
    pub fn cost(&self, unit: impl Into<crate::Unit>) -> Result<Cost> {
        Cost::new(&self.events, unit)
    }

    /// The number of further events of this kind that the budget allows.
    pub fn steps_left(&self, budget: &Budget, event: &Event) -> Result<u64> {
        match calibrate::steps(*budget, &self.events, event) {
            Ok((steps, _)) => Ok(steps),
            Err(Error::Unreachable { .. }) => Ok(0),
            Err(other) => Err(other),
        }
    }
}

/// The serialized form of a ledger.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerFile {
    version: u32,
    events: Composition,
}

impl From<Ledger> for LedgerFile {
    fn from(ledger: Ledger) -> Self {
        Self { version: VERSION, events: ledger.events }
    }
}

impl TryFrom<LedgerFile> for Ledger {
    type Error = Error;
    fn try_from(file: LedgerFile) -> Result<Self> {
        if file.version != VERSION {
            return Err(Error::OutOfRange {
                name: "the ledger's version",
                expected: "1",
                got: file.version.to_string(),
            });
        }
        Ok(Self { events: file.events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{SamplingRate, Sigma};

    fn step() -> Event {
        Event::poisson(SamplingRate::new(0.01).unwrap(), Sigma::new(1.0).unwrap())
    }

    #[test]
    fn ledgers_survive_serialization_and_bad_files_are_refused() {
        let mut ledger = Ledger::new();
        ledger.charge(step(), 10).unwrap();
        ledger.charge(Event::NonPrivate, 1).unwrap();
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger, "{text}");
        assert!(
            serde_json::from_str::<Ledger>(&text.replace("\"version\":1", "\"version\":2"))
                .is_err()
        );
        assert!(serde_json::from_str::<Ledger>(&text.replace("0.01", "1.01")).is_err());
        assert!(serde_json::from_str::<Ledger>(r#"{"version":1,"events":[],"note":""}"#).is_err());
    }

    #[test]
    fn merging_appends_events() {
        let (mut a, mut b) = (Ledger::new(), Ledger::new());
        a.charge(step(), 400).unwrap();
        b.charge(step(), 600).unwrap();
        a.merge(&b).unwrap();
        assert_eq!(a.events(), &Composition::repeated(step(), 1000));
    }
}
