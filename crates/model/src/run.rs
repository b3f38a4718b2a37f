//! The buffers of one pass over a graph, and how layers get at them.

use crate::batch::Batch;
use crate::graph::{Form, Graph, Param, Value};
use crate::plan::Plan;
use protocol::Params;
use tensor::matmul::Onto;
use tensor::{Array, Workspace};

/// A gradient by a value.
#[derive(Default)]
pub(crate) enum Gradient {
    /// None has come yet.
    #[default]
    None,
    /// A buffer of its own.
    Own(Vec<f32>),
    /// The same numbers as another value's, which is finished.
    Same(Value),
}

/// Buffers by value, layer and use. They outlive a pass only as empty shells.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) gradients: Vec<Gradient>,
    /// Values whose gradient others share.
    shared: Vec<bool>,
    /// What a layer leaves for its own backward pass.
    pub(crate) notes: Vec<Vec<f32>>,
    /// Per-example gradients of vectors, by parameter: rows are examples.
    pub(crate) vectors: Vec<Vec<f32>>,
}

impl Buffers {
    pub(crate) fn prepare(&mut self, graph: &Graph) {
        self.values.resize_with(graph.forms.len(), Vec::new);
        self.gradients.resize_with(graph.forms.len(), Gradient::default);
        self.shared.resize(graph.forms.len(), false);
        self.notes.resize_with(graph.layers.len(), Vec::new);
        self.vectors.resize_with(graph.specs.len(), Vec::new);
    }

    /// Gives everything back.
    pub(crate) fn release(&mut self, space: &mut Workspace) {
        for list in [&mut self.values, &mut self.notes, &mut self.vectors] {
            list.iter_mut().for_each(|buffer| space.give(std::mem::take(buffer)));
        }
        for gradient in &mut self.gradients {
            if let Gradient::Own(buffer) = std::mem::take(gradient) {
                space.give(buffer);
            }
        }
        self.shared.fill(false);
    }

    /// Whose buffer holds the gradient by `value`.
    pub(crate) fn root(&self, value: Value) -> Value {
        let mut value = value;
        while let Gradient::Same(other) = self.gradients[value.0] {
            value = other;
        }
        value
    }

    /// The gradient by `value`; empty if none came.
    pub(crate) fn gradient(&self, value: Value) -> &[f32] {
        match &self.gradients[self.root(value).0] {
            Gradient::Own(buffer) => buffer,
            _ => &[],
        }
    }
}

/// Whether anything is kept for a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Only the outputs matter.
    Inference,
    /// A backward pass follows.
    Training,
    /// A backward pass follows, before which the layers from `start` on are run again.
    Sketch {
        /// The first layer of the stretch.
        start: usize,
    },
}

/// One pass.
pub(crate) struct Run<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a Plan,
    pub(crate) batch: &'a Batch,
    pub(crate) at: &'a Params,
    pub(crate) frozen: &'a [Array],
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) space: &'a mut Workspace,
    pub(crate) purpose: Purpose,
}

impl<'a> Run<'a> {
    /// A parameter's numbers.
    pub(crate) fn param(&self, param: Param) -> &'a Array {
        match self.plan.place[param.0] {
            Some(k) => &self.at[k],
            None => &self.frozen[param.0],
        }
    }

    pub(crate) fn form(&self, value: Value) -> Form {
        self.graph.forms[value.0]
    }

    pub(crate) fn rows(&self, value: Value) -> usize {
        self.batch.rows(self.form(value).space)
    }

    /// A buffer of the size of `value`; contents unspecified.
    pub(crate) fn buffer(&mut self, value: Value) -> Vec<f32> {
        let len = self.rows(value) * self.form(value).width;
        self.space.take(len)
    }

    /// Takes a value's buffer out; it must be put back or replaced.
    pub(crate) fn lend(&mut self, value: Value) -> Vec<f32> {
        std::mem::take(&mut self.buffers.values[value.0])
    }

    pub(crate) fn put(&mut self, value: Value, buffer: Vec<f32>) {
        let old = std::mem::replace(&mut self.buffers.values[value.0], buffer);
        self.space.give(old);
    }

    /// The gradient by `value`, taken out of its place; `None` if nothing came: then nothing flows.
    pub(crate) fn lend_gradient(&mut self, value: Value) -> Option<Vec<f32>> {
        let root = self.buffers.root(value);
        match std::mem::take(&mut self.buffers.gradients[root.0]) {
            Gradient::Own(buffer) => Some(buffer),
            _ => None,
        }
    }

    pub(crate) fn put_gradient(&mut self, value: Value, buffer: Vec<f32>) {
        let root = self.buffers.root(value);
        self.buffers.gradients[root.0] = Gradient::Own(buffer);
    }

    /// The gradient by `value` in a buffer that nobody shares, taken out of its place.
    pub(crate) fn own_gradient(&mut self, value: Value) -> Option<Vec<f32>> {
        let root = self.buffers.root(value);
        if root == value && !self.buffers.shared[value.0] {
            return self.lend_gradient(value);
        }
        assert!(root != value, "a gradient that others share is finished");
        let copy = self.copy_of(root)?;
        // From here on the value has a gradient of its own.
        self.buffers.gradients[value.0] = Gradient::None;
        Some(copy)
    }

    fn copy_of(&mut self, root: Value) -> Option<Vec<f32>> {
        let Gradient::Own(buffer) = &self.buffers.gradients[root.0] else { return None };
        let mut copy = self.space.take(buffer.len());
        copy.copy_from_slice(buffer);
        Some(copy)
    }

    /// Lets `add` contribute to the gradient by `value`: it is given a buffer and told whether to overwrite it or to add to it.
    pub(crate) fn contribute(&mut self, value: Value, add: impl FnOnce(&mut Self, &mut [f32], Onto)) {
        if !self.plan.flows(value) {
            return;
        }
        let (mut buffer, onto) = match self.own_gradient(value) {
            Some(buffer) => (buffer, Onto::Old),
            None => (self.buffer(value), Onto::Fresh),
        };
        add(self, &mut buffer, onto);
        self.buffers.gradients[value.0] = Gradient::Own(buffer);
    }

    /// Lets `write` fill a buffer that is, or is added to, the gradient by `value`.
    pub(crate) fn contribute_whole(&mut self, value: Value, write: impl FnOnce(&mut Self, &mut [f32])) {
        self.contribute(value, |run, buffer, onto| match onto {
            Onto::Fresh => write(run, buffer),
            Onto::Old => {
                let mut part = run.space.take(buffer.len());
                write(run, &mut part);
                tensor::activation::add(buffer, &part);
                run.space.give(part);
            }
        });
    }

    /// Adds to the per-example gradients by a vector: rows are examples.
    pub(crate) fn add_vectors(&mut self, param: Param, gradients: Vec<f32>) {
        let sum = &mut self.buffers.vectors[param.0];
        if sum.is_empty() {
            *sum = gradients;
        } else {
            tensor::activation::add(sum, &gradients);
            self.space.give(gradients);
        }
    }

    /// Passes the gradient by `from`, which is finished, on to `to` as it is.
    pub(crate) fn pass_on(&mut self, from: Value, to: Value) {
        if !self.plan.flows(to) {
            return;
        }
        let root = self.buffers.root(from);
        if matches!(self.buffers.gradients[to.0], Gradient::None) {
            self.buffers.shared[root.0] = true;
            self.buffers.gradients[to.0] = Gradient::Same(root);
        } else if let Some(source) = self.lend_gradient(from) {
            self.contribute(to, |_, buffer, _| tensor::activation::add(buffer, &source));
            self.put_gradient(from, source);
        }
    }

    /// After layer `index` has gone forward: lets go of what nobody will read again.
    pub(crate) fn forget_forward(&mut self, index: usize) {
        let layer = &self.graph.layers[index];
        for value in layer.inputs().into_iter().chain(layer.outputs()) {
            let wanted = match self.purpose {
                Purpose::Inference => false,
                Purpose::Training => self.plan.saved[value.0],
                Purpose::Sketch { start } => self.plan.maker[value.0] < start,
            };
            if self.plan.last_reader[value.0] == index && !wanted {
                let buffer = self.lend(value);
                self.space.give(buffer);
            }
        }
        if self.purpose != Purpose::Training {
            let notes = std::mem::take(&mut self.buffers.notes[index]);
            self.space.give(notes);
        }
    }

    /// Gives every value made before layer `start` a gradient of its own where it shares one that is about to go.
    pub(crate) fn part_from(&mut self, start: usize) {
        for index in 0..self.buffers.gradients.len() {
            let value = Value(index);
            let root = self.buffers.root(value);
            if self.plan.maker[index] < start
                && self.plan.maker[root.0] >= start
                && let Some(copy) = self.copy_of(root)
            {
                self.buffers.gradients[index] = Gradient::Own(copy);
            }
        }
    }

    /// Lets go of all that layers from `start` on left, except what parameters that also enter below still need.
    pub(crate) fn forget_stretch(&mut self, start: usize) {
        self.part_from(start);
        let pending = |wanted: &dyn Fn(crate::rule::Use) -> bool| {
            self.plan.uses.iter().zip(&self.plan.first_use).any(|(uses, &first)| first < start && uses.iter().any(|&entry| wanted(entry)))
        };
        let held: Vec<(bool, bool)> = (0..self.buffers.values.len())
            .map(|index| {
                let value = Value(index);
                let reads_value = pending(&|entry| entry.reads().0 == Some(value));
                let reads_gradient = pending(&|entry| entry.reads().1.is_some_and(|read| self.buffers.root(read) == value));
                (reads_value, reads_gradient)
            })
            .collect();
        for (index, (value_held, gradient_held)) in held.into_iter().enumerate() {
            if self.plan.maker[index] >= start {
                if !value_held {
                    let buffer = self.lend(Value(index));
                    self.space.give(buffer);
                }
                if !gradient_held && let Gradient::Own(buffer) = std::mem::take(&mut self.buffers.gradients[index]) {
                    self.space.give(buffer);
                }
            }
        }
    }

    /// After layer `index` has gone backward: lets go of what only it needed.
    pub(crate) fn forget_backward(&mut self, index: usize) {
        let notes = std::mem::take(&mut self.buffers.notes[index]);
        self.space.give(notes);
        for value in self.graph.layers[index].outputs() {
            if !self.plan.kept_value[value.0] {
                let buffer = self.lend(value);
                self.space.give(buffer);
            }
            if !self.plan.kept_gradient[value.0]
                && !self.buffers.shared[value.0]
                && let Gradient::Own(buffer) = std::mem::take(&mut self.buffers.gradients[value.0])
            {
                self.space.give(buffer);
            }
        }
    }
}
