//! Losses of a micro-batch: a function of a row of logits and its target for each [`Loss`].

use crate::batch::Batch;
use model::{Graph, Loss};
use tensor::{binary_cross_entropy, cross_entropy, squared_error};

/// Replaces the logits by the gradient of the weighted losses, and writes the losses to `losses`.
pub(crate) fn backward(graph: &Graph, batch: &Batch, logits: &mut [f32], losses: &mut [f32]) {
    let (outputs, weights) = (graph.classes(), &batch.target_weights[..]);
    match graph.loss() {
        Loss::CrossEntropy => {
            cross_entropy::backward(outputs, logits, &batch.targets, weights, losses);
        }
        Loss::BinaryCrossEntropy => {
            binary_cross_entropy::backward(outputs, logits, &batch.target_values, weights, losses);
        }
        Loss::SquaredError => {
            squared_error::backward(logits, &batch.target_values, weights, losses);
        }
    }
}

/// Writes the losses to `losses`.
pub(crate) fn forward(graph: &Graph, batch: &Batch, logits: &[f32], losses: &mut [f32]) {
    match graph.loss() {
        Loss::CrossEntropy => {
            cross_entropy::forward(graph.classes(), logits, &batch.targets, losses);
        }
        Loss::BinaryCrossEntropy => {
            binary_cross_entropy::forward(graph.classes(), logits, &batch.target_values, losses);
        }
        Loss::SquaredError => squared_error::forward(logits, &batch.target_values, losses),
    }
}
