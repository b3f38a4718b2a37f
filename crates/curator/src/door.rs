//! The door: nothing is computed before it is paid for.

use accounting::{Budget, Composition, Event, Guarantee, Ledger};
use protocol::Refused;

/// What is called with the ledger after each charge and before anything is computed from it: to write it down.
pub type Journal = Box<dyn FnMut(&Ledger) -> Result<(), String> + Send>;

/// The ledger, and what it is held to.
pub struct Door {
    ledger: Ledger,
    budget: Option<Budget>,
    /// What is left of a plan whose whole price was found to be within the budget.
    planned: Vec<(Event, u64)>,
    journal: Option<Journal>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("ledger", &self.ledger).field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl Door {
    /// Every charge must keep the promise.
    pub fn within(budget: Budget) -> Self {
        Self { ledger: Ledger::new(), budget: Some(budget), planned: Vec::new(), journal: None }
    }

    /// Every charge is written down, and none refused.
    pub fn unlimited() -> Self {
        Self { ledger: Ledger::new(), budget: None, planned: Vec::new(), journal: None }
    }

    /// Goes on from what was spent before.
    #[must_use]
    pub fn after(mut self, spent: Ledger) -> Self {
        self.ledger = spent;
        self.planned.clear();
        self
    }

    /// Prices a whole plan once, so that its events need no price each. The plan comes after what has been spent already.
    ///
    /// # Errors
    /// If the plan as a whole would break the promise.
    pub fn plan(&mut self, plan: &Composition) -> Result<Option<Guarantee>, Refused> {
        let Some(budget) = &self.budget else { return Ok(None) };
        let mut after = self.ledger.events().clone();
        after.extend(plan).map_err(refusal)?;
        let price = budget.price(&after).map_err(refusal)?;
        // Asks for the good case, so that NaN is refused.
        if price.epsilon <= budget.epsilon.get() && !price.estimate {
            self.planned = plan.runs().to_vec();
            return Ok(Some(price));
        }
        Err(Refused::Budget(format!("the plan would come to ε = {:.6}, the budget is {}", price.epsilon, budget.epsilon)))
    }

    /// Calls this after each charge, before anything is computed.
    pub fn set_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// What has been charged.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What it is held to.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// The one function that charges.
    ///
    /// # Claim
    /// When it returns `Ok`, the event is in the ledger, the ledger is written down, and its price is within the budget.
    /// # Why
    /// An event of the plan is within the price of the plan: leaving events out never raises a price. Any other event is priced with all that went before, and ends the plan.
    /// # Checked by
    /// `planned_and_priced_charges_stop_at_the_same_step`, `an_unplanned_charge_ends_the_plan`
    pub(crate) fn charge(&mut self, event: Event) -> Result<(), Refused> {
        let planned = self.planned.iter_mut().find(|(known, count)| *known == event && *count > 0);
        match (&self.budget, planned) {
            (Some(_), Some((_, count))) => {
                *count -= 1;
                self.ledger.charge(event, 1).map_err(refusal)?;
            }
            (Some(budget), None) => {
                self.planned.clear();
                self.ledger.charge_within(budget, event, 1).map_err(refusal)?;
            }
            (None, _) => self.ledger.charge(event, 1).map_err(refusal)?,
        }
        match &mut self.journal {
            Some(journal) => journal(&self.ledger).map_err(|what| Refused::Failed(format!("the ledger cannot be written: {what}"))),
            None => Ok(()),
        }
    }
}

fn refusal(error: accounting::Error) -> Refused {
    Refused::Budget(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{Accountant, Adjacency, Delta, Epsilon, Rate, Sigma};
    use std::sync::{Arc, Mutex};

    fn budget() -> Budget {
        Budget {
            epsilon: Epsilon::new(1.0).unwrap(),
            delta: Delta::new(1e-5).unwrap(),
            unit: Adjacency::AddRemove.into(),
            accountant: Accountant::Best,
        }
    }

    fn event(sigma: f64) -> Event {
        Event::poisson(Rate::new(0.05).unwrap(), Sigma::new(sigma).unwrap())
    }

    fn charges_until_refused(door: &mut Door, sigma: f64) -> u64 {
        (0..).take_while(|_| door.charge(event(sigma)).is_ok()).count() as u64
    }

    #[test]
    fn planned_and_priced_charges_stop_at_the_same_step() {
        let mut priced = Door::within(budget());
        let most = charges_until_refused(&mut priced, 2.0);
        assert!(most > 5, "{most}");
        let mut planned = Door::within(budget());
        assert!(planned.plan(&Composition::repeated(event(2.0), most + 1)).is_err());
        let price = planned.plan(&Composition::repeated(event(2.0), most)).unwrap().unwrap();
        assert!(price.epsilon <= 1.0);
        assert_eq!(charges_until_refused(&mut planned, 2.0), most);
        assert_eq!(planned.ledger(), priced.ledger());
    }

    #[test]
    fn an_unplanned_charge_ends_the_plan() {
        let mut priced = Door::within(budget());
        let most = charges_until_refused(&mut priced, 2.0);
        let mut door = Door::within(budget());
        door.plan(&Composition::repeated(event(2.0), most)).unwrap();
        door.charge(event(1.5)).unwrap();
        assert!(charges_until_refused(&mut door, 2.0) < most);
        let spent = budget().price(door.ledger().events()).unwrap();
        assert!(spent.epsilon <= 1.0);
    }

    #[test]
    fn what_was_spent_before_counts() {
        let mut first = Door::within(budget());
        let most = charges_until_refused(&mut first, 2.0);
        let mut second = Door::within(budget()).after(first.ledger().clone());
        assert!(second.charge(event(2.0)).is_err());
        assert!(second.plan(&Composition::repeated(event(2.0), 1)).is_err());
        assert_eq!(second.ledger().events().len(), most);
    }

    #[test]
    fn the_journal_sees_every_charge_and_can_stop_it() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut door = Door::unlimited();
        let log = seen.clone();
        door.set_journal(Box::new(move |ledger| {
            log.lock().unwrap().push(ledger.events().len());
            if ledger.events().len() < 3 { Ok(()) } else { Err("disk full".into()) }
        }));
        assert!(door.charge(event(1.0)).is_ok() && door.charge(event(2.0)).is_ok());
        assert!(matches!(door.charge(event(1.0)), Err(Refused::Failed(_))));
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
        // The charge stands although nothing came of it.
        assert_eq!(door.ledger().events().len(), 3);
    }
}
