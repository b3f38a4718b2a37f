//! ε of a run, and the noise, steps or lot size that keep a promise.

use crate::accounting::{Guarantee, by_name, method, unit, warn};
use crate::error::{Error, invalid};
use accounting::calibrate::{self as search, Target};
use accounting::{Cost, Delta, Epsilon, RunShape, Sigma};
use pyo3::prelude::*;

/// The noise multiplier, number of steps or lot size that keeps a promise.
#[pyclass(frozen, module = "muffle", get_all)]
#[derive(Clone)]
pub(crate) struct Calibration {
    /// The noise multiplier of each block.
    noise_multiplier: f64,
    /// The number of steps.
    steps: u64,
    /// The lot size, if it was searched for.
    lot_size: Option<u64>,
    /// The guarantee of the run, within the promise.
    guarantee: Guarantee,
}

#[pymethods]
impl Calibration {
    fn __repr__(&self) -> String {
        let lot = self.lot_size.map_or_else(String::new, |lot| format!("lot_size={lot}, "));
        format!(
            "Calibration(noise_multiplier={:?}, steps={}, {lot}guarantee={})",
            self.noise_multiplier,
            self.steps,
            self.guarantee.__repr__()
        )
    }
}

/// ε of a run at a given δ, or δ at a given ε.
///
/// Give `sampling_rate`, or `dataset_size` with `lot_size`; `steps` or `epochs`; `delta` (by default
/// 1/(10 N), if `dataset_size` is given) or `epsilon`.
#[pyfunction]
#[pyo3(signature = (
    *, noise_multiplier, sampling_rate=None, dataset_size=None, lot_size=None, steps=None,
    epochs=None, delta=None, epsilon=None, sampling="poisson", blocks=1, adjacency="add-remove",
    rows_per_person=1, accountant="best"
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn account(
    py: Python<'_>,
    noise_multiplier: f64,
    sampling_rate: Option<f64>,
    dataset_size: Option<u64>,
    lot_size: Option<u64>,
    steps: Option<u64>,
    epochs: Option<f64>,
    delta: Option<f64>,
    epsilon: Option<f64>,
    sampling: &str,
    blocks: u64,
    adjacency: &str,
    rows_per_person: u64,
    accountant: &str,
) -> PyResult<Guarantee> {
    let by = crate::accounting::accountant(accountant)?;
    let shape = RunShape {
        sampling: method(sampling)?,
        sampling_rate,
        dataset_size,
        lot_size,
        steps,
        epochs,
        blocks,
        unit: unit(adjacency, rows_per_person)?,
    };
    if delta.is_some() && epsilon.is_some() {
        return Err(invalid("give delta or epsilon, not both"));
    }
    let price = || -> Result<accounting::Guarantee, accounting::Error> {
        let events = shape.events(Sigma::new(noise_multiplier)?, shape.steps()?)?;
        let cost = Cost::new(&events, shape.unit)?;
        match epsilon {
            Some(epsilon) => cost.delta(by, Epsilon::new(epsilon)?),
            None => cost.epsilon(by, Delta::new(shape.delta_or_default(delta)?)?),
        }
    };
    let guarantee = py.detach(price).map_err(Error::from)?;
    warn(py, &shape.warnings(Delta::new(guarantee.delta).ok(), by))?;
    Ok(guarantee.into())
}

/// The smallest noise multiplier, the most steps or the largest lot that keeps (ε, δ).
///
/// `find` is "noise-multiplier", "steps" or "lot-size"; the latter two need `noise_multiplier`.
#[pyfunction]
#[pyo3(signature = (
    *, epsilon, delta=None, find="noise-multiplier", noise_multiplier=None, sampling_rate=None,
    dataset_size=None, lot_size=None, steps=None, epochs=None, sampling="poisson", blocks=1,
    adjacency="add-remove", rows_per_person=1, accountant="best"
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn calibrate(
    py: Python<'_>,
    epsilon: f64,
    delta: Option<f64>,
    find: &str,
    noise_multiplier: Option<f64>,
    sampling_rate: Option<f64>,
    dataset_size: Option<u64>,
    lot_size: Option<u64>,
    steps: Option<u64>,
    epochs: Option<f64>,
    sampling: &str,
    blocks: u64,
    adjacency: &str,
    rows_per_person: u64,
    accountant: &str,
) -> PyResult<Calibration> {
    let shape = RunShape {
        sampling: method(sampling)?,
        sampling_rate,
        dataset_size,
        lot_size,
        steps,
        epochs,
        blocks,
        unit: unit(adjacency, rows_per_person)?,
    };
    if !(epsilon > 0.0 && epsilon < f64::INFINITY) {
        return Err(invalid(format!(
            "epsilon must be a finite number greater than 0, got {epsilon}"
        )));
    }
    let delta = Delta::new(shape.delta_or_default(delta).map_err(Error::from)?);
    let target = Target {
        epsilon: Epsilon::new(epsilon).map_err(Error::from)?,
        delta: delta.map_err(Error::from)?,
        unit: shape.unit,
        accountant: crate::accounting::accountant(accountant)?,
    };
    warn(py, &shape.warnings(Some(target.delta), target.accountant))?;
    let find = by_name("find", ["noise-multiplier", "steps", "lot-size"], |name| name, find)?;
    let sigma = match (find, noise_multiplier) {
        ("noise-multiplier", None) => 1.0,
        ("noise-multiplier", Some(_)) => {
            return Err(invalid("noise_multiplier: expected none, because it is searched for"));
        }
        (_, Some(sigma)) => sigma,
        (_, None) => return Err(invalid("give noise_multiplier")),
    };
    let found =
        || -> Result<(Sigma, u64, Option<u64>, accounting::Guarantee), accounting::Error> {
            let sigma = Sigma::new(sigma)?;
            match find {
                "steps" => {
                    let events = |steps| shape.events(sigma, steps);
                    let (steps, price) = search::largest_count(target, events)?;
                    Ok((sigma, steps, None, price))
                }
                "lot-size" => {
                    let (run, price) = shape.with_largest_lot(target, sigma, None)?;
                    Ok((sigma, run.steps()?, run.lot_size, price))
                }
                _ => {
                    let steps = shape.steps()?;
                    if steps == 0 {
                        let (name, expected) = ("the number of steps", "at least 1");
                        return Err(accounting::Error::OutOfRange {
                            name,
                            expected,
                            got: "0".into(),
                        });
                    }
                    let (sigma, price) = search::sigma(target, |sigma| shape.events(sigma, steps))?;
                    Ok((sigma, steps, None, price))
                }
            }
        };
    let (sigma, steps, lot_size, price) = py.detach(found).map_err(Error::from)?;
    Ok(Calibration { noise_multiplier: sigma.get(), steps, lot_size, guarantee: price.into() })
}
