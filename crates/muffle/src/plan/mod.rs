//! From a configuration and the number of records (places, taken or vacant) to the numbers of a
//! run: steps, lot size, δ, σ. The same numbers calibrate and run: steps are integers throughout.

use crate::Failed;
use crate::config::optimizers::{self, Multipliers, Name, Setting};
use crate::config::{Auto, Config, Rate};
use accounting::{
    Accountant, Budget, Composition, Delta, Epsilon, Guarantee, Ledger, Sampling, Sigma, Unit,
    calibrate,
};
use curator::lot_event;
use protocol::{Params, Refused, Trainable};

/// The numbers of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Places of the data set, whether they hold a record or not. Public.
    pub records: usize,
    /// Steps.
    pub steps: u64,
    /// How lots are drawn.
    pub sampling: Sampling,
    /// The noise.
    pub sigma: Multipliers,
    /// What the run is held to, if it is private.
    pub budget: Option<Budget>,
    /// Everything that will be charged.
    pub events: Composition,
    /// What that comes to.
    pub price: Option<Guarantee>,
}

/// The ε of a private run for which nothing is asked.
pub const EPSILON: f64 = 8.0;

/// Why there is no plan.
#[derive(Debug)]
pub enum Unplanned {
    /// The configuration makes no sense.
    Input(String),
    /// The promise cannot be kept.
    Promise(accounting::Error),
}

impl From<accounting::Error> for Unplanned {
    fn from(error: accounting::Error) -> Self {
        match error {
            accounting::Error::Unreachable { .. } => Self::Promise(error),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<Refused> for Unplanned {
    fn from(refused: Refused) -> Self {
        Self::Input(refused.to_string())
    }
}

impl std::fmt::Display for Unplanned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input(what) => f.write_str(what),
            Self::Promise(error) => error.fmt(f),
        }
    }
}

impl Plan {
    /// Whether a configuration makes sense as far as that can be told without data.
    ///
    /// # Errors
    /// If not.
    pub fn check(config: &Config) -> Result<(), Failed> {
        Name::of(&config.optimizer.name).map_err(Failed::Input)?;
        accountant(&config.privacy.accountant)?;
        if config.privacy.epsilon.given().and(config.privacy.sigma.given()).is_some() {
            return Err(Failed::Input("privacy: epsilon or sigma, not both".into()));
        }
        if config.data.group.is_some() && config.data.rows_per_person == 0 {
            return Err(Failed::Input("data.rows_per_person: at least 1 expected, got 0".into()));
        }
        Ok(())
    }

    /// The price of a part of it. Without privacy ε is infinite.
    ///
    /// The plan is fixed beforehand and a part of it tells no more than all of it: where the figure
    /// for a part came out above that for the whole, the latter is given.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub fn spent(&self, ledger: &Ledger) -> Result<Guarantee, Failed> {
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

    /// Works it out.
    ///
    /// # Errors
    /// If something makes no sense, or the promise cannot be kept.
    pub fn new(
        config: &Config,
        records: usize,
        tensors: &[Trainable],
        params: &Params,
    ) -> Result<Self, Unplanned> {
        let name = Name::of(&config.optimizer.name).map_err(Unplanned::Input)?;
        let lot = lot_size(config, records)?;
        let steps = steps(config, records, lot)?;
        let sampling = config.privacy.sampling.with(records as u64, lot)?;
        let setting = Setting { tensors, params, lot_size: sampling.lot_size(records), steps };
        let probing = matches!(config.optimizer.learning_rate, Auto::Value(Rate::Found(_)));
        let events = |sigma: Multipliers| events(config, sigma, setting, sampling);
        if !name.private {
            let sigma = Multipliers { gradient: 1.0, probe: 1.0 };
            return Ok(Self {
                records,
                steps,
                sampling,
                sigma,
                budget: None,
                events: Composition::repeated(accounting::Event::NonPrivate, steps),
                price: None,
            });
        }
        let delta = Delta::new(config.privacy.delta.or(0.1 / records as f64))?;
        let unit = config.unit();
        let accountant = accountant(&config.privacy.accountant)?;
        let (sigma, budget) = match (config.privacy.sigma, config.privacy.epsilon) {
            (Auto::Value(_), Auto::Value(_)) => {
                return Err(Unplanned::Input("privacy: epsilon or sigma, not both".into()));
            }
            (Auto::Value(sigma), Auto::Auto) => {
                // The noise is given: the promise is what it comes to.
                let sigma = Multipliers { gradient: Sigma::new(sigma)?.get(), probe: sigma };
                let open = Budget { epsilon: Epsilon::new(f64::MAX)?, delta, unit, accountant };
                let price = open.price(&events(sigma)?)?;
                (sigma, Budget { epsilon: Epsilon::new(price.epsilon)?, ..open })
            }
            (Auto::Auto, epsilon) => {
                let budget =
                    Budget { epsilon: Epsilon::new(epsilon.or(EPSILON))?, delta, unit, accountant };
                (
                    calibrated(budget, probing, config.optimizer.hyfree.gradient_factor, &events)?,
                    budget,
                )
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

    /// The public lot size.
    pub fn lot_size(&self) -> f64 {
        self.sampling.lot_size(self.records)
    }
}

/// The least noise that keeps the promise. With probes, the gradients get a little more than they
/// would need alone, and the probes what is left.
fn calibrated(
    budget: Budget,
    probing: bool,
    factor: f64,
    events: &dyn Fn(Multipliers) -> Result<Composition, Refused>,
) -> Result<Multipliers, Unplanned> {
    let made = |sigma: Multipliers| {
        events(sigma).map_err(|refused| accounting::Error::Unsupported {
            accountant: "planned",
            event: refused.to_string(),
        })
    };
    // Probes that cost nothing.
    let silent = 1e7;
    let (alone, _) = calibrate::sigma(budget, |sigma| {
        made(Multipliers { gradient: sigma.get(), probe: silent })
    })?;
    if !probing {
        return Ok(Multipliers { gradient: alone.get(), probe: silent });
    }
    if !(factor > 1.0 && factor < 100.0) {
        return Err(Unplanned::Input(format!(
            "optimizer.hyfree.gradient_factor: greater than 1 expected, got {factor}"
        )));
    }
    let gradient = alone.get() * factor;
    let (probe, _) =
        calibrate::sigma(budget, |sigma| made(Multipliers { gradient, probe: sigma.get() }))?;
    Ok(Multipliers { gradient, probe: probe.get() })
}

/// Everything that the run will charge.
fn events(
    config: &Config,
    sigma: Multipliers,
    setting: Setting<'_>,
    sampling: Sampling,
) -> Result<Composition, Refused> {
    // What is asked does not depend on the parameters: none are needed to tell.
    let optimizer =
        optimizers::build(config, sigma, Setting { params: &Params::default(), ..setting })?;
    let failed = |error: accounting::Error| Refused::Query(error.to_string());
    let mut all = Composition::new();
    if let Sampling::Shuffled { .. } = sampling {
        // An epoch is charged as a whole, when its first lot is drawn.
        let announced = optimizer.lots(0);
        let probing = matches!(config.optimizer.learning_rate, Auto::Value(Rate::Found(_)));
        if probing || announced.len() != 1 {
            return Err(Refused::Query(
                "probes of the loss need lots that are drawn anew: set \
                privacy.sampling to \"poisson\""
                    .into(),
            ));
        }
        all.push(
            lot_event(sampling, &announced[0])?,
            setting.steps.div_ceil(sampling.lots_per_event()),
        )
        .map_err(failed)?;
        return Ok(all);
    }
    // Two steps stand for all, however many there are: one without probes and the last of a round,
    // which probes.
    let every = config.optimizer.hyfree.every.max(1);
    let probes = if matches!(config.optimizer.learning_rate, Auto::Value(Rate::Found(_))) {
        setting.steps / every
    } else {
        0
    };
    // Equal events are counted together: a price does not depend on their order.
    let mut counts: Vec<(accounting::Event, u64)> = Vec::new();
    for (step, times) in [(0, setting.steps - probes), (every - 1, probes)]
        .into_iter()
        .filter(|(_, times)| *times > 0)
    {
        for announced in optimizer.lots(step) {
            let event = lot_event(sampling, &announced)?;
            match counts.iter_mut().find(|(known, _)| *known == event) {
                Some((_, count)) => *count += times,
                None => counts.push((event, times)),
            }
        }
    }
    counts.into_iter().try_for_each(|(event, count)| all.push(event, count)).map_err(failed)?;
    Ok(all)
}

fn lot_size(config: &Config, records: usize) -> Result<u64, Unplanned> {
    // About as many steps an epoch as there are records in a lot, within what is customary.
    let usual = ((records as f64).sqrt() * 2.0).round().clamp(1.0, 1024.0) as u64;
    let lot = config.training.lot_size.or(usual.min(records as u64));
    if lot >= 1 && lot <= records as u64 {
        return Ok(lot);
    }
    Err(Unplanned::Input(format!(
        "training.lot_size: at least 1 and at most the {records} records expected, got {lot}"
    )))
}

fn steps(config: &Config, records: usize, lot: u64) -> Result<u64, Unplanned> {
    match (config.training.steps, config.training.epochs) {
        (Auto::Value(_), Auto::Value(_)) => {
            Err(Unplanned::Input("training: steps or epochs, not both".into()))
        }
        (Auto::Value(0), _) => {
            Err(Unplanned::Input("training.steps: at least 1 expected, got 0".into()))
        }
        (Auto::Value(steps), _) => Ok(steps),
        (Auto::Auto, epochs) => {
            let epochs = epochs.or(3.0);
            let steps = (epochs * records as f64 / lot as f64).round();
            if (1.0..1e12).contains(&steps) {
                Ok(steps as u64)
            } else {
                Err(Unplanned::Input(format!("training.epochs: {epochs} makes {steps} steps")))
            }
        }
    }
}

fn accountant(name: &str) -> Result<Accountant, Unplanned> {
    match name {
        "best" => Ok(Accountant::Best),
        "pld" => Ok(Accountant::Pld),
        "rdp" => Ok(Accountant::Rdp),
        other => Err(Unplanned::Input(format!(
            "privacy.accountant: best, pld or rdp expected, got {other:?}"
        ))),
    }
}
