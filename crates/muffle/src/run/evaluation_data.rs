//! Test and validation data of a run: checked before the first step, prepared for evaluations.

use crate::Error;
use crate::config::Config;
use crate::load::data::{Split, rows};
use ::data::{Preparation, Prepared};
use engine::Example;

/// Checks the first row of the test data, so that a run with invalid data does not start.
pub(super) fn check_test_data(config: &Config, preparation: &Preparation<'_>) -> Result<(), Error> {
    let Some(row) = rows(&config.data, Split::Test)?.and_then(|mut rows| rows.next()) else {
        return Ok(());
    };
    match preparation.example(&row?)? {
        Prepared::UnknownLabel => Err(invalid_rows("data.test", UNKNOWN_LABEL)),
        Prepared::WrongKind(expected) => {
            let message = format!("expected {expected}, which is what the model reads");
            Err(invalid_rows("data.test", &message))
        }
        _ => Ok(()),
    }
}

const UNKNOWN_LABEL: &str = "expected a label of data.labels, got another";

/// Makes an error about evaluation data that does not fit the configuration or the model.
fn invalid_rows(key: &str, message: &str) -> Error {
    Error::Rows { place: key.into(), message: message.into() }
}

/// Prepares the examples for evaluations during training.
pub(super) fn validation_examples(
    config: &Config,
    preparation: &Preparation<'_>,
) -> Result<Vec<Example>, Error> {
    let (mut examples, mut unusable) = (Vec::new(), false);
    for row in rows(&config.data, Split::Validation)?.into_iter().flatten() {
        if examples.len() as u64 >= config.evaluation.examples {
            break;
        }
        match preparation.example(&row?)? {
            Prepared::Example(example) => examples.push(example),
            Prepared::TooLong | Prepared::Empty => unusable = true,
            Prepared::UnknownLabel => {
                return Err(invalid_rows("data.validation", UNKNOWN_LABEL));
            }
            Prepared::WrongKind(expected) => {
                let message = format!("expected {expected}, which is what the model reads");
                return Err(invalid_rows("data.validation", &message));
            }
        }
    }
    // For training data this is not an error: whether a run fails must not depend on their content.
    if examples.is_empty() && unusable {
        let message = format!(
            "every row is empty or has {} tokens or more; raise data.max_length if the model \
             allows it",
            preparation.limit
        );
        return Err(invalid_rows("data.validation", &message));
    }
    Ok(examples)
}
