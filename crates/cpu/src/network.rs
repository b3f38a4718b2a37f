//! A model on the CPU: graph, frozen parameters, buffers, forward and backward passes.

use crate::batch::Batch;
use crate::layer::layer;
use crate::loss;
use crate::pass::{Buffers, Mode, Pass};
use crate::plan::BackwardPlan;
use crate::rule::{GradientForm, Intermediates, NormMethod};
use engine::{Error, Example, Sum};
use model::{Activations, Device, Graph, Reduction, Space};
use protocol::{Blocks, Params, Role};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Array, Workspace};

/// The CPU as a device.
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

/// A model on the CPU, with per-example losses and gradient norms.
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
    /// Values by parameter; those of trained parameters are empty.
    pub(crate) frozen: Arc<Vec<Array>>,
    pub(crate) reduction: Reduction,
    pub(crate) method: NormMethod,
    pub(crate) activations: Activations,
    /// Largest number of bytes for which memory was available.
    pub(crate) reserved_bytes: usize,
    pub(crate) batch: Batch,
    pub(crate) buffers: Buffers,
    pub(crate) workspace: Workspace,
    /// The loaded parameters.
    pub(crate) params: Option<Params>,
    /// The sum, if one was started.
    pub(crate) sum: Option<Sum>,
    /// Clip blocks of the observed micro-batch, if it was not accumulated yet.
    pub(crate) observed: Option<Blocks>,
    /// Losses of the examples of the last pass.
    pub(crate) losses: Vec<f64>,
    /// Squared norms of the observed micro-batch, by example and block.
    pub(crate) squared_norms: Vec<f64>,
    /// Scratch space: squared norms of one parameter, by example.
    pub(crate) param_squares: Vec<f64>,
}

/// Buffers are not printed, because they contain data of examples.
impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl Network {
    /// Creates a network and returns it with its trained parameters.
    ///
    /// `values` has one array for each parameter of the graph. Those for which `trainable` returns
    /// true are returned; the others are frozen.
    ///
    /// # Errors
    /// If a value does not have the shape of its parameter, if the graph is invalid, or if the
    /// logits do not depend on a trained parameter.
    pub fn new(
        graph: Graph,
        mut values: Vec<Array>,
        trainable: impl Fn(&str) -> bool,
    ) -> Result<(Self, Params), model::Error> {
        let refuse = |reason: String| Err(model::Error::Graph(reason));
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
        Ok((
            Self::from_parts(Arc::new(graph), Arc::new(plan), Arc::new(values)),
            Params::new(params),
        ))
    }

    /// Creates another instance of the model, with separate buffers and shared frozen parameters.
    #[must_use]
    pub fn new_instance(&self) -> Self {
        let mut other =
            Self::from_parts(self.graph.clone(), self.plan.clone(), self.frozen.clone());
        other.reduction = self.reduction;
        other.method = self.method;
        other.activations = self.activations;
        other
    }

    fn from_parts(graph: Arc<Graph>, plan: Arc<BackwardPlan>, frozen: Arc<Vec<Array>>) -> Self {
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
            param_squares: Vec::new(),
        }
    }

    /// Sets how the losses of an example's targets are reduced to the example's loss.
    pub fn set_reduction(&mut self, reduction: Reduction) {
        self.reduction = reduction;
    }

    /// Sets how norms are computed. Results are the same up to rounding.
    pub fn set_norm_method(&mut self, method: NormMethod) {
        self.method = method;
    }

    /// Sets whether activations are retained or recomputed. Results are the same.
    pub fn set_activations(&mut self, activations: Activations) {
        // An observation retained activations for the previous setting.
        self.observed = None;
        self.activations = activations;
    }

    /// Returns the structure of the model.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the number of buffers allocated so far. It is constant after the first steps.
    pub fn allocated_buffers(&self) -> usize {
        self.workspace.allocations()
    }

    /// Returns the low-rank pairs (left, right), as indices of trained tensors.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let trained = |param: model::Param| self.plan.trained_index[param.index()];
        self.graph
            .adapters()
            .iter()
            .filter_map(|adapter| Some((trained(adapter.left)?, trained(adapter.right)?)))
            .collect()
    }

    /// Returns the role of a trained tensor, which follows from its uses in the graph.
    pub(crate) fn role(&self, k: usize) -> Role {
        if let Some((left, right)) =
            self.pairs().into_iter().find(|&(left, right)| left == k || right == k)
        {
            return if left == k { Role::Left(right) } else { Role::Right(left) };
        }
        let forms = &self.plan.gradient_forms[k];
        let logits = self.graph.logits();
        let is_head = |form: &GradientForm| match form {
            GradientForm::Outer { gradient, .. } => gradient.0 == logits,
            _ => false,
        };
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

    /// Checks that parameters have the shapes of the trained ones.
    pub(crate) fn check(&self, params: &Params) -> Result<(), Error> {
        let trained = &self.plan.trained;
        if params.len() != trained.len() {
            return Err(Error::Params(format!(
                "expected {} tensors, got {}",
                trained.len(),
                params.len()
            )));
        }
        for (&param, array) in trained.iter().zip(params.iter()) {
            let spec = self.graph.param(param);
            if spec.shape != array.shape() {
                return Err(Error::Params(format!(
                    "{}: expected shape {:?}, got {:?}",
                    spec.name,
                    spec.shape,
                    array.shape()
                )));
            }
        }
        Ok(())
    }

    /// Returns the context of a pass over the packed micro-batch.
    pub(crate) fn pass<'a>(&'a mut self, params: &'a Params, mode: Mode) -> Pass<'a> {
        Pass {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            params,
            frozen: &self.frozen,
            buffers: &mut self.buffers,
            workspace: &mut self.workspace,
            mode,
            cache: None,
        }
    }

    /// Packs the examples of a pass.
    ///
    /// It first releases all buffers of an earlier pass, which may have ended in a panic.
    pub(crate) fn begin(&mut self, examples: &[&Example]) -> Result<(), Error> {
        self.observed = None;
        self.buffers.release(&mut self.workspace);
        self.batch.pack(&self.graph, self.reduction, examples)?;
        self.reserve()
    }

    /// Runs the forward pass of some layers.
    pub(crate) fn forward(&mut self, params: &Params, layers: Range<usize>, mode: Mode) {
        let mut pass = self.pass(params, mode);
        for index in layers {
            pass.layer(index).forward(index, &mut pass);
            pass.free_after_forward(index);
        }
    }

    /// Computes the losses from the logits and, for training, replaces the logits by their
    /// gradient.
    pub(crate) fn compute_losses(&mut self, mode: Mode) {
        let logits = self.graph.logits();
        let mut data = std::mem::take(&mut self.buffers.values[logits.index()]);
        let mut rows = self.workspace.take(self.batch.target_weights.len());
        match mode {
            Mode::Training { .. } | Mode::SegmentInputs { .. } => {
                loss::backward(&self.graph, &self.batch, &mut data, &mut rows);
                self.buffers.gradients.set(logits, data, &mut self.workspace);
            }
            Mode::Inference => {
                loss::forward(&self.graph, &self.batch, &data, &mut rows);
                self.workspace.give(data);
            }
        }
        self.losses.clear();
        let weights = &self.batch.target_weights;
        self.losses.extend((0..self.batch.examples()).map(|example| {
            // A target of weight 0 is skipped: 0 times an infinite loss would be NaN.
            self.batch
                .rows_of(Space::Targets, example)
                .filter(|&t| weights[t] != 0.0)
                .map(|t| f64::from(rows[t]) * f64::from(weights[t]))
                .sum::<f64>()
        }));
        self.workspace.give(rows);
    }

    /// Runs the backward pass of some layers.
    pub(crate) fn backward(&mut self, params: &Params, layers: Range<usize>) {
        let mut pass = self.pass(params, Mode::Training { start: 0 });
        for index in layers.rev() {
            let layer = pass.layer(index);
            if layer.outputs().iter().any(|&value| pass.plan.requires_gradient(value)) {
                layer.backward(index, &mut pass);
            }
            pass.free_after_backward(index);
        }
    }

    /// Runs the forward and backward pass with all activations retained.
    ///
    /// `done(network, is_complete)` is called when the intermediates of trained parameters are
    /// complete; `is_complete(k)` selects these parameters. Their data were just written and are
    /// still in the cache.
    pub(crate) fn forward_backward(
        &mut self,
        params: &Params,
        mut done: impl FnMut(&mut Self, &dyn Fn(usize) -> bool),
    ) {
        let (first, end) = (self.plan.first_layer, self.graph.ops().len());
        self.forward(params, 0..end, Mode::Training { start: 0 });
        self.compute_losses(Mode::Training { start: 0 });
        for index in (first..end).rev() {
            self.backward(params, index..index + 1);
            if self.plan.first_use.contains(&index) {
                let complete: Vec<bool> =
                    self.plan.first_use.iter().map(|&first| first == index).collect();
                done(self, &|k| complete[k]);
            }
        }
    }

    /// Returns the intermediates of the last backward pass.
    pub(crate) fn intermediates(&self) -> Intermediates<'_> {
        Intermediates {
            graph: &self.graph,
            plan: &self.plan,
            batch: &self.batch,
            buffers: &self.buffers,
            method: self.method,
        }
    }

    /// Adds the unweighted gradient sums of some trained parameters.
    fn add_plain_sums(&mut self, which: impl Fn(usize) -> bool, sum: &mut Params) {
        let mut workspace = std::mem::take(&mut self.workspace);
        let intermediates = self.intermediates();
        for (k, sum) in sum.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            intermediates.add_plain(k, sum, &mut workspace);
        }
        self.workspace = workspace;
    }

    /// Computes the logits, row-major.
    ///
    /// A language model has one row for each token that has a target, other models one row for each
    /// part of an example.
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

    /// Adds the unclipped gradients of all examples to `sum` and returns the losses.
    ///
    /// This is non-private training: no norms are computed.
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

    /// Counts the floating-point operations of a training step without privacy.
    ///
    /// Counts matrix products of the forward pass and, in the backward pass, those for gradients
    /// with respect to values and to trained weights.
    ///
    /// # Errors
    /// If an example does not fit the model.
    pub fn flops(&mut self, examples: &[&Example]) -> Result<f64, Error> {
        self.observed = None;
        self.batch.pack(&self.graph, self.reduction, examples)?;
        let shape = crate::layer::BatchShape { graph: &self.graph, batch: &self.batch };
        let mut total = 0.0;
        for op in self.graph.ops() {
            // The backward plan was computed from these layers, so there is no error.
            let Ok(layer) = layer(op) else { continue };
            let backward = op.inputs().iter().any(|&value| self.plan.requires_gradient(value));
            let trained = op.params().iter().any(|&param| self.plan.trains(param));
            let without_params = op.params().is_empty();
            total += layer.flops(&shape)
                * (1.0
                    + f64::from(u8::from(backward)) * if without_params { 2.0 } else { 1.0 }
                    + f64::from(u8::from(trained)));
        }
        Ok(total)
    }
}
