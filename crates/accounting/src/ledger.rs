//! What a run has spent so far: an append-only list of events, written down before they happen.

use crate::calibrate::{self, Target};
use crate::cost::{Cost, Guarantee};
use crate::error::{Error, Result};
use crate::event::{Composition, Event};
use serde::{Deserialize, Serialize};

/// The version of the written form. A reader that does not know a version refuses it.
const VERSION: u32 = 1;

/// A promise that a ledger is held to.
pub type Budget = Target;

/// Events in the order in which they were charged, run-length coded.
///
/// There is no way to take an event back: a charge stands even if the step it was made for never
/// finished.
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
#[serde(try_from = "Written", into = "Written")]
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

    /// Charges only if the budget allows it; otherwise nothing is charged and the refusal says what
    /// it would have come to.
    pub fn charge_within(
        &mut self,
        budget: &Budget,
        event: Event,
        count: u64,
    ) -> Result<Guarantee> {
        let mut after = self.events.clone();
        after.push(event, count)?;
        let price = budget.price(&after)?;
        // Written for the good case, so that NaN is refused.
        if price.epsilon <= budget.epsilon.get() && !price.estimate {
            self.events = after;
            return Ok(price);
        }
        Err(Error::Unreachable {
            parameter: "further step",
            epsilon: budget.epsilon.get(),
            delta: budget.delta.get(),
            reason: if price.estimate {
                "an estimate is no guarantee".into()
            } else {
                format!("it would come to {:.6}", price.epsilon)
            },
        })
    }

    /// Appends all of another ledger: two runs on the same people.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.events.extend(&other.events)
    }

    /// The price of everything so far, to be asked for any δ, unit and accountant.
    pub fn cost(&self, unit: impl Into<crate::Unit>) -> Result<Cost> {
        Cost::new(&self.events, unit)
    }

    /// How many more of this event the budget allows.
    pub fn steps_left(&self, budget: &Budget, event: &Event) -> Result<u64> {
        match calibrate::steps(*budget, &self.events, event) {
            Ok((steps, _)) => Ok(steps),
            Err(Error::Unreachable { .. }) => Ok(0),
            Err(other) => Err(other),
        }
    }
}

/// The written form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    events: Composition,
}

impl From<Ledger> for Written {
    fn from(ledger: Ledger) -> Self {
        Self { version: VERSION, events: ledger.events }
    }
}

impl TryFrom<Written> for Ledger {
    type Error = Error;
    fn try_from(written: Written) -> Result<Self> {
        if written.version != VERSION {
            return Err(Error::OutOfRange {
                name: "the ledger's version",
                expected: "1",
                got: written.version.to_string(),
            });
        }
        Ok(Self { events: written.events })
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
    fn written_and_read_it_is_the_same() {
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
    fn merging_adds() {
        let (mut a, mut b) = (Ledger::new(), Ledger::new());
        a.charge(step(), 400).unwrap();
        b.charge(step(), 600).unwrap();
        a.merge(&b).unwrap();
        assert_eq!(a.events(), &Composition::repeated(step(), 1000));
    }
}
