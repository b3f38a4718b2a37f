//! The ledger and its budget: every event is charged here before anything is computed.

use accounting::{Budget, Composition, Event, Ledger};
use protocol::Refused;

/// Called with the ledger after each charge, before anything is computed, to save it.
pub type Journal = Box<dyn FnMut(&Ledger) -> Result<(), String> + Send>;

/// Charges events to a ledger and refuses those that the budget does not cover.
///
/// Under a budget, only the events of a *plan* can be charged. The plan is fixed before the first
/// answer: a number of events of each kind. They can be charged in any order, and omitted. Answers
/// may decide the order and the end, but not the noise: the accountants' theorems do not cover a σ
/// that is chosen by earlier answers.
///
/// ```
/// use accounting::{Accountant, Adjacency, Budget, Composition, Delta, Epsilon, Event};
/// use accounting::{SamplingRate, Sigma};
/// use curator::Door;
///
/// let budget = Budget {
///     epsilon: Epsilon::new(1.0)?,
///     delta: Delta::new(1e-5)?,
///     unit: Adjacency::AddRemove.into(),
///     accountant: Accountant::Best,
/// };
/// let step = Event::poisson(SamplingRate::new(0.01)?, Sigma::new(1.0)?);
/// assert!(Door::planned(budget, &Composition::repeated(step.clone(), 10)).is_ok());
/// assert!(Door::planned(budget, &Composition::repeated(step, 10_000)).is_err());
/// # Ok::<(), accounting::Error>(())
/// ```
pub struct Door {
    ledger: Ledger,
    limit: Limit,
    journal: Option<Journal>,
}

enum Limit {
    /// Every event is recorded, and none refused.
    None,
    /// As many events of the first kind that is charged as the budget allows.
    OneKind(Budget),
    /// The uncharged events of a plan whose total price is within the budget.
    Planned { budget: Budget, remaining: Vec<(Event, u64)> },
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("ledger", &self.ledger)
            .field("budget", &self.budget())
            .finish_non_exhaustive()
    }
}

impl Door {
    /// Creates a door for events of one kind.
    ///
    /// The first charge determines the kind, and the budget the number of events.
    pub fn within(budget: Budget) -> Self {
        Self { ledger: Ledger::new(), limit: Limit::OneKind(budget), journal: None }
    }

    /// Creates a door for a plan.
    ///
    /// # Errors
    /// If the plan as a whole is not within the budget.
    pub fn planned(budget: Budget, plan: &Composition) -> Result<Self, Refused> {
        Self::resumed(budget, plan, Ledger::new())
    }

    /// Creates a door for the rest of a plan, of which the events in `spent` were charged before.
    ///
    /// # Errors
    /// If the plan is not within the budget, or an event was spent that is not in it.
    pub fn resumed(budget: Budget, plan: &Composition, spent: Ledger) -> Result<Self, Refused> {
        let price = budget.price(plan).map_err(refusal)?;
        // Tests for the valid case, so that NaN is refused.
        if !(price.epsilon <= budget.epsilon.get()) || price.estimate {
            return Err(Refused::Budget(format!(
                "the plan costs ε = {:.6}; the budget is {}",
                price.epsilon, budget.epsilon
            )));
        }
        let mut remaining = Vec::new();
        for (event, count) in plan.runs() {
            add_events(&mut remaining, event, *count)?;
        }
        for (event, count) in spent.events().runs() {
            let planned =
                remaining.iter_mut().find(|(known, planned)| known == event && planned >= count);
            let (_, planned) = planned.ok_or_else(|| {
                Refused::Budget(format!(
                    "{count} times a {event} was spent, which is not in the plan"
                ))
            })?;
            *planned -= count;
        }
        Ok(Self { ledger: spent, limit: Limit::Planned { budget, remaining }, journal: None })
    }

    /// Creates a door that records every charge and refuses none.
    pub fn unlimited() -> Self {
        Self { ledger: Ledger::new(), limit: Limit::None, journal: None }
    }

    /// Sets the journal, which is called after each charge and before anything is computed.
    pub fn set_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// Returns what has been charged.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the budget, if there is one.
    pub fn budget(&self) -> Option<&Budget> {
        match &self.limit {
            Limit::None => None,
            Limit::OneKind(budget) | Limit::Planned { budget, .. } => Some(budget),
        }
    }

    /// Charges an event. No other function does.
    ///
    /// # Claim
    /// (PROOFS.md, 7.) When it returns `Ok`, the event is in the ledger, the journal has saved the
    /// ledger, and under a budget all charges are part of a plan whose price is within it.
    /// # Checked by
    /// `a_door_within_a_budget_allows_what_a_plan_would`, `unplanned_events_are_refused`,
    /// `events_spent_before_a_resume_count`
    pub(crate) fn charge(&mut self, event: Event) -> Result<(), Refused> {
        if let Limit::OneKind(budget) = self.limit {
            let count = Ledger::new().steps_left(&budget, &event).map_err(refusal)?;
            self.limit = Limit::Planned { budget, remaining: vec![(event.clone(), count)] };
        }
        if let Limit::Planned { budget, remaining } = &mut self.limit {
            match remaining.iter_mut().find(|(known, _)| *known == event) {
                Some((_, count)) if *count > 0 => *count -= 1,
                Some(_) => {
                    return Err(Refused::Budget(format!(
                        "the budget of ε = {} at δ = {} is spent",
                        budget.epsilon, budget.delta
                    )));
                }
                None => {
                    return Err(Refused::Budget(format!(
                        "a {event} is not in the plan that the budget was made for"
                    )));
                }
            }
        }
        self.ledger.charge(event, 1).map_err(refusal)?;
        match &mut self.journal {
            Some(journal) => journal(&self.ledger)
                .map_err(|what| Refused::Failed(format!("the ledger cannot be written: {what}"))),
            None => Ok(()),
        }
    }
}

/// Adds events to a list that has one entry per kind.
fn add_events(list: &mut Vec<(Event, u64)>, event: &Event, count: u64) -> Result<(), Refused> {
    match list.iter_mut().find(|(known, _)| known == event) {
        Some((_, sum)) => {
            *sum = sum.checked_add(count).ok_or_else(|| refusal(accounting::Error::TooMany))?
        }
        None => list.push((event.clone(), count)),
    }
    Ok(())
}

fn refusal(error: accounting::Error) -> Refused {
    Refused::Budget(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{Accountant, Adjacency, Delta, Epsilon, SamplingRate, Sigma};
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
        Event::poisson(SamplingRate::new(0.05).unwrap(), Sigma::new(sigma).unwrap())
    }

    fn charges_until_refused(door: &mut Door, sigma: f64) -> u64 {
        (0..10_000).take_while(|_| door.charge(event(sigma)).is_ok()).count() as u64
    }

    fn plan(sigma: f64, count: u64) -> Composition {
        Composition::repeated(event(sigma), count)
    }

    #[test]
    fn a_door_within_a_budget_allows_what_a_plan_would() {
        let mut open = Door::within(budget());
        let most = charges_until_refused(&mut open, 2.0);
        assert!(most > 5, "{most}");
        assert!(budget().price(open.ledger().events()).unwrap().epsilon <= 1.0);
        assert!(Door::planned(budget(), &plan(2.0, most + 1)).is_err());
        let mut planned = Door::planned(budget(), &plan(2.0, most)).unwrap();
        assert_eq!(charges_until_refused(&mut planned, 2.0), most);
        assert_eq!(planned.ledger(), open.ledger());
        // The first event decides: more noise is not allowed either.
        assert!(open.charge(event(3.0)).is_err());
        // An event that no budget covers is refused at once.
        assert_eq!(charges_until_refused(&mut Door::within(budget()), 0.1), 0);
    }

    #[test]
    fn unplanned_events_are_refused() {
        let mut mixed = plan(2.0, 3);
        mixed.push(event(4.0), 2).unwrap();
        mixed.push(event(2.0), 1).unwrap();
        let mut door = Door::planned(budget(), &mixed).unwrap();
        assert!(door.charge(event(3.0)).is_err());
        assert!(door.charge(event(4.0)).is_ok());
        assert_eq!(charges_until_refused(&mut door, 2.0), 4);
        assert!(door.charge(event(4.0)).is_ok());
        assert!(matches!(door.charge(event(4.0)), Err(Refused::Budget(_))));
        assert_eq!(door.ledger().events().len(), 6);
    }

    #[test]
    fn events_spent_before_a_resume_count() {
        let whole = plan(2.0, 5);
        let mut first = Door::planned(budget(), &whole).unwrap();
        (0..3).for_each(|_| first.charge(event(2.0)).unwrap());
        let mut second = Door::resumed(budget(), &whole, first.ledger().clone()).unwrap();
        assert_eq!(charges_until_refused(&mut second, 2.0), 2);
        assert_eq!(second.ledger().events().len(), 5);
        // Another plan than the one it was spent under.
        assert!(Door::resumed(budget(), &plan(3.0, 5), first.ledger().clone()).is_err());
        assert!(Door::resumed(budget(), &plan(2.0, 2), first.ledger().clone()).is_err());
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
        // The charge remains in the ledger, although the journal failed.
        assert_eq!(door.ledger().events().len(), 3);
    }
}
