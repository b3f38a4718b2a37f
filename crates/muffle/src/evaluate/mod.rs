//! Evaluation of a model: NLL, perplexity, accuracy, F1, AUROC, RMSE; BLEU and ROUGE-L of texts.

mod generation;
pub mod metrics;
pub(crate) mod outputs;

pub use generation::{GeneratedText, GenerationSettings, TextScores, generate};
pub use metrics::ConfusionMatrix;
pub use outputs::Prediction;

use crate::Error;
use crate::load::data::Rows;
use data::{Content, ModelInput, Preparation, Prepared, Record, Task};
use engine::{Example, Target};
use metrics::{ClassTally, LabelTally, ValueTally};
use model::{Network, Space};
use outputs::{MAX_BATCH, loss, map_logits, token_loss};
use protocol::Params;
use rayon::prelude::*;

/// Figures on a data set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Number of examples.
    pub examples: u64,
    /// Number of targets: predicted tokens, or rows with a label.
    pub tokens: u64,
    /// Mean negative log-likelihood of a target, in nats; of several labels, their mean.
    ///
    /// `None` for regression.
    pub nll: Option<f64>,
    /// e^NLL; language models only.
    pub perplexity: Option<f64>,
    /// The share of targets that are predicted correctly; of labels, if rows have labels.
    pub accuracy: Option<f64>,
    /// The mean F1 of the classes, if rows have labels.
    pub macro_f1: Option<f64>,
    /// F1 of all labels together, if rows have several labels.
    pub micro_f1: Option<f64>,
    /// The area under the ROC curve, if rows have labels ([`ClassTally::auroc`]).
    pub auroc: Option<f64>,
    /// Numbers of rows by class and predicted class, if rows have labels.
    pub confusion_matrix: Option<ConfusionMatrix>,
    /// The root of the mean squared error of a regression.
    pub rmse: Option<f64>,
    /// The mean absolute error of a regression.
    pub mae: Option<f64>,
    /// R² of a regression.
    pub r2: Option<f64>,
    /// Number of rows that were too long or empty.
    pub skipped: u64,
    /// Number of rows of which only a part was evaluated, or was the prompt.
    pub shortened: u64,
}

/// What a model computed for one example.
enum Output {
    /// Sums over the predicted tokens.
    Tokens { nll: f64, targets: u64, correct: u64 },
    /// The loss, the target and the prediction of a model with one target.
    Row { loss: f64, target: Target, prediction: Prediction },
}

impl Output {
    /// The output for an example of one part, from its rows of logits.
    fn of(example: &Example, task: Task, outputs: usize, logits: &[f32]) -> Self {
        let target = &example.parts()[0].target;
        let Target::Next(tokens) = target else {
            let loss = loss(target, outputs, logits);
            let prediction = Prediction::of(task, outputs, logits);
            return Self::Row { loss, target: target.clone(), prediction };
        };
        let predicted = tokens.iter().filter(|&&token| token != Target::NONE);
        let (mut nll, mut targets, mut correct) = (0.0, 0, 0);
        for (&token, row) in predicted.zip(logits.chunks_exact(outputs.max(1))) {
            let (loss, is_correct) = token_loss(row, token);
            nll += loss;
            targets += 1;
            correct += u64::from(is_correct);
        }
        Self::Tokens { nll, targets, correct }
    }

    /// The output for two parts of one text; of other examples, that for the first part.
    fn joined(self, next: Self) -> Self {
        match (self, next) {
            (
                Self::Tokens { nll, targets, correct },
                Self::Tokens { nll: more_nll, targets: more_targets, correct: more_correct },
            ) => Self::Tokens {
                nll: nll + more_nll,
                targets: targets + more_targets,
                correct: correct + more_correct,
            },
            (first, _) => first,
        }
    }
}

/// Computes the output for each example, in batches.
fn outputs(
    network: &mut dyn Network,
    at: &Params,
    task: Task,
    examples: &[&Example],
) -> Result<Vec<Output>, Error> {
    let width = network.graph().classes();
    let of = |example: &Example, logits: &[f32]| Output::of(example, task, width, logits);
    if examples.iter().all(|example| example.parts().len() == 1) {
        return map_logits(network, at, examples, of);
    }
    // Part by part, so that the memory does not depend on the length of a text.
    let parts: Vec<Example> = examples
        .iter()
        .flat_map(|example| example.parts().iter().cloned().map(Example::from))
        .collect();
    let mut of_parts = map_logits(network, at, &parts.iter().collect::<Vec<_>>(), of)?.into_iter();
    let joined =
        |example: &&Example| of_parts.by_ref().take(example.parts().len()).reduce(Output::joined);
    Ok(examples.iter().filter_map(joined).collect())
}

/// Evaluates a model on examples of a task.
///
/// # Errors
/// If an example does not fit the model.
pub fn examples(
    network: &mut dyn Network,
    at: &Params,
    task: Task,
    examples: &[Example],
) -> Result<Scores, Error> {
    let all: Vec<&Example> = examples.iter().collect();
    let mut totals = Totals::new(network, task, &[]);
    for output in outputs(network, at, task, &all)? {
        totals.add(&output)?;
    }
    Ok(totals.scores())
}

/// Evaluates a model on the first `limit` usable rows, without holding them in memory.
///
/// For rows with labels, a model that generates text predicts the most likely label.
///
/// # Errors
/// If a row is invalid or not of the kind that the model reads.
pub fn rows(
    network: &mut dyn Network,
    at: &Params,
    preparation: &Preparation<'_>,
    mut rows: Rows,
    limit: usize,
) -> Result<Scores, Error> {
    let mut totals = Totals::new(network, preparation.task, preparation.labels);
    let mut batch: Vec<RowExamples> = Vec::new();
    loop {
        let wanted = limit.saturating_sub(totals.examples as usize + batch.len());
        let chunk: Vec<Record> =
            rows.by_ref().take(wanted.min(MAX_BATCH)).collect::<data::Result<_>>()?;
        if chunk.is_empty() {
            break;
        }
        let prepared: Vec<_> = chunk.par_iter().map(|row| preparation.example(row)).collect();
        for (row, prepared) in chunk.iter().zip(prepared) {
            let refuse = |message: &str| {
                Err(Error::Rows { place: format!("line {}", row.line), message: message.into() })
            };
            let example = match prepared? {
                Prepared::Example(example) => example,
                Prepared::Shortened(example) => {
                    totals.shortened += 1;
                    example
                }
                Prepared::TooLong | Prepared::Empty => {
                    totals.skipped += 1;
                    continue;
                }
                Prepared::InvalidLabel(expected) => {
                    return refuse(&format!("expected {expected}, got another"));
                }
                Prepared::WrongKind(expected) => {
                    return refuse(&format!("expected {expected}"));
                }
            };
            let label_examples = match (&row.content, preparation.input) {
                (Content::Labelled { text, label }, ModelInput::Causal { .. }) => {
                    preparation.choices(text)?.zip(preparation.class(label))
                }
                _ => None,
            };
            batch.push(RowExamples { example, label_examples });
        }
        if batch.len() >= MAX_BATCH {
            totals.add_batch(network, at, &mut batch)?;
        }
    }
    totals.add_batch(network, at, &mut batch)?;
    if totals.examples == 0 {
        return Err(Error::Rows {
            place: "evaluation data".into(),
            message: format!("every row is empty or has {} tokens or more", preparation.limit),
        });
    }
    Ok(totals.scores())
}

/// The examples of one row.
struct RowExamples {
    example: Example,
    /// An example for each label, and the class of the correct label.
    label_examples: Option<(Vec<Example>, u32)>,
}

/// Sums over all examples.
struct Totals<'a> {
    is_language_model: bool,
    task: Task,
    labels: &'a [String],
    examples: u64,
    targets: u64,
    correct: u64,
    loss: f64,
    /// Predictions of labels; those of a language model are from an example for each label.
    tally: Option<Tally>,
    skipped: u64,
    shortened: u64,
}

/// Predictions of a task.
enum Tally {
    Classes(ClassTally),
    Labels(LabelTally),
    Values(ValueTally),
}

impl Tally {
    fn new(task: Task, outputs: usize) -> Self {
        match task {
            Task::Classification => Self::Classes(ClassTally::new(outputs)),
            Task::MultiLabel => Self::Labels(LabelTally::new(outputs)),
            Task::Regression { .. } => Self::Values(ValueTally::default()),
        }
    }

    /// Adds a row; `false` if target or prediction are of another task.
    fn add(&mut self, task: Task, target: &Target, prediction: &Prediction) -> bool {
        match (self, target, prediction) {
            (Self::Classes(tally), Target::Class(class), Prediction::Class(probabilities)) => {
                tally.add(*class, probabilities);
            }
            (Self::Labels(tally), Target::Labels(labels), Prediction::Labels(probabilities)) => {
                tally.add(labels, probabilities);
            }
            (Self::Values(tally), Target::Value(value), Prediction::Value(predicted)) => {
                let Task::Regression { mean, scale } = task else { return false };
                tally.add(mean + scale * f64::from(*value), *predicted);
            }
            _ => return false,
        }
        true
    }
}

impl<'a> Totals<'a> {
    fn new(network: &dyn Network, task: Task, labels: &'a [String]) -> Self {
        let graph = network.graph();
        let is_language_model = graph.shape(graph.logits()).space == Space::Targets;
        Self {
            is_language_model,
            task,
            labels,
            examples: 0,
            targets: 0,
            correct: 0,
            loss: 0.0,
            tally: (!is_language_model).then(|| Tally::new(task, graph.classes())),
            skipped: 0,
            shortened: 0,
        }
    }

    fn add(&mut self, output: &Output) -> Result<(), Error> {
        self.examples += 1;
        match output {
            Output::Tokens { nll, targets, correct } => {
                self.loss += nll;
                self.targets += targets;
                self.correct += correct;
            }
            Output::Row { loss, target, prediction } => {
                self.loss += loss;
                self.targets += 1;
                let tally = self.tally.as_mut();
                if !tally.is_some_and(|tally| tally.add(self.task, target, prediction)) {
                    return Err(Error::Internal("an example is of another task than the model"));
                }
            }
        }
        Ok(())
    }

    /// Evaluates and clears a batch of rows.
    fn add_batch(
        &mut self,
        network: &mut dyn Network,
        at: &Params,
        batch: &mut Vec<RowExamples>,
    ) -> Result<(), Error> {
        let examples: Vec<&Example> = batch.iter().map(|row| &row.example).collect();
        for output in outputs(network, at, self.task, &examples)? {
            self.add(&output)?;
        }
        for (examples, correct) in batch.iter().filter_map(|row| row.label_examples.as_ref()) {
            let log_likelihood = |output: &Output| match output {
                Output::Tokens { nll: loss, .. } | Output::Row { loss, .. } => -loss,
            };
            let all: Vec<&Example> = examples.iter().collect();
            let outputs = outputs(network, at, self.task, &all)?;
            let likelihoods: Vec<f64> = outputs.iter().map(log_likelihood).collect();
            let tally = self.tally.get_or_insert_with(|| Tally::new(self.task, all.len()));
            let prediction = Prediction::Class(normalized(&likelihoods));
            tally.add(self.task, &Target::Class(*correct), &prediction);
        }
        batch.clear();
        Ok(())
    }

    fn scores(&self) -> Scores {
        let mean = |sum: f64| (self.targets > 0).then(|| sum / self.targets as f64);
        let nll = mean(self.loss);
        let counts = Scores {
            examples: self.examples,
            tokens: self.targets,
            skipped: self.skipped,
            shortened: self.shortened,
            ..Scores::default()
        };
        let with_nll = Scores {
            nll,
            perplexity: nll.filter(|_| self.is_language_model).map(f64::exp),
            ..counts.clone()
        };
        match &self.tally {
            None => Scores { accuracy: mean(self.correct as f64), ..with_nll },
            Some(Tally::Classes(tally)) => Scores {
                accuracy: tally.accuracy(),
                macro_f1: tally.macro_f1(),
                auroc: tally.auroc(),
                confusion_matrix: tally.confusion_matrix(self.labels),
                ..with_nll
            },
            Some(Tally::Labels(tally)) => Scores {
                macro_f1: tally.macro_f1(),
                micro_f1: Some(tally.micro_f1()),
                auroc: tally.auroc(),
                ..with_nll
            },
            Some(Tally::Values(tally)) => {
                Scores { rmse: tally.rmse(), mae: tally.mae(), r2: tally.r2(), ..counts }
            }
        }
    }
}

/// The probabilities that are proportional to the exponentials of these logarithms.
fn normalized(logarithms: &[f64]) -> Vec<f64> {
    let max = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logarithms.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|x| x / sum).collect()
}
