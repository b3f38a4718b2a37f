//! The task of a model: configured for training, and stored in the `config.json` of the model.
//!
//! `problem_type` is the key of `transformers`. The constants of a regression have keys of their
//! own; without them, the model predicts the numbers themselves.

use crate::Error;
use crate::config::TaskKind;
use data::Task;
use model::Loss;
use model::hf;
use serde_json::{Value, json};

/// The keys of the constants of a regression.
const KEYS: [&str; 2] = ["target_mean", "target_scale"];

/// Returns the loss of a task.
pub(super) fn loss(task: Task) -> Loss {
    match task {
        Task::Classification => Loss::CrossEntropy,
        Task::MultiLabel => Loss::BinaryCrossEntropy,
        Task::Regression { .. } => Loss::SquaredError,
    }
}

/// Returns the task of a model.
///
/// # Errors
/// If its `config.json` has invalid constants.
pub(super) fn stored(model: &hf::Config) -> Result<Task, Error> {
    match model.loss {
        Loss::CrossEntropy => Ok(Task::Classification),
        Loss::BinaryCrossEntropy => Ok(Task::MultiLabel),
        Loss::SquaredError => {
            let number = |key: &str, default: f64| match model.other_keys.get(key) {
                None | Some(Value::Null) => Some(default),
                Some(value) => value.as_f64().filter(|number| number.is_finite()),
            };
            match (number(KEYS[0], 0.0), number(KEYS[1], 1.0).filter(|&scale| scale > 0.0)) {
                (Some(mean), Some(scale)) => Ok(Task::Regression { mean, scale }),
                _ => Err(Error::config(
                    "model.source",
                    "config.json: target_mean and target_scale: expected finite numbers, the \
                     second above 0",
                )),
            }
        }
    }
}

/// Stores the task of a training run with its model.
///
/// # Errors
/// If the model has a head for another task, or none.
pub(super) fn store(model: &mut hf::Config, task: Task) -> Result<(), Error> {
    let refuse = |key: &str, expected: String| Err(Error::config(key, expected));
    let kind = TaskKind::of(task).name();
    if model.architecture.head_outputs().is_none() {
        return match task {
            Task::Classification => Ok(()),
            _ => refuse(
                "data.task",
                format!(
                    "expected \"classification\" or \"auto\", because model.source is a language \
                     model; got {kind:?}"
                ),
            ),
        };
    }
    let known = stored(model)?;
    if loss(known) != loss(task) {
        let known = TaskKind::of(known).name();
        return refuse("data.task", format!("expected {known:?}, as the model has; got {kind:?}"));
    }
    if let Task::Regression { mean, scale } = task {
        if model.other_keys.contains_key(KEYS[0]) && known != task {
            return refuse(
                "data.target_mean and data.target_scale",
                format!(
                    "expected the constants of the model, {:?}; got {:?}",
                    constants(known),
                    constants(task)
                ),
            );
        }
        for (key, number) in KEYS.into_iter().zip([mean, scale]) {
            model.other_keys.insert(key.into(), number.into());
        }
    }
    Ok(())
}

/// Refuses names of classes that are not as many as the outputs of the model's head.
pub(super) fn check_labels(model: &hf::Config, labels: &[String]) -> Result<(), Error> {
    match model.architecture.head_outputs() {
        Some(outputs) if !labels.is_empty() && labels.len() != outputs => Err(Error::config(
            "data.labels",
            format!(
                "expected {outputs} names, one for each output of the model's head; got {} (a model \
                 whose files have no head gets a new one)",
                labels.len()
            ),
        )),
        _ => Ok(()),
    }
}

/// Writes the names of the classes into the model's configuration.
pub(super) fn name_classes(config: &mut hf::Config, labels: &[String]) {
    if labels.is_empty() {
        return;
    }
    let names =
        labels.iter().enumerate().map(|(class, label)| (class.to_string(), json!(label))).collect();
    let ids =
        labels.iter().enumerate().map(|(class, label)| (label.clone(), json!(class))).collect();
    config.other_keys.insert("id2label".into(), Value::Object(names));
    config.other_keys.insert("label2id".into(), Value::Object(ids));
}

/// The mean and the scale of a regression.
fn constants(task: Task) -> Option<(f64, f64)> {
    match task {
        Task::Regression { mean, scale } => Some((mean, scale)),
        _ => None,
    }
}
