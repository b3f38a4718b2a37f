//! Layers: how each operation of a graph is computed, and in which form its parameters' per-example
//! gradients come.
//!
//! To add a built-in layer: an operation in `model::op` and a file here that implements [`Layer`] for
//! it. To add one from outside: a type that implements [`Operation`] and [`Layer`], wrapped by
//! [`custom`].

mod add;
mod attention;
pub(crate) mod embedding;
mod group_norm;
mod linear;
mod norm;
mod patches;
mod pooling;
mod rope;
mod rows;
mod swiglu;

use crate::batch::Batch;
use crate::pass::Pass;
use crate::rule::GradientForm;
use model::op::{Op, Operation};
use model::{Error, Graph, Param, Value};
use std::any::Any;
use std::sync::Arc;

/// How an operation is computed on the CPU.
///
/// # Claim
/// Implementations keep examples apart: the rows of an example in every output and gradient are
/// functions of that example's rows and the parameters alone, in the same bits whatever other
/// examples the pass holds. The probe tests it with made-up examples.
///
/// ```
/// use cpu::{Layer, Network, OutputMode, Pass};
/// use model::op::Operation;
/// use model::{Builder, Linear, Space, Value};
///
/// /// y = 2x
/// #[derive(Debug)]
/// struct Double {
///     x: Value,
///     y: Value,
/// }
///
/// impl Operation for Double {
///     fn inputs(&self) -> Vec<Value> {
///         vec![self.x]
///     }
///     fn outputs(&self) -> Vec<Value> {
///         vec![self.y]
///     }
///     fn params(&self) -> Vec<model::Param> {
///         Vec::new()
///     }
/// }
///
/// impl Layer for Double {
///     fn forward(&self, _: usize, pass: &mut Pass<'_>) {
///         let mut y = pass.alloc(self.y);
///         y.iter_mut().zip(pass.value(self.x)).for_each(|(y, x)| *y = 2.0 * x);
///         pass.set_value(self.y, y);
///     }
///     fn backward(&self, _: usize, pass: &mut Pass<'_>) {
///         let Some(dy) = pass.gradient(self.y) else { return };
///         pass.add_gradient(self.x, |_, dx, mode| {
///             for (dx, dy) in dx.iter_mut().zip(dy.iter()) {
///                 *dx = 2.0 * dy + if mode == OutputMode::Overwrite { 0.0 } else { *dx };
///             }
///         });
///     }
/// }
///
/// let mut build = Builder::features(3);
/// let x = build.input();
/// let x = build.linear(x, Linear::new("hidden", 3, 4));
/// let y = build.custom_value(Space::Examples, 4);
/// build.custom(cpu::custom(Double { x, y }));
/// let logits = build.linear(y, Linear::new("head", 4, 2));
/// let graph = build.finish(logits);
/// let values = graph.init(0)?;
/// let (_network, params) = Network::new(graph, values, |_| true)?;
/// assert_eq!(params.len(), 4);
/// # Ok::<(), model::Error>(())
/// ```
pub trait Layer: Operation {
    /// How the per-example gradients of its parameters are formed, one entry for each place where a
    /// parameter enters.
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        Vec::new()
    }

    /// Values that its backward pass reads, beside those that [`Layer::gradient_forms`] names.
    fn saved_values(&self) -> Vec<Value> {
        Vec::new()
    }

    /// Computes the outputs. `index` is its place among the operations of the graph.
    fn forward(&self, index: usize, pass: &mut Pass<'_>);

    /// Adds to the gradients by its inputs, from the gradients by its outputs.
    fn backward(&self, index: usize, pass: &mut Pass<'_>);

    /// Floating-point operations of the forward pass; the backward pass by the inputs costs as many
    /// again, and so does the one by the weights.
    fn operations(&self, batch: &BatchShape<'_>) -> f64 {
        let _ = batch;
        0.0
    }
}

/// Shapes of the values of a micro-batch.
#[derive(Clone, Copy)]
pub struct BatchShape<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) batch: &'a Batch,
}

impl<'a> BatchShape<'a> {
    /// Where each example's rows of a value begin, and where the last one's end.
    pub fn offsets(&self, value: Value) -> &'a [usize] {
        self.batch.offsets(self.graph.shape(value).space)
    }

    /// Number of rows of a value.
    pub fn rows(&self, value: Value) -> usize {
        self.batch.rows(self.graph.shape(value).space)
    }

    /// Number of columns of a value.
    pub fn width(&self, value: Value) -> usize {
        self.graph.shape(value).width
    }
}

/// A layer from outside this crate, as an operation of a graph.
#[derive(Debug)]
struct Custom(Box<dyn Layer>);

impl Operation for Custom {
    fn inputs(&self) -> Vec<Value> {
        self.0.inputs()
    }

    fn outputs(&self) -> Vec<Value> {
        self.0.outputs()
    }

    fn params(&self) -> Vec<Param> {
        self.0.params()
    }

    fn overwrites(&self) -> Option<Value> {
        self.0.overwrites()
    }

    fn is_causal(&self) -> bool {
        self.0.is_causal()
    }
}

/// Makes a layer from outside this crate an operation for [`model::Builder::custom`].
pub fn custom(layer: impl Layer) -> Arc<dyn Operation> {
    Arc::new(Custom(Box::new(layer)))
}

/// The layer that computes an operation.
///
/// # Errors
/// If this crate does not know the operation.
pub(crate) fn layer(op: &Op) -> Result<&dyn Layer, Error> {
    Ok(match op {
        Op::Add(op) => op,
        Op::Attention(op) => op,
        Op::Embedding(op) => op,
        Op::FirstToken(op) => op,
        Op::GroupNorm(op) => op,
        Op::Linear(op) => op,
        Op::MeanRows(op) => op,
        Op::Norm(op) => op,
        Op::Patches(op) => op,
        Op::Pool(op) => op,
        Op::Reshape(op) => op,
        Op::Rope(op) => op,
        Op::SwiGlu(op) => op,
        Op::TargetRows(op) => op,
        Op::Custom(op) => {
            let any: &dyn Any = op.as_ref();
            let custom = any.downcast_ref::<Custom>().ok_or_else(|| {
                Error::Graph(format!("{op:?}: the CPU engine has no layer for this operation"))
            })?;
            custom.0.as_ref()
        }
    })
}
