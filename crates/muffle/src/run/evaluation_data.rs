//! Test and validation data of a run: checked before the first step, evaluated during training.

use crate::Error;
use crate::LoadedModel;
use crate::config::{Config, Publicity, Select};
use crate::evaluate;
use crate::load::data::{Split, dropped_warning, rows};
use crate::load::digest;
use crate::run::history::HistoryEntry;
use crate::run::{Run, RunObserver};
use ::data::{Content, Label, ModelInput, Preparation, Prepared, Record, Task};
use engine::Example;

impl Run<'_> {
    /// Computes ε so far and figures on the validation data.
    pub(super) fn evaluate(&mut self, rate: f64) -> Result<HistoryEntry, Error> {
        // A new instance has its own buffers, which are dropped afterwards.
        let mut network = self.model.network.new_instance();
        let scores = (!self.validation.is_empty())
            .then(|| {
                let (params, task) = (self.session.released_params(), self.model.task());
                evaluate::examples(&mut network, params, task, &self.validation)
            })
            .transpose()?;
        let epsilon = self.session.guarantee()?.epsilon;
        let (step, options) = (self.session.steps(), &self.config.evaluation);
        let scores_texts = options.select == Select::BestBleu && step > 0;
        let texts = match rows(&self.config.data, Split::Validation)?.filter(|_| scores_texts) {
            Some(rows) => evaluate::generate(
                &mut self.model,
                self.session.released_params(),
                rows,
                options.into(),
                usize::try_from(options.examples).unwrap_or(usize::MAX),
                &mut |_| (),
            )?,
            None => None,
        };
        Ok(HistoryEntry {
            step,
            epsilon: epsilon.is_finite().then_some(epsilon),
            learning_rate: rate,
            figures: self.publicity().into(),
            nll: scores.as_ref().and_then(|scores| scores.nll),
            accuracy: scores.as_ref().and_then(|scores| scores.accuracy),
            bleu: texts.map(|texts| texts.bleu),
            rmse: scores.as_ref().and_then(|scores| scores.rmse),
        })
    }
}

/// Refuses figures on the protected records: they would be released without a charge.
pub(super) fn refuse_evaluation_on_training_data(
    config: &Config,
    data_digest: &str,
) -> Result<(), Error> {
    for (key, path, split) in [
        ("data.validation", &config.data.validation, Split::Validation),
        ("data.test", &config.data.test, Split::Test),
    ] {
        if let Some(path) = path
            && digest::of_split(&config.data, split)?.as_deref() == Some(data_digest)
        {
            return Err(Error::config(
                key,
                format!(
                    "{} is the training data; figures on its records are not covered by any \
                     guarantee",
                    path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses to select parameters by a figure that the evaluations do not have.
pub(super) fn check_selection(
    config: &Config,
    model: &LoadedModel,
    validation: &[Example],
) -> Result<(), Error> {
    let select = config.evaluation.select;
    let refuse = |expected: &str| {
        let message = format!("{:?} needs {expected}", select.name());
        Err(Error::config("evaluation.select", message))
    };
    if select != Select::Last && validation.is_empty() {
        return refuse("validation data (data.validation)");
    }
    let is_regression = matches!(model.task(), Task::Regression { .. });
    match select {
        Select::Last => return Ok(()),
        Select::BestNll | Select::NearestBestNll if is_regression => {
            return refuse("an NLL, which regression has not; choose \"best-rmse\"");
        }
        Select::BestNll | Select::NearestBestNll => return Ok(()),
        Select::BestRmse if is_regression => return Ok(()),
        Select::BestRmse => return refuse("data.task = \"regression\""),
        Select::BestAccuracy if is_regression => {
            return refuse("an accuracy, which regression has not; choose \"best-rmse\"");
        }
        Select::BestAccuracy if model.task() == Task::MultiLabel => {
            return refuse("one label per row; choose \"best-nll\"");
        }
        Select::BestAccuracy => return Ok(()),
        Select::BestBleu => {}
    }
    let first = rows(&config.data, Split::Validation)?.and_then(|mut rows| rows.next());
    match first.transpose()?.map(|row| row.content) {
        Some(Content::Text { source: Some(_), .. }) if model.generates_text() => Ok(()),
        _ => refuse("a model that generates text, and validation data with sources"),
    }
}

/// Checks all rows of the test data, so that a run with invalid data does not start.
pub(super) fn check_test_data(config: &Config, preparation: &Preparation<'_>) -> Result<(), Error> {
    for (index, row) in rows(&config.data, Split::Test)?.into_iter().flatten().enumerate() {
        let row = row?;
        match index > 0 && has_features(preparation) {
            true => check_label("data.test", preparation, &row)?,
            false => _ = example("data.test", preparation, &row)?,
        }
    }
    Ok(())
}

/// Makes an error about evaluation data that does not fit the configuration or the model.
fn invalid_rows(place: String, message: String) -> Error {
    Error::Rows { place, message }
}

/// Whether features are computed from rows, which takes long.
fn has_features(preparation: &Preparation<'_>) -> bool {
    matches!(preparation.input, ModelInput::Images { features: Some(_), .. })
}

/// Prepares a row of evaluation data; `None` if it is too long or empty.
fn example(
    key: &str,
    preparation: &Preparation<'_>,
    row: &Record,
) -> Result<Option<Example>, Error> {
    let place = || format!("{key}, line {}", row.line);
    match preparation.example(row)? {
        Prepared::Example(example) | Prepared::Shortened(example) => Ok(Some(example)),
        Prepared::TooLong | Prepared::Empty => Ok(None),
        Prepared::InvalidLabel(expected) => {
            Err(invalid_rows(place(), format!("expected {expected}, got another")))
        }
        Prepared::WrongKind(expected) => Err(invalid_rows(place(), format!("expected {expected}"))),
    }
}

/// Refuses an image with a label that was not declared, without preparing it.
fn check_label(key: &str, preparation: &Preparation<'_>, row: &Record) -> Result<(), Error> {
    match &row.content {
        Content::Image { label: Label::Name(name), .. } => {
            preparation.task.target(name, preparation.labels).map(|_| ()).map_err(|expected| {
                let place = format!("{key}, line {}", row.line);
                invalid_rows(place, format!("expected {expected}, got another"))
            })
        }
        _ => Ok(()),
    }
}

/// Prepares the examples for evaluations during training, and checks all other rows.
pub(super) fn validation_examples(
    config: &Config,
    preparation: &Preparation<'_>,
    observer: &mut dyn RunObserver,
) -> Result<Vec<Example>, Error> {
    const KEY: &str = "data.validation";
    let (mut examples, mut unusable) = (Vec::new(), 0);
    for row in rows(&config.data, Split::Validation)?.into_iter().flatten() {
        let row = row?;
        let is_evaluated = (examples.len() as u64) < config.evaluation.examples;
        if !is_evaluated && has_features(preparation) {
            check_label(KEY, preparation, &row)?;
            continue;
        }
        match example(KEY, preparation, &row)? {
            Some(example) if is_evaluated => examples.push(example),
            None if is_evaluated => unusable += 1,
            _ => {}
        }
    }
    // For training data this is not an error: whether a run fails must not depend on their content.
    if examples.is_empty() && unusable > 0 {
        let message = format!(
            "every row is empty or has {} tokens or more; raise data.max_length if the model \
             allows it",
            preparation.limit
        );
        return Err(invalid_rows(KEY.into(), message));
    }
    let rows = examples.len() as u64 + unusable;
    if config.data.publicity() == Publicity::Public
        && let Some(warning) = dropped_warning(KEY, unusable, rows, preparation.limit)
    {
        observer.message(&warning);
    }
    Ok(examples)
}
