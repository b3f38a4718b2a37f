//! Test and validation data of a run: checked before the first step, evaluated during training.

use crate::Error;
use crate::LoadedModel;
use crate::config::{Config, Select};
use crate::evaluate;
use crate::load::data::{Split, rows};
use crate::run::Run;
use crate::run::history::HistoryEntry;
use ::data::{Content, Preparation, Prepared};
use engine::Example;

impl Run<'_> {
    /// Computes ε so far and figures on the validation data.
    pub(super) fn evaluate(&mut self, rate: f64) -> Result<HistoryEntry, Error> {
        // A new instance has its own buffers, which are dropped afterwards.
        let mut network = self.model.network.new_instance();
        let scores = (!self.validation.is_empty())
            .then(|| {
                evaluate::examples(&mut network, self.session.released_params(), &self.validation)
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
            nll: scores.map(|scores| scores.nll),
            accuracy: scores.map(|scores| scores.accuracy),
            bleu: texts.map(|texts| texts.bleu),
        })
    }
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
    if select != Select::BestBleu {
        return Ok(());
    }
    let first = rows(&config.data, Split::Validation)?.and_then(|mut rows| rows.next());
    match first.transpose()?.map(|row| row.content) {
        Some(Content::Text { source: Some(_), .. }) if model.generates_text() => Ok(()),
        _ => refuse("a model that generates text, and validation data with sources"),
    }
}

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
