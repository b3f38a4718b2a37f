//! A model on the CPU: a graph, its frozen parameters, its buffers, and the passes over them.

use crate::batch::Batch;
use crate::layer::layer;
use crate::pass::{Buffers, Mode, Pass};
use crate::plan::BackwardPlan;
use crate::rule::{GradientForm, NormMethod, Traces};
use engine::{Error, Example, Sum};
use model::{Activations, Device, Graph, Reduction};
use protocol::{Blocks, Params, Role};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Array, Workspace, cross_entropy};

/// The CPU, as a device.
///
/// ```
/// use model::{Checkpoint, Network, Preset, hf};
///
/// let config = hf::Config::new(Preset::Tiny.architecture());
/// let (_, network, params) = Checkpoint::new(config, None, 0)?.network(&cpu::Cpu, |_| true)?;
/// assert_eq!(network.tensors(&params).len(), params.len());
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Device for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn network(
        &self,
        graph: Graph,
        values: Vec<Array>,
        trainable: &dyn Fn(&str) -> bool,
    ) -> Result<(Box<dyn model::Network>, Params), model::Error> {
        let (network, params) = Network::new(graph, values, trainable)?;
        Ok((Box::new(network), params))
    }
}

/// A model on the CPU, evaluated and differentiated example by example.
///
/// ```
/// use cpu::Network;
/// use model::activation::Activation;
/// use model::Mlp;
///
/// let mlp = Mlp { input: 4, hidden: vec![8], classes: 2, activation: Activation::Relu };
/// let graph = mlp.graph();
/// let values = graph.init(0)?;
/// // Only the weights and biases of the head are trained.
/// let (_network, params) = Network::new(graph, values, |name| name.starts_with("head"))?;
/// assert_eq!(params.len(), 2);
/// # Ok::<(), model::Error>(())
/// ```
pub struct Network {
    pub(crate) graph: Arc<Graph>,
    pub(crate) plan: Arc<BackwardPlan>,
    /// By parameter; the trained ones are empty.
    pub(crate) frozen: Arc<Vec<Array>>,
    pub(crate) reduction: Reduction,
    pub(crate) method: NormMethod,
    pub(crate) activations: Activations,
    /// Bytes of a pass for which memory was found.
    pub(crate) reserved_bytes: usize,
    pub(crate) batch: Batch,
    pub(crate) buffers: Buffers,
    pub(crate) workspace: Workspace,
    /// The loaded parameters.
    pub(crate) params: Option<Params>,
    /// The sum that was started.
    pub(crate) sum: Option<Sum>,
    /// Clip blocks of the micro-batch that was observed and not yet accumulated.
    pub(crate) observed: Option<Blocks>,
    pub(crate) losses: Vec<f64>,
    pub(crate) squared_norms: Vec<f64>,
    pub(crate) column: Vec<f64>,
}

/// Its buffers hold what examples left behind: they do not print.
impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl Network {
    /// Splits `values`, one for each parameter of the graph, into trained ones, which are returned,
    /// and frozen ones, which stay.
    ///
    /// # Errors
    /// If a value has another shape than its parameter, or the logits do not depend on a trained
    /// parameter.
    pub fn new(
        graph: Graph,
        mut values: Vec<Array>,
        trainable: impl Fn(&str) -> bool,
    ) -> Result<(Self, Params), model::Error> {
        let refuse = |what: String| Err(model::Error::Graph(what));
        if values.len() != graph.params().len() {
            return refuse(format!(
                "expected values of {} parameters, got {}",
                graph.params().len(),
                values.len()
            ));
        }
        for (spec, value) in graph.params().iter().zip(&values) {
            if spec.shape != value.shape() {
                return refuse(format!(
                    "{}: expected shape {:?}, got {:?}",
                    spec.name,
                    spec.shape,
                    value.shape()
                ));
            }
        }
        let trained: Vec<bool> = graph.params().iter().map(|spec| trainable(&spec.name)).collect();
        let plan = BackwardPlan::new(&graph, &trained)?;
        let params =
            plan.trained.iter().map(|param| std::mem::take(&mut values[param.index()])).collect();
        Ok((Self::with(Arc::new(graph), Arc::new(plan), Arc::new(values)), Params::new(params)))
    }

    /// Another instance of the same model, with buffers of its own. Frozen parameters are shared;
    /// what one instance computes on does not reach the other.
    #[must_use]
    pub fn new_instance(&self) -> Self {
        let mut other = Self::with(self.graph.clone(), self.plan.clone(), self.frozen.clone());
        other.reduction = self.reduction;
        other.method = self.method;
        other.activations = self.activations;
        other
    }

    fn with(graph: Arc<Graph>, plan: Arc<BackwardPlan>, frozen: Arc<Vec<Array>>) -> Self {
        let mut buffers = Buffers::default();
        buffers.prepare(&graph);
        Self {
            graph,
            plan,
            frozen,
            reduction: Reduction::default(),
            method: NormMethod::default(),
            activations: Activations::default(),
            reserved_bytes: 0,
            batch: Batch::default(),
            buffers,
            workspace: Workspace::new(),
            params: None,
            sum: None,
            observed: None,
            losses: Vec::new(),
            squared_norms: Vec::new(),
            column: Vec::new(),
        }
    }

    /// Sets how the losses of an example's targets make the example's loss.
    pub fn set_reduction(&mut self, reduction: Reduction) {
        self.reduction = reduction;
    }

    /// Sets how norms are computed. The result does not depend on it, beyond rounding.
    pub fn set_norm_method(&mut self, method: NormMethod) {
        self.method = method;
    }

    /// Sets whether activations are retained or recomputed. No result depends on it.
    pub fn set_activations(&mut self, activations: Activations) {
        // Sums are made of what the observation retained.
        self.observed = None;
        self.activations = activations;
    }

    /// The model.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of buffers allocated so far: constant in the steady state.
    pub fn fresh_buffers(&self) -> usize {
        self.workspace.allocations()
    }

    /// The low-rank pairs (left, right) among the trained tensors.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let place = |param: model::Param| self.plan.place[param.index()];
        self.graph
            .pairs()
            .iter()
            .filter_map(|pair| Some((place(pair.left)?, place(pair.right)?)))
            .collect()
    }

    /// The role of a trained tensor, from the places where it enters.
    pub(crate) fn role(&self, k: usize) -> Role {
        if let Some((left, right)) =
            self.pairs().into_iter().find(|&(left, right)| left == k || right == k)
        {
            return if left == k { Role::Left(right) } else { Role::Right(left) };
        }
        let forms = &self.plan.gradient_forms[k];
        let logits = self.graph.logits();
        let is_head = |form: &GradientForm| matches!(form, GradientForm::Outer { gradient, .. } if gradient.0 == logits);
        if self.graph.param(self.plan.trained[k]).shape.len() < 2 {
            Role::Vector
        } else if forms.iter().any(|form| matches!(form, GradientForm::Lookup { .. })) {
            Role::Table
        } else if forms.iter().any(is_head) {
            Role::Head
        } else {
            Role::Hidden
        }
    }

    /// Refuses parameters of other shapes than the trained ones.
    pub(crate) fn check(&self, params: &Params) -> Result<(), Error> {
        let trained = &self.plan.trained;
        let mut pairs = trained.iter().zip(params.iter());
        let fits = pairs.all(|(&param, array)| self.graph.param(param).shape == array.shape());
        if params.len() == trained.len() && fits {
            Ok(())
        } else {
            Err(Error::Params("the shapes are those of another model".into()))
        }
    }

    pub(crate) fn pass<'a>(&'a mut self, params: &'a Params, mode: Mode) -> Pass<'a> {
        Pass {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            at: params,
            frozen: &self.frozen,
            buffers: &mut self.buffers,
            workspace: &mut self.workspace,
            mode,
            cache: None,
        }
    }

    /// Packs the examples of a pass, in place of all that an earlier one, which may have ended in a
    /// panic, left behind.
    pub(crate) fn begin(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.observed = None;
        self.buffers.release(&mut self.workspace);
        self.batch.pack(&self.graph, self.reduction, examples)?;
        self.reserve()
    }

    /// Runs some layers forward.
    pub(crate) fn forward(&mut self, params: &Params, layers: Range<usize>, mode: Mode) {
        let mut pass = self.pass(params, mode);
        for index in layers {
            pass.layer(index).forward(index, &mut pass);
            pass.free_after_forward(index);
        }
    }

    /// Turns the logits into losses and, for training, into their own gradient.
    pub(crate) fn finish(&mut self, mode: Mode) {
        let logits = self.graph.logits();
        let mut data = std::mem::take(&mut self.buffers.values[logits.index()]);
        let mut rows = self.workspace.take(self.batch.targets.len());
        let classes = self.graph.classes();
        match mode {
            Mode::Training { .. } | Mode::SegmentInputs { .. } => {
                cross_entropy::backward(
                    classes,
                    &mut data,
                    &self.batch.targets,
                    &self.batch.target_weights,
                    &mut rows,
                );
                self.buffers.gradients.set(logits, data, &mut self.workspace);
            }
            Mode::Inference => {
                cross_entropy::forward(classes, &data, &self.batch.targets, &mut rows);
                self.workspace.give(data);
            }
        }
        self.losses.clear();
        let weights = &self.batch.target_weights;
        self.losses.extend(self.batch.target_offsets().windows(2).map(|pair| {
            // An absent target has weight 0 and must not turn an infinite loss into NaN.
            (pair[0]..pair[1])
                .filter(|&t| weights[t] != 0.0)
                .map(|t| f64::from(rows[t]) * f64::from(weights[t]))
                .sum::<f64>()
        }));
        self.workspace.give(rows);
    }

    /// Runs some layers backward.
    pub(crate) fn backward(&mut self, params: &Params, layers: Range<usize>) {
        let mut pass = self.pass(params, Mode::Training { start: 0 });
        for index in layers.rev() {
            let layer = pass.layer(index);
            if layer.outputs().iter().any(|&value| pass.plan.flows(value)) {
                layer.backward(index, &mut pass);
            }
            pass.free_after_backward(index);
        }
    }

    /// Runs forward and backward, all activations retained. After each layer
    /// `done(network, complete)` is called, where `complete` tells the trained parameters whose
    /// traces are complete: they have just been written and are still in cache.
    pub(crate) fn forward_backward(
        &mut self,
        params: &Params,
        mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool),
    ) {
        let (lowest, end) = (self.plan.lowest, self.graph.ops().len());
        self.forward(params, 0..end, Mode::Training { start: 0 });
        self.finish(Mode::Training { start: 0 });
        for index in (lowest..end).rev() {
            self.backward(params, index..index + 1);
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

    /// Adds the plain sums of some trained parameters.
    fn add_plain_sums(&mut self, which: impl Fn(usize) -> bool, sum: &mut Params) {
        let mut workspace = std::mem::take(&mut self.workspace);
        let traces = self.traces();
        for (k, sum) in sum.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            traces.add_plain(k, sum, &mut workspace);
        }
        self.workspace = workspace;
    }

    /// Computes the logits, row after row: for a language model of the tokens that carry a target,
    /// else of each example.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn logits(&mut self, params: &Params, examples: &[&Example]) -> Result<Vec<f32>, Error> {
        self.check(params)?;
        self.begin(examples)?;
        self.forward(params, 0..self.graph.ops().len(), Mode::Inference);
        let logits = std::mem::take(&mut self.buffers.values[self.graph.logits().index()]);
        self.buffers.release(&mut self.workspace);
        Ok(logits)
    }

    /// Adds the gradients of all examples to `sum`, unclipped and without norms: ordinary training.
    /// Returns the losses.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn plain_sum(
        &mut self,
        params: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<&[f64], Error> {
        self.check(params)?;
        self.check(sum)?;
        self.begin(examples)?;
        match self.activations {
            Activations::Retain => {
                self.forward_backward(params, |_, _| ());
                self.add_plain_sums(|_| true, sum);
            }
            Activations::Recompute => self.forward_backward_by_segment(params, |network, which| {
                network.add_plain_sums(which, sum);
            }),
        }
        self.buffers.release(&mut self.workspace);
        Ok(&self.losses)
    }

    /// Counts the floating-point operations of a training step on `examples`: products of the
    /// forward pass, and of the backward pass by the values and by the trained weights. What
    /// privacy adds is not counted.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn operations(&mut self, examples: &[&Example]) -> Result<f64, Error> {
        self.observed = None;
        self.batch.pack(&self.graph, self.reduction, examples)?;
        let shape = crate::layer::BatchShape { graph: &self.graph, batch: &self.batch };
        let mut total = 0.0;
        for op in self.graph.ops() {
            // The plan was made of these layers.
            let Ok(layer) = layer(op) else { continue };
            let flows = op.inputs().iter().any(|&value| self.plan.flows(value));
            let trained = op.params().iter().any(|&param| self.plan.trains(param));
            let without_params = op.params().is_empty();
            total += layer.operations(&shape)
                * (1.0
                    + f64::from(u8::from(flows)) * if without_params { 2.0 } else { 1.0 }
                    + f64::from(u8::from(trained)));
        }
        Ok(total)
    }
}
