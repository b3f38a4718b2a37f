//! Implementations of [`Engine`] and [`model::Network`] for a model on the CPU.

use crate::decoder::Decoder;
use crate::network::Network;
use crate::pass::Mode;
use crate::probe_examples;
use crate::rule::GradientForm;
use engine::{CheckedQuery, Engine, Error, Example, Observed, Sum, SumPrecision, Weights};
use model::Space;
use model::op::Order;
use model::{Activations, Graph};
use protocol::{Blocks, Frame, Geometry, Params, Role, Trainable};
use std::borrow::Cow;
use tensor::Array;

impl Network {
    /// Returns the loaded parameters. The clone shares their memory.
    fn loaded_params(&self) -> Result<Params, Error> {
        self.params.clone().ok_or(Error::Order("no parameters are loaded"))
    }

    /// Adds the squared norms of some trained parameters, by example and block.
    ///
    /// In a tangent geometry, the squared norm of a low-rank pair is added with its left factor.
    fn add_squared_norms(
        &mut self,
        geometry: &Geometry,
        blocks: &Blocks,
        which: impl Fn(usize) -> bool,
    ) {
        let (examples, count) = (self.batch.examples(), blocks.count());
        let frames: &[Frame] = match geometry {
            Geometry::Tangent { frames } => frames,
            _ => &[],
        };
        let mut squared_norms = std::mem::take(&mut self.squared_norms);
        let mut squares = std::mem::take(&mut self.param_squares);
        let intermediates = self.intermediates();
        for k in (0..self.plan.trained.len()).filter(|&k| which(k)) {
            squares.clear();
            squares.resize(examples, 0.0);
            match frames.iter().find(|frame| frame.left == k) {
                Some(frame) => intermediates.add_tangent_norms(frame, &mut squares),
                None if frames.iter().any(|frame| frame.right == k) => {}
                None => intermediates.add_norms(geometry, k, &mut squares),
            }
            for (example, &square) in squares.iter().enumerate() {
                // Rounding can make a square negative. It must not reduce the norm of the block.
                // NaN is added.
                squared_norms[example * count + blocks.of(k)] +=
                    if square < 0.0 { 0.0 } else { square };
            }
        }
        (self.squared_norms, self.param_squares) = (squared_norms, squares);
    }

    /// Adds the weighted gradient sums of some trained parameters.
    ///
    /// Examples of weight 0 are not read.
    fn add_weighted_sums(
        &mut self,
        blocks: &Blocks,
        weights: &Weights,
        which: impl Fn(usize) -> bool,
        sum: &mut Sum,
    ) {
        let mut workspace = std::mem::take(&mut self.workspace);
        let intermediates = self.intermediates();
        for (k, sum) in sum.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            intermediates.add_weighted(k, weights.block(blocks.of(k)), sum, &mut workspace);
        }
        self.workspace = workspace;
    }
}

impl Engine for Network {
    fn trainable(&self) -> Vec<Trainable> {
        let describe = |(k, &param): (usize, &model::Param)| {
            let spec = self.graph.param(param);
            let tensor = Trainable::new(spec.name.clone(), spec.shape.clone(), self.role(k));
            let labels = self.graph.shape(self.graph.logits()).space == Space::Parts;
            let tensor = match tensor.role {
                Role::Head if labels => tensor.predicting_labels(),
                _ => tensor,
            };
            let is_transposed = |form: &GradientForm| {
                matches!(form, GradientForm::Outer { order: Order::InOut, .. })
            };
            let forms = &self.plan.gradient_forms[k];
            if forms.iter().any(is_transposed) { tensor.transposed() } else { tensor }
        };
        self.plan.trained.iter().enumerate().map(describe).collect()
    }

    fn probe_examples(&self) -> Vec<Example> {
        probe_examples::of(&self.graph)
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        self.observed = None;
        self.batch.pack(&self.graph, self.reduction, &[example])?;
        // An example of many parts may not fit. That must be known before anything is released.
        self.reserve()
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        self.check(params)?;
        self.observed = None;
        self.params = Some(params.clone());
        Ok(())
    }

    fn unload(&mut self) {
        (self.params, self.observed, self.sum) = (None, None, None);
        self.buffers.release(&mut self.workspace);
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        let params = self.loaded_params()?;
        self.begin(examples)?;
        self.forward(&params, 0..self.graph.ops().len(), Mode::Inference);
        self.compute_losses(Mode::Inference);
        self.buffers.release(&mut self.workspace);
        Ok(self.losses.clone())
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        if let Some(sum) = self.sum.as_mut().filter(|sum| precision.fits(sum)) {
            sum.clear();
            return Ok(());
        }
        let trained = &self.plan.trained;
        let elements = trained.iter().map(|&param| self.graph.param(param).shape.iter().product());
        let sum = precision.zeros(elements);
        self.sum = Some(sum.ok_or(Error::Order("expected a grid for each trained tensor"))?);
        Ok(())
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let params = self.loaded_params()?;
        let (geometry, blocks) = (query.geometry(), query.blocks());
        self.begin(examples)?;
        self.squared_norms.clear();
        self.squared_norms.resize(self.batch.examples() * blocks.count(), 0.0);
        match self.activations {
            Activations::Retain => self.forward_backward(&params, |network, which| {
                network.add_squared_norms(geometry, blocks, which);
            }),
            Activations::Recompute => {
                self.forward_backward_by_segment(&params, |network, which| {
                    network.add_squared_norms(geometry, blocks, which);
                });
            }
        }
        self.observed = Some(blocks.clone());
        Ok(Observed::new(self.losses.clone(), self.squared_norms.clone(), blocks.count()))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        let params = self.loaded_params()?;
        let blocks = self.observed.take().ok_or(Error::Order("no micro-batch was observed"))?;
        if weights.examples() != self.batch.examples() || weights.blocks() != blocks.count() {
            return Err(Error::Order("the weights are those of another micro-batch"));
        }
        let mut sum = self.sum.take().ok_or(Error::Order("no sum was started"))?;
        match self.activations {
            Activations::Retain => self.add_weighted_sums(&blocks, weights, |_| true, &mut sum),
            Activations::Recompute => {
                self.forward_backward_by_segment(&params, |network, which| {
                    network.add_weighted_sums(&blocks, weights, which, &mut sum);
                });
            }
        }
        self.sum = Some(sum);
        self.buffers.release(&mut self.workspace);
        Ok(())
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        self.sum.take().ok_or(Error::Order("no sum was started"))
    }

    fn roundings(&self) -> Vec<usize> {
        // All uses of a vector are added before it is rounded.
        let count = |forms: &Vec<GradientForm>| match forms.first() {
            Some(GradientForm::Vector) => 1,
            _ => forms.len().max(1),
        };
        self.plan.gradient_forms.iter().map(count).collect()
    }
}

impl model::Network for Network {
    fn graph(&self) -> &Graph {
        Self::graph(self)
    }

    fn new_instance(&self) -> Box<dyn model::Network> {
        Box::new(Self::new_instance(self))
    }

    fn set_activations(&mut self, activations: Activations) {
        Self::set_activations(self, activations);
    }

    fn tensors<'a>(&'a self, params: &'a Params) -> Vec<(&'a str, Cow<'a, Array>)> {
        let tensor = |(index, spec): (usize, &'a model::ParamSpec)| {
            let array = match self.plan.trained_index[index] {
                Some(k) => &params[k],
                None => &self.frozen[index],
            };
            (spec.name.as_str(), Cow::Borrowed(array))
        };
        self.graph.params().iter().enumerate().map(tensor).collect()
    }

    fn logits(&mut self, params: &Params, examples: &[&Example]) -> Result<Vec<f32>, Error> {
        Self::logits(self, params, examples)
    }

    fn decoder<'a>(
        &'a mut self,
        params: &'a Params,
    ) -> Result<Box<dyn model::Decoder + 'a>, Error> {
        Ok(Box::new(Decoder::new(self, params)?))
    }

    fn plain_sum(
        &mut self,
        params: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<Vec<f64>, Error> {
        Self::plain_sum(self, params, examples, sum).map(<[f64]>::to_vec)
    }

    fn flops(&mut self, examples: &[&Example]) -> Result<f64, Error> {
        Self::flops(self, examples)
    }
}
