//! Predictions of a classifier or a regression model for the rows of a file.

use crate::Error;
use crate::LoadedModel;
use crate::evaluate::Prediction;
use crate::evaluate::outputs::{MAX_BATCH, map_logits};
use crate::load::data::Rows;
use data::{Content, Label, Preparation, Prepared, Record, Task};
use engine::Example;
use model::Network;
use rayon::prelude::*;
use std::collections::BTreeSet;

/// The number of rows that are prepared together, by all threads.
const CHUNK_ROWS: usize = 8 * MAX_BATCH;

/// The prediction for one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPrediction {
    /// The number of the row, counted from 1.
    pub row: u64,
    /// The prediction; `None` if the row is empty or too long for the model.
    pub prediction: Option<Prediction>,
}

/// Numbers of rows that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionCounts {
    /// All rows.
    pub rows: u64,
    /// Rows without a prediction: they are empty or too long for the model.
    pub skipped: u64,
}

/// A classifier or a regression model that predicts rows.
pub struct Predictor<'a> {
    model: &'a LoadedModel,
    network: Box<dyn Network>,
    labels: Vec<String>,
}

impl<'a> Predictor<'a> {
    /// Creates a predictor; without names of the classes, it takes those of the model's files.
    ///
    /// A regression model has no classes.
    ///
    /// # Errors
    /// If the model generates text, or does not have as many classes as there are names.
    pub fn new(model: &'a LoadedModel, labels: Vec<String>) -> Result<Self, Error> {
        if model.generates_text() {
            return Err(Error::config(
                "model.source",
                "expected a classifier or a regression model, got a language model, which \
                 predicts no labels; generate texts with: muffle generate MODEL --prompt TEXT",
            ));
        }
        let classes = match model.task() {
            Task::Classification | Task::MultiLabel => model.network.graph().classes(),
            Task::Regression { .. } => 0,
        };
        let labels = match (labels.is_empty(), model.labels()) {
            (false, _) => labels,
            (true, names) if names.is_empty() => {
                (0..classes).map(|class| format!("LABEL_{class}")).collect()
            }
            (true, names) => match classes {
                0 => Vec::new(),
                _ => names,
            },
        };
        let distinct = labels.iter().collect::<BTreeSet<_>>().len();
        if labels.len() != classes || distinct != classes {
            return Err(Error::config(
                "labels",
                format!(
                    "expected {classes} different names, one for each class of the model; got {} \
                     of {}",
                    distinct,
                    labels.len()
                ),
            ));
        }
        Ok(Self { model, network: model.network.new_instance(), labels })
    }

    /// The names of the classes, in the order of the probabilities.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Predicts all rows, and calls `receive` with each prediction, in their order.
    ///
    /// Labels of the rows are not used. Some rows at a time are held in memory.
    ///
    /// # Errors
    /// If a row is invalid or not of the kind that the model reads, or `receive` fails.
    pub fn rows(
        &mut self,
        rows: Rows,
        receive: &mut dyn FnMut(RowPrediction) -> Result<(), Error>,
    ) -> Result<PredictionCounts, Error> {
        let mut counts = PredictionCounts::default();
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let chunk = rows.by_ref().take(CHUNK_ROWS).collect::<data::Result<Vec<Record>>>()?;
            for prediction in self.chunk(&chunk)? {
                counts.rows += 1;
                counts.skipped += u64::from(prediction.is_none());
                receive(RowPrediction { row: counts.rows, prediction })?;
            }
        }
        Ok(counts)
    }

    /// Predicts some rows.
    fn chunk(&mut self, records: &[Record]) -> Result<Vec<Option<Prediction>>, Error> {
        let preparation = self.model.preparation(&self.labels, self.model.max_tokens() + 1);
        let examples = records
            .par_iter()
            .map(|record| example(&preparation, record))
            .collect::<Result<Vec<Option<Example>>, Error>>()?;
        let usable: Vec<&Example> = examples.iter().flatten().collect();
        let (task, outputs) = (self.model.task(), self.network.graph().classes());
        let predictions =
            map_logits(&mut *self.network, &self.model.params, &usable, |_, logits| {
                Prediction::of(task, outputs, logits)
            })?;
        let mut predictions = predictions.into_iter();
        Ok(examples
            .iter()
            .map(|example| example.as_ref().and_then(|_| predictions.next()))
            .collect())
    }
}

/// Prepares a row; `None` if it is empty or too long.
fn example(preparation: &Preparation<'_>, record: &Record) -> Result<Option<Example>, Error> {
    let refuse = |expected: &str| {
        let message = format!("expected {expected}");
        Err(Error::Rows { place: format!("line {}", record.line), message })
    };
    let Some(record) = with_placeholder(preparation, record) else {
        return refuse("a text, which is what the model reads");
    };
    match preparation.example(&record)? {
        Prepared::Example(example) | Prepared::Shortened(example) => Ok(Some(example)),
        Prepared::TooLong | Prepared::Empty => Ok(None),
        Prepared::InvalidLabel(_) => Err(Error::Internal("a placeholder is not a label")),
        Prepared::WrongKind(expected) => refuse(expected),
    }
}

/// The record with a label of the model, because examples have targets; logits ignore them.
///
/// `None` if it is neither a single text nor an image.
fn with_placeholder(preparation: &Preparation<'_>, record: &Record) -> Option<Record> {
    let content = match record.content.clone() {
        Content::Text { source: None, target: text, .. } | Content::Labelled { text, .. } => {
            let label = preparation.task.placeholder_label(preparation.labels);
            Content::Labelled { text, label }
        }
        Content::Text { source: Some(_), .. } => return None,
        Content::Image { pixels, height, width, channels, .. } => {
            Content::Image { pixels, height, width, channels, label: Label::Index(0) }
        }
        Content::Missing => Content::Missing,
    };
    Some(Record { content, ..record.clone() })
}
