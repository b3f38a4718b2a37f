//! The joint cost of several training runs on the same data.

use crate::Error;
use crate::Statement;
use crate::config::{Config, PersonRows};
use crate::run::chain::Chain;
use crate::run::folder::Folder;
use crate::run::ledger_file::LEDGER;
use accounting::{Accountant, Cost, Delta, Guarantee, Ledger, Unit};
use std::path::Path;

/// The charges of one training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// All charges.
    pub ledger: Ledger,
    /// The unit of privacy and δ; `None` if there is no guarantee.
    pub promise: Option<(Unit, f64)>,
    /// The column that names persons, and how their rows take part; `None` if rows are protected.
    pub persons: Option<(String, PersonRows)>,
}

impl Spent {
    /// Reads the charges of a run on `places` places, finished or not.
    ///
    /// # Errors
    /// If its ledger is missing or damaged.
    pub fn of_run(folder: &Path, places: usize) -> Result<Self, Error> {
        let run = Folder::open_read_only(folder)?;
        if run.join("model").join(crate::report::statement::FILE).is_file() {
            return Ok(Self::of_statement(&Statement::of_run(folder)?));
        }
        let config = Config::read(&run.join("config.toml"))?;
        Ok(Self::of_config(read(&run.join(LEDGER))?, &config, places))
    }

    /// The charges of a run that is described by a statement.
    pub(crate) fn of_statement(statement: &Statement) -> Self {
        Self {
            ledger: statement.ledger.clone(),
            promise: statement.promise(),
            persons: statement.person_column.clone().zip(statement.person_rows),
        }
    }

    /// The charges of a run of this configuration on `places` places.
    pub(crate) fn of_config(ledger: Ledger, config: &Config, places: usize) -> Self {
        let persons = config.data.group.clone().map(|column| (column, config.data.person_rows));
        Self { ledger, promise: promise(config, places), persons }
    }

    /// The guarantee of this run alone; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub fn guarantee(&self) -> Result<Option<Guarantee>, Error> {
        joint(std::slice::from_ref(self))
    }
}

/// The joint cost of several runs, at their largest δ.
///
/// `None` if one of them has no guarantee, or their adjacencies or units of protection differ: a
/// cost for rows is none for persons.
///
/// # Errors
/// If it cannot be computed.
pub fn joint(all: &[Spent]) -> Result<Option<Guarantee>, Error> {
    if all.windows(2).any(|pair| pair[0].persons != pair[1].persons) {
        return Ok(None);
    }
    let (mut ledger, mut unit, mut delta) = (Ledger::new(), None::<Unit>, 0.0f64);
    for spent in all {
        let Some((run_unit, run_delta)) = spent.promise else { return Ok(None) };
        // The largest number of rows per person, if the adjacency is the same.
        unit = match unit {
            Some(known) if known.adjacency != run_unit.adjacency => return Ok(None),
            Some(known) => Some(Unit { rows: known.rows.max(run_unit.rows), ..known }),
            None => Some(run_unit),
        };
        ledger.merge(&spent.ledger)?;
        delta = delta.max(run_delta);
    }
    unit.map(|unit| {
        Ok(Cost::new(ledger.events(), unit)?.epsilon(Accountant::Best, Delta::new(delta)?)?)
    })
    .transpose()
}

/// The unit of privacy and δ of a run of this configuration; `None` without a guarantee.
pub(crate) fn promise(config: &Config, places: usize) -> Option<(Unit, f64)> {
    let private = config.optimizer.is_private() && config.privacy.seed.is_none();
    private.then(|| (config.unit(), config.privacy.delta.or(0.1 / places as f64)))
}

/// Reads the charges of a `ledger.json`, closed or not.
pub(crate) fn read(path: &Path) -> Result<Ledger, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let chain = Chain::parse(&text).map_err(Error::ledger(path))?;
    Ok(chain.ledger().clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{Adjacency, Event, SamplingRate, Sigma};

    fn spent(steps: u64, unit: Unit, delta: f64) -> Spent {
        let mut ledger = Ledger::new();
        ledger
            .charge(
                Event::poisson(SamplingRate::new(0.01).unwrap(), Sigma::new(1.0).unwrap()),
                steps,
            )
            .unwrap();
        Spent { ledger, promise: Some((unit, delta)), persons: None }
    }

    #[test]
    fn runs_on_the_same_data_add_up() {
        let rows = |rows| Unit { adjacency: Adjacency::AddRemove, rows };
        let (one, two) = (spent(600, rows(1), 1e-6), spent(400, rows(1), 1e-5));
        let whole = spent(1000, rows(1), 1e-5).guarantee().unwrap().unwrap();
        let together = joint(&[one.clone(), two.clone()]).unwrap().unwrap();
        assert!((together.epsilon - whole.epsilon).abs() < 1e-12 && together.delta == 1e-5);
        assert!((together.epsilon - 1.828_244).abs() < 1e-4, "{}", together.epsilon);
        assert!(together.epsilon > two.guarantee().unwrap().unwrap().epsilon);
        // A person with several rows in one run may have as many in all.
        let persons = joint(&[one.clone(), spent(400, rows(2), 1e-5)]).unwrap().unwrap();
        assert!(persons.unit.rows == 2 && persons.epsilon > together.epsilon);
        // Without a common adjacency or a guarantee there is no joint cost.
        assert_eq!(
            joint(&[one.clone(), spent(400, Adjacency::ReplaceOne.into(), 1e-5)]).unwrap(),
            None
        );
        // Runs that protect rows and runs that protect persons have no joint guarantee.
        let persons = |column: &str, rows| Some((column.to_string(), rows));
        let of = |persons| Spent { persons, ..one.clone() };
        let combined = of(persons("who", PersonRows::Combined));
        assert!(joint(&[combined.clone(), combined.clone()]).unwrap().is_some());
        for other in [
            one.clone(),
            of(persons("who", PersonRows::Separate)),
            of(persons("owner", PersonRows::Combined)),
        ] {
            assert_eq!(joint(&[combined.clone(), other]).unwrap(), None);
        }
        let none = Spent { ledger: Ledger::new(), promise: None, persons: None };
        assert_eq!(joint(&[one, none]).unwrap(), None);
        assert_eq!(joint(&[]).unwrap(), None);
    }
}
