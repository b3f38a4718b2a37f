//! `plan.json`: the plan of a run in numbers, written before its first step.
//!
//! A reader of an unfinished run learns from it how far the run is. Everything in it is public.
//! Unknown fields are refused.

use crate::run::folder::Folder;
use crate::run::result;
use crate::{Error, Plan};
use serde::{Deserialize, Serialize};

/// The name of the file.
pub const FILE: &str = "plan.json";

/// The numbers of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// Number of places of the data set.
    pub records: usize,
    /// The public lot size.
    pub lot_size: f64,
    /// Number of steps.
    pub steps: u64,
    /// Number of charges of all steps: one for each step, or more with probes, or one per epoch.
    pub charges: u64,
    /// The noise multiplier of gradients; none without privacy.
    pub noise_multiplier: Option<f64>,
    /// The promised ε; none without privacy.
    pub promised_epsilon: Option<f64>,
    /// δ of the promise.
    pub delta: Option<f64>,
}

impl From<&Plan> for RunPlan {
    fn from(plan: &Plan) -> Self {
        Self {
            records: plan.records,
            lot_size: plan.lot_size(),
            steps: plan.steps,
            charges: plan.events.len(),
            noise_multiplier: plan.budget.map(|_| plan.sigma.gradient),
            promised_epsilon: plan.budget.map(|budget| budget.epsilon.get()),
            delta: plan.budget.map(|budget| budget.delta.get()),
        }
    }
}

impl RunPlan {
    /// Reads `plan.json`; `None` if there is none.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn read(folder: &Folder) -> Result<Option<Self>, Error> {
        result::read(folder, FILE)
    }

    /// Writes `plan.json`.
    pub(crate) fn write(&self, folder: &Folder) -> Result<(), Error> {
        result::write(folder, FILE, self)
    }
}
