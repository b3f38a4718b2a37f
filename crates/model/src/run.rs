//! The buffers of one pass over a graph, and how layers get at them.

use crate::batch::Batch;
use crate::decoder::Cache;
use crate::gradients::{Gradients, Shared};
use crate::graph::{Form, Graph, Param, Value};
use crate::plan::Plan;
use protocol::Params;
use tensor::matmul::OutputMode;
use tensor::{Array, Workspace};

/// Buffers by value, layer and use. They outlive a pass only as empty shells.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) gradients: Gradients,
    /// What a layer leaves for its own backward pass.
    pub(crate) notes: Vec<Vec<f32>>,
    /// Per-example gradients of vectors, by parameter: rows are examples.
    pub(crate) vectors: Vec<Vec<f32>>,
}

impl Buffers {
    pub(crate) fn prepare(&mut self, graph: &Graph) {
        self.values.resize_with(graph.forms.len(), Vec::new);
        self.gradients.prepare(graph.forms.len());
        self.notes.resize_with(graph.layers.len(), Vec::new);
        self.vectors.resize_with(graph.specs.len(), Vec::new);
    }

    /// Gives everything back.
    pub(crate) fn release(&mut self, space: &mut Workspace) {
        for list in [&mut self.values, &mut self.notes, &mut self.vectors] {
            list.iter_mut().for_each(|buffer| space.give(std::mem::take(buffer)));
        }
        self.gradients.release(space);
    }
}

/// Whether anything is kept for a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Only the outputs matter.
    Inference,
    /// A backward pass follows; layers before `start` are run again after it, from what was made
    /// before them.
    Training {
        /// The first layer of the stretch.
        start: usize,
    },
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
    /// What came before, for texts that grow.
    pub(crate) cache: Option<&'a mut Cache>,
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

    /// The gradient by `value`, which is complete; `None` if nothing came: then nothing flows.
    pub(crate) fn gradient(&self, value: Value) -> Option<Shared> {
        self.buffers.gradients.get(value)
    }

    /// The gradient by `value` in a buffer that nobody shares, taken out of its place.
    pub(crate) fn own_gradient(&mut self, value: Value) -> Option<Vec<f32>> {
        self.buffers.gradients.own(value, self.space)
    }

    pub(crate) fn put_gradient(&mut self, value: Value, buffer: Vec<f32>) {
        self.buffers.gradients.set(value, buffer, self.space);
    }

    /// Lets `add` contribute to the gradient by `value`: it is given a buffer and told whether to
    /// overwrite it or to add to it.
    pub(crate) fn contribute(
        &mut self,
        value: Value,
        add: impl FnOnce(&mut Self, &mut [f32], OutputMode),
    ) {
        if !self.plan.flows(value) {
            return;
        }
        let (mut buffer, onto) = match self.own_gradient(value) {
            Some(buffer) => (buffer, OutputMode::Accumulate),
            None => (self.buffer(value), OutputMode::Overwrite),
        };
        add(self, &mut buffer, onto);
        self.put_gradient(value, buffer);
    }

    /// Lets `write` fill a buffer that is, or is added to, the gradient by `value`.
    pub(crate) fn contribute_whole(
        &mut self,
        value: Value,
        write: impl FnOnce(&mut Self, &mut [f32]),
    ) {
        self.contribute(value, |run, buffer, onto| match onto {
            OutputMode::Overwrite => write(run, buffer),
            OutputMode::Accumulate => {
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

    /// Passes the gradient by `from`, which is complete, on to `to` as it is.
    pub(crate) fn pass_on(&mut self, from: Value, to: Value) {
        let Some(source) = self.gradient(from).filter(|_| self.plan.flows(to)) else { return };
        if self.gradient(to).is_none() {
            return self.buffers.gradients.share(to, &source, self.space);
        }
        self.contribute(to, |_, buffer, onto| match onto {
            OutputMode::Overwrite => buffer.copy_from_slice(&source),
            OutputMode::Accumulate => tensor::activation::add(buffer, &source),
        });
    }

    /// After layer `index` has gone forward: lets go of what nobody will read again.
    pub(crate) fn forget_forward(&mut self, index: usize) {
        let layer = &self.graph.layers[index];
        for value in layer.inputs().into_iter().chain(layer.outputs()) {
            let wanted = match self.purpose {
                Purpose::Inference => false,
                Purpose::Training { start } => {
                    self.plan.saved[value.0] || self.plan.maker[value.0] < start
                }
                Purpose::Sketch { start } => self.plan.maker[value.0] < start,
            };
            if self.plan.last_reader[value.0] == index && !wanted {
                let buffer = self.lend(value);
                self.space.give(buffer);
            }
        }
        if !matches!(self.purpose, Purpose::Training { .. }) {
            let notes = std::mem::take(&mut self.buffers.notes[index]);
            self.space.give(notes);
        }
    }

    /// Lets go of all that layers from `start` on left, except what parameters that also enter
    /// below still need.
    pub(crate) fn forget_stretch(&mut self, start: usize) {
        let (mut values, mut gradients) =
            (vec![false; self.buffers.values.len()], vec![false; self.buffers.values.len()]);
        for (uses, _) in
            self.plan.uses.iter().zip(&self.plan.first_use).filter(|&(_, &first)| first < start)
        {
            for (value, gradient) in uses.iter().map(|entry| entry.reads()) {
                value.into_iter().for_each(|value| values[value.0] = true);
                gradient.into_iter().for_each(|value| gradients[value.0] = true);
            }
        }
        for value in (0..values.len()).map(Value).filter(|value| self.plan.maker[value.0] >= start)
        {
            if !values[value.0] {
                let buffer = self.lend(value);
                self.space.give(buffer);
            }
            if !gradients[value.0] {
                self.buffers.gradients.forget(value, self.space);
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
            if !self.plan.kept_gradient[value.0] {
                self.buffers.gradients.forget(value, self.space);
            }
        }
    }
}
