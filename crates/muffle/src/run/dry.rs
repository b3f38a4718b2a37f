//! A dry run: all inputs of a run are checked and its cost is computed, but nothing is trained.
//!
//! No folder is created, nothing is charged, and no step is made on the training data.

use crate::config::Config;
use crate::load::data::{self, TrainingData};
use crate::load::digest;
use crate::load::model::{DataProperties, LoadedModel};
use crate::plan::estimate::{self, StepCost};
use crate::run::evaluation_data::{
    check_selection, check_test_data, refuse_evaluation_on_training_data, validation_examples,
};
use crate::run::{Silent, memory, together};
use crate::{Error, Plan};
use distributed::Ranks;

/// The plan of a run with its cost on this machine.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// Steps, noise and privacy cost.
    pub plan: Plan,
    /// Number of trained and of all parameter elements.
    pub parameters: (usize, usize),
    /// Time and memory of steps on synthetic records of the largest length.
    pub cost: StepCost,
}

/// Checks the inputs of a run and computes its plan and its cost on this machine.
///
/// All rows are read and prepared, as for training. `report` receives lines about downloads.
///
/// # Errors
/// If [`train`](crate::run::train) would refuse the configuration, the data, the model or the plan.
pub fn dry_run(config: &Config, report: &mut dyn FnMut(&str)) -> Result<DryRun, Error> {
    let config = config.clone().absolute()?;
    Plan::check(&config)?;
    let (labels, image) = data::labels_and_shape(&config.data)?;
    let model =
        LoadedModel::open(&config, DataProperties { labels: &labels, image }, &mut *report)?;
    if config.data.validation.is_some() || config.data.test.is_some() {
        refuse_evaluation_on_training_data(&config, &digest::of_training_data(&config)?)?;
    }
    together::set_threads(&Ranks::alone(), &config);
    let limit = data::length_limit(&config.data, &model)?;
    let preparation = model.preparation(&labels, limit);
    let validation = validation_examples(&config, &preparation, &mut Silent)?;
    check_test_data(&config, &preparation)?;
    check_selection(&config, &model, &validation)?;
    let folder = std::env::temp_dir();
    let TrainingData { records, .. } =
        data::training_data(&config, &preparation, &folder, memory::record_bytes(1))?;
    let plan = Plan::new(&config, records.places(), &model.network.trainable())?;
    let all = model.network.tensors(&model.params).into_iter();
    let parameters = (model.params.elements(), all.map(|(_, tensor)| tensor.len()).sum());
    // Without the optimizer's own refusals, which depend on the parameters.
    plan.optimizer(&config, &model.network.trainable(), &model.params)?;
    let cost = estimate::measure(&config, &model, limit.saturating_sub(1).max(1))?;
    Ok(DryRun { plan, parameters, cost })
}
