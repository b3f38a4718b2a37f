//! Events and ledgers.

use crate::error::{Error, invalid};
use accounting::{
    Accountant, Adjacency, Cost, Delta, Epsilon, FailureProbability, Rho, RunShape, Sampling,
    SamplingMethod, SamplingRate, Sigma, Unit,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Finds a value by its name.
pub(crate) fn by_name<T: Copy>(
    what: &str,
    values: impl IntoIterator<Item = T>,
    name: fn(T) -> &'static str,
    given: &str,
) -> PyResult<T> {
    let values: Vec<T> = values.into_iter().collect();
    let found = values.iter().copied().find(|value| name(*value) == given.replace('_', "-"));
    found.ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|value| name(*value)).collect();
        invalid(format!("{what}: expected one of {}; got {given:?}", names.join(", ")))
    })
}

pub(crate) fn accountant(name: &str) -> PyResult<Accountant> {
    by_name("accountant", Accountant::ALL, Accountant::name, name)
}

pub(crate) fn unit(adjacency: &str, rows: u64) -> PyResult<Unit> {
    let adjacency = by_name("adjacency", Adjacency::ALL, Adjacency::name, adjacency)?;
    Ok(Unit { adjacency, rows })
}

pub(crate) fn method(name: &str) -> PyResult<SamplingMethod> {
    by_name("sampling", SamplingMethod::ALL, SamplingMethod::name, name)
}

/// Shows warnings, which a filter can turn into exceptions.
pub(crate) fn warn(py: Python<'_>, warnings: &[String]) -> PyResult<()> {
    let class = py.import("muffle._errors")?.getattr("PrivacyWarning")?;
    for text in warnings {
        let options = PyDict::new(py);
        options.set_item("stacklevel", 2)?;
        py.import("warnings")?.call_method("warn", (text, &class), Some(&options))?;
    }
    Ok(())
}

/// One access to the data: how a lot is drawn, and what is released from it.
#[pyclass(frozen, eq, module = "muffle", from_py_object)]
#[derive(Clone, PartialEq)]
pub(crate) struct Event(pub(crate) accounting::Event);

#[pymethods]
impl Event {
    /// Gaussian noise on a sum of clipped values from one lot.
    ///
    /// `noise_multiplier` is the standard deviation of the noise divided by the clip bound. Without
    /// a sampling rate or sizes, all records are in the lot. `blocks` sums are released from the
    /// same lot, each with this noise. Shuffled lots are one event for a whole epoch.
    #[staticmethod]
    #[pyo3(signature = (
        noise_multiplier, *, sampling_rate=None, dataset_size=None, lot_size=None, sampling=None,
        blocks=1
    ))]
    fn gaussian(
        noise_multiplier: f64,
        sampling_rate: Option<f64>,
        dataset_size: Option<u64>,
        lot_size: Option<u64>,
        sampling: Option<&str>,
        blocks: u64,
    ) -> PyResult<Self> {
        let sized = sampling_rate.is_some() || lot_size.is_some();
        let sampling = match sampling {
            Some(name) => method(name)?,
            None if sized => SamplingMethod::Poisson,
            None => SamplingMethod::Full,
        };
        let shape = RunShape {
            sampling,
            sampling_rate,
            dataset_size,
            lot_size,
            blocks,
            ..RunShape::new(Adjacency::AddRemove)
        };
        let one = |sigma| shape.events(sigma, 1);
        let events = Sigma::new(noise_multiplier).and_then(one).map_err(Error::from)?;
        let event = events.runs().first().map(|(event, _)| event.clone());
        event.map(Self).ok_or_else(|| invalid("blocks: expected at least 1, got 0"))
    }

    /// Laplace noise on one number from a lot.
    ///
    /// `noise_multiplier` is the scale of the noise divided by the largest contribution of a record.
    /// Without a sampling rate, all records are in the lot; otherwise each is in it independently with
    /// this probability.
    #[staticmethod]
    #[pyo3(signature = (noise_multiplier, *, sampling_rate=None))]
    fn laplace(noise_multiplier: f64, sampling_rate: Option<f64>) -> PyResult<Self> {
        let multiplier = Sigma::new(noise_multiplier).map_err(Error::from)?;
        let rate = sampling_rate.map(SamplingRate::new).transpose().map_err(Error::from)?;
        let lots = rate.map_or(Sampling::Full, |rate| Sampling::Poisson { rate });
        Ok(Self(accounting::Event::Laplace { lots, multiplier }))
    }

    /// A release that is known to be (ε, δ)-private for these neighbours, whatever its mechanism.
    #[staticmethod]
    #[pyo3(signature = (epsilon, delta=0.0, *, adjacency="add-remove"))]
    fn epsilon_delta(epsilon: f64, delta: f64, adjacency: &str) -> PyResult<Self> {
        let Unit { adjacency, .. } = unit(adjacency, 1)?;
        let epsilon = Epsilon::new(epsilon).map_err(Error::from)?;
        let delta = FailureProbability::new(delta).map_err(Error::from)?;
        Ok(Self(accounting::Event::EpsilonDelta { epsilon, delta, adjacency }))
    }

    /// A release that is known to be ρ-zero-concentrated differentially private for these neighbours.
    ///
    /// Only the accountants "rdp" and "best" have a bound for it.
    #[staticmethod]
    #[pyo3(signature = (rho, *, adjacency="add-remove"))]
    fn zcdp(rho: f64, adjacency: &str) -> PyResult<Self> {
        let Unit { adjacency, .. } = unit(adjacency, 1)?;
        let rho = Rho::new(rho).map_err(Error::from)?;
        Ok(Self(accounting::Event::Zcdp { rho, adjacency }))
    }

    /// An access without a guarantee: ε is infinite from then on.
    #[staticmethod]
    fn non_private() -> Self {
        Self(accounting::Event::NonPrivate)
    }

    /// Reads an event as ledgers store it.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map(Self).map_err(|error| invalid(error.to_string()))
    }

    /// The event as ledgers store it.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __repr__(&self) -> String {
        format!("<muffle.Event: {}>", self.0)
    }
}

/// (ε, δ), the unit of privacy, and the accountant that computed it.
#[pyclass(frozen, eq, module = "muffle", get_all)]
#[derive(Clone, PartialEq)]
pub(crate) struct Guarantee {
    /// ε, an upper bound unless `estimate`; infinite if there is no guarantee.
    epsilon: f64,
    /// δ.
    delta: f64,
    /// Which data sets are neighbours: "add-remove" or "replace-one".
    adjacency: &'static str,
    /// In how many rows neighbours differ.
    rows_per_person: u64,
    /// The accountant: "pld", "rdp" or "gdp".
    accountant: &'static str,
    /// The Rényi order, if the bound comes from RDP.
    order: Option<f64>,
    /// Whether this is an estimate instead of an upper bound.
    estimate: bool,
}

impl From<accounting::Guarantee> for Guarantee {
    fn from(guarantee: accounting::Guarantee) -> Self {
        let accounting::Guarantee { epsilon, delta, unit, accountant, order, estimate } = guarantee;
        Self {
            epsilon,
            delta,
            adjacency: unit.adjacency.name(),
            rows_per_person: unit.rows,
            accountant: accountant.name(),
            order,
            estimate,
        }
    }
}

#[pymethods]
impl Guarantee {
    pub(crate) fn __repr__(&self) -> String {
        let Self { epsilon, delta, adjacency, rows_per_person, accountant, estimate, .. } = self;
        let estimate = if *estimate { ", an estimate" } else { "" };
        format!(
            "Guarantee(epsilon={epsilon:?}, delta={delta:?}, adjacency={adjacency:?}, \
             rows_per_person={rows_per_person}, accountant={accountant:?}{estimate})"
        )
    }
}

/// Events that were charged, in their order. They cannot be removed.
#[pyclass(eq, module = "muffle")]
#[derive(Clone, PartialEq, Default)]
pub(crate) struct Ledger(accounting::Ledger);

impl Ledger {
    fn cost(&self, unit: Unit) -> Result<Cost, accounting::Error> {
        self.0.cost(unit)
    }
}

/// Copies a ledger and ends the borrow, so that other threads can charge while figures are computed.
fn released(ledger: PyRef<'_, Ledger>) -> Ledger {
    ledger.clone()
}

#[pymethods]
impl Ledger {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Charges `count` times the same event.
    #[pyo3(signature = (event, count=1))]
    fn charge(&mut self, event: &Event, count: u64) -> PyResult<()> {
        Ok(self.0.charge(event.0.clone(), count).map_err(Error::from)?)
    }

    /// Appends all events of another ledger: two runs on the same data.
    fn merge(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<()> {
        // Both may be the same.
        let other = other.borrow().0.clone();
        Ok(slf.borrow_mut().0.merge(&other).map_err(Error::from)?)
    }

    /// The events with their counts.
    #[getter]
    fn events(&self) -> Vec<(Event, u64)> {
        self.0.events().runs().iter().map(|(event, count)| (Event(event.clone()), *count)).collect()
    }

    /// ε of all events at this δ, which may be 0.
    #[pyo3(signature = (
        delta, *, adjacency="add-remove", rows_per_person=1, accountant="best"
    ))]
    fn epsilon(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        delta: f64,
        adjacency: &str,
        rows_per_person: u64,
        accountant: &str,
    ) -> PyResult<Guarantee> {
        let (unit, by) = (unit(adjacency, rows_per_person)?, self::accountant(accountant)?);
        let ledger = released(slf);
        let price = || {
            let cost = ledger.cost(unit)?;
            if delta != 0.0 {
                return cost.epsilon(by, Delta::new(delta)?);
            }
            let nothing = cost.epsilon(by, Delta::new(0.5)?)?;
            Ok(accounting::Guarantee {
                epsilon: cost.pure_epsilon(),
                delta,
                order: None,
                ..nothing
            })
        };
        Ok(py.detach(price).map_err(Error::from)?.into())
    }

    /// δ of all events at this ε.
    #[pyo3(signature = (
        epsilon, *, adjacency="add-remove", rows_per_person=1, accountant="best"
    ))]
    fn delta(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        epsilon: f64,
        adjacency: &str,
        rows_per_person: u64,
        accountant: &str,
    ) -> PyResult<Guarantee> {
        let (unit, by) = (unit(adjacency, rows_per_person)?, self::accountant(accountant)?);
        let ledger = released(slf);
        let price = || ledger.cost(unit)?.delta(by, Epsilon::new(epsilon)?);
        Ok(py.detach(price).map_err(Error::from)?.into())
    }

    /// Upper bounds on the true-positive rate of membership tests at these false-positive rates.
    #[pyo3(signature = (
        false_positive_rates, *, delta=1e-6, adjacency="add-remove", rows_per_person=1
    ))]
    fn trade_off(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        false_positive_rates: Vec<f64>,
        delta: f64,
        adjacency: &str,
        rows_per_person: u64,
    ) -> PyResult<Vec<f64>> {
        let unit = unit(adjacency, rows_per_person)?;
        let ledger = released(slf);
        let curve = || ledger.cost(unit)?.trade_off(Delta::new(delta)?);
        let curve = py.detach(curve).map_err(Error::from)?;
        Ok(false_positive_rates.into_iter().map(|rate| curve.tpr(rate)).collect())
    }

    /// Reads a ledger.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map(Self).map_err(|error| invalid(error.to_string()))
    }

    /// The ledger as text.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.clone()
    }

    /// The number of events.
    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.0.events().len()).map_err(|_| invalid("too many events to count"))
    }

    fn __repr__(&self) -> String {
        let events = self.0.events().runs().iter();
        let events: Vec<String> = events.map(|(event, n)| format!("{n} × {event}")).collect();
        format!("<muffle.Ledger: {}>", events.join("; "))
    }
}

/// The default δ of a data set: 1/(10 N).
#[pyfunction]
pub(crate) fn default_delta(dataset_size: u64) -> PyResult<f64> {
    let shape =
        RunShape { dataset_size: Some(dataset_size), ..RunShape::new(Adjacency::AddRemove) };
    Ok(shape.delta_or_default(None).map_err(Error::from)?)
}

/// The μ of the Gaussian mechanism that has this ε at this δ, to compare guarantees.
#[pyfunction]
pub(crate) fn gdp_mu(epsilon: f64, delta: f64) -> PyResult<f64> {
    Epsilon::new(epsilon).map_err(Error::from)?;
    Delta::new(delta).map_err(Error::from)?;
    Ok(accounting::curve::gdp_mu_at(epsilon, delta))
}
