//! The buffers of a pass over a graph, and the access of layers to them.

use crate::batch::Batch;
use crate::decoder::Cache;
use crate::gradients::Gradients;
use crate::layer::{Layer, layer};
use crate::plan::BackwardPlan;
use model::{Graph, Param, Value, ValueShape};
use protocol::Params;
use std::sync::Arc;
use tensor::matmul::OutputMode;
use tensor::{Array, Workspace};

/// Buffers of a pass. They are empty between passes.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Elements by value.
    pub(crate) values: Vec<Vec<f32>>,
    /// Gradients by value.
    pub(crate) gradients: Gradients,
    /// Data that each layer saved for its backward pass.
    pub(crate) saved: Vec<Vec<f32>>,
    /// Per-example gradients of vectors, by parameter; one row for each example.
    pub(crate) vectors: Vec<Vec<f32>>,
}

impl Buffers {
    /// Makes space for the values, layers and parameters of a graph.
    pub(crate) fn prepare(&mut self, graph: &Graph) {
        self.values.resize_with(graph.values().len(), Vec::new);
        self.gradients.prepare(graph.values().len());
        self.saved.resize_with(graph.ops().len(), Vec::new);
        self.vectors.resize_with(graph.params().len(), Vec::new);
    }

    /// Returns all buffers to the workspace.
    pub(crate) fn release(&mut self, workspace: &mut Workspace) {
        for list in [&mut self.values, &mut self.saved, &mut self.vectors] {
            list.iter_mut().for_each(|buffer| workspace.give(std::mem::take(buffer)));
        }
        self.gradients.release(workspace);
    }
}

/// Purpose of a pass, which determines the retained values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Only the logits are computed.
    Inference,
    /// A backward pass through the layers from `start` on follows.
    Training {
        /// The first layer of the segment.
        start: usize,
    },
    /// Only the inputs of later segments are retained: the layers from `start` on are recomputed
    /// before their backward pass.
    SegmentInputs {
        /// The first layer of the segment.
        start: usize,
    },
}

/// The context of a pass over a micro-batch, through which layers access their data.
pub struct Pass<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a BackwardPlan,
    pub(crate) batch: &'a Batch,
    /// Values of the trained parameters.
    pub(crate) params: &'a Params,
    /// Values of the frozen parameters.
    pub(crate) frozen: &'a [Array],
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) mode: Mode,
    /// Keys and values of earlier tokens, for decoding.
    pub(crate) cache: Option<&'a mut Cache>,
}

impl<'a> Pass<'a> {
    /// Returns the layer at `index`.
    pub(crate) fn layer(&self, index: usize) -> &'a dyn Layer {
        match layer(&self.graph.ops()[index]) {
            Ok(layer) => layer,
            // The backward plan was computed from these layers, so there is no error.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Returns the values of a parameter.
    pub fn param(&self, param: Param) -> &'a Array {
        match self.plan.trained_index[param.index()] {
            Some(k) => &self.params[k],
            None => &self.frozen[param.index()],
        }
    }

    /// Returns whether a parameter is trained.
    pub fn trains(&self, param: Param) -> bool {
        self.plan.trains(param)
    }

    /// Returns the number of parts of all examples. Each part is computed by itself.
    pub fn parts(&self) -> usize {
        self.batch.parts()
    }

    /// Returns the shape of a value.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.graph.shape(value)
    }

    /// Returns the number of rows of a value.
    pub fn rows(&self, value: Value) -> usize {
        self.batch.rows(self.shape(value).space)
    }

    /// Returns the first row of each part in a value, and the number of all rows at the end.
    pub fn offsets(&self, value: Value) -> &'a [usize] {
        self.batch.offsets(self.shape(value).space)
    }

    /// Returns the elements of a value, row-major.
    pub fn value(&self, value: Value) -> &[f32] {
        &self.buffers.values[value.index()]
    }

    /// Returns a buffer of the size of a value, with unspecified contents.
    pub fn alloc(&mut self, value: Value) -> Vec<f32> {
        let len = self.rows(value) * self.shape(value).width;
        self.workspace.take(len)
    }

    /// Returns a buffer of this length, with unspecified contents.
    pub fn alloc_len(&mut self, len: usize) -> Vec<f32> {
        self.workspace.take(len)
    }

    /// Releases a buffer for reuse.
    pub fn free(&mut self, buffer: Vec<f32>) {
        self.workspace.give(buffer);
    }

    /// Saves data of the layer at `index` for its backward pass.
    pub fn save(&mut self, index: usize, buffer: Vec<f32>) {
        self.buffers.saved[index] = buffer;
    }

    /// Returns the data that the layer at `index` saved.
    pub fn saved(&self, index: usize) -> &[f32] {
        &self.buffers.saved[index]
    }

    /// Removes and returns the data that the layer at `index` saved. They should be saved again.
    pub fn take_saved(&mut self, index: usize) -> Vec<f32> {
        std::mem::take(&mut self.buffers.saved[index])
    }

    /// Removes and returns the elements of a value. They must be set again.
    pub fn take_value(&mut self, value: Value) -> Vec<f32> {
        std::mem::take(&mut self.buffers.values[value.index()])
    }

    /// Sets the elements of a value.
    pub fn set_value(&mut self, value: Value, buffer: Vec<f32>) {
        let old = std::mem::replace(&mut self.buffers.values[value.index()], buffer);
        self.workspace.give(old);
    }

    /// Returns the gradient with respect to a value; `None` if no gradient reaches it.
    pub fn gradient(&self, value: Value) -> Option<Arc<Vec<f32>>> {
        self.buffers.gradients.get(value)
    }

    /// Removes and returns the gradient with respect to a value, as an unshared buffer.
    pub fn take_gradient(&mut self, value: Value) -> Option<Vec<f32>> {
        self.buffers.gradients.take(value, self.workspace)
    }

    /// Sets the gradient with respect to a value.
    pub fn set_gradient(&mut self, value: Value, buffer: Vec<f32>) {
        self.buffers.gradients.set(value, buffer, self.workspace);
    }

    /// Adds to the gradient with respect to a value, if it is needed.
    ///
    /// `add(pass, buffer, mode)` must write to the buffer in the given mode: overwrite it or add to
    /// it.
    pub fn add_gradient(
        &mut self,
        value: Value,
        add: impl FnOnce(&mut Self, &mut [f32], OutputMode),
    ) {
        if !self.plan.requires_gradient(value) {
            return;
        }
        let (mut buffer, mode) = match self.take_gradient(value) {
            Some(buffer) => (buffer, OutputMode::Accumulate),
            None => (self.alloc(value), OutputMode::Overwrite),
        };
        add(self, &mut buffer, mode);
        self.set_gradient(value, buffer);
    }

    /// Adds to the gradient with respect to a value, if it is needed.
    ///
    /// `write(pass, buffer)` must overwrite the buffer with the addend.
    pub fn write_gradient(&mut self, value: Value, write: impl FnOnce(&mut Self, &mut [f32])) {
        self.add_gradient(value, |pass, buffer, mode| match mode {
            OutputMode::Overwrite => write(pass, buffer),
            OutputMode::Accumulate => {
                let mut part = pass.workspace.take(buffer.len());
                write(pass, &mut part);
                tensor::activation::add(buffer, &part);
                pass.workspace.give(part);
            }
        });
    }

    /// Adds to the per-example gradients of a parameter; `gradients` has one row for each part.
    ///
    /// The parameter must have the form [`GradientForm::Vector`](crate::GradientForm::Vector).
    ///
    /// # Panics
    /// If the number of rows is not the number of parts, or a row does not have the length of the
    /// parameter.
    pub fn add_vector_gradients(&mut self, param: Param, mut gradients: Vec<f32>) {
        let elements: usize = self.graph.param(param).shape.iter().product();
        assert_eq!(
            gradients.len(),
            self.batch.parts() * elements,
            "length of per-example gradients"
        );
        self.sum_parts(elements, &mut gradients);
        let sum = &mut self.buffers.vectors[param.index()];
        if sum.is_empty() {
            *sum = gradients;
        } else {
            tensor::activation::add(sum, &gradients);
            self.workspace.give(gradients);
        }
    }

    /// Replaces rows of parts by rows of examples: the sums over the parts of each.
    fn sum_parts(&self, elements: usize, rows: &mut Vec<f32>) {
        if self.batch.parts() == self.batch.examples() {
            return;
        }
        for example in 0..self.batch.examples() {
            let parts = self.batch.parts_of(example);
            // No part of an example comes before it, so a row is read before it is overwritten.
            rows.copy_within(
                parts.start * elements..(parts.start + 1) * elements,
                example * elements,
            );
            for part in parts.skip(1) {
                let (sums, rest) = rows.split_at_mut(part * elements);
                let sum = &mut sums[example * elements..][..elements];
                tensor::activation::add(sum, &rest[..elements]);
            }
        }
        rows.truncate(self.batch.examples() * elements);
    }

    /// Adds the gradient with respect to `from` to the gradient with respect to `to`.
    pub fn copy_gradient(&mut self, from: Value, to: Value) {
        let Some(source) = self.gradient(from).filter(|_| self.plan.requires_gradient(to)) else {
            return;
        };
        if self.gradient(to).is_none() {
            return self.buffers.gradients.share(to, &source, self.workspace);
        }
        self.add_gradient(to, |_, buffer, mode| match mode {
            OutputMode::Overwrite => buffer.copy_from_slice(&source),
            OutputMode::Accumulate => tensor::activation::add(buffer, &source),
        });
    }

    /// Releases values that are not read again after the forward pass of a layer.
    pub(crate) fn free_after_forward(&mut self, index: usize) {
        let op = &self.graph.ops()[index];
        for value in op.inputs().into_iter().chain(op.outputs()) {
            let retained = match self.mode {
                Mode::Inference => false,
                Mode::Training { start } => {
                    self.plan.saved[value.index()] || self.plan.producer[value.index()] < start
                }
                Mode::SegmentInputs { start } => self.plan.producer[value.index()] < start,
            };
            if self.plan.last_reader[value.index()] == index && !retained {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
        }
        if !matches!(self.mode, Mode::Training { .. }) {
            let saved = std::mem::take(&mut self.buffers.saved[index]);
            self.workspace.give(saved);
        }
    }

    /// Releases values and gradients of the layers from `start` on.
    ///
    /// Those of parameters that earlier layers use too are retained.
    pub(crate) fn free_segment(&mut self, start: usize) {
        let (mut values, mut gradients) =
            (vec![false; self.buffers.values.len()], vec![false; self.buffers.values.len()]);
        for (forms, _) in self
            .plan
            .gradient_forms
            .iter()
            .zip(&self.plan.first_use)
            .filter(|&(_, &first)| first < start)
        {
            for (value, gradient) in forms.iter().map(|form| form.reads()) {
                value.into_iter().for_each(|value| values[value.index()] = true);
                gradient.into_iter().for_each(|value| gradients[value.index()] = true);
            }
        }
        for value in
            self.graph.value_ids().filter(|value| self.plan.producer[value.index()] >= start)
        {
            if !values[value.index()] {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
            if !gradients[value.index()] {
                self.buffers.gradients.release_value(value, self.workspace);
            }
        }
    }

    /// Releases values and gradients that are not needed after the backward pass of a layer.
    pub(crate) fn free_after_backward(&mut self, index: usize) {
        let saved = std::mem::take(&mut self.buffers.saved[index]);
        self.workspace.give(saved);
        for value in self.graph.ops()[index].outputs() {
            if !self.plan.retained_value[value.index()] {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
            if !self.plan.retained_gradient[value.index()] {
                self.buffers.gradients.release_value(value, self.workspace);
            }
        }
    }
}
