//! Layers: the computation of each operation, and the form of its per-example gradients.
//!
//! A built-in layer is an operation in `model::op` with an implementation of [`Layer`] in this
//! module. A custom layer is a type that implements [`Operation`] and [`Layer`], wrapped by
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

/// The computation of an operation on the CPU.
///
/// # Claim
/// Implementations isolate examples: the rows of an example in every output and gradient depend
/// only on that example's rows and on the parameters, and are bitwise the same for all other
/// examples of the pass. The probe tests this with synthetic examples.
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
/// let y = build.custom_value(Space::Parts, 4);
/// build.custom(cpu::custom(Double { x, y }));
/// let logits = build.linear(y, Linear::new("head", 4, 2));
/// let graph = build.finish(logits);
/// let values = graph.init(0)?;
/// let (_network, params) = Network::new(graph, values, |_| true)?;
/// assert_eq!(params.len(), 4);
/// # Ok::<(), model::Error>(())
/// ```
pub trait Layer: Operation {
    /// Returns the forms of per-example gradients, one for each use of a parameter.
    fn gradient_forms(&self) -> Vec<(Param, GradientForm)> {
        Vec::new()
    }

    /// Returns the values that the backward pass reads, besides those of [`Layer::gradient_forms`].
    fn saved_values(&self) -> Vec<Value> {
        Vec::new()
    }

    /// Computes the outputs. `index` is the index of the operation in the graph.
    fn forward(&self, index: usize, pass: &mut Pass<'_>);

    /// Adds to the gradients with respect to the inputs, given those with respect to the outputs.
    fn backward(&self, index: usize, pass: &mut Pass<'_>);

    /// Counts the floating-point operations of the forward pass.
    ///
    /// The gradients with respect to the inputs and to the weights cost as many each.
    fn flops(&self, batch: &BatchShape<'_>) -> f64 {
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
    /// Returns the first row of each part in a value, and the number of all rows at the end.
    pub fn offsets(&self, value: Value) -> &'a [usize] {
        self.batch.offsets(self.graph.shape(value).space)
    }

    /// Returns the number of rows of a value.
    pub fn rows(&self, value: Value) -> usize {
        self.batch.rows(self.graph.shape(value).space)
    }

    /// Returns the number of columns of a value.
    pub fn width(&self, value: Value) -> usize {
        self.graph.shape(value).width
    }
}

/// A custom layer as an operation of a graph.
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

/// Wraps a custom layer as an operation for [`model::Builder::custom`].
pub fn custom(layer: impl Layer) -> Arc<dyn Operation> {
    Arc::new(Custom(Box::new(layer)))
}

/// Returns the layer that computes an operation.
///
/// # Errors
/// If the CPU engine has no layer for the operation.
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
