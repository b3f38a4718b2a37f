//! What a model on a device can do beyond being trained.

use crate::{Error, Graph};
use engine::{Engine, Example};
use protocol::Params;
use std::borrow::Cow;
use tensor::Array;

/// A model on a device: trained through [`Engine`], evaluated and saved through this trait.
pub trait Network: Engine + std::fmt::Debug + Send {
    /// The model.
    fn graph(&self) -> &Graph;

    /// Another instance of the same model, with buffers of its own. Frozen parameters are shared;
    /// what one instance computes on does not reach the other.
    fn new_instance(&self) -> Box<dyn Network>;

    /// Sets whether activations are retained or recomputed. No result depends on it.
    fn set_activations(&mut self, activations: Activations);

    /// All tensors by name, the trained ones from `params`: what a checkpoint holds.
    fn tensors<'a>(&'a self, params: &'a Params) -> Vec<(&'a str, Cow<'a, Array>)>;

    /// Computes the logits, row after row: for a language model of the tokens that carry a target,
    /// else of each example.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn logits(&mut self, params: &Params, examples: &[&Example])
    -> Result<Vec<f32>, engine::Error>;

    /// Starts decoding texts token by token.
    ///
    /// # Errors
    /// If it is not a causal language model.
    fn decoder<'a>(
        &'a mut self,
        params: &'a Params,
    ) -> Result<Box<dyn Decoder + 'a>, engine::Error>;

    /// Adds the gradients of all examples to `sum`, unclipped and without norms, as ordinary
    /// training does. Returns the losses.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn plain_sum(
        &mut self,
        params: &Params,
        examples: &[&Example],
        sum: &mut Params,
    ) -> Result<Vec<f64>, engine::Error>;

    /// Counts the floating-point operations of a training step, as is usual: products of the
    /// forward pass, and of the backward pass by values and by trained weights.
    ///
    /// # Errors
    /// If an example does not fit the model.
    fn operations(&mut self, examples: &[&Example]) -> Result<f64, engine::Error>;
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

    fn operations(&mut self, examples: &[&Example]) -> Result<f64, engine::Error> {
        (**self).operations(examples)
    }
}

/// Decodes several texts token by token; keys and values of earlier tokens are cached.
pub trait Decoder {
    /// Size of the vocabulary.
    fn vocab(&self) -> usize;

    /// The most tokens a text can have.
    fn longest(&self) -> usize;

    /// Lengths of the texts so far.
    fn lengths(&self) -> &[usize];

    /// Starts texts, in place of earlier ones. Returns for each the logits of the next token, row
    /// after row.
    ///
    /// # Errors
    /// If a text is empty, too long, or has a token outside the vocabulary.
    fn start(&mut self, texts: &[&[u32]]) -> Result<Vec<f32>, engine::Error>;

    /// Text i becomes a copy of what text `parents[i]` was, followed by `tokens[i]`. Returns for
    /// each the logits of the next token.
    ///
    /// # Errors
    /// As [`start`](Self::start), or if a parent does not exist.
    fn advance(&mut self, parents: &[usize], tokens: &[u32]) -> Result<Vec<f32>, engine::Error>;
}

/// Puts models on a device.
pub trait Device {
    /// Its name, such as `cpu`.
    fn name(&self) -> &str;

    /// Splits `values`, one for each parameter of the graph, into trained ones, which are returned,
    /// and frozen ones, which stay on the device.
    ///
    /// # Errors
    /// If a value has another shape than its parameter, if no gradient reaches a trained parameter,
    /// or if the device does not know an operation of the graph.
    fn network(
        &self,
        graph: Graph,
        values: Vec<Array>,
        trainable: &dyn Fn(&str) -> bool,
    ) -> Result<(Box<dyn Network>, Params), Error>;
}

/// What is retained between the forward and the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Activations {
    /// All activations that the backward pass needs: the fastest.
    #[default]
    Retain,
    /// Only the inputs of each segment of operations; other activations are recomputed. Slower, in
    /// a fraction of the memory.
    Recompute,
}
