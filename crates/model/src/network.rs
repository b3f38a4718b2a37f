//! The engine of this crate: a graph, its frozen parameters and its buffers.

use crate::Error;
use crate::batch::Batch;
use crate::engine::{Engine, Observed, Weights};
use crate::example::Example;
use crate::graph::{Graph, Intake, Reduction, Space};
use crate::plan::Plan;
use crate::probe;
use crate::rule::{NormMethod, Traces, Use};
use crate::run::{Buffers, Purpose, Run};
use crate::sum::Sum;
use protocol::{Blocks, Geometry, Params, Role, Trainable};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Array, Workspace, cross_entropy};

/// What is kept between the forward and the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Memory {
    /// Everything that is needed: the fastest.
    #[default]
    Keep,
    /// Only what enters each stretch of layers; the rest is made again. Slower, in a fraction of
    /// the memory.
    Recompute,
}

/// A model that can be evaluated and differentiated, example by example.
pub struct Network {
    pub(crate) graph: Arc<Graph>,
    pub(crate) plan: Arc<Plan>,
    /// By parameter; the trained ones are empty.
    frozen: Arc<Vec<Array>>,
    reduction: Reduction,
    method: NormMethod,
    pub(crate) memory: Memory,
    /// Bytes of a pass for which there was room.
    pub(crate) roomy: usize,
    pub(crate) batch: Batch,
    pub(crate) buffers: Buffers,
    pub(crate) space: Workspace,
    losses: Vec<f64>,
    squares: Vec<f64>,
    column: Vec<f64>,
    weights: Weights,
}

/// Its buffers hold what examples left behind: they do not print.
impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl Network {
    /// Splits `values`, one for each parameter of the graph, into those to be trained, which are
    /// returned, and frozen ones, which stay.
    ///
    /// # Errors
    /// If a value has another shape than its parameter, or a parameter to be trained does not reach
    /// the logits.
    pub fn new(
        graph: Graph,
        mut values: Vec<Array>,
        trainable: impl Fn(&str) -> bool,
    ) -> Result<(Self, Params), Error> {
        if values.len() != graph.specs.len() {
            return Err(Error::Model(format!(
                "{} tensors for {} parameters",
                values.len(),
                graph.specs.len()
            )));
        }
        for (spec, value) in graph.specs.iter().zip(&values) {
            if spec.shape != value.shape() {
                return Err(Error::Model(format!(
                    "{}: shape {:?} expected, got {:?}",
                    spec.name,
                    spec.shape,
                    value.shape()
                )));
            }
        }
        let trained: Vec<bool> = graph.specs.iter().map(|spec| trainable(&spec.name)).collect();
        let plan = Plan::new(&graph, &trained);
        if let Some(param) = plan.stranded(&graph) {
            return Err(Error::Model(format!(
                "{}: to be trained, but nothing reaches the logits from it",
                graph.specs[param.0].name
            )));
        }
        let params =
            plan.trained.iter().map(|param| std::mem::take(&mut values[param.0])).collect();
        Ok((Self::with(Arc::new(graph), Arc::new(plan), Arc::new(values)), Params::new(params)))
    }

    /// Another network of the same model, with buffers of its own: the frozen parameters are
    /// shared. What one of them computes on does not reach the other.
    #[must_use]
    pub fn twin(&self) -> Self {
        let mut twin = Self::with(self.graph.clone(), self.plan.clone(), self.frozen.clone());
        (twin.reduction, twin.method, twin.memory) = (self.reduction, self.method, self.memory);
        twin
    }

    fn with(graph: Arc<Graph>, plan: Arc<Plan>, frozen: Arc<Vec<Array>>) -> Self {
        let mut buffers = Buffers::default();
        buffers.prepare(&graph);
        Self {
            graph,
            plan,
            frozen,
            reduction: Reduction::default(),
            method: NormMethod::default(),
            memory: Memory::default(),
            roomy: 0,
            batch: Batch::default(),
            buffers,
            space: Workspace::new(),
            losses: Vec::new(),
            squares: Vec::new(),
            column: Vec::new(),
            weights: Weights::default(),
        }
    }

    /// How the losses of an example's targets make the example's loss.
    pub fn set_reduction(&mut self, reduction: Reduction) {
        self.reduction = reduction;
    }

    /// How norms are found. The result does not depend on it, beyond rounding.
    pub fn set_norm_method(&mut self, method: NormMethod) {
        self.method = method;
    }

    /// What is kept. The result does not depend on it.
    pub fn set_memory(&mut self, memory: Memory) {
        self.memory = memory;
    }

    /// The model without its numbers.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// All tensors by name, the trained ones from `at`: what a checkpoint holds.
    pub fn tensors<'a>(&'a self, at: &'a Params) -> impl Iterator<Item = (&'a str, &'a Array)> {
        self.graph.specs.iter().enumerate().map(move |(index, spec)| {
            (spec.name.as_str(), self.plan.place[index].map_or(&self.frozen[index], |k| &at[k]))
        })
    }

    /// How many buffers had to be made so far: it stands still in the steady state.
    pub fn fresh_buffers(&self) -> usize {
        self.space.allocations()
    }

    /// The low-rank pairs (left, right) among the trained tensors.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let place = |param: crate::graph::Param| self.plan.place[param.0];
        self.graph
            .pairs
            .iter()
            .filter_map(|pair| Some((place(pair.left)?, place(pair.right)?)))
            .collect()
    }

    /// Floating-point operations of a training step on `examples`, by the usual count: products of
    /// the forward pass, of the backward pass by the values and by the trained weights. What
    /// privacy adds is not counted.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn operations(&mut self, examples: &[&Example]) -> Result<f64, Error> {
        self.batch.pack(&self.graph, self.reduction, examples)?;
        let mut total = 0.0;
        for layer in &self.graph.layers {
            let work = layer.work(&self.batch, &self.graph);
            let flows = layer.inputs().iter().any(|&value| self.plan.flows(value));
            let trained = layer.params().iter().any(|&param| self.plan.trains(param));
            let attention = layer.params().is_empty();
            total += work
                * (1.0
                    + f64::from(u8::from(flows)) * if attention { 2.0 } else { 1.0 }
                    + f64::from(u8::from(trained)));
        }
        Ok(total)
    }

    /// What a trained tensor is for: read off the places where it enters.
    fn role(&self, k: usize) -> Role {
        if let Some((left, right)) =
            self.pairs().into_iter().find(|&(left, right)| left == k || right == k)
        {
            return if left == k { Role::Left(right) } else { Role::Right(left) };
        }
        let uses = &self.plan.uses[k];
        if self.graph.specs[self.plan.trained[k].0].shape.len() < 2 {
            Role::Vector
        } else if uses.iter().any(|entry| matches!(entry, Use::Lookup { .. })) {
            Role::Table
        } else if uses.iter().any(
            |entry| matches!(entry, Use::Outer { gradient, .. } if gradient.0 == self.graph.logits),
        ) {
            Role::Head
        } else {
            Role::Hidden
        }
    }

    pub(crate) fn check(&self, at: &Params) -> Result<(), Error> {
        let fits = |(k, param): (usize, &crate::graph::Param)| {
            self.graph.specs[param.0].shape == at[k].shape()
        };
        if at.len() == self.plan.trained.len() && self.plan.trained.iter().enumerate().all(fits) {
            Ok(())
        } else {
            Err(Error::Model("parameters of another model".into()))
        }
    }

    pub(crate) fn run<'a>(&'a mut self, at: &'a Params, purpose: Purpose) -> Run<'a> {
        Run {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            at,
            frozen: &self.frozen,
            buffers: &mut self.buffers,
            space: &mut self.space,
            purpose,
            cache: None,
        }
    }

    /// Takes the examples of a pass, in place of all that an earlier one, which may have ended in a
    /// panic, left behind.
    fn begin(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.buffers.release(&mut self.space);
        self.batch.pack(&self.graph, self.reduction, examples)?;
        self.room()
    }

    /// The forward pass through some layers; what it leaves is in the buffers.
    pub(crate) fn forward(&mut self, at: &Params, layers: Range<usize>, purpose: Purpose) {
        let mut run = self.run(at, purpose);
        for index in layers {
            run.graph.layers[index].forward(index, &mut run);
            run.forget_forward(index);
        }
    }

    /// The logits: for a language model of the tokens that carry a target, else of each example;
    /// row after row.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn logits(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f32>, Error> {
        self.check(at)?;
        self.begin(examples)?;
        self.forward(at, 0..self.graph.layers.len(), Purpose::Inference);
        let logits = std::mem::take(&mut self.buffers.values[self.graph.logits.0]);
        self.buffers.release(&mut self.space);
        Ok(logits)
    }

    /// Turns the logits into losses and, for training, into their own gradient.
    pub(crate) fn finish(&mut self, purpose: Purpose) {
        let logits = self.graph.logits;
        let mut data = std::mem::take(&mut self.buffers.values[logits.0]);
        let mut rows = self.space.take(self.batch.targets.len());
        let classes = self.graph.classes();
        match purpose {
            Purpose::Training { .. } | Purpose::Sketch { .. } => {
                cross_entropy::backward(
                    classes,
                    &mut data,
                    &self.batch.targets,
                    &self.batch.target_weights,
                    &mut rows,
                );
                self.buffers.gradients.set(logits, data, &mut self.space);
            }
            Purpose::Inference => {
                cross_entropy::forward(classes, &data, &self.batch.targets, &mut rows);
                self.space.give(data);
            }
        }
        self.losses.clear();
        let weights = &self.batch.target_weights;
        self.losses.extend(self.batch.target_offsets().windows(2).map(|pair| {
            // An absent target weighs 0 and must not turn an infinite loss into NaN.
            (pair[0]..pair[1])
                .filter(|&t| weights[t] != 0.0)
                .map(|t| f64::from(rows[t]) * f64::from(weights[t]))
                .sum::<f64>()
        }));
        self.space.give(rows);
    }

    /// The backward pass through some layers.
    pub(crate) fn backward(&mut self, at: &Params, layers: Range<usize>) {
        let mut run = self.run(at, Purpose::Training { start: 0 });
        for index in layers.rev() {
            let layer = &run.graph.layers[index];
            if layer.outputs().iter().any(|&value| run.plan.flows(value)) {
                layer.backward(index, &mut run);
            }
            run.forget_backward(index);
        }
    }

    /// Both passes, everything kept. After each layer `done(network, which)` is called, where
    /// `which` tells the trained parameters whose traces are complete: they have just been written
    /// and are still near.
    fn pass(&mut self, at: &Params, mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool)) {
        let (lowest, end) = (self.plan.lowest, self.graph.layers.len());
        self.forward(at, 0..end, Purpose::Training { start: 0 });
        self.finish(Purpose::Training { start: 0 });
        for index in (lowest..end).rev() {
            self.backward(at, index..index + 1);
            if self.plan.first_use.contains(&index) {
                let complete: Vec<bool> =
                    self.plan.first_use.iter().map(|&first| first == index).collect();
                done(self, &|k| complete[k]);
            }
        }
    }

    pub(crate) fn traces(&self) -> Traces<'_> {
        Traces {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            buffers: &self.buffers,
            method: self.method,
        }
    }

    /// Makes room for the norms.
    fn reset_squares(&mut self, blocks: &Blocks) {
        self.squares.clear();
        self.squares.resize(self.batch.examples * blocks.count(), 0.0);
    }

    /// Adds the squared norms, by example and block, of some trained parameters. A pair is measured
    /// with its left factor.
    pub(crate) fn measure(
        &mut self,
        geometry: &Geometry,
        blocks: &Blocks,
        which: impl Fn(usize) -> bool,
    ) {
        let (examples, count) = (self.batch.examples, blocks.count());
        let frames: &[protocol::Frame] =
            if let Geometry::Tangent { frames } = geometry { frames } else { &[] };
        let (mut squares, mut column) =
            (std::mem::take(&mut self.squares), std::mem::take(&mut self.column));
        let traces = self.traces();
        for k in (0..self.plan.trained.len()).filter(|&k| which(k)) {
            column.clear();
            column.resize(examples, 0.0);
            match frames.iter().find(|frame| frame.left == k) {
                Some(frame) => traces.add_tangent_norms(frame, &mut column),
                None if frames.iter().any(|frame| frame.right == k) => {}
                None => traces.add_norms(geometry, k, &mut column),
            }
            for (example, &square) in column.iter().enumerate() {
                // Rounding may leave less than nothing, which must not be taken off the rest of the
                // block; NaN stays.
                squares[example * count + blocks.of(k)] += if square < 0.0 { 0.0 } else { square };
            }
        }
        (self.squares, self.column) = (squares, column);
    }

    /// Takes out the examples that are not sound, and asks for the weights of the others.
    fn weigh(&mut self, blocks: &Blocks, weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights)) {
        self.weights.reset(self.batch.examples, blocks.count());
        let seen = Observed::new(&self.losses, &self.squares, blocks.count());
        (0..self.batch.examples)
            .filter(|&example| !seen.is_sound(example))
            .for_each(|example| self.weights.void(example));
        weigh(&seen, &mut self.weights);
    }

    /// Adds the weighted sums of some trained parameters. Examples that are not sound have the
    /// weight 0 and are not read.
    fn add_sums(&mut self, blocks: &Blocks, which: impl Fn(usize) -> bool, sum: &mut Sum) {
        let traces = Traces {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            buffers: &self.buffers,
            method: self.method,
        };
        for (k, sum) in sum.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            traces.add_weighted(k, self.weights.block(blocks.of(k)), sum, &mut self.space);
        }
    }

    /// Adds the plain sums of some trained parameters.
    fn add_plain_sums(&mut self, which: impl Fn(usize) -> bool, sum: &mut Params) {
        let traces = Traces {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            buffers: &self.buffers,
            method: self.method,
        };
        for (k, sum) in sum.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            traces.add_plain(k, sum, &mut self.space);
        }
    }

    /// The sum of all examples' gradients, unclipped and without norms: ordinary training. Returns
    /// the losses.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn plain_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<&[f64], Error> {
        self.check(at)?;
        self.check(sum)?;
        self.begin(examples)?;
        match self.memory {
            Memory::Keep => {
                self.pass(at, |_, _| ());
                self.add_plain_sums(|_| true, sum);
            }
            Memory::Recompute => {
                self.sweep(at, |network, which| network.add_plain_sums(which, sum))
            }
        }
        self.buffers.release(&mut self.space);
        Ok(&self.losses)
    }
}

impl Engine for Network {
    fn trainable(&self) -> Vec<Trainable> {
        let of = |(k, param): (usize, &crate::graph::Param)| {
            let spec = &self.graph.specs[param.0];
            Trainable { name: spec.name.clone(), shape: spec.shape.clone(), role: self.role(k) }
        };
        self.plan.trained.iter().enumerate().map(of).collect()
    }

    fn uses(&self) -> Vec<usize> {
        // A vector's places are added up before it is rounded.
        let of = |uses: &Vec<Use>| {
            if matches!(uses.first(), Some(Use::Vector)) { 1 } else { uses.len().max(1) }
        };
        self.plan.uses.iter().map(of).collect()
    }

    fn stand_ins(&self) -> Vec<Example> {
        let classes = (self.graph.forms[self.graph.logits.0].space == Space::Examples)
            .then(|| self.graph.classes());
        match self.graph.intake {
            Intake::Tokens { vocab, longest } => probe::texts(vocab, longest, classes),
            Intake::Numbers(count) => probe::numbers(count, self.graph.classes()),
        }
    }

    fn admits(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.batch.pack(&self.graph, self.reduction, examples)
    }

    fn losses(&mut self, at: &Params, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        self.check(at)?;
        self.begin(examples)?;
        self.forward(at, 0..self.graph.layers.len(), Purpose::Inference);
        self.finish(Purpose::Inference);
        self.buffers.release(&mut self.space);
        Ok(self.losses.clone())
    }

    fn weighted_sum(
        &mut self,
        at: &Params,
        examples: &[&Example],
        geometry: &Geometry,
        blocks: &Blocks,
        weigh: &mut dyn FnMut(&Observed<'_>, &mut Weights),
        sum: &mut Sum,
    ) -> Result<(), Error> {
        self.check(at)?;
        if !sum.fits(at) {
            return Err(Error::Model("a sum of another model's tensors".into()));
        }
        geometry
            .check(blocks, at, &self.pairs())
            .map_err(|refused| Error::Model(refused.to_string()))?;
        self.begin(examples)?;
        self.reset_squares(blocks);
        match self.memory {
            Memory::Keep => {
                self.pass(at, |network, which| network.measure(geometry, blocks, which));
                self.weigh(blocks, weigh);
                self.add_sums(blocks, |_| true, sum);
            }
            Memory::Recompute => {
                self.sweep(at, |network, which| network.measure(geometry, blocks, which));
                self.weigh(blocks, weigh);
                self.sweep(at, |network, which| network.add_sums(blocks, which, sum));
            }
        }
        self.buffers.release(&mut self.space);
        Ok(())
    }
}
