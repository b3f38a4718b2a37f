//! The buffers of one pass over a graph, and how layers get at them.

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

/// Buffers by value, layer and parameter. Between passes they are empty.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) gradients: Gradients,
    /// What each layer saved for its own backward pass.
    pub(crate) saved: Vec<Vec<f32>>,
    /// Per-example gradients of vectors, by parameter: rows are examples.
    pub(crate) vectors: Vec<Vec<f32>>,
}

impl Buffers {
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

/// What a pass is for, and so what it retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Only the logits are needed.
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

/// One pass over a micro-batch: what a layer reads and writes.
pub struct Pass<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a BackwardPlan,
    pub(crate) batch: &'a Batch,
    pub(crate) at: &'a Params,
    pub(crate) frozen: &'a [Array],
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) mode: Mode,
    /// Keys and values of earlier tokens, for decoding.
    pub(crate) cache: Option<&'a mut Cache>,
}

impl<'a> Pass<'a> {
    /// The layer at `index`.
    pub(crate) fn layer(&self, index: usize) -> &'a dyn Layer {
        match layer(&self.graph.ops()[index]) {
            Ok(layer) => layer,
            // The backward plan was made of these layers.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Values of a parameter.
    pub fn param(&self, param: Param) -> &'a Array {
        match self.plan.place[param.index()] {
            Some(k) => &self.at[k],
            None => &self.frozen[param.index()],
        }
    }

    /// Whether a parameter is trained.
    pub fn trains(&self, param: Param) -> bool {
        self.plan.trains(param)
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.batch.examples
    }

    /// What the rows of a value are, and its number of columns.
    pub fn shape(&self, value: Value) -> ValueShape {
        self.graph.shape(value)
    }

    /// Number of rows of a value.
    pub fn rows(&self, value: Value) -> usize {
        self.batch.rows(self.shape(value).space)
    }

    /// Where each example's rows of a value begin, and where the last one's end.
    pub fn offsets(&self, value: Value) -> &'a [usize] {
        self.batch.offsets(self.shape(value).space)
    }

    /// Elements of a value, row after row.
    pub fn value(&self, value: Value) -> &[f32] {
        &self.buffers.values[value.index()]
    }

    /// A buffer for a value; contents unspecified.
    pub fn alloc(&mut self, value: Value) -> Vec<f32> {
        let len = self.rows(value) * self.shape(value).width;
        self.workspace.take(len)
    }

    /// A buffer of this length; contents unspecified.
    pub fn alloc_len(&mut self, len: usize) -> Vec<f32> {
        self.workspace.take(len)
    }

    /// Returns a buffer for later use.
    pub fn free(&mut self, buffer: Vec<f32>) {
        self.workspace.give(buffer);
    }

    /// Saves what the layer at `index` needs in its backward pass.
    pub fn save(&mut self, index: usize, buffer: Vec<f32>) {
        self.buffers.saved[index] = buffer;
    }

    /// What the layer at `index` saved.
    pub fn saved(&self, index: usize) -> &[f32] {
        &self.buffers.saved[index]
    }

    /// Takes out what the layer at `index` saved; it should be saved again.
    pub fn take_saved(&mut self, index: usize) -> Vec<f32> {
        std::mem::take(&mut self.buffers.saved[index])
    }

    /// Takes the buffer of a value out; it must be set again.
    pub fn take_value(&mut self, value: Value) -> Vec<f32> {
        std::mem::take(&mut self.buffers.values[value.index()])
    }

    /// Sets the elements of a value.
    pub fn set_value(&mut self, value: Value, buffer: Vec<f32>) {
        let old = std::mem::replace(&mut self.buffers.values[value.index()], buffer);
        self.workspace.give(old);
    }

    /// The complete gradient by a value; `None` if no gradient reaches it.
    pub fn gradient(&self, value: Value) -> Option<Arc<Vec<f32>>> {
        self.buffers.gradients.get(value)
    }

    /// Takes the gradient by a value out, in a buffer that no other value shares.
    pub fn take_gradient(&mut self, value: Value) -> Option<Vec<f32>> {
        self.buffers.gradients.own(value, self.workspace)
    }

    /// Sets the gradient by a value.
    pub fn set_gradient(&mut self, value: Value, buffer: Vec<f32>) {
        self.buffers.gradients.set(value, buffer, self.workspace);
    }

    /// Adds to the gradient by a value. `add` gets a buffer and is told whether to overwrite it
    /// ([`OutputMode::Overwrite`]) or to add to it ([`OutputMode::Accumulate`]).
    pub fn add_gradient(
        &mut self,
        value: Value,
        add: impl FnOnce(&mut Self, &mut [f32], OutputMode),
    ) {
        if !self.plan.flows(value) {
            return;
        }
        let (mut buffer, onto) = match self.take_gradient(value) {
            Some(buffer) => (buffer, OutputMode::Accumulate),
            None => (self.alloc(value), OutputMode::Overwrite),
        };
        add(self, &mut buffer, onto);
        self.set_gradient(value, buffer);
    }

    /// Adds what `write` writes into a buffer to the gradient by a value.
    pub fn write_gradient(&mut self, value: Value, write: impl FnOnce(&mut Self, &mut [f32])) {
        self.add_gradient(value, |pass, buffer, onto| match onto {
            OutputMode::Overwrite => write(pass, buffer),
            OutputMode::Accumulate => {
                let mut part = pass.workspace.take(buffer.len());
                write(pass, &mut part);
                tensor::activation::add(buffer, &part);
                pass.workspace.give(part);
            }
        });
    }

    /// Adds to the per-example gradients by a parameter of the form
    /// [`GradientForm::Vector`](crate::GradientForm::Vector): one row for each example.
    ///
    /// # Panics
    /// If there are more or fewer rows, or a row is not as long as the parameter.
    pub fn add_vector_gradients(&mut self, param: Param, gradients: Vec<f32>) {
        let elements: usize = self.graph.param(param).shape.iter().product();
        assert_eq!(gradients.len(), self.batch.examples * elements, "a row for each example");
        let sum = &mut self.buffers.vectors[param.index()];
        if sum.is_empty() {
            *sum = gradients;
        } else {
            tensor::activation::add(sum, &gradients);
            self.workspace.give(gradients);
        }
    }

    /// Adds the complete gradient by `from` to the gradient by `to`.
    pub fn copy_gradient(&mut self, from: Value, to: Value) {
        let Some(source) = self.gradient(from).filter(|_| self.plan.flows(to)) else { return };
        if self.gradient(to).is_none() {
            return self.buffers.gradients.share(to, &source, self.workspace);
        }
        self.add_gradient(to, |_, buffer, onto| match onto {
            OutputMode::Overwrite => buffer.copy_from_slice(&source),
            OutputMode::Accumulate => tensor::activation::add(buffer, &source),
        });
    }

    /// After the forward pass of a layer: frees what is not read again.
    pub(crate) fn free_after_forward(&mut self, index: usize) {
        let op = &self.graph.ops()[index];
        for value in op.inputs().into_iter().chain(op.outputs()) {
            let wanted = match self.mode {
                Mode::Inference => false,
                Mode::Training { start } => {
                    self.plan.saved[value.index()] || self.plan.maker[value.index()] < start
                }
                Mode::SegmentInputs { start } => self.plan.maker[value.index()] < start,
            };
            if self.plan.last_reader[value.index()] == index && !wanted {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
        }
        if !matches!(self.mode, Mode::Training { .. }) {
            let saved = std::mem::take(&mut self.buffers.saved[index]);
            self.workspace.give(saved);
        }
    }

    /// Frees what layers from `start` on left, except what parameters that also enter below need.
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
        for value in self.graph.value_ids().filter(|value| self.plan.maker[value.index()] >= start)
        {
            if !values[value.index()] {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
            if !gradients[value.index()] {
                self.buffers.gradients.forget(value, self.workspace);
            }
        }
    }

    /// After the backward pass of a layer: frees what only it needed.
    pub(crate) fn free_after_backward(&mut self, index: usize) {
        let saved = std::mem::take(&mut self.buffers.saved[index]);
        self.workspace.give(saved);
        for value in self.graph.ops()[index].outputs() {
            if !self.plan.kept_value[value.index()] {
                let buffer = self.take_value(value);
                self.workspace.give(buffer);
            }
            if !self.plan.kept_gradient[value.index()] {
                self.buffers.gradients.forget(value, self.workspace);
            }
        }
    }
}
