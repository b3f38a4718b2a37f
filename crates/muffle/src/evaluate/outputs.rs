//! Outputs of a model: logits of examples, computed in batches.

use super::metrics::{LabelTally, first_largest};
use crate::Error;
use data::Task;
use engine::{Example, Part, Target};
use model::Network;
use protocol::Params;
use rayon::prelude::*;

/// The maximum number of logits of a batch.
const MAX_LOGITS: usize = 8 << 20;
/// The maximum number of examples of a batch.
pub(crate) const MAX_BATCH: usize = 16;

/// Computes the logits of each example, and calls `output` with them.
///
/// They are row-major, with a row for each target of the example.
pub(crate) fn map_logits<T: Send>(
    network: &mut dyn Network,
    at: &Params,
    examples: &[&Example],
    output: impl Fn(&Example, &[f32]) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let classes = network.graph().classes();
    let mut all = Vec::with_capacity(examples.len());
    let mut start = 0;
    while start < examples.len() {
        let (mut end, mut batch_rows) = (start, 0);
        while end < examples.len()
            && end - start < MAX_BATCH
            && (end == start || (batch_rows + rows(examples[end])) * classes <= MAX_LOGITS)
        {
            batch_rows += rows(examples[end]);
            end += 1;
        }
        let batch = &examples[start..end];
        let logits = network.logits(at, batch)?;
        if logits.len() != batch_rows * classes {
            return Err(Error::Internal("the model returned an unexpected number of logits"));
        }
        let mut rest = &logits[..];
        let mut pairs = Vec::with_capacity(batch.len());
        for &example in batch {
            let (own, others) = rest.split_at(rows(example) * classes);
            pairs.push((example, own));
            rest = others;
        }
        all.par_extend(pairs.into_par_iter().map(|(example, own)| output(example, own)));
        start = end;
    }
    Ok(all)
}

/// The number of rows of logits of an example.
fn rows(example: &Example) -> usize {
    let rows = |part: &Part| match &part.target {
        Target::Next(targets) => targets.iter().filter(|&&target| target != Target::NONE).count(),
        Target::Class(_) | Target::Labels(_) | Target::Value(_) => 1,
    };
    example.parts().iter().map(rows).sum()
}

/// The prediction for one example.
#[derive(Clone, Debug, PartialEq)]
pub enum Prediction {
    /// The probability of each class; their sum is 1.
    Class(Vec<f64>),
    /// The probability of each label.
    Labels(Vec<f64>),
    /// A number, in the units of the labels.
    Value(f64),
}

impl Prediction {
    /// The prediction for an example, from its rows of logits.
    ///
    /// That of an example of several parts is the mean over the parts.
    pub(crate) fn of(task: Task, outputs: usize, logits: &[f32]) -> Self {
        let rows = logits.chunks_exact(outputs.max(1));
        let parts = rows.len() as f64;
        let mut means = vec![0.0; outputs];
        let mut add = |values: &mut dyn Iterator<Item = f64>| {
            means.iter_mut().zip(values).for_each(|(mean, x)| *mean += x / parts);
        };
        match task {
            Task::Classification => {
                rows.for_each(|row| add(&mut softmax(row)));
                Self::Class(means)
            }
            Task::MultiLabel => {
                let sigmoid = |x: &f32| 1.0 / (1.0 + (-f64::from(*x)).exp());
                rows.for_each(|row| add(&mut row.iter().map(sigmoid)));
                Self::Labels(means)
            }
            Task::Regression { mean, scale } => {
                rows.for_each(|row| add(&mut row.iter().map(|x| mean + scale * f64::from(*x))));
                Self::Value(means.first().copied().unwrap_or(f64::NAN))
            }
        }
    }

    /// The indices of predicted classes or labels.
    ///
    /// They are the most likely class (of equally likely ones the first), all labels with a
    /// probability above 0.5, or nothing if a number is predicted.
    pub fn classes(&self) -> Vec<usize> {
        match self {
            Self::Class(probabilities) => vec![first_largest(probabilities)],
            Self::Labels(probabilities) => {
                let likely = |label: &usize| probabilities[*label] > LabelTally::THRESHOLD;
                (0..probabilities.len()).filter(likely).collect()
            }
            Self::Value(_) => Vec::new(),
        }
    }
}

/// Computes the loss of the example's rows of logits, the mean over its parts, as in training.
///
/// That of labels is the mean over the labels; that of a number is its squared error.
pub(crate) fn loss(target: &Target, outputs: usize, logits: &[f32]) -> f64 {
    let of_row = |row: &[f32]| match target {
        Target::Class(class) => token_loss(row, *class).0,
        Target::Labels(labels) => {
            let of_label = |(label, &x): (usize, &f32)| {
                let x = f64::from(x);
                let product = if labels.contains(&(label as u32)) { x } else { 0.0 };
                x.max(0.0) - product + (-x.abs()).exp().ln_1p()
            };
            row.iter().enumerate().map(of_label).sum::<f64>() / outputs as f64
        }
        Target::Value(value) => {
            row.iter().map(|x| (f64::from(*x) - f64::from(*value)).powi(2)).sum()
        }
        Target::Next(_) => f64::NAN,
    };
    let rows = logits.chunks_exact(outputs.max(1));
    let parts = rows.len() as f64;
    rows.map(of_row).sum::<f64>() / parts
}

fn softmax(logits: &[f32]) -> impl Iterator<Item = f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponential = move |x: &f32| f64::from(x - max).exp();
    let normalizer: f64 = logits.iter().map(exponential).sum();
    logits.iter().map(move |x| exponential(x) / normalizer)
}

/// Computes −ln softmax(logits) at the target, and whether it is the first largest logit.
pub(crate) fn token_loss(logits: &[f32], target: u32) -> (f64, bool) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let normalizer: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let predicted = logits.iter().position(|&x| x >= max);
    let loss = f64::from(max) + normalizer.ln() - f64::from(logits[target as usize]);
    (loss, predicted == Some(target as usize))
}
