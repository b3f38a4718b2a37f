//! Charges to a ledger within a budget.
#![allow(clippy::unwrap_used)]

use accounting::{
    Accountant, Adjacency, Budget, Composition, Delta, Epsilon, Event, Ledger, Sampling,
    SamplingRate, Sigma, Unit,
};

fn budget(epsilon: f64, accountant: Accountant, rows: u64) -> Budget {
    Budget {
        epsilon: Epsilon::new(epsilon).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        unit: Unit { adjacency: Adjacency::AddRemove, rows },
        accountant,
    }
}

fn step(sigma: f64) -> Event {
    Event::poisson(SamplingRate::new(0.01).unwrap(), Sigma::new(sigma).unwrap())
}

/// An estimate may be below the exact ε, so it is never within a budget.
#[test]
fn estimates_are_refused_by_budgets() {
    let mut ledger = Ledger::new();
    let refused =
        ledger.charge_within(&budget(100.0, Accountant::Gdp, 1), step(1.0), 10).unwrap_err();
    assert!(refused.to_string().contains("estimate"), "{refused}");
    assert!(ledger.events().is_empty());
    assert!(ledger.charge_within(&budget(100.0, Accountant::Best, 1), step(1.0), 10).is_ok());
}

/// All charges count, of every kind and for all rows of a unit; a refusal changes nothing.
#[test]
fn budgets_cover_all_charges() {
    for rows in [1, 3] {
        let budget = budget(4.0, Accountant::Rdp, rows);
        let mut ledger = Ledger::new();
        ledger
            .charge(Event::gaussian(Sampling::Full, Sigma::new(4.0 * rows as f64).unwrap()), 2)
            .unwrap();
        ledger.charge(step(2.0), 100).unwrap();
        let left = ledger.steps_left(&budget, &step(1.5)).unwrap();
        let fresh = Ledger::new().steps_left(&budget, &step(1.5)).unwrap();
        assert!(left > 0 && left < fresh, "{left} {fresh}");
        let before = ledger.clone();
        assert!(ledger.charge_within(&budget, step(1.5), left + 1).is_err());
        assert_eq!(ledger, before);
        let price = ledger.charge_within(&budget, step(1.5), left).unwrap();
        assert_eq!(
            price,
            ledger.cost(budget.unit).unwrap().epsilon(Accountant::Rdp, budget.delta).unwrap()
        );
        assert!(price.epsilon <= 4.0 && ledger.events().len() == 102 + left);
        let mut whole = Composition::new();
        ledger
            .events()
            .runs()
            .iter()
            .for_each(|(event, count)| whole.push(event.clone(), *count).unwrap());
        assert_eq!(&whole, ledger.events());
    }
}
