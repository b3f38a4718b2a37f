//! Models on a device: evaluation, decoding and the tensors of a checkpoint.

use crate::{Error, Graph};
use engine::{Engine, Example};
use protocol::Params;
use std::borrow::Cow;
use tensor::Array;

/// A model on a device: trained through [`Engine`], evaluated and saved through this trait.
pub trait Network: Engine + std::fmt::Debug + Send {
    /// Returns the structure of the model.
    fn graph(&self) -> &Graph;

    /// Creates another instance of the model, with separate buffers and shared frozen parameters.
    fn new_instance(&self) -> Box<dyn Network>;

    /// Sets whether activations are retained or recomputed. Results are the same.
    fn set_activations(&mut self, activations: Activations);

    /// Returns all tensors of a checkpoint by name, the trained ones from `params`.
    fn tensors<'a>(&'a self, params: &'a Params) -> Vec<(&'a str, Cow<'a, Array>)>;

    /// Computes the logits, row-major.
    ///
    /// A language model has one row for each token that has a target, other models one row for each
    /// example.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn logits(&mut self, params: &Params, examples: &[&Example])
    -> Result<Vec<f32>, engine::Error>;

    /// Returns a decoder, which generates tokens one at a time.
    ///
    /// # Errors
    /// If the model is not a causal language model.
    fn decoder<'a>(
        &'a mut self,
        params: &'a Params,
    ) -> Result<Box<dyn Decoder + 'a>, engine::Error>;

    /// Adds the unclipped gradients of all examples to `sum` and returns the losses.
    ///
    /// This is non-private training: no norms are computed.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn plain_sum(
        &mut self,
        params: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<Vec<f64>, engine::Error>;

    /// Counts the floating-point operations of a training step without privacy.
    ///
    /// Counts matrix products of the forward pass and, in the backward pass, those for gradients
    /// with respect to values and to trained weights.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn flops(&mut self, examples: &[&Example]) -> Result<f64, engine::Error>;
}

impl<N: Network + ?Sized> Network for Box<N> {
    fn graph(&self) -> &Graph {
        (**self).graph()
    }

    fn new_instance(&self) -> Box<dyn Network> {
        (**self).new_instance()
    }

    fn set_activations(&mut self, activations: Activations) {
        (**self).set_activations(activations);
    }

    fn tensors<'a>(&'a self, params: &'a Params) -> Vec<(&'a str, Cow<'a, Array>)> {
        (**self).tensors(params)
    }

    fn logits(
        &mut self,
        params: &Params,
        examples: &[&Example],
    ) -> Result<Vec<f32>, engine::Error> {
        (**self).logits(params, examples)
    }

    fn decoder<'a>(
        &'a mut self,
        params: &'a Params,
    ) -> Result<Box<dyn Decoder + 'a>, engine::Error> {
        (**self).decoder(params)
    }

    fn plain_sum(
        &mut self,
        params: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<Vec<f64>, engine::Error> {
        (**self).plain_sum(params, examples, sum)
    }

    fn flops(&mut self, examples: &[&Example]) -> Result<f64, engine::Error> {
        (**self).flops(examples)
    }
}

/// Decodes a batch of texts one token at a time, with cached keys and values.
pub trait Decoder {
    /// Returns the size of the vocabulary.
    fn vocab(&self) -> usize;

    /// Returns the largest number of tokens of a text.
    fn max_length(&self) -> usize;

    /// Returns the current lengths of the texts.
    fn lengths(&self) -> &[usize];

    /// Replaces all texts and returns the logits of each text's next token, row-major.
    ///
    /// # Errors
    /// If a text is empty, too long, or has a token outside the vocabulary.
    fn start(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, engine::Error>;

    /// Replaces text i by text `parents[i]` followed by `tokens[i]`.
    ///
    /// Returns the logits of each text's next token, row-major.
    ///
    /// # Errors
    /// As for [`start`](Self::start), or if a parent does not exist.
    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<Vec<f32>, engine::Error>;
}

/// A device that computes models.
pub trait Device {
    /// Returns the name of the device, such as `cpu`.
    fn name(&self) -> &str;

    /// Loads a model onto the device and returns it with its trained parameters.
    ///
    /// `values` has one array for each parameter of the graph. Those for which `trainable` returns
    /// true are returned; the others are frozen and stay on the device.
    ///
    /// # Errors
    /// If a value does not have the shape of its parameter, if the logits do not depend on a
    /// trained parameter, or if the device does not support an operation of the graph.
    fn network(
        &self,
        graph: Graph,
        values: Vec<Array>,
        trainable: &dyn Fn(&str) -> bool,
    ) -> Result<(Box<dyn Network>, Params), Error>;
}

/// Which activations are retained between the forward and the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activations {
    /// All activations that the backward pass needs. This is the fastest mode.
    #[default]
    Retain,
    /// Only the inputs of each segment; other activations are recomputed.
    ///
    /// This mode is slower and needs a fraction of the memory.
    Recompute,
}
