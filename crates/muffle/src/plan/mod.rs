//! The plan of a run: steps, lot size, δ and σ from a configuration and the number of places.
//!
//! Calibration and training use the same numbers: steps are integers throughout. The optimizer
//! announces its queries, which determine the cost of the run.

pub mod estimate;
pub mod recommend;
pub mod repeated;

use crate::Error;
use crate::config::{Auto, Config, PersonRows, ProtectedUnit};
use accounting::{
    Accountant, Budget, Composition, Delta, Epsilon, Guarantee, Ledger, Sampling, SamplingMethod,
    Sigma, Unit, calibrate,
};
use curator::lot_event;
use optim::{Multipliers, Optimizer, Setting};
use protocol::{Params, Refused, Trainable};

/// Steps, noise and cost of a run, fixed before it starts.
///
/// ```
/// use muffle::protocol::{Role, Trainable};
/// use muffle::{Config, Plan};
///
/// let config = Config::parse("[optimizer]\nname = \"dp-adam\"\n[privacy]\nepsilon = 3.0")?;
/// let weight = Trainable::new("weight", [4, 4], Role::Hidden);
/// let plan = Plan::new(&config, 10_000, &[weight])?;
/// assert_eq!((plan.lot_size(), plan.steps), (200.0, 150));
/// assert!(plan.price.is_some_and(|price| price.epsilon <= 3.0));
/// # Ok::<(), muffle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of places of the data set, vacant or not. Public.
    pub records: usize,
    /// Number of steps.
    pub steps: u64,
    /// How lots are drawn.
    pub sampling: Sampling,
    /// Noise multipliers.
    pub sigma: Multipliers,
    /// The budget, if the run is private.
    pub budget: Option<Budget>,
    /// All events that will be charged.
    pub events: Composition,
    /// The cost of all events, if the run is private.
    pub price: Option<Guarantee>,
}

/// Builds an optimizer for a setting.
pub type OptimizerFactory = dyn Fn(&Setting<'_>) -> Result<Optimizer, Refused>;

/// The default ε of a private run.
pub const EPSILON: f64 = 8.0;

/// The default number of epochs.
pub const EPOCHS: f64 = 3.0;

impl Plan {
    /// Checks a configuration as far as possible without data.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn check(config: &Config) -> Result<(), Error> {
        config.check_values()?;
        config.evaluation.check(config.data.publicity())?;
        check_steps(config)?;
        if config.privacy.accountant == Accountant::Gdp {
            return Err(Error::config(
                "privacy.accountant",
                "expected best, pld or rdp; got gdp, which is an estimate and not a guarantee",
            ));
        }
        let privacy = &config.privacy;
        if privacy.epsilon.given().and(privacy.sigma.given()).is_some() {
            return Err(Error::config(
                "privacy",
                "expected epsilon or sigma, not both: the noise follows from ε, or ε from the noise",
            ));
        }
        for (key, value) in [("privacy.epsilon", privacy.epsilon), ("privacy.sigma", privacy.sigma)]
        {
            if let Auto::Value(value) = value
                && !(value > 0.0 && value < f64::INFINITY)
            {
                return Err(Error::config(
                    key,
                    format!("expected a finite number greater than 0, got {value}"),
                ));
            }
        }
        if let Auto::Value(delta) = privacy.delta
            && !(delta > 0.0 && delta < 1.0)
        {
            return Err(Error::config(
                "privacy.delta",
                format!("expected a number greater than 0 and less than 1, got {delta}"),
            ));
        }
        match (config.privacy.unit, &config.data.group) {
            (Auto::Value(ProtectedUnit::Person), None) => {
                return Err(Error::config(
                    "privacy.unit",
                    "\"person\" needs the column that names the person of a row; set data.group",
                ));
            }
            (Auto::Value(ProtectedUnit::Record), Some(column)) => {
                return Err(Error::config(
                    "privacy.unit",
                    format!(
                        "\"record\" contradicts data.group = {column:?}, which protects all rows \
                         of a person; remove one of the two"
                    ),
                ));
            }
            _ => {}
        }
        if config.data.group.is_some() {
            match (config.data.rows_per_person, config.data.person_rows) {
                (Auto::Value(0), _) => {
                    return Err(Error::config(
                        "data.rows_per_person",
                        "expected at least 1, got 0",
                    ));
                }
                (Auto::Auto, PersonRows::Separate) => {
                    return Err(Error::config(
                        "data.rows_per_person",
                        "expected a number, because the rows of a person are separate records; \
                         noise increases with it (data.person_rows = \"combined\" uses all rows)",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Computes the cost of a ledger whose charges are part of the plan.
    ///
    /// Without privacy ε is infinite.
    ///
    /// The plan is fixed beforehand, and a part of it reveals no more than the whole: the result is
    /// at most the cost of the whole plan.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub fn spent(&self, ledger: &Ledger) -> Result<Guarantee, Error> {
        let Some(budget) = &self.budget else {
            let unit = Unit::from(accounting::Adjacency::AddRemove);
            return Ok(Guarantee {
                epsilon: f64::INFINITY,
                delta: 1.0,
                unit,
                accountant: Accountant::Pld,
                order: None,
                estimate: false,
            });
        };
        if ledger.events().is_empty() {
            let accountant = if budget.accountant == Accountant::Best {
                Accountant::Pld
            } else {
                budget.accountant
            };
            return Ok(Guarantee {
                epsilon: 0.0,
                delta: budget.delta.get(),
                unit: budget.unit,
                accountant,
                order: None,
                estimate: false,
            });
        }
        let spent = budget.price(ledger.events())?;
        Ok(match self.price {
            Some(whole) if whole.epsilon < spent.epsilon => whole,
            _ => spent,
        })
    }

    /// Plans a run on `records` places.
    ///
    /// # Errors
    /// If the configuration is invalid, or the promise cannot be kept.
    pub fn new(config: &Config, records: usize, tensors: &[Trainable]) -> Result<Self, Error> {
        let build = |setting: &Setting<'_>| config.optimizer.build(setting);
        Self::for_optimizer(config, records, tensors, config.optimizer.is_private(), &build)
    }

    /// Plans a run with a private optimizer that is not in the registry.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_optimizer(
        config: &Config,
        records: usize,
        tensors: &[Trainable],
        build: &OptimizerFactory,
    ) -> Result<Self, Error> {
        Self::for_optimizer(config, records, tensors, true, build)
    }

    fn for_optimizer(
        config: &Config,
        records: usize,
        tensors: &[Trainable],
        private: bool,
        build: &dyn Fn(&Setting<'_>) -> Result<Optimizer, Refused>,
    ) -> Result<Self, Error> {
        Self::check(config)?;
        let lot = lot_size(config, records)?;
        let steps = steps(config, records, lot)?;
        let sampling = config.privacy.sampling.with(records as u64, lot)?;
        let unit_noise = Multipliers { gradient: 1.0, probe: 1.0 };
        if !private {
            return Ok(Self {
                records,
                steps,
                sampling,
                sigma: unit_noise,
                budget: None,
                events: Composition::repeated(accounting::Event::NonPrivate, steps),
                price: None,
            });
        }
        let lot_size = sampling.lot_size(records);
        let optimizer = |sigma: Multipliers| {
            // The announced queries do not depend on the parameters, so that none are given.
            let (params, seed) = (&Params::default(), config.model.seed);
            let origin = config.model.origin();
            build(&Setting { tensors, params, lot_size, steps, sigma, origin, seed })
        };
        let events = |sigma: Multipliers| events(&optimizer(sigma)?, steps, sampling);
        let delta = delta(config, records)?;
        let unit = config.unit();
        let accountant = config.privacy.accountant;
        let (sigma, budget) = match (config.privacy.sigma, config.privacy.epsilon) {
            (Auto::Value(sigma), _) => {
                // The noise is given: the promised ε is its cost.
                let sigma = Multipliers { gradient: Sigma::new(sigma)?.get(), probe: sigma };
                let unlimited =
                    Budget { epsilon: Epsilon::new(f64::MAX)?, delta, unit, accountant };
                let price = unlimited.price(&events(sigma)?)?;
                (sigma, Budget { epsilon: Epsilon::new(price.epsilon)?, ..unlimited })
            }
            (Auto::Auto, epsilon) => {
                let budget =
                    Budget { epsilon: Epsilon::new(epsilon.or(EPSILON))?, delta, unit, accountant };
                let factor = optimizer(unit_noise)?
                    .probes()
                    .then_some(config.optimizer.hyfree.gradient_factor);
                (calibrate_noise(budget, factor, &events)?, budget)
            }
        };
        let events = events(sigma)?;
        let price = budget.price(&events)?;
        Ok(Self {
            records,
            steps,
            sampling,
            sigma,
            budget: Some(budget),
            events,
            price: Some(price),
        })
    }

    /// The standard deviation of the noise in the mean of a lot, divided by the clip bound: σ/B.
    ///
    /// This is the noise that a step sees, per element. σ alone is not: it is the noise of a sum.
    pub fn noise_in_mean(&self) -> f64 {
        self.sigma.gradient / self.lot_size()
    }

    /// The size of the noise that is left if the gradients of all steps are averaged, divided by
    /// the largest possible size of a mean of clipped gradients.
    ///
    /// For `elements` trained parameters the noise of a step has about the norm √d σC/B, and that
    /// of a mean over T steps √d σC/(B √T). The mean of clipped gradients has at most the norm C.
    pub fn noise_to_signal(&self, elements: usize) -> f64 {
        self.noise_in_mean() * (elements as f64 / self.steps as f64).sqrt()
    }

    /// The public lot size.
    pub fn lot_size(&self) -> f64 {
        self.sampling.lot_size(self.records)
    }

    /// Builds the optimizer of this plan.
    ///
    /// # Errors
    /// If a hyperparameter is out of range, or the model does not fit the optimizer.
    pub fn optimizer(
        &self,
        config: &Config,
        tensors: &[Trainable],
        params: &Params,
    ) -> Result<Optimizer, Refused> {
        config.optimizer.build(&self.setting(config, tensors, params))
    }

    /// The setting for which an optimizer of this plan is built.
    pub fn setting<'a>(
        &self,
        config: &Config,
        tensors: &'a [Trainable],
        params: &'a Params,
    ) -> Setting<'a> {
        Setting {
            tensors,
            params,
            lot_size: self.lot_size(),
            steps: self.steps,
            sigma: self.sigma,
            origin: config.model.origin(),
            seed: config.model.seed,
        }
    }
}

/// Finds the least noise that keeps the promise.
///
/// With probes, the gradients get `factor` times the noise that they would need alone, and the
/// probes get the rest of the budget.
fn calibrate_noise(
    budget: Budget,
    factor: Option<f64>,
    events: &dyn Fn(Multipliers) -> Result<Composition, Refused>,
) -> Result<Multipliers, Error> {
    // The noise multiplier at which probes cost almost nothing.
    const NEGLIGIBLE_PROBE: f64 = 1e7;
    let (gradient_alone, _) = calibrate::sigma(budget, |sigma| {
        let sigma = Multipliers { gradient: sigma.get(), probe: NEGLIGIBLE_PROBE };
        Ok::<_, Error>(events(sigma)?)
    })?;
    let Some(factor) = factor else {
        return Ok(Multipliers { gradient: gradient_alone.get(), probe: NEGLIGIBLE_PROBE });
    };
    if !(factor > 1.0 && factor < 100.0) {
        return Err(Error::config(
            "optimizer.hyfree.gradient_factor",
            format!("expected more than 1 and less than 100, got {factor}"),
        ));
    }
    let gradient = gradient_alone.get() * factor;
    let (probe, _) = calibrate::sigma(budget, |sigma| {
        Ok::<_, Error>(events(Multipliers { gradient, probe: sigma.get() })?)
    })?;
    Ok(Multipliers { gradient, probe: probe.get() })
}

/// All events that a run of this optimizer will charge.
fn events(optimizer: &Optimizer, steps: u64, sampling: Sampling) -> Result<Composition, Refused> {
    let failed = |error: accounting::Error| Refused::Query(error.to_string());
    let schedule = optimizer.schedule(steps);
    if sampling.method() == SamplingMethod::Shuffled && (optimizer.probes() || schedule.len() != 1)
    {
        return Err(Refused::Query(
            "privacy.sampling: expected \"poisson\", got \"shuffled\"; probes of the loss need a \
             lot that is drawn independently"
                .into(),
        ));
    }
    let mut all = Composition::new();
    for (announced, lots) in schedule {
        // An epoch of shuffled lots is charged as a whole, when its first lot is drawn.
        let count = lots.div_ceil(sampling.lots_per_event());
        all.push(lot_event(sampling, &announced)?, count).map_err(failed)?;
    }
    Ok(all)
}

/// Returns δ, configured or 1/(10 N).
///
/// # Claim
/// A run whose δ is not below 1/N is refused.
///
/// # Why
/// A mechanism that publishes one random record satisfies (0, 1/N): such a promise protects no
/// single record.
///
/// # Checked by
/// `a_delta_of_one_record_is_refused`
fn delta(config: &Config, records: usize) -> Result<Delta, Error> {
    let one_record = 1.0 / records as f64;
    let delta = config.privacy.delta.or(0.1 * one_record);
    if delta < one_record {
        return Ok(Delta::new(delta)?);
    }
    Err(Error::config(
        "privacy.delta",
        format!(
            "expected less than 1/N = {one_record:.3e} for {records} records, got {delta}: a \
             mechanism that publishes one random record would keep such a promise; \"auto\" is \
             1/(10 N)"
        ),
    ))
}

/// Returns the lot size, configured or by default.
fn lot_size(config: &Config, records: usize) -> Result<u64, Error> {
    // 2 √N, at most 1024.
    let default = ((records as f64).sqrt() * 2.0).round().clamp(1.0, 1024.0) as u64;
    let lot = config.training.lot_size.or(default.min(records as u64));
    if lot >= 1 && lot <= records as u64 {
        return Ok(lot);
    }
    Err(Error::config(
        "training.lot_size",
        format!("expected at least 1 and at most {records}, the number of records; got {lot}"),
    ))
}

/// Checks steps and epochs as far as possible without the number of records.
fn check_steps(config: &Config) -> Result<(), Error> {
    match (config.training.steps, config.training.epochs) {
        (Auto::Value(_), Auto::Value(_)) => {
            Err(Error::config("training", "expected steps or epochs, not both; remove one"))
        }
        (Auto::Value(0), _) => Err(Error::config("training.steps", "expected at least 1, got 0")),
        (_, Auto::Value(epochs)) if !(epochs > 0.0 && epochs < f64::INFINITY) => {
            Err(Error::config(
                "training.epochs",
                format!("expected a finite number greater than 0, got {epochs}"),
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the number of steps, configured or from the number of epochs.
fn steps(config: &Config, records: usize, lot: u64) -> Result<u64, Error> {
    match (config.training.steps, config.training.epochs) {
        (Auto::Value(steps), _) => Ok(steps),
        (Auto::Auto, epochs) => {
            let epochs = epochs.or(EPOCHS);
            let steps = (epochs * records as f64 / lot as f64).round();
            if (1.0..1e12).contains(&steps) {
                Ok(steps as u64)
            } else {
                Err(Error::config(
                    "training.epochs",
                    format!("expected 1 to 1e12 steps, got {steps} from {epochs} epochs"),
                ))
            }
        }
    }
}
